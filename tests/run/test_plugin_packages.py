"""Plugins of installed distributions: what is found, said, refused, and never imported (docs/plugins.md)."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from trinity_compat.cli import cli
from trinity_compat.common import plugin_packages
from trinity_compat.common.errors import UserError
from trinity_compat.job.fingerprint import fingerprint_of
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.checks import plugins as checks
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.trinity.algorithms import of_plugins

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin_package"
SCRIPT = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"
SOURCE, PACKAGE = "trinity-compat-example-plugins 1.0", "trinity_compat_example"
NAMES = {
    "workflow": "ask_once",
    "reward": "digits_in_place",
    "operator": "scale_rewards",
    "advantage": "median_baseline",
    "policy_loss": "capped_ratio",
    "logger": "figures_file",
    "fork_rules": "example_fork",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder into which pip has installed examples/plugin_package."""
    folder = tmp_path_factory.mktemp("site")
    install = (
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        folder,
        EXAMPLE,
    )
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return folder


@pytest.fixture
def on_path(monkeypatch):
    """A function that puts a folder of distributions on this process's path and on that of its children."""

    def put(folder):
        forget()
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        return folder

    def forget():
        of_plugins.loaded.cache_clear()
        plugin_packages._installed.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE, "made_plugin")]:
            monkeypatch.delitem(sys.modules, name)

    yield put
    forget()


@pytest.fixture
def installed(built, on_path):
    return on_path(built)


@pytest.fixture
def made(tmp_path, on_path):
    """A function that installs a distribution by hand: its entry points, its module's text."""

    def make(points, code="", *, name="made-plugins", version="2.1"):
        site = tmp_path / "made"
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(points)
        (site / "made_plugin.py").write_text(code)
        return on_path(site)

    return make


def point(kind, name, value="made_plugin:Made"):
    return f"[{plugin_packages.GROUPS[kind]}]\n{name} = {value}\n"


def example(**changes):
    config = yaml.safe_load((EXAMPLE / "run.yaml").read_text())
    return {**config, **changes}


def plan(tmp_path, config=None):
    return make_plan(config or example(), RunOptions(), cwd=tmp_path, device="cpu")


def ran(*words):
    return CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False)


def test_each_kind_is_found_by_its_metadata_alone(installed):
    found = {plugin.kind: plugin.name for plugin in plugin_packages.installed() if plugin.source == SOURCE}
    assert found == NAMES
    assert PACKAGE not in sys.modules


def test_each_kind_loads_and_is_what_its_kind_has_to_be(installed):
    told = {plugin.kind: wrong for plugin, wrong in checks.problems() if plugin.source == SOURCE}
    assert told == dict.fromkeys(NAMES, "")
    assert PACKAGE not in sys.modules  # another process has loaded them


def test_a_family_of_rules_is_data(installed):
    assert (
        f"example_fork: an invented fork, as an example of a plugin ({SOURCE})"
        in ran("rules", "families").output
    )
    assert PACKAGE not in sys.modules


@pytest.fixture
def script(tmp_path):
    """A script with the fork's keys and the plugins' names."""
    text = SCRIPT.read_text().replace("adv_estimator=grpo", "adv_estimator=median_baseline")
    text = text.replace("rollout.n=$n_resp", "rollout.n_samples=$n_resp").replace(
        '"tensorboard"', '"figures_file"'
    )
    text = text.replace(
        "trainer.nnodes=1",
        "trainer.nnodes=1 actor_rollout_ref.actor.policy_loss.loss_mode=capped_ratio +env.x=1",
    )
    (tmp_path / "run.sh").write_text(text)
    (tmp_path / "toy_reward.py").write_text((SCRIPT.parent / "toy_reward.py").read_text())
    return tmp_path / "run.sh"


def test_a_script_s_translation_says_what_came_from_where_and_imports_nothing(installed, script):
    told = ran("translate", script, "--rules", "example_fork")
    assert told.exit_code == 0
    assert f"# rules example_fork: {SOURCE}\n" in told.stdout
    assert yaml.safe_load(told.stdout)["algorithm"]["repeat_times"] == 8
    for name in ("median_baseline", "capped_ratio"):
        assert f"trinity-compat runs the plugin '{name}' of {SOURCE}" in told.stderr
    assert PACKAGE not in sys.modules


def test_an_audit_says_whose_rule_it_was(installed, script):
    told = ran("audit", script, "--rules", "example_fork", "--format", "json")
    findings = {each["key"]: each for each in json.loads(told.stdout)["launches"][0]["findings"]}
    assert findings["env.x"]["reason"] == f"the fork's own environments ({SOURCE})"
    assert findings["algorithm.adv_estimator"]["status"] == "unsupported_upstream"
    assert PACKAGE not in sys.modules


def test_without_the_plugin_the_names_are_unknown(script):
    with pytest.raises(UserError, match="example_fork: cannot read the rules"):
        ran("audit", script, "--rules", "example_fork")


def test_a_yaml_s_plan_uses_and_names_each_plugin(installed, tmp_path):
    planned = plan(tmp_path)
    used = {plugin.kind: plugin.name for plugin in planned.spec.plugins}
    assert used == {kind: name for kind, name in NAMES.items() if kind != "fork_rules"}
    assert f"plugin: reward digits_in_place is {PACKAGE}.rewards:DigitsInPlace of {SOURCE}" in planned.notes
    assert planned.spec.verl["algorithm"]["adv_estimator"] == "trinity_median_baseline"
    assert planned.spec.verl["algorithm"]["trinity_args"] == {"scale": 2.0}
    assert planned.spec.verl["trainer"]["logger"] == ["console", "figures_file"]
    assert PACKAGE not in sys.modules


def test_a_script_s_plan_uses_them_under_their_own_names(installed, script, tmp_path):
    ran("translate", script, "--rules", "example_fork", "-o", tmp_path / "x.yaml", "--env", "TOY_DIR=/toy")
    spec = plan(tmp_path, yaml.safe_load((tmp_path / "x.yaml").read_text())).spec
    assert [plugin.name for plugin in spec.plugins] == ["median_baseline", "capped_ratio", "figures_file"]
    loss = spec.verl["actor_rollout_ref"]["actor"]["policy_loss"]
    assert spec.verl["algorithm"]["adv_estimator"] == "median_baseline"
    assert (loss["loss_mode"], loss["_target_"]) == (
        "capped_ratio",
        "trinity_compat.trainer.algorithms.PolicyLoss",
    )


def saved(spec):
    path = Path(spec.job_dir) / "config" / "run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    spec.save(path)
    return path


def test_a_run_s_file_keeps_its_plugins(installed, tmp_path):
    spec = plan(tmp_path).spec
    assert RunSpec.load(saved(spec)).plugins == spec.plugins


def test_a_resume_without_a_plugin_says_which_is_missing(built, monkeypatch, tmp_path, on_path):
    on_path(built)
    saved(plan(tmp_path).spec)
    on_path(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(built)])
    with pytest.raises(UserError) as caught:
        plan(tmp_path)
    assert f"the entry point ask_once (trinity_compat.workflows) of {SOURCE}, which is not installed" in str(
        caught.value
    )
    assert "pip install 'trinity-compat-example-plugins==1.0'" in str(caught.value)


def test_a_resume_with_another_version_says_so(installed, tmp_path):
    spec = plan(tmp_path).spec
    saved(replace(spec, plugins=tuple(replace(each, version="0.9") for each in spec.plugins)))
    notes = plan(tmp_path).notes
    assert any(note.endswith(f"{SOURCE}; the job was started with {SOURCE[:-3]}0.9") for note in notes)


def test_answers_depend_on_the_code_that_made_them_and_not_on_a_logger_s(built, on_path, tmp_path):
    site = on_path(Path(shutil_copy(built, tmp_path / "copy")))
    before = fingerprint_of(plan(tmp_path).spec).parts["plugins"]
    for name in ("loggers.py", "algorithms.py"):
        (site / PACKAGE / name).write_text("# edited\n")
    assert fingerprint_of(plan(tmp_path).spec).parts["plugins"] == before
    (site / PACKAGE / "workflows.py").write_text("# edited\n")
    assert fingerprint_of(plan(tmp_path).spec).parts["plugins"] != before


def shutil_copy(source, target):
    import shutil

    return shutil.copytree(source, target)


BAD_METADATA = {
    "two distributions": (
        point("reward", "digits_in_place"),
        SOURCE + " has that name too",
        "pip uninstall made-plugins",
    ),
    "a later interface": (
        "[trinity_compat.interface]\n2 = made_plugin\n" + point("reward", "mine"),
        "it is written for interface 2, and this release has 1",
        "install a release of trinity-compat that has it",
    ),
    "a built-in name": (
        point("reward", "math_reward"),
        "trinity-compat has that name itself",
        "pip uninstall made-plugins",
    ),
}


@pytest.mark.parametrize(("points", "why", "hint"), BAD_METADATA.values(), ids=BAD_METADATA)
def test_a_name_that_no_plugin_may_have_is_refused_where_a_run_uses_it(
    made, installed, tmp_path, points, why, hint
):
    made(points)
    name = points.split("\n")[-2].partition(" =")[0]
    config = example()
    config["buffer"]["explorer_input"]["default_reward_fn_type"] = name
    with pytest.raises(UserError) as caught:
        plan(tmp_path, config)
    assert f"the entry point {name} (trinity_compat.rewards) of " in str(caught.value)
    assert why in str(caught.value) or "made-plugins 2.1 has that name too" in str(caught.value)
    assert hint in str(caught.value) or "or made-plugins" in str(caught.value)


def test_a_name_that_a_plugin_folder_registers_too_is_refused(installed, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.py").write_text("REWARD_FUNCTIONS.register_module('digits_in_place')(int)")
    options = RunOptions(plugin_dirs=(str(tmp_path / "folder"),))
    with pytest.raises(UserError, match=r"digits_in_place .* a file of --plugin-dir registers that name too"):
        make_plan(example(), options, cwd=tmp_path, device="cpu")


def test_a_run_that_uses_another_name_does_not_mind_it(made, installed, tmp_path):
    made(BAD_METADATA["a later interface"][0])
    assert plan(tmp_path).spec.plugins


BAD_CODE = {
    "fails": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "leaves": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "lacks the object": ("", "AttributeError: module 'made_plugin' has no attribute 'Made'"),
    "is not a class": ("Made = 5", "is not a class with a method __call__"),
    "is another class": ("class Made: pass", "is not a class with a method __call__"),
}


@pytest.mark.parametrize(("code", "why"), BAD_CODE.values(), ids=BAD_CODE)
def test_a_plugin_that_is_unfit_is_named_by_doctor_and_refused_by_a_run(made, code, why):
    made(point("reward", "mine"), code)
    plugin = plugin_packages.find("reward", "mine")
    with pytest.raises(UserError) as caught:
        checks.check(plugin, {})
    assert str(caught.value).startswith("the entry point mine (trinity_compat.rewards) of made-plugins 2.1 ")
    assert why in str(caught.value)
    assert [wrong for each, wrong in checks.problems() if each == plugin and why in wrong]


def test_doctor_outlives_a_plugin_that_ends_its_process(made):
    made(point("logger", "mine"), "import os; os._exit(7)")
    ((_, wrong),) = [each for each in checks.problems() if each[0].name == "mine"]
    assert wrong.endswith("its process ended with exit code 7")


@pytest.mark.parametrize(
    ("code", "given", "why"),
    [
        (
            "def Made(answers, *, scale: float = 1.0): ...",
            {"scal": 2},
            "has no argument scal\n  hint: it has scale",
        ),
        ("def Made(answers, *, scale: float): ...", {}, "needs the argument scale"),
        ("def Made(answers, scale=1): ...", {}, "has to take one value, and its arguments by keyword"),
        (
            "def Made(answers, *, scale: 'Lost' = 1): ...",
            {},
            "the types of its arguments: name 'Lost' is not defined",
        ),
        ("class Made: ...", {}, "is not a function"),
    ],
)
def test_an_advantage_s_arguments_are_checked_by_its_signature(made, code, given, why):
    made(point("advantage", "mine"), code)
    with pytest.raises(UserError) as caught:
        checks.check(plugin_packages.find("advantage", "mine"), {"algorithm": {"trinity_args": given}})
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mine", "the package made_plugin has no file mine.yaml"),
        ("verl-agent", "trinity-compat has that name itself"),
    ],
)
def test_rules_that_cannot_be_used_are_an_error_with_the_distribution(made, name, why):
    made(point("fork_rules", name, "made_plugin"))
    with pytest.raises(UserError) as caught:
        ran("translate", SCRIPT, "--rules", name)
    title = f"the entry point {name} (trinity_compat.fork_rules) of made-plugins 2.1 cannot be used: {why}"
    assert caught.value.message == title


@pytest.mark.verl
def test_the_check_before_a_start_loads_what_the_run_names_and_a_dry_run_does_not(made, installed, tmp_path):
    from trinity_compat.run.checks.verl_objects import examine

    made(point("reward", "mine"), "raise RuntimeError('no licence')")
    config = example()
    config["buffer"]["explorer_input"]["default_reward_fn_type"] = "mine"
    spec = plan(tmp_path, config).spec
    (refused,) = examine(spec, cwd=tmp_path, folder=tmp_path, execute=True, native=True).refused
    assert "mine (trinity_compat.rewards) of made-plugins 2.1 failed to load" in refused.why
    assert refused.why.endswith("RuntimeError: no licence; repair or update made-plugins, or leave mine out")
    report = examine(spec, cwd=tmp_path, folder=tmp_path, execute=False, native=True)
    assert "the plugin mine of made-plugins 2.1: not loaded" in report.unchecked
    assert not any("made-plugins" in each.why for each in report.refused)


NUMBERS = """
import json, numpy, torch
from types import SimpleNamespace
import trinity_compat.trainer.algorithms
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
rewards = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 8.0]])
mask = torch.tensor([[1, 1], [1, 1], [1, 0]])
found = [
    get_adv_estimator_fn(name)(
        token_level_rewards=rewards, response_mask=mask, index=numpy.array(["a"] * 3), config=config
    )[0].tolist()
    for name, config in (
        ("median_baseline", {}),
        ("trinity_median_baseline", {"trinity_args": {"scale": 2.0}}),
    )
]
config = SimpleNamespace(policy_loss=SimpleNamespace(trinity_args={"cap": 2.0}), global_batch_info={})
old, new = torch.zeros(1, 2), torch.tensor([[0.0, 5.0]])
loss, metrics = get_policy_loss_fn("capped_ratio")(
    old, new, torch.ones(1, 2), torch.ones(1, 2), "token-mean", config
)
print("FOUND" + json.dumps([*found, loss.item(), metrics["actor/pg_clipfrac"]]))
"""


@pytest.mark.verl
def test_veRL_finds_the_functions_under_both_names(installed):
    told = subprocess.run([sys.executable, "-c", NUMBERS], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    one, two, loss, clipped = json.loads(told.stdout.partition("FOUND")[2])
    assert one == [[-2.0, -2.0], [0.0, 0.0], [5.0, 0.0]]
    assert two == [[-4.0, -4.0], [0.0, 0.0], [10.0, 0.0]]
    assert (loss, clipped) == (-1.5, 0.5)


@pytest.mark.verl
def test_a_logger_gets_its_run_and_every_step(installed, tmp_path):
    from trinity_compat.plugins.verl_tracking import PluginTracking

    config = {"trainer": {"default_local_dir": str(tmp_path)}}
    tracking = PluginTracking("toy", "one_trainer", ["console", "figures_file"], config=config)
    for step in (1, 2):
        tracking.log({"loss": step / 2, "text": "left out"}, step)
    tracking.finish()
    lines = (tmp_path / "monitor" / "one_trainer.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 1.0}]


FULL = """
class Made:
    def __init__(self, *given): pass
    def log(self, data, step): raise OSError('full')
"""


@pytest.mark.verl
def test_a_logger_that_fails_is_named_once_and_stops_no_run(made, caplog):
    from trinity_compat.plugins.verl_tracking import PluginTracking

    made(point("logger", "mine"), FULL)
    tracking = PluginTracking("toy", "one", "mine")
    for step in (1, 2):
        tracking.log({"loss": 1.0}, step)
    tracking.finish()
    (line,) = [each.getMessage() for each in caplog.records if "mine" in each.getMessage()]
    assert line.endswith("of made-plugins 2.1 failed and is left out from here on: OSError: full")


@pytest.mark.verl
def test_a_logger_that_does_not_start_ends_the_run_with_its_name(made):
    from trinity_compat.plugins.verl_tracking import PluginTracking

    made(point("logger", "mine"), "class Made:\n    def log(self, data, step): pass")
    with pytest.raises(
        UserError, match=r"mine \(trinity_compat.loggers\) of made-plugins 2.1 does not start"
    ):
        PluginTracking("toy", "one", ["mine"])


def test_the_page_s_snippets_are_the_example_s():
    page = (ROOT / "docs" / "plugins.md").read_text()
    files = {path.read_text() for path in (EXAMPLE / PACKAGE).rglob("*.*") if path.suffix in (".py", ".yaml")}
    snippets = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    snippets += [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(snippets) == 6
    assert all(any(snippet in text for text in files) for snippet in snippets)
