"""Nothing that a script says is obeyed by what shows our output: terminal, log of GitHub, Markdown, SARIF."""

import html
import json
import re
import shlex

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from trinity_compat.audit import FORMATS
from trinity_compat.cli import main
from trinity_compat.common.output_text import markdown, markdown_code, markdown_row, plain, sarif
from trinity_compat.launch import read_text
from trinity_compat.translate.verl_script import _in_shell
from trinity_compat.trinity.config import dump

OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e0fff]"
    r"|(?m:^[^\S\n]*::)|##\["
)
PIECES = (
    *("a", " ", "\n", "\r", "\r\n", "::error file=a::m", "##[error]m", "\x1b]0;m\x07", "\x1b[2J", "\x9b31m"),
    *("\x7f", "\u202e", "\u2028", "\x85", "\U000e0041", "`", "``", "```", "<!--", "-->", "@everyone"),
    *("[x](http://e)", "![x](e)", "<img src=x>", "|", "\\", "\\|", "**b**", "_i_", "~~s~~", "$m$"),
    *("https://evil.example", "www.evil.example", "#1", "a@b.example", "&lt;", "&#64;x", "]", "{0}"),
    *("=HYPERLINK(1)", "\t", "- ", "# ", "é"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
MANY = settings(max_examples=400, deadline=None)
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
BLOCKS = {"paragraph", "inline", "heading", "bullet_list", "list_item"}
BLOCKS |= {"table", "thead", "tbody", "tr", "th", "td"}
SPANS = {"text", "text_special", "code_inline", "strong_open", "strong_close", "softbreak", "hardbreak"}
# What GitHub makes of words by itself, which the parser does not.
LIVE = re.compile(r"@\w|https?://|www\.|#\d|\bgh-\d", re.I)


@MANY
@given(TEXTS)
def test_plain_text_has_nothing_that_is_obeyed(text):
    assert not OBEYED.search(plain(text))
    assert plain(plain(text)) == plain(text)


@MANY
@given(TEXTS)
def test_json_and_yaml_give_the_same_value_back(text):
    data = {"k": text, text: [text]}
    for ascii_only in (True, False):
        assert json.loads(plain(json.dumps(data, indent=1, ensure_ascii=ascii_only))) == data
    written = dump(data, {"k": text}, header=[text])
    assert yaml.safe_load(written) == data
    assert plain(written) == written


@MANY
@given(TEXTS.filter(lambda text: "\0" not in text))
def test_a_script_that_is_written_gives_the_same_value_back(text):
    word = _in_shell(f"+a={text}", [])
    assert plain(word) == word
    [launch] = read_text(f"python3 -m verl.trainer.main_ppo {word}\n", name="x").launches
    assert [each.text for each in launch.arguments] == [f"+a={text}"]


@MANY
@given(TEXTS, TEXTS)
def test_a_table_s_cells_stay_words_and_code(words, code):
    table = "\n".join(
        [
            markdown_row(["A", "B", "C"]),
            "|---|---|---|",
            markdown_row([markdown(words), markdown_code(code), "end"]),
        ]
    )
    cells = [token for token in PARSER.parse(table) if token.type == "inline"]
    assert [cell.content for cell in cells[:3]] == ["A", "B", "C"]
    assert len(cells) == 6
    check_inline(cells[3])
    [span] = cells[4].children
    assert span.type == "code_inline"
    assert cells[5].content == "end"


def check_markdown(text):
    """Nothing but what the report itself writes: no link, no tag, no mention outside a code span."""
    for token in PARSER.parse(text):
        assert token.type.removesuffix("_open").removesuffix("_close") in BLOCKS, token
        if token.type == "inline":
            check_inline(token)


def check_inline(token):
    for child in token.children:
        assert child.type in SPANS, child
        if child.type == "text":
            assert not LIVE.search(child.content), child.content
    joined = "".join(child.content if child.type != "code_inline" else "\0" for child in token.children)
    assert not LIVE.search(joined), joined


@MANY
@given(TEXTS)
def test_a_message_of_sarif_has_no_link(text):
    assert not re.search(r"(?<!\\)\[[^\[\]]*\]\(", sarif(text))


EVIL = (
    "a\x1b]0;T\x07\x1b[2J",
    "x\n::error file=a::m",
    "x\r##[error]m\u2028::m",
    "\u202e@everyone\x9b1m",
    "x` @everyone <!-- [x](http://e) ``y``` |`",
    "<img src=x>\\|[x](javascript:1)",
    "=HYPERLINK(1)",
)


def bash(text):
    """The text as a word of a script, each character as it is."""
    return shlex.quote(text)


def hydra(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


MAIN = "python3 -m verl.trainer.main_ppo data.train_batch_size=8 "
KNOWN = ("project_name", "experiment_name", "default_local_dir", "device", "balance_batch", "logger")
# place in a launch → the script that has these texts there
PLACES = {
    "value": lambda evil: MAIN + words(f"+v.k{n}={hydra(text)}" for n, text in enumerate(evil)),
    "known value": lambda evil: (
        MAIN + words(f"trainer.{key}={hydra(text)}" for key, text in zip(KNOWN, evil, strict=False))
    ),
    "bare word": lambda evil: MAIN + words(f"+v={text}" for text in evil),
    "key": lambda evil: MAIN + words(f"+{text}=1" for text in evil),
    "variable": lambda evil: (
        lines(f"V{n}={bash(text)}" for n, text in enumerate(evil))
        + MAIN
        + " ".join(f'"trainer.project_name=$V{n}${{U{n}:-{text[:1]}}}"' for n, text in enumerate(evil))
    ),
    "exported": lambda evil: lines(f"export V{n}={bash(text)}" for n, text in enumerate(evil)) + MAIN,
    "comment": lambda evil: lines(f"# {text}" for text in evil) + MAIN,
    "function": lambda evil: lines(f"{text}() {{ {text}; }}\n{text}" for text in evil) + MAIN,
    "source": lambda evil: lines(f"source {bash(text)}\ncat {bash(text)}" for text in evil) + MAIN,
    "condition": lambda evil: lines(f"if [ -f {bash(text)} ]; then x; fi" for text in evil) + MAIN,
    "config name": lambda evil: lines(f"{MAIN} --config-name={bash(text)}" for text in evil),
    "config path": lambda evil: lines(f"{MAIN} --config-path={bash(text)}" for text in evil),
    "main": lambda evil: lines(f"python3 -m {bash(text + '.main_ppo')} a.b=1" for text in evil) + MAIN,
    "file": lambda evil: lines(f"python3 {bash(text + '/main_ppo.py')} a.b=1" for text in evil) + MAIN,
}


def words(texts):
    return " ".join(map(bash, texts))


def lines(texts):
    return "".join(f"{text}\n" for text in texts)


def commands(name):
    yield ["translate", name]
    yield ["translate", "--launch", "all", "--minimal", name]
    for form in ("text", "json"):
        yield ["parse", name, "--format", form]
        yield ["ignored", name, "--format", form]
    for form in FORMATS:
        yield ["audit", name, "--all", "--format", form]
    yield ["audit", name, "--quiet"]
    for form in ("text", "md", "json"):
        yield ["diff", "plain.sh", name, "--format", form]
    yield ["upgrade", name, "--check"]
    yield ["explain", name]


def run(capfdbinary, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, 1, 2)
    return tuple(stream.decode() for stream in capfdbinary.readouterr())


def check(capfdbinary, name):
    for words in commands(name):
        out, err = run(capfdbinary, words)
        for text in (out, err):
            if found := OBEYED.search(text):
                pytest.fail(f"{words}: {text[max(0, found.start() - 60) : found.end() + 60]!r}")
        if "md" in words and out:
            check_markdown(out)
        if "json" in words and out:
            json.loads(out)
        if "html" in words and out:
            assert "<img" not in out
        if words[0] == "translate" and out:
            assert list(yaml.safe_load_all(out))


@pytest.mark.parametrize("place", PLACES)
def test_no_command_passes_on_what_a_script_says(place, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.sh").write_text(MAIN)
    for name, evil in {"all.sh": EVIL, **{f"{n}.sh": (text,) for n, text in enumerate(EVIL)}}.items():
        (tmp_path / name).write_text(PLACES[place](evil))
        check(capfdbinary, name)


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_no_command_passes_on_the_name_of_a_file(evil, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.sh").write_text(MAIN)
    name = evil.replace("/", "_") + ".sh"
    (tmp_path / name).write_text(f"{MAIN} +unknown.key=1 data.shuffle=x\n")
    check(capfdbinary, name)
    check(capfdbinary, f"{name}.gone")


@pytest.mark.parametrize("form", ["text", "json", "md", "html"])
def test_compare_passes_on_no_name_of_a_metric(form, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    files = [f"{text}.jsonl".replace("/", "") for text in EVIL]  # the names of the runs are as hostile
    for level, file in enumerate(files, 1):
        rows = ({"step": step, "data": {f"{text}/m": level * step for text in EVIL}} for step in range(1, 9))
        (tmp_path / file).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out, err = run(capfdbinary, ["compare", *files, "--format", form])
    assert not OBEYED.search(out + err) and "error file=a" in out
    if form == "md":
        check_markdown(out)
    if form == "json":
        json.loads(out)
    if form == "html":
        assert "<img" not in out and "<!-- [x]" not in out


def test_parse_keeps_the_exact_values(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(PLACES["bare word"](EVIL))
    out, _ = run(capfdbinary, ["parse", "run.sh", "--format", "json"])
    [launch] = json.loads(out)["launches"]
    assert launch["args"][1:] == [f"+v={text}" for text in EVIL]


def test_a_terminal_gets_our_colours_and_no_other_escape(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(PLACES["value"](EVIL))
    monkeypatch.setattr("trinity_compat.common.output_text.is_terminal", lambda: True)
    out, _ = run(capfdbinary, ["audit", "run.sh"])
    assert "  \x1b[1mrun.sh:1\x1b[0m  " in out
    assert not OBEYED.search(re.sub(r"\x1b\[[0-9;]*m", "", out))
    assert "\x1b[2J" not in out


def test_the_error_of_an_unknown_option_is_plain(capfdbinary):
    _, err = run(capfdbinary, ["audit", "x.sh", "--\x1b[2J", "\n::error::m"])
    assert not OBEYED.search(err)
    assert html.unescape(err) == err


@pytest.mark.parametrize("key", [".".join("a" * 20_000), f"trainer.{'x' * 30_000}"])
@pytest.mark.parametrize("command", [["translate"], ["audit"], ["run", "--dry-run"], ["parse"]])
def test_a_message_about_a_key_of_thousands_of_characters_is_short(
    command, key, tmp_path, monkeypatch, capfdbinary
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"python3 -m verl.trainer.main_ppo {key}=1\n")
    _, error = run(capfdbinary, [*command, "run.sh"])
    assert len(error) < 3000
