"""Each format says the same, in its own way, and is well-formed."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from trinity_compat.audit.formats import FORMATS, md, render
from trinity_compat.audit.model import Audit
from trinity_compat.audit.summary import OUTCOMES, outcome
from trinity_compat.common.errors import Where
from trinity_compat.launch.model import Diagnostic
from trinity_compat.translate.model import Caution, notice

from .cases import MANY, ONE, TWO, finding, launch

EMPTY = Audit((), {}, {})


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("audit", [MANY, Audit((ONE,)), EMPTY], ids=["many", "one", "none"])
def test_every_format_renders(form, audit):
    text = render(audit, form)
    assert text.endswith({"html": "</html>\n", "json": "}\n", "sarif": "}\n"}.get(form, "\n"))
    for one in audit.launches:
        assert one.source in text or (form == "sarif" and not one.changed())
    for source in audit.problems:
        assert source in text


def test_a_format_that_ends_in_a_newline_gets_no_second_one():
    assert render(MANY, "md") == md.render(MANY)


@pytest.mark.parametrize("form", ["text", "md", "html", "sarif", "json"])
def test_what_changes_is_said_with_place_and_reason(form):
    text = render(MANY, form)
    for piece in ("TC033", "data.shuffle", "order differs", "TW003", "1000 is not divisible by 300"):
        assert piece in text


def test_json_has_the_promised_fields():
    data = json.loads(render(MANY, "json"))
    assert data["version"] == 1
    first = data["launches"][0]
    assert first["source"] == "run.sh"
    assert first["module"] == "verl.trainer.main_ppo"
    assert first["verl_version"] == {"value": "0.5.0", "why": "data.x exists since 0.5.0"}
    assert first["keys"] == 4
    assert first["counts"] == {"derived": 1, "approximated": 1, "unsupported_upstream": 1, "unknown": 1}
    assert first["findings"][0] == {
        "code": "TC020",
        "status": "derived",
        "key": "data.train_batch_size",
        "value": 1024,
        "source": "run.sh:4",
        "target": "buffer.batch_size",
        "target_value": 256,
        "reason": "because",
    }
    assert first["findings"][1]["source"] == "default of verl 0.5.0"
    assert first["findings"][3]["value"] == "inf"


def test_sarif_has_a_level_for_each_status_that_changes_meaning():
    results = json.loads(render(Audit((ONE,)), "sarif"))["runs"][0]["results"]
    levels = {result["properties"]["status"]: result["level"] for result in results if "properties" in result}
    assert levels == {"approximated": "note", "unsupported_upstream": "warning", "unknown": "error"}


def test_text_lists_what_changes_on_one_line_each():
    text = render(Audit((TWO,)), "text")
    assert re.search(r"TC033 +approximated +data\.shuffle=True +b\.sh:5 +order differs", text)
    assert re.search(r"\n +code +status +key +where +what becomes of it\n", text)


def test_text_begins_with_the_outcome_of_each_launch():
    for audited in MANY.launches:
        found = outcome(audited)
        text = render(Audit((audited,)), "text")
        assert text.startswith(f"{found}  {audited.where}  {audited.module}\n  {OUTCOMES[found]}\n")


def test_routine_notes_are_one_line_unless_every_note_is_asked_for():
    notes = [notice(code, f"about {code}") for code in ("TW001", "TW018", "TW002", "TW028")]
    audited = replace(TWO, warnings=(*notes, Caution("TW013", "open")))
    for form, dash in (("text", "  "), ("md", "- ")):
        text = render(Audit((audited,)), form)
        assert f"\n{dash}2 notes on the YAML: TW001, TW002 (audit --all prints them)\n" in text
        assert "about TW001" not in text and text.index("open") < text.index("about TW018")
        assert "about TW028" in text
        assert all(f"about {each.code}" in render(Audit((audited,), every=True), form) for each in notes)
    alone = render(Audit((replace(TWO, warnings=(notes[0],)),)), "text")
    assert "about TW001" in alone and "notes on" not in alone


def test_markdown_tables_keep_their_columns():
    text = render(MANY, "md")
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({columns(row) for row in rows}) <= 1
    assert "`algorithm.x=a\\|b <c>`" in text


def columns(row):
    return len(re.findall(r"(?<!\\)\|", row))


class Checker(HTMLParser):
    """Collects unclosed tags and everything that would need a network."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.outside = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_one_well_formed_file_without_network_or_script():
    checker = Checker()
    text = render(MANY, "html")
    checker.feed(text)
    assert checker.open == []
    assert checker.outside == []
    assert "<script" not in text
    assert "a|b &lt;c&gt;" in text


def test_html_opens_with_the_verdict():
    text = render(MANY, "html")
    assert "<h1>4 veRL launches on Trinity-RFT</h1>" in text
    assert "2 of 4 can run on Trinity-RFT, 2 need a decision." in text
    assert "In 1 every key keeps its exact meaning." in text


@pytest.mark.parametrize(("count", "told"), [(1, True), (20, True), (21, False)])
def test_html_lists_what_keeps_its_meaning_unless_the_launches_are_many(count, told):
    text = render(Audit((ONE,) * count), "html")
    assert ("that keep their meaning or have no effect" in text) is told
    assert ("data.train_batch_size" in text) is told


def test_html_has_one_row_per_kind_of_warning_and_says_the_cure():
    other = launch(warnings=(Caution("TW003", "the learning rate never arrives"),), file="e.sh")
    text = render(Audit((ONE, other)), "html")
    table = text.partition("<h2>Warnings")[2].partition("Launch by launch")[0]
    assert table.count("TW003") == 1
    assert "Warm-up" in table
    assert "the learning rate stays near 0" in table
    assert "the learning rate never arrives" in table
    assert "(set total_steps)" in text


@pytest.mark.parametrize("form", ["text", "html"])
def test_a_file_without_a_launch_says_why(form):
    assert "empty.sh:3: the script ends here" in render(MANY, form)


def test_html_of_one_launch_says_its_outcome_in_words():
    page = render(Audit((TWO,)), "html")
    assert "It runs on Trinity-RFT; the listed keys keep their meaning only approximately" in page


@pytest.mark.parametrize("form", ["text", "md"])
def test_a_warning_says_what_to_do_about_it(form):
    assert "the learning rate stays near 0; set total_steps" in render(Audit((ONE,)), form)


def test_sarif_points_at_file_and_line_and_carries_suppressions():
    quiet = launch(finding("a", ONE.findings[3].status, 7), silenced=frozenset({"a"}))
    log = json.loads(render(Audit((ONE, quiet)), "sarif"))
    run = log["runs"][0]
    assert log["version"] == "2.1.0"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("note", "warning", "error")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "run.sh"
        assert place["region"]["startLine"] >= 1
    by_key = {r["properties"]["key"]: r for r in run["results"] if "properties" in r}
    assert by_key["algorithm.x"]["level"] == "warning"
    assert by_key["data.shuffle"]["locations"][0]["physicalLocation"]["region"]["startLine"] == 3
    assert by_key["a"]["suppressions"] == [{"kind": "inSource"}]
    assert "data.train_batch_size" not in by_key


def test_sarif_points_at_the_line_that_makes_a_launch_untranslatable():
    """The launch's own line where no message of the reader is the reason."""
    error = Diagnostic("TP201", "Hydra would refuse data.sizee", Where("run.sh", 7), "error")
    for refused, line in ((f"run.sh:7: {error.message}", 7), ("another reason", launch().where.line)):
        audit = Audit((launch(diagnostics=(error,), refused=refused),))
        (result,) = json.loads(render(audit, "sarif"))["runs"][0]["results"]
        assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == line


@pytest.mark.parametrize(("severity", "colour"), [("warning", "33"), ("error", "31")])
def test_a_terminal_shows_a_diagnostic_in_the_colour_of_its_severity(monkeypatch, severity, colour):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    said = Diagnostic("TP105", "a comment ends the command", Where("run.sh", 8), severity)
    text = render(Audit((launch(diagnostics=(said,)),)), "text")
    assert f"\x1b[{colour}mrun.sh:8: TP105 a comment ends the command" in text
