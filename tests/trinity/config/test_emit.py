"""What we write is read back to the same values by the two loaders that will read it."""

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from trinity_compat.trinity.config import dump, load, parse

LOOKALIKES = [
    "1", "1.0", "1e-6", "0x1F", "0o17", "1_000", "12:30:45", "2024-01-01", "true", "False", "yes", "No",
    "on", "off", "y", "n", "null", "~", "", " ", " lead", "trail ", ".inf", ".nan", "inf", "nan", "-",
    "- a", "a: b", "a #b", "#", "[1]", "{a: 1}", "*alias", "&anchor", "!tag", "%", "@x", "`x`", "'",
    "\"", "it's", "a\nb", "a\tb", "\\", "\\n", "back\\slash", "é", "日本", "😀", "\x00", "\x7f", "\u2028",
    "\ufeff", "<<", "=", "?", ":", "key:", "${oc.env:HOME}/models", "${oc.env:NAME,default}",
    "/home/u/x.parquet", "hdfs://a/b", "?x", "-1", "+1", "token-mean", "---", "...", "_1", "1.", "e5",
    "1e5", "0.5e", "None",
]  # fmt: skip

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)
    | st.sampled_from(LOOKALIKES)
)  # fmt: skip
keys = st.text(min_size=1, max_size=6) | st.sampled_from(LOOKALIKES).filter(lambda key: key != "<<")
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def read_by_pyyaml(text):
    return yaml.safe_load(text)


def read_by_omegaconf(text):
    return yaml.load(text, Loader=get_yaml_loader())


@pytest.mark.parametrize("reader", [read_by_pyyaml, read_by_omegaconf])
@pytest.mark.parametrize("value", [*LOOKALIKES, 1e-6, 1e22, -0.0, 5e-324, 0.1, 1, 10**30, True, None, [], {}])
def test_a_value_comes_back(reader, value):
    back = reader(dump({"trainer": {"trainer_config": {"x": value}}}))["trainer"]["trainer_config"]["x"]
    assert back == value
    assert type(back) is type(value)


@given(tree=st.dictionaries(keys, trees, max_size=5))
@settings(max_examples=200, deadline=None)
def test_any_tree_comes_back(tree):
    text = dump(tree)
    assert read_by_pyyaml(text) == tree
    assert read_by_omegaconf(text) == tree


@given(tree=st.dictionaries(keys, trees, max_size=4), note=st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_comment_never_changes_a_value(tree, note):
    provenance = dict.fromkeys(paths(tree), note)
    text = dump(tree, provenance, header=[note, "made by\nus"])
    assert read_by_pyyaml(text) == read_by_pyyaml(dump(tree))


def paths(value, prefix=""):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        path = f"{prefix}.{key}" if prefix else str(key)
        yield path
        yield from paths(inner, path)


def test_infinities_and_nan():
    text = dump({"monitor": {"monitor_args": {"a": math.inf, "b": -math.inf, "c": math.nan}}})
    args = read_by_omegaconf(text)["monitor"]["monitor_args"]
    assert (args["a"], args["b"]) == (math.inf, -math.inf)
    assert math.isnan(args["c"])


def test_environment_stays_symbolic_and_omegaconf_resolves_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/someone")
    path = tmp_path / "x.yaml"
    path.write_text(dump({"model": {"model_path": "${oc.env:HOME}/models", "lr": 1e-6}}))
    config = OmegaConf.load(path)
    assert config.model.model_path == "/home/someone/models"
    assert config.model.lr == 1e-6


def test_sections_follow_the_schema_and_comments_stand_behind_their_line():
    text = dump(
        {
            "synchronizer": {"sync_interval": 4},
            "buffer": {
                "train_batch_size": 2048,
                "batch_size": 256,
                "explorer_input": {
                    "eval_tasksets": [{"path": "a.parquet", "name": "eval"}],
                    "unknown": {"b": 1},
                },
            },
            "project": "gsm8k",
            "algorithm": {"optimizer": {"betas": [0.9, 0.999], "lr": 1e-6}},
        },
        {
            "synchronizer.sync_interval": "data.train_batch_size=1024 ÷ 256 (run.sh:12)",
            "buffer.explorer_input.eval_tasksets[0].path": "data.val_files (run.sh:7)",
            "buffer.explorer_input.eval_tasksets.0": "one per file",
            "buffer": "counts",
        },
        header=["written by trinity-compat translate run.sh", ""],
    )
    assert text == (
        "# written by trinity-compat translate run.sh\n"
        "#\n"
        "project: gsm8k\n"
        "\n"
        "algorithm:\n"
        "  optimizer:\n"
        "    lr: 1.0e-06\n"
        "    betas: [0.9, 0.999]\n"
        "\n"
        "buffer:  # counts\n"
        "  batch_size: 256\n"
        "  train_batch_size: 2048\n"
        "  explorer_input:\n"
        "    eval_tasksets:\n"
        "      # one per file\n"
        "      - name: eval\n"
        "        path: a.parquet  # data.val_files (run.sh:7)\n"
        "    unknown:\n"
        "      b: 1\n"
        "\n"
        "synchronizer:\n"
        "  sync_interval: 4  # data.train_batch_size=1024 ÷ 256 (run.sh:12)\n"
    )


def test_without_comments_there_is_no_hash():
    text = dump({"name": "x"}, {"name": "why"}, header=["top"], comments=False)
    assert text == "name: x\n"


def test_a_value_that_yaml_has_no_plain_form_for_is_refused():
    with pytest.raises(TypeError, match="no YAML form for"):
        dump({"name": object()})


def test_load_reads_what_dump_writes(tmp_path):
    config = {
        "project": "1e5",
        "algorithm": {"optimizer": {"lr": 1e-6}},
        "trainer": {"trainer_config": {"a.b": [1]}},
    }
    path = tmp_path / "x.yaml"
    path.write_text(dump(config))
    assert load(path) == config
    assert parse(dump(config), "x.yaml") == config
