"""The command, from paths to exit code."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from trinity_compat.cli.compare import command
from trinity_compat.common.errors import UserError


def call(*args):
    return CliRunner().invoke(command, [str(a) for a in args], standalone_mode=False)


def test_text_starts_with_the_conclusion(seeds):
    result = call(seeds("stock"), seeds("ours", first_seed=50, shift=-0.1))
    assert result.return_value == 0
    assert result.output.splitlines()[3].startswith("Different: critic/score/mean is lower in B")
    assert "A is better" in result.output


def test_labels_and_comma_lists_make_sides(seeds):
    a = seeds("a", count=2)
    result = call(f"base={a}/seed0.jsonl,{a}/seed1.jsonl", f"other={a}/seed1.jsonl", "--format", "json")
    data = json.loads(result.output)
    assert (data["a"]["label"], len(data["a"]["runs"])) == ("base", 2)
    assert (data["b"]["label"], len(data["b"]["runs"])) == ("other", 1)


@pytest.mark.parametrize(("bound", "code"), [("0.3", 0), ("0.01", 1)])
def test_assert_decides_the_exit_code(seeds, bound, code):
    expression = f'max(abs(delta("critic/score/mean"))) < {bound}'
    result = call(seeds("a"), seeds("b", first_seed=50), "--assert", expression)
    assert result.return_value == code


def test_a_third_side_is_compared_with_the_first(seeds):
    result = call(seeds("a"), seeds("b"), seeds("c", shift=0.2))
    assert result.output.count("A = a:") == 2


def test_several_comparisons_are_one_json_document_and_one_page(seeds):
    sides = seeds("a"), seeds("b"), seeds("c", shift=0.2)
    data = json.loads(call(*sides, "--format", "json").output)
    assert [found["b"]["label"] for found in data["comparisons"]] == ["b", "c"]
    page = call(*sides, "--format", "html").output
    assert page.count("<!doctype html>") == 1
    assert page.count("<iframe srcdoc=") == 2


def test_one_side_is_refused(seeds):
    assert isinstance(call(seeds("a")).exception, UserError)


def test_html_is_one_offline_file_and_escapes_names(tmp_path, seeds):
    odd = tmp_path / "<script>alert(1)<script>.jsonl"
    odd.write_text((seeds("a", count=1) / "seed0.jsonl").read_text())
    page = call(odd, seeds("b"), "--format", "html").output
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "<script>alert" not in page
    assert "critic/score/mean" in page


def test_a_long_run_is_drawn_by_means_that_keep_the_level(tmp_path):
    values = [i % 7 + i / 1000 for i in range(5000)]
    rows = "".join(json.dumps({"step": i, "data": {"x/y": v}}) + "\n" for i, v in enumerate(values))
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(rows)
    page = call(tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--format", "html").output
    [metric] = json.loads(re.search(r'type="application/json">(.*?)</script>', page)[1])["metrics"]
    assert metric["a"]["points"] == 5000
    assert len(metric["x"]) == len(metric["a_seeds"][0]) <= 400
    assert sum(metric["a_seeds"][0]) / len(metric["x"]) == pytest.approx(sum(values) / 5000, rel=0.01)


def test_output_file_is_written_whole(tmp_path, seeds):
    out = tmp_path / "r.md"
    call(seeds("a"), seeds("b"), "--format", "md", "-o", out)
    assert "| critic/score/mean |" in out.read_text()
    assert not list(tmp_path.glob(".*.part"))


def log_of(path, values, start=1, form=".6f"):
    """A veRL console log of one metric, the score."""
    lines = (f"step:{start + i} - critic/score/mean:{v:{form}}\n" for i, v in enumerate(values))
    path.write_text("".join(lines))
    return path


def test_an_assert_on_a_run_that_diverges_fails_and_says_where(tmp_path):
    rising = [0.2 + i / 200 for i in range(100)]
    a = log_of(tmp_path / "a.log", rising)
    b = log_of(tmp_path / "nan.log", [*rising[:50], *[float("nan")] * 50])
    result = call(a, b, "--assert", 'max(abs(delta("critic/score/mean"))) < 0.5')
    assert result.return_value == 1
    assert "NaN from step 51 on in B, finite in A" in result.stderr
    [metric] = json.loads(call(a, b, "--format", "json").output)["metrics"]
    assert metric["not_finite"] == {
        "a": None,
        "b": {"kind": "NaN", "count": 50, "first": 51.0, "to_the_end": True},
    }
    page = call(a, log_of(tmp_path / "b.log", [float("nan")] * 100), "--format", "html").output
    embedded = re.search(r'type="application/json">(.*?)</script>', page)[1]
    first = json.loads(embedded, parse_constant=pytest.fail)["conclusion"][0]
    assert "NaN from step 1 on in B" in first, "no NaN in what a browser parses"


def exact_of(path, values):
    """The same as veRL's file logger writes it, in full."""
    rows = [{"step": step, "data": {"critic/score/mean": v}} for step, v in enumerate(values, 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("form", "digits"), [(".3f", 17), (".6f", 17), ("", 6)])
@pytest.mark.parametrize("level", [0.5, 0.0004, 400.0])
def test_the_rounding_of_a_log_is_no_difference(tmp_path, form, digits, level):
    """One run as its console log (older veRL: three decimals) and as its file logger wrote it."""
    true = [level * (1 + (i % 7) / 70) + 0.0004 for i in range(100)]
    a = log_of(tmp_path / "a.log", [round(value, digits) for value in true], form=form)
    [metric] = json.loads(call(a, exact_of(tmp_path / "a.jsonl", true), "--format", "json").output)["metrics"]
    told = level > 0.01 or form != ".3f"
    assert metric["verdict"] in (("same", "identical") if told else ("same", "unclear"))


def test_a_shift_beyond_the_rounding_still_differs(tmp_path):
    rising = [0.2 + i / 200 for i in range(100)]
    a = log_of(tmp_path / "a.log", rising, form=".3f")
    b = exact_of(tmp_path / "b.jsonl", [v + 0.005 for v in rising])
    [metric] = json.loads(call(a, b, "--format", "json").output)["metrics"]
    assert metric["verdict"] == "differs"


def test_whole_numbers_of_a_log_are_not_taken_for_rounded_ones(tmp_path):
    lines = {
        name: [f"step:{i} - x:{i % 3 + more}\n" for i in range(50)] for name, more in (("a", 0), ("b", 1))
    }
    for name, text in lines.items():
        (tmp_path / f"{name}.log").write_text("".join(text))
    [metric] = json.loads(call(tmp_path / "a.log", tmp_path / "b.log", "--format", "json").output)["metrics"]
    assert metric["verdict"] == "differs"


def test_a_run_that_is_compared_with_itself_is_said_to_be_the_same_run(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log.csv").write_text("step,score\n1,0.1\n2,0.2\n")
    for other in (tmp_path / "a", tmp_path):
        result = call(tmp_path / "a", other)
        (warning,) = result.stderr.splitlines()
        assert warning.startswith("warning: ") and "are the same run" in warning
