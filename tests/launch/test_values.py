# ruff: noqa: E501
"""Values and their origin: what each operation keeps of a piece, and what becomes open."""

from __future__ import annotations

import pytest

from trinity_compat.common.errors import Where
from trinity_compat.common.limits import BudgetExceeded
from trinity_compat.launch import EnvRef, UnknownPiece, WordPart, read_text
from trinity_compat.launch.bash.branch_search import search
from trinity_compat.launch.bash.files import PathFacts
from trinity_compat.launch.bash.options import OptionSpec
from trinity_compat.launch.bash.traced_text import (
    TextPiece,
    derived,
    doubt_in,
    from_character,
    lines_of,
    literal,
    slice_value,
    strip_newlines,
    text_of,
    to_word,
)

MAIN = "python3 -m verl.trainer.main_ppo"
HERE, THERE = Where("f", 1), Where("f", 2)
UNKNOWN = UnknownPiece("$(cmd)", HERE)
PLAIN, OPEN, UNSET, GIVEN = TextPiece("abc", HERE), TextPiece("", HERE, UNKNOWN), TextPiece("", HERE, EnvRef("U")), TextPiece("xyz", THERE, EnvRef("G", "xyz"))  # fmt: skip


def shown(value):
    """Text and source of each piece: ``abc``, ``<$(cmd)>``, ``xyz<G>``."""
    names = [
        bit.source.name if isinstance(bit.source, EnvRef) else bit.source and bit.source.expression
        for bit in value
    ]
    return [bit.text + (f"<{name}>" if name else "") for bit, name in zip(value, names, strict=True)]


@pytest.mark.parametrize(
    ("value", "start", "stop", "expected"),
    [
        ((PLAIN, GIVEN), 0, 6, ["abc", "xyz<G>"]),
        ((PLAIN, GIVEN), 1, 6, ["bc", "xyz<G>"]),
        ((PLAIN, GIVEN), 3, 6, ["xyz<G>"]),
        ((PLAIN, GIVEN), 0, 3, ["abc"]),
        ((PLAIN, GIVEN), 2, 5, ["c", "xy"]),
        ((PLAIN, GIVEN), 4, 5, ["y"]),
        ((PLAIN, GIVEN), 6, 6, []),
        ((PLAIN, GIVEN), 2, 2, []),
        ((PLAIN, OPEN, GIVEN), 0, 3, ["abc", "<$(cmd)>"]),
        ((PLAIN, OPEN, GIVEN), 3, 6, ["<$(cmd)>", "xyz<G>"]),
        ((PLAIN, OPEN, GIVEN), 0, 2, ["ab"]),
        ((PLAIN, OPEN, GIVEN), 4, 6, ["yz"]),
        ((OPEN, PLAIN), 0, 1, ["<$(cmd)>", "a"]),
        ((OPEN, PLAIN), 1, 3, ["bc"]),
        ((TextPiece("pq", HERE, UNKNOWN),), 0, 1, ["p<$(cmd)>"]),
        ((TextPiece("pq", HERE, EnvRef("U")),), 1, 2, ["q<${U}>"]),
    ],
)
def test_a_slice_keeps_the_origin_of_what_is_whole(value, start, stop, expected):
    assert shown(slice_value(value, start, stop)) == expected


@pytest.mark.parametrize(
    ("value", "start", "expected"),
    [
        ((PLAIN, GIVEN), 0, ["abc", "xyz<G>"]),
        ((PLAIN, GIVEN), 1, ["bc", "xyz<G>"]),
        ((PLAIN, GIVEN), 3, ["xyz<G>"]),
        ((PLAIN, GIVEN), 4, ["yz<G>"]),
        ((PLAIN, GIVEN), 6, []),
        ((PLAIN, OPEN), 3, ["<$(cmd)>"]),
        ((PLAIN, OPEN, PLAIN), 3, ["<$(cmd)>", "abc"]),
        ((PLAIN, OPEN, PLAIN), 4, ["bc"]),
    ],
)
def test_the_rest_of_a_value(value, start, expected):
    assert shown(from_character(value, start)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((TextPiece("a\n\n", HERE),), ["a"]),
        ((PLAIN, TextPiece("\n", HERE), TextPiece("\n\n", HERE)), ["abc"]),
        ((PLAIN, TextPiece("\n", HERE), OPEN, TextPiece("\n", HERE)), ["abc", "\n", "<$(cmd)>"]),
        ((TextPiece("\n", HERE),), []),
        ((TextPiece("a\nb\n", HERE), PLAIN), ["a\nb\n", "abc"]),
    ],
)
def test_newlines_go_at_the_end_only(value, expected):
    assert shown(strip_newlines(value)) == expected


def test_neighbours_without_a_source_are_one_part():
    word = to_word((PLAIN, PLAIN, OPEN, TextPiece("", HERE), GIVEN, PLAIN), THERE)
    assert [(part.text, part.source) for part in word.parts] == [
        ("abcabc", None), ("", UNKNOWN), ("xyz", EnvRef("G", "xyz")), ("abc", None),
    ]  # fmt: skip
    assert (word.text, word.where, word.open, word.env_refs) == (
        "abcabcxyzabc",
        THERE,
        (UNKNOWN,),
        (EnvRef("G", "xyz"),),
    )


def test_doubt_is_the_first_part_that_is_not_settled():
    nested = TextPiece(
        "d", HERE, EnvRef("N", "d", (WordPart("d", EnvRef("M", "d", (WordPart("d", EnvRef("O")),))),))
    )
    unset = TextPiece("d", HERE, EnvRef("N", "d", to_word((PLAIN, UNSET), HERE).parts))
    given = TextPiece("d", HERE, EnvRef("N", "d", to_word((PLAIN, GIVEN), HERE).parts))
    found = [doubt_in([(PLAIN,), (one,)]) for one in (PLAIN, GIVEN, given, OPEN, UNSET, nested, unset)]
    assert found == [None, None, None, UNKNOWN, EnvRef("U"), EnvRef("O"), EnvRef("U")]
    assert derived("t", [(PLAIN, GIVEN)], "e", HERE) == literal("t", HERE)
    assert shown(derived("t", [(PLAIN,), (OPEN,)], "e", HERE)) == ["t<e>"]
    assert literal("", HERE) == ()


@pytest.mark.parametrize(
    ("text", "lines"), [("a\nb\n\nc", [("a\n", 1), ("b\n", 2), ("\n", 3), ("c", 4)]), ("a\r\nb\rc\n", [("a\r\n", 1), ("b\rc\n", 2)]), ("", []), ("a", [("a", 1)])]
)  # fmt: skip
def test_each_line_has_its_place(text, lines):
    assert [(bit.text, bit.where.line) for bit in lines_of(text, HERE)] == lines


OPTIONS = OptionSpec("ab", "v", "t", {"--all": "a", "--value": "v", "--time": "t"})


@pytest.mark.parametrize(
    ("line", "options", "operands"),
    [
        ("-a x -b y", {"a": [""], "b": [""]}, "x y"),
        ("-ab", {"a": [""], "b": [""]}, ""),
        ("-v 1 -v2 -av 3", {"v": ["1", "2", "3"], "a": [""]}, ""),
        ("-va", {"v": ["a"]}, ""),
        ("--all --value 1 --value=2 --value=", {"a": [""], "v": ["1", "2", ""]}, ""),
        ("-t -tx --time --time=y z", {"t": ["", "x", "", "y"]}, "z"),
        ("-a -- -b x", {"a": [""]}, "-b x"),
        ("- -a", {"a": [""]}, "-"),
        ("-x", None, None),
        ("-ax", None, None),
        ("--none", None, None),
        ("-v", None, None),
        ("-av", None, None),
        ("--value", None, None),
    ],
)
def test_options_are_read_as_getopt_reads_them(line, options, operands):
    given = OPTIONS.read([literal(word, HERE) for word in line.split()])
    if options is None:
        assert given is None
    else:
        assert given is not None
        assert (
            {k: [text_of(v) for v in vs] for k, vs in given.options.items()},
            " ".join(given.texts()),
        ) == (options, operands)


def test_options_of_a_program_that_runs_another_end_at_its_command():
    options = OptionSpec("a", "v", leading=True, lenient=True)
    given = options.read(
        [literal(word, HERE) for word in ["-a", "-z", "--other", "-v", "1", "cmd", "-a", "-v"]]
    )
    assert given is not None
    assert (given.texts(), sorted(given.options), given.text("v"), given.has("av"), given.has("q")) == (
        ["cmd", "-a", "-v"], ["a", "v", "z"], "1", True, False,
    )  # fmt: skip


def test_files_as_the_script_left_them(tmp_path):
    (tmp_path / "on_disk").write_text("é\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "on_disk")
    (tmp_path / "away").symlink_to("/etc/passwd")
    files, at = PathFacts((str(tmp_path),)), lambda name: f"{tmp_path}/{name}"
    kinds = {
        name: files.kind(at(name)) for name in ("on_disk", "folder", "link", "away", "none", "bad\0name")
    }
    assert kinds == {
        "on_disk": "file",
        "folder": "dir",
        "link": "file",
        "away": None,
        "none": "",
        "bad\0name": None,
    }
    assert (files.kind("/etc/passwd"), files.kind("/dev/null"), files.kind(str(tmp_path))) == (
        None,
        "other",
        "dir",
    )
    assert (
        not files.in_reach(f"{tmp_path}-beside")
        and files.in_reach(at("none/deep"))
        and not files.in_reach("a\0b")
    )
    assert files.size(at("on_disk")) == 3
    files.write(at("on_disk"), literal("ü", HERE), append=True)
    assert (text_of(files.read(at("on_disk")) or ()), files.size(at("on_disk"))) == ("é\nü", 5)
    files.write(at("made"), literal("m", HERE), append=False)
    files.made_dirs.add(at("new"))
    files.remove(at("on_disk"), UnknownPiece("rm on_disk", HERE))
    assert (
        files.kind(at("on_disk")),
        files.read(at("on_disk")),
        files.kind(at("made")),
        files.kind(at("new")),
    ) == ("", None, "file", "dir")
    assert files.children(str(tmp_path)) == ["away", "folder", "link", "made", "new"]
    files.write(at("on_disk"), (), append=True)
    assert (files.kind(at("on_disk")), files.read(at("on_disk")), files.read("/dev/null")) == ("file", (), ())
    assert files.children(at("none")) == files.children("/etc") == []
    assert (files.read("/etc/hostname"), files.read(at("folder")), files.read(at("none"))) == (
        None,
        None,
        None,
    )


def test_no_more_files_are_kept_than_a_launch_needs(tmp_path):
    files = PathFacts((str(tmp_path),))
    with pytest.raises(BudgetExceeded, match="the script writes too much"):
        files.write("/x", literal("y" * ((4 << 20) + 1), HERE), append=False)
    (tmp_path / "large").write_bytes(b"z" * (1 << 20))
    (tmp_path / "too_large").write_bytes(b"z" * ((1 << 20) + 1))
    assert files.read(str(tmp_path / "too_large")) is None
    assert files.read(str(tmp_path / "large")) is not None
    with pytest.raises(BudgetExceeded, match="too many files"):
        for _ in range(16):
            files.read(str(tmp_path / "large"))


def test_guesses_are_turned_from_the_last_until_one_reaches():
    tried = []

    def read(guesses):
        ways = tuple(guesses.turns(Where("f", line)) for line in (1, 2))
        tried.append(ways)
        return ways

    assert search(read, lambda ways: ways == (True, False)) == (True, False)
    assert tried == [(False, False), (False, True), (True, False)]
    tried.clear()
    assert search(read, lambda ways: False) == (False, False)
    assert tried == [(False, False), (False, True), (True, False), (True, True)]


def test_no_more_readings_than_sixteen():
    tried = []

    def read(guesses):
        tried.append([guesses.turns(Where("f", line)) for line in range(9)])

    search(read, lambda found: False)
    assert len(tried) == 16


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("${V#a/}", ["<${V#a/}>"]),
        ("$HOME/a/b", ["<HOME>", "/a/b"]),
        ("${P%/*}", ["<HOME>", "/models"]),
        ("${P##*/}", ["Q.tar"]),
        ("${P%.*}", ["<HOME>", "/models/Q"]),
        ("${P%%.*}", ["/models/Q<${P%%.*}>"]),
        ("${P#*/}", ["models/Q.tar<${P#*/}>"]),
        ("${P%x}", ["/models/Q.tar<${P%x}>"]),
        ("${P:0:3}", ["/mo<${P:0:3}>"]),
        ("${P^^}", ["/MODELS/Q.TAR<${P^^}>"]),
        ("${P/o/0}", ["/m0dels/Q.tar<${P/o/0}>"]),
        ("${#P}", ["13<${#P}>"]),
        ("${G%z}", ["xy"]),
        ("${G:1}", ["yz"]),
        ("${G}", ["xyz<G>"]),
        ("${G/y/}", ["xz"]),
        ("${G/q/}", ["xyz<G>"]),
        ("${G%q}", ["xyz<G>"]),
        ("${S:1:3}", ["ett"]),
        ("${E:-$S}", ["setting<E>"]),
        ("${E:-$HOME/x}", ["/x<E>"]),
        ("${E:+set}", []),
        ("${P:+set}", ["set"]),
        ("${P:-no}", ["<HOME>", "/models/Q.tar"]),
        ("$((N + 1))", ["1<$((N + 1))>"]),
        ("$((${N:-4} + 1))", ["5"]),
        ("$(cmd $P)", ["<$(cmd $P)>"]),
        ("$(echo $P)", ["<HOME>", "/models/Q.tar"]),
        ("$(basename $P)", ["Q.tar"]),
        ("$(dirname $P)", ["<HOME>", "/models"]),
        ("$(basename $P .tar)", ["Q"]),
        ("$(realpath /x/$HOME)", ["/x/", "<HOME>"]),
        ('$(realpath "$HOME")', ['<$(realpath "$HOME")>']),
        ("$(cat $P)", ["<$(cat $P)>"]),
        ("$(cat none)", ["<$(cat none)>"]),
        ("$(< none)", ["<$(< none)>"]),
        ("$(printf %s $P)", ["<HOME>", "/models/Q.tar"]),
        ('$(printf %5s "$HOME")', ["     <printf %5s>"]),
        ('$(printf %d "$N")', ["0<printf %d>"]),
        ("$(tr a b <<< $P)", ["/models/Q.tbr<$(tr a b <<< $P)>"]),
        ("$(expr $N + 1)", ["<$(expr $N + 1)>"]),
        ("$(pwd)/x", ["/w/x"]),
        ("$RANDOM", ["<$RANDOM>"]),
        ("$$", ["<$$>"]),
        ("$!", ["<$!>"]),
        ("${HOSTNAME}", ["<$HOSTNAME>"]),
        ("~user/x", ["<~user>", "/x"]),
        ("~/x", ["<HOME>", "/x"]),
        ("$(whoami)", ["<$(whoami)>"]),
        ("$(id -un)", ["<$(id -un)>"]),
        ("$(id)", ["<$(id)>"]),
        ("$(printenv NONE)", ["<$(printenv NONE)>"]),
        ("$(date -d 'next moon')", ["<$(date -d 'next moon')>"]),
        ("$(date a b)", ["<$(date a b)>"]),
        ("$(readlink x)", ["<$(readlink x)>"]),
        ("$(uname -a)", ["<$(uname -a)>"]),
        ("${A[@]}", []),
        ("${A[0]}", ["<A>"]),
        ("${S@Q}", ["<${S@Q}>"]),
        ("${!W}", ["<${!W}>"]),
        ("${!NAME}", ["setting"]),
        ("$BASH_VERSION", ["5.2.15(1)-release"]),
        ("$OSTYPE$UID$SHLVL", ["linux-gnu01"]),
        ("$(bash -c 'echo $PWD')", ["/w"]),
        ("@($S|b)", ["<@($S|b)>"]),
    ],
)
def test_what_a_word_keeps_of_its_origin(word, expected):
    script = f'P=$HOME/models/Q.tar; G=${{G:-xyz}}; S=setting; NAME=S\n{MAIN} "{word}"\n'
    if word[0] in "~@":
        script = script.replace(f'"{word}"', word)
    (launch,) = read_text(script, name="run.sh", cwd="/w").launches
    found = launch.arguments[0].parts if launch.arguments else ()
    assert shown([TextPiece(part.text, HERE, part.source) for part in found]) == expected


def test_a_pattern_of_what_not_to_match_is_sought_in_a_long_value():
    value = "b" * 200
    reading = read_text(f"shopt -s extglob\nx={value}\n{MAIN} a=${{x/!(c)z/-}}\n")
    assert (reading.diagnostics, [word.text for word in reading.launches[0].arguments]) == (
        (),
        [f"a={value}"],
    )


@pytest.mark.parametrize(
    "check",
    [
        "$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo cuda)",
        '$(python -c "import torch_npu" && echo npu || echo cuda)',
    ],
)
def test_a_search_for_ascend_devices_finds_none(check, tmp_path):
    script = f'DEVICE={check}\nif [ "$DEVICE" = npu ]; then GPUS=16; else GPUS=8; fi\n{MAIN} trainer.device=$DEVICE trainer.n_gpus_per_node=$GPUS\n'
    reading = read_text(script, name="run.sh", cwd=str(tmp_path))
    (launch,) = reading.launches
    assert [word.text for word in launch.arguments] == ["trainer.device=cuda", "trainer.n_gpus_per_node=8"]
    assert not reading.diagnostics


def test_another_program_of_python_stays_open(tmp_path):
    script = f"GPUS=$(python3 -c 'import torch_npu; print(16)')\n{MAIN} trainer.n_gpus_per_node=$GPUS\n"
    (launch,) = read_text(script, name="run.sh", cwd=str(tmp_path)).launches
    assert launch.arguments[0].open
