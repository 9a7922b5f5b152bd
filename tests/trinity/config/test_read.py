"""Bad YAML gets one message with the file, the line and a way out."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.trinity.config import load, parse

CASES = {
    "unknown field": (
        "buffer:\n  batch_size: 1\n  bacth_size: 2\n",
        ["x.yaml:3", "buffer.bacth_size", "did you mean 'batch_size'?"],
    ),
    "unknown section": ("buffers: {}\n", ["x.yaml:1", "did you mean 'buffer'?"]),
    "wrong type": (
        "buffer:\n  batch_size: many\n",
        ["x.yaml:2", "buffer.batch_size: 'many' where an integer is expected"],
    ),
    "list for a section": ("buffer: [1]\n", ["x.yaml:1", "where a section is expected"]),
    "wrong enum": (
        "synchronizer:\n  sync_method: carrier_pigeon\n",
        ["x.yaml:2", "one of nccl, checkpoint, memory"],
    ),
    "null number": ("buffer:\n  batch_size: null\n", ["x.yaml:2", "null where an integer is expected"]),
    "inside a list": (
        "buffer:\n  explorer_input:\n    eval_tasksets:\n      - name: a\n      - pth: b\n",
        ["x.yaml:5", "buffer.explorer_input.eval_tasksets.1.pth", "did you mean 'path'?"],
    ),
    "trainer_config_path": (
        "trainer:\n  trainer_config_path: a.yaml\n",
        ["x.yaml:2", "deprecated", "put the content of that file under trainer.trainer_config"],
    ),
    "duplicate key": ("name: a\nmode: both\nname: b\n", ["x.yaml:3", "'name' appears twice"]),
    "duplicate deep key": (
        "trainer:\n  trainer_config:\n    a: 1\n    a: 2\n",
        ["x.yaml:4", "'a' appears twice"],
    ),
    "bad syntax": ("buffer:\n  batch_size: [1\n", ["x.yaml:3", "not YAML"]),
    "tab": ("buffer:\n\tbatch_size: 1\n", ["x.yaml:2", "not YAML"]),
    "a python tag": ("name: !!python/object/apply:os.system ['true']\n", ["x.yaml:1", "not YAML"]),
    "two documents": ("name: a\n---\nname: b\n", ["x.yaml:2", "not YAML"]),
    "a list": ("- 1\n", ["x.yaml:1", "a mapping of sections"]),
    "empty": ("", ["x.yaml:1", "a mapping of sections"]),
    "a cycle": (
        "monitor:\n  monitor_args: &a\n    b: *a\n",
        ["x.yaml:2", "too large once its aliases are followed"],
    ),
    "a bad number": (
        "monitor: {monitor_args: {a: !!int x}}\n",
        ["x.yaml:1", "a value that YAML cannot read"],
    ),
    "a bad bool": ("monitor: {monitor_args: {a: !!bool x}}\n", ["x.yaml:1", "a value that YAML cannot read"]),
    "a key that is a list": (
        "monitor:\n  monitor_args:\n    [1]: 2\n",
        ["x.yaml:3", "a key must be a plain word"],
    ),
}


@pytest.mark.parametrize("text, said", CASES.values(), ids=CASES.keys())
def test_refused_with_place_and_reason(text, said):
    with pytest.raises(UserError) as caught:
        parse(text, "x.yaml")
    for piece in said:
        assert piece in str(caught.value)


def test_every_problem_is_told_not_only_the_first():
    with pytest.raises(UserError) as caught:
        parse("naem: x\nbuffer:\n  batch_size: many\n", "x.yaml")
    assert "x.yaml:1" in str(caught.value)
    assert "x.yaml:3: buffer.batch_size" in str(caught.value)


def test_a_bomb_of_aliases_is_refused_quickly():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(UserError, match=r"x\.yaml:[0-9]+: not YAML: too large once its aliases"):
        parse("monitor:\n  monitor_args:\n" + "".join(f"    {line}\n" for line in levels), "x.yaml")


def test_deep_nesting_is_refused():
    with pytest.raises(UserError, match="deep"):
        parse("monitor: {monitor_args: " + "[" * 5000 + "]" * 5000 + "}", "x.yaml")


def test_numbers_are_read_as_omegaconf_reads_them():
    config = parse("algorithm:\n  optimizer:\n    lr: 1e-6\nname: 2024-01-01\n", "x.yaml")
    assert config["algorithm"]["optimizer"]["lr"] == 1e-6
    assert config["name"] == "2024-01-01"


def test_anchors_and_merge_keys_work():
    config = parse(
        "model: &m\n  temperature: 0.5\nmonitor:\n  monitor_args:\n    <<: *m\n    b: 1\n", "x.yaml"
    )
    assert config["monitor"]["monitor_args"] == {"temperature": 0.5, "b": 1}


def test_a_field_of_another_release_is_refused_for_that_release():
    text = "model:\n  max_prompt_tokens: 5\nalgorithm:\n  bypass_old_logprobs: true\n"
    assert parse(text, "x.yaml", "0.6.0")
    with pytest.raises(UserError, match=r"0\.4\.1 has no such field"):
        parse(text, "x.yaml", "0.4.1")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("mode: both\nbuffer:\n  pad_token_id: 0\n", 3, "no such field"),
        (
            "buffer:\n  explorer_input:\n    tasksets:\n      - workflow_args:\n"
            "          trinity_compat: {updates_per_step: 2}\n",
            5,
            "translate writes this for trinity-rft 0.4.1 alone",
        ),
    ],
)
def test_a_file_of_the_older_release_is_refused_with_what_to_write(text, line, said):
    assert parse(text, "x.yaml", "0.4.1")
    with pytest.raises(UserError, match=said) as refused:
        parse(text, "x.yaml")
    assert refused.value.where.line == line
    assert refused.value.hint.endswith("write it for 0.6.0, or translate the launch again")


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-16", "x.yaml: is UTF-16: save it"), ("latin-1", "x.yaml:2: is not UTF-8")]
)
def test_another_encoding_is_told_by_its_name_and_line(encoding, said, tmp_path):
    (tmp_path / "x.yaml").write_bytes("project: p\nname: caf\u00e9\n".encode(encoding))
    with pytest.raises(UserError) as caught:
        load(tmp_path / "x.yaml")
    assert said in str(caught.value)


def test_a_missing_file_is_bad_input(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("'off'", False),
        ("'No'", False),
        ("'y'", True),
        ("1", True),
        ("'TRUE'", True),
        ("'${oc.env:X}'", "${oc.env:X}"),
    ],
)
def test_a_text_is_read_in_the_type_of_its_field(written, means):
    """As upstream's merge reads it: veRL takes the text off for true."""
    config = parse(f"trainer: {{balance_batch: {written}, grad_clip: '1.5', total_steps: '7'}}\n", "x.yaml")
    assert config["trainer"] == {"balance_batch": means, "grad_clip": 1.5, "total_steps": 7}


def test_what_has_no_type_stays_as_it_is_written():
    config = parse("trainer: {trainer_config: {a: '7', b: 'off'}}\n", "x.yaml")
    assert config["trainer"]["trainer_config"] == {"a": "7", "b": "off"}
