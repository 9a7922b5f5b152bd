"""The contract with programs: JSON fits its schema, and exit codes are those of docs/programs.md."""

import json
import re
from pathlib import Path

import click
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from command_paths import commands
from jsonschema import Draft202012Validator

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.cli import cli, main
from trinity_compat.cli.schema import load, names
from trinity_compat.common.releases import TRINITY
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.checks import doctor
from trinity_compat.run.job_dir import stages
from trinity_compat.translate.model import Status
from trinity_compat.translate.rows import HOWS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "programs.md").read_text()
EXAMPLES = ROOT / "examples"
SCRIPT = EXAMPLES / "verl_scripts" / "run_toy_grpo.sh"
OLD = """python3 -m verl.trainer.main_ppo data.train_files=t.parquet data.val_files=v.parquet \\
    actor_rollout_ref.model.path=m actor_rollout_ref.rollout.name=vllm \\
    reward_model.reward_manager=dapo +actor_rollout_ref.rollout.swap_space=4
"""


def errors(name, data):
    return [f"{each.json_path}: {each.message[:200]}" for each in validator(name).iter_errors(data)]


def validator(name):
    return Draft202012Validator(load(name))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Scripts, a job with two sides at work, two curves and their seeds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOY_DIR", "/toy")
    Path("run.sh").write_text(SCRIPT.read_text())
    Path("other.sh").write_text(SCRIPT.read_text().replace("lr=3e-4", "lr=1e-6"))
    Path("old.sh").write_text(OLD)
    Path("open.sh").write_text(OLD.replace("m ", "$(ls) trainer.nonsense=1 "))
    Path("empty.sh").write_text("echo\n")
    Path("uneven.sh").write_text(SCRIPT.read_text().replace("=$mini_prompts", "=48"))
    for name, level in (("a", 0.5), ("b", 0.7), ("a2", 0.52), ("b2", 0.69)):
        rows = [{"step": n, "data": {"critic/score/mean": level + n / 1000}} for n in range(1, 30)]
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    job = tmp_path / "job"
    (job / "config").mkdir(parents=True)
    spec = RunSpec(str(job), f"sqlite:///{job}/experiences.db", {}, 4, 10, SyncSpec())
    spec.save(job / "config" / "run.json")
    buffer = open_buffer(spec.database_url)
    buffer.beat("trainer", "host-12", state="failed", detail={"reason": "killed"})
    buffer.beat("explorer", "explorer", state="running")
    figures = {"critic/score/mean": float("nan"), "val-core/toy/acc/mean@1": 0.125}
    buffer.log_metrics("trainer", 1, figures)
    buffer.close()
    lossy(tmp_path / "lossy")
    return tmp_path


def lossy(root):
    """A finished job whose only step is its second."""
    spec = RunSpec(str(root), f"sqlite:///{root}/experiences.db", {}, 4, 10, SyncSpec())
    (root / "config").mkdir(parents=True)
    spec.save(root / "config" / "run.json")
    ids = np.arange(2, dtype=np.int32)
    answer = Experience(0, ids, ids, np.ones(2, np.uint8), np.zeros(2, np.float32), 1.0, 0, 0)
    buffer = open_buffer(spec.database_url)
    buffer.put_groups([Group("key", 0, {}, 2, (answer,))])
    buffer.mark_trained(buffer.claim_groups(1, owner="trainer", step=2), step=2)
    buffer.close()


def printed(*words):
    done = CliRunner().invoke(cli, words)
    assert done.exit_code in (0, 1) or done.return_value in (0, 1), done.output
    return done.stdout


@pytest.mark.parametrize("name", names())
def test_a_schema_is_one(name):
    Draft202012Validator.check_schema(load(name))


REPORTS = [
    ("advise", "advise run.sh --gpus 8 --json"),
    ("advise", "advise run.sh --gpus 1 --json"),
    ("audit", "audit run.sh old.sh open.sh empty.sh --format json"),
    ("parse", "parse open.sh --format json"),
    ("ignored", "ignored old.sh --format json"),
    ("ignored", "ignored . --format json"),
    ("sizes", "sizes run.sh --format json"),
    ("diff", "diff run.sh other.sh --format json"),
    ("diff", "compare --configs run.sh other.sh --format json"),
    ("compare", "compare a.jsonl b.jsonl --format json"),
    ("compare", "compare a.jsonl b.jsonl a2.jsonl --format json"),
    ("compare", "compare a.jsonl,a2.jsonl b.jsonl,b2.jsonl --format json"),
    ("compare-plan", "compare a.jsonl,a2.jsonl --plan 0.1 --format json"),
    ("buffer-stats", "buffer stats job --json"),
    ("explain", "explain TC020 rollout.n --format json"),
    ("status", "status job --format json"),
    ("report", "report job --json"),
    ("advise", "advise run.sh --gpus 2 --json"),
]


@pytest.mark.parametrize(("name", "words"), REPORTS, ids=lambda text: text.partition(" --")[0])
def test_a_report_has_the_fields_of_its_schema(folder, name, words):
    assert errors(name, json.loads(printed(*words.split()))) == []


def test_a_report_with_another_field_or_without_one_is_refused(folder):
    data = json.loads(printed("status", "job", "--format", "json"))
    assert data["job"]["last_step"]["reward"] is None
    assert {each["role"]: each["reason"] for each in data["job"]["processes"]} == {
        "trainer": "killed",
        "explorer": None,
    }
    assert errors("status", {**data, "more": 1})
    assert errors("status", {name: value for name, value in data.items() if name != "job"})


@pytest.mark.verl
def test_a_dry_run_tells_yaml_plan_and_check(folder):
    words = ("run", "run.sh", "--dry-run", "--device", "cpu", "--job", "planned", "--format", "json")
    data = json.loads(printed(*words))
    assert errors("dry-run", data) == []
    (launch,) = data["launches"]
    assert yaml.safe_load(launch["yaml"])["algorithm"]["algorithm_type"] == "grpo"
    assert any("60 veRL steps" in line for line in launch["plan"])
    assert launch["wrote"] == str(Path("planned/config")) or Path(launch["wrote"]).is_dir()


def test_doctor_tells_each_check(folder, monkeypatch):
    found = [doctor.Check("ray", "ok", "2.55"), doctor.Check("disk", "problem", "full", "delete files")]
    monkeypatch.setattr(doctor, "examine", lambda folder: iter(found))
    done = CliRunner().invoke(cli, ["doctor", "--format", "json"], standalone_mode=False)
    assert done.return_value == 1 and errors("doctor", json.loads(done.stdout)) == []


def test_a_job_of_stages_names_them(folder):
    stages.write(folder / "staged", [stages.StageState("sft", "done", "m"), stages.StageState("grpo")])
    data = json.loads(printed("status", "staged", "--format", "json"))
    assert errors("status", data) == [] and data["job"] is None
    assert [each["state"] for each in data["stages"]] == ["done", "waiting"]


def test_every_command_that_prints_json_has_a_schema_in_the_table():
    table = PAGE.partition("## JSON")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    listed = {tuple(words.strip(" `").partition(" -")[0].split()) for words, _ in rows}
    printing = set()
    for path in commands():
        command = cli
        for word in path:
            command = command.get_command(click.Context(command), word)
        for each in command.params:
            is_json = isinstance(each.type, click.Choice) and "json" in each.type.choices
            if is_json or "--json" in each.opts or "--output-file" in each.opts:
                printing.add(path)
    assert printing | {("buffer", "export")} == listed
    named = {name for _, cell in rows for name in re.findall(r"`([a-z][a-z-]+)`", cell)}
    of_files = {"rules", "margins", f"trinity-{TRINITY}"}
    assert named == set(names()) - of_files


YAMLS = sorted([*EXAMPLES.glob("trinity/*.yaml"), *EXAMPLES.glob("workflows/*.yaml")])


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_a_yaml_of_the_examples_fits_the_editor_s_schema(path):
    assert errors(f"trinity-{TRINITY}", yaml.safe_load(path.read_text())) == []


def test_a_translation_fits_the_editor_s_schema(folder):
    assert errors(f"trinity-{TRINITY}", yaml.safe_load(printed("translate", "run.sh"))) == []


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"trainer": {"nonsense": 1}}, "$.trainer"),
        ({"algorithm": {"repeat_times": "many"}}, "$.algorithm.repeat_times"),
        ({"synchronizer": {"sync_method": "ftp"}}, "$.synchronizer.sync_method"),
    ],
)
def test_an_editor_marks_a_misspelt_field_and_a_value_of_another_type(config, place):
    (told,) = errors(f"trinity-{TRINITY}", config)
    assert place in told


def test_an_editor_says_why_a_field_has_no_effect():
    section = load(f"trinity-{TRINITY}")["properties"]["checkpoint_job_dir"]
    assert section["description"] == "No effect in `trinity-compat run`: trinity-rft sets it itself."


@pytest.mark.parametrize("path", sorted((ROOT / "translators").glob("*/forks/*.yaml")), ids=lambda p: p.stem)
def test_the_shipped_rules_fit_the_schema_of_rules(path):
    assert errors("rules", yaml.safe_load(path.read_text())) == []


def test_schemas_name_the_words_of_the_code():
    row = load("rules")["additionalProperties"]["properties"]
    assert (row["how"]["enum"], row["status"]["enum"]) == (list(HOWS), list(Status))
    finding = load("audit")["properties"]["launches"]["items"]["properties"]["findings"]["items"]
    assert finding["properties"]["status"]["enum"] == list(Status)
    assert errors("rules", {"trainer.x": {"how": "copy", "as": "trainer.y"}})
    assert errors("margins", {"reward": 0.02, "actor": "5%"}) == [] != errors("margins", {"reward": "much"})


def test_a_name_that_is_no_schema_is_told_with_the_nearest():
    done = CliRunner().invoke(cli, ["schema", "audi"])
    assert "did you mean audit?" in str(done.exception.hint)


def codes():
    """Command → its cells of the table for 0, 1 and 2."""
    rows = re.findall(r"(?m)^\| `([a-z -]+)` \|([^|\n]*)\|([^|\n]*)\|([^|\n]*)\|$", PAGE)
    return {tuple(name.split()): [cell.strip() for cell in cells] for name, *cells in rows}


def test_the_table_of_exit_codes_has_every_command():
    assert codes().keys() == set(commands())


ENDS = [
    ("advise run.sh --gpus 2", 0),
    ("advise empty.sh", 2),
    ("audit run.sh", 0),
    ("audit run.sh --fail-on mapped", 1),
    ("audit empty.sh", 2),
    ("buffer export job", 0),
    ("buffer export nowhere", 2),
    ("buffer prune job --keep-steps 1", 0),
    ("buffer prune nowhere --keep-steps 1", 2),
    ("buffer show nowhere", 2),
    ("buffer stats job", 0),
    ("buffer stats nowhere", 2),
    ("checkpoint to-hf job", 2),
    ("compare a.jsonl b.jsonl", 0),
    ("compare a.jsonl b.jsonl --assert critic/score/mean:difference<0", 2),
    ("compare a.jsonl nowhere", 2),
    ("completion fish", 0),
    ("completion tcsh", 2),
    ("debug nowhere -m reward", 2),
    ("diff run.sh run.sh", 0),
    ("diff run.sh other.sh", 1),
    ("diff run.sh nowhere", 2),
    ("doctor --dir nowhere", 2),
    ("explain TC020", 0),
    ("export run.sh --to slurm", 0),
    ("export empty.sh --to slurm", 2),
    ("explain nothing.of.the.kind", 2),
    ("ignored run.sh", 0),
    ("ignored old.sh", 1),
    ("ignored empty.sh", 2),
    ("doctor --report --format json", 2),
    ("doctor run.sh", 2),
    ("doctor --cluster", 2),
    ("parse run.sh", 0),
    ("parse empty.sh", 2),
    ("plugin-dir", 0),
    ("profile cpu", 0),
    ("profile nothing", 2),
    ("report job", 0),
    ("report lossy", 1),
    ("report nowhere", 2),
    ("rules families", 0),
    ("rules init run.sh", 0),
    ("rules init nowhere", 2),
    ("run empty.sh --format json", 2),
    ("schema status", 0),
    ("schema nothing", 2),
    ("sizes run.sh", 0),
    ("sizes uneven.sh", 1),
    ("sizes empty.sh", 2),
    ("status job", 0),
    ("status job --watch --format json", 2),
    ("studio nowhere", 2),
    ("to-verl nowhere", 2),
    ("toy run.sh", 2),
    ("translate run.sh", 0),
    ("translate run.sh --fail-on mapped", 1),
    ("translate empty.sh", 2),
    ("trial run.sh --seeds 0", 2),
    ("upgrade run.sh --check", 0),
    ("upgrade old.sh --check", 1),
    ("upgrade empty.sh", 2),
]


@pytest.mark.parametrize(("words", "code"), ENDS)
def test_a_command_ends_with_a_code_of_the_table(folder, words, code, capfd):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert (ended.value.code or 0) == code, capfd.readouterr()
    path = next(path for path in codes() if tuple(words.split())[: len(path)] == path)
    assert codes()[path][code]


def test_each_code_with_a_meaning_is_said_by_the_command_s_own_help():
    """Commands whose help has "Exit code" name 1 there where the table gives it a meaning."""
    for path, cells in codes().items():
        command = cli
        for word in path:
            command = command.get_command(click.Context(command), word)
        told = (command.help or "").partition("Exit code")[2]
        if told:
            assert bool(re.search(r"\b1\b", told)) == bool(cells[1]), path
