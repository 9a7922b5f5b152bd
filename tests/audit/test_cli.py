"""``trinity-compat audit``: sources, options, exit codes. The scripts are real, so is the translation."""

import json
import re

import pytest
from click.testing import CliRunner

from trinity_compat.cli.audit import command
from trinity_compat.common.errors import UserError

GRPO = """\
#!/bin/bash
set -x
batch=${BATCH:-1024}
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
  data.train_files=$HOME/gsm8k/train.parquet data.val_files=$HOME/gsm8k/test.parquet \\
  data.train_batch_size=$batch actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
  actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.model.path=Qwen/Qwen2.5-7B trainer.n_gpus_per_node=8 "$@"
"""
PRIME = "torchrun --nproc_per_node=4 -m recipe.prime.main_prime data.train_files=a.parquet optim.lr=1e-5\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "grpo.sh").write_text(GRPO)
    (tmp_path / "sub" / "prime.sh").write_text(PRIME)
    (tmp_path / "sub" / "tools.sh").write_text("echo nothing is trained here\n")
    (tmp_path / ".git" / "hook.sh").write_text(GRPO)
    (tmp_path / "notes.txt").write_text("python3 -m verl.trainer.main_ppo a=b\n")
    return tmp_path


def audit(*arguments, stdin=None):
    """Return (exit code, stdout) as the entry point would have them."""
    result = CliRunner().invoke(command, [str(a) for a in arguments], input=stdin, standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.return_value or 0, result.stdout


def launches(*arguments, stdin=None):
    code, text = audit("--format", "json", *arguments, stdin=stdin)
    data = json.loads(text)
    assert code == int(any(launch["refused"] for launch in data["launches"]))
    return data


def test_one_finding_per_key_with_its_place(folder):
    (launch,) = launches(folder / "grpo.sh", "--env", "HOME=/home/u")["launches"]
    assert launch["module"] == "verl.trainer.main_ppo"
    assert sum(launch["counts"].values()) == launch["keys"] == len(launch["findings"])
    by_key = {finding["key"]: finding for finding in launch["findings"]}
    assert by_key["data.train_batch_size"]["source"].endswith("grpo.sh:6")
    assert by_key["data.train_batch_size"]["value"] == 1024
    assert by_key["algorithm.adv_estimator"]["status"] == "derived"
    assert launch["refused"] is None


def test_arguments_that_set_no_key_are_counted_too(tmp_path):
    more = "--config-name ppo_trainer '~trainer.nnodes' hydra.run.dir=/tmp/x hydra/job_logging=none"
    (tmp_path / "run.sh").write_text(GRPO.replace("main_ppo ", f"main_ppo {more} "))
    (plain,) = launches("-", stdin=GRPO)["launches"]
    (launch,) = launches(tmp_path / "run.sh")["launches"]
    statuses = {finding["key"]: (finding["status"], finding["code"]) for finding in launch["findings"]}
    before = {finding["key"] for finding in plain["findings"]}
    assert len(set(statuses) - before) == 4
    assert sum(launch["counts"].values()) == launch["keys"]
    assert statuses["--config-name"] == ("no_effect", "TC086")
    assert statuses["hydra.run.dir"] == statuses["hydra/job_logging"] == ("no_effect", "TC086")
    assert statuses["~trainer.nnodes"] == ("approximated", "TC087")


def test_a_choice_of_configuration_files_is_counted(tmp_path):
    (tmp_path / "run.sh").write_text(GRPO.replace("main_ppo ", "main_ppo model_engine=megatron "))
    (launch,) = launches(tmp_path / "run.sh", "--verl-version", "0.9.1")["launches"]
    statuses = {finding["key"]: (finding["status"], finding["code"]) for finding in launch["findings"]}
    assert statuses["model_engine"] == ("mapped", "TC088")


def test_unknown_keys_are_named_with_the_nearest_spelling(tmp_path):
    typos = "actor_rollout_ref.rollout.nn=5 data.shufle=True trainer.max_ckpt_to_keep=3"
    typos += " +actor_rollout_ref.rollout.engine_kwargs.x.y=1"
    (tmp_path / "run.sh").write_text(GRPO.replace('"$@"', typos))
    (launch,) = launches(tmp_path / "run.sh")["launches"]
    unknown = {f["key"]: f["reason"] for f in launch["findings"] if f["status"] == "unknown"}
    assert set(unknown) == {"actor_rollout_ref.rollout.nn", "data.shufle", "trainer.max_ckpt_to_keep"}
    assert "did you mean actor_rollout_ref.rollout.n?" in unknown["actor_rollout_ref.rollout.nn"]
    assert "did you mean data.shuffle?" in unknown["data.shufle"]
    assert "did you mean trainer.max_actor_ckpt_to_keep?" in unknown["trainer.max_ckpt_to_keep"]


@pytest.mark.parametrize(
    "refused", ["actor_rollout_ref.actor.ppo_mini_batch_size=300", "--config-name=nowhere"]
)
def test_a_refused_launch_names_its_unknown_keys_too(tmp_path, refused):
    (tmp_path / "run.sh").write_text(GRPO.replace('"$@"', f"data.shufle=True {refused}"))
    (launch,) = launches(tmp_path / "run.sh")["launches"]
    assert launch["outcome"] == "refused"
    unknown = {f["key"]: f for f in launch["findings"] if f["status"] == "unknown"}
    assert set(unknown) == {"data.shufle"}
    assert unknown["data.shufle"]["code"] == "TC001"
    assert str(unknown["data.shufle"]["value"]) == "True"
    assert "did you mean data.shuffle?" in unknown["data.shufle"]["reason"]


def test_a_value_that_cannot_be_translated_has_its_row_beside_another_cause(tmp_path):
    text = GRPO.replace("estimator=grpo", "estimator=grpoo")
    (tmp_path / "run.sh").write_text(text)
    assert "algorithm.adv_estimator=grpoo  " not in audit(tmp_path / "run.sh")[1]  # the cause says it
    (tmp_path / "run.sh").write_text(text.replace("train_batch_size", "train_batch_sise"))
    out = audit(tmp_path / "run.sh")[1]
    assert re.search(r"TC004 +unsupported +algorithm\.adv_estimator=grpoo ", out)
    assert re.search(r"TC001 +unknown +data\.train_batch_sise=1024 ", out)


def test_a_folder_is_searched_and_what_trains_nothing_is_named(folder):
    data = launches(folder)
    assert [launch["source"].rpartition("/")[2] for launch in data["launches"]] == ["grpo.sh", "prime.sh"]
    assert [name.rpartition("/")[2] for name in data["without_launches"]] == ["tools.sh"]


def test_another_main_is_named_and_all_its_keys_are_unsupported(folder):
    (launch,) = launches(folder / "sub" / "prime.sh")["launches"]
    assert launch["module"] == "recipe.prime.main_prime"
    assert launch["counts"] == {"unsupported": 2}
    assert {finding["key"] for finding in launch["findings"]} == {"data.train_files", "optim.lr"}
    assert audit(folder / "sub" / "prime.sh", "--fail-on", "unsupported")[0] == 1


@pytest.mark.parametrize("script, line", [("sub/prime.sh", 1), ("grpo.sh", 6)])
def test_a_launch_in_a_file_that_the_script_runs_is_the_scripts(folder, script, line):
    (folder / "main.sh").write_text(f"bash {script}\n")
    (launch,) = launches(folder / "main.sh", "--cwd", folder)["launches"]
    assert launch["source"] == str(folder / "main.sh")
    assert f"{folder}/{script}:{line}" in {finding["source"] for finding in launch["findings"]}


def test_arguments_of_the_script_stand_behind_two_dashes(folder):
    arguments = ["--verl-version", "0.5.0", "--env", "BATCH=512", "--", "trainer.total_epochs=7"]
    (launch,) = launches(folder / "grpo.sh", *arguments)["launches"]
    values = {finding["key"]: finding["value"] for finding in launch["findings"]}
    assert values["trainer.total_epochs"] == 7
    assert values["data.train_batch_size"] == 512
    assert launch["verl_version"]["value"] == "0.5.0"


@pytest.mark.parametrize(
    "script, status, code",
    [(GRPO, "unknown", 0), (GRPO, "mapped", 1), (GRPO.replace("rollout.n=", "rollout.nn="), "unknown", 1)],
)
def test_fail_on_sets_the_exit_code_of_audit(tmp_path, script, status, code):
    (tmp_path / "run.sh").write_text(script)
    assert audit(tmp_path / "run.sh", "--fail-on", status)[0] == code


def test_an_indivisible_batch_is_told_and_does_not_stop_the_others(folder):
    (folder / "bad.sh").write_text(GRPO.replace("1024", "1031"))
    outcomes = {x["source"].rpartition("/")[2]: x for x in launches(folder)["launches"]}
    assert outcomes["bad.sh"]["outcome"] == "refused"
    assert "1031" in outcomes["bad.sh"]["refused"]
    assert outcomes["bad.sh"]["counts"] == {"unsupported": outcomes["bad.sh"]["keys"]}
    assert outcomes["grpo.sh"]["refused"] is None


def test_a_silenced_finding_no_longer_fails_the_audit(tmp_path):
    typo = GRPO.replace("rollout.name=vllm", "rollout.name=vllm +data.mine=1")
    (tmp_path / "run.sh").write_text(typo)
    assert audit(tmp_path / "run.sh", "--fail-on", "unknown")[0] == 1
    (tmp_path / "run.sh").write_text(typo.replace("set -x", "# trinity-compat: ignore=data.mine"))
    assert audit(tmp_path / "run.sh", "--fail-on", "unknown")[0] == 0


def test_a_script_from_stdin_is_audited(folder):
    (launch,) = launches("-", stdin=GRPO)["launches"]
    assert launch["source"] == "-"


def test_a_verl_configuration(tmp_path):
    (tmp_path / "ppo.yaml").write_text(
        "data: {train_files: a.parquet, val_files: b.parquet, train_batch_size: 512}\n"
        "actor_rollout_ref: {actor: {ppo_mini_batch_size: 128}, model: {path: m}, rollout: {name: vllm}}\n"
        "trainer: {n_gpus_per_node: 8}\n"
    )
    (launch,) = launches(tmp_path / "ppo.yaml")["launches"]
    values = {finding["key"]: finding["value"] for finding in launch["findings"]}
    assert values["data.train_batch_size"] == 512
    assert launch["refused"] is None


def test_several_launches_end_in_a_summary(folder):
    _, text = audit(folder)
    assert "2 launches in 2 scripts" in text
    assert "What changes, and why" in text


def test_output_goes_to_a_file(folder, tmp_path):
    assert audit(folder, "--format", "html", "-o", tmp_path / "audit.html") == (1, ""), "prime.sh is refused"
    assert (tmp_path / "audit.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["no/such.sh"], "no/such.sh"),
        (["-", "--env", "HOME"], "--env HOME: not of the form"),
        (["-", "--verl-version", "9.9"], "9.9"),
    ],
)
def test_bad_input_is_a_user_error(arguments, said):
    with pytest.raises(UserError, match=said):
        audit(*arguments, stdin=GRPO)


def test_a_folder_without_scripts_is_no_clean_audit(tmp_path):
    (tmp_path / "notes.txt").write_text(GRPO)
    with pytest.raises(UserError, match="no script below this folder"):
        audit(tmp_path)


def test_what_cannot_be_written_is_said(folder):
    with pytest.raises(UserError, match=r"nowhere/x\.html: cannot write: No such file"):
        audit(folder / "grpo.sh", "-o", folder / "nowhere" / "x.html")


@pytest.mark.parametrize("form", ["text", "json", "md", "html", "sarif"])
def test_bytes_that_are_no_utf8_can_be_written(folder, form):
    (folder / "old.sh").write_bytes(
        GRPO.replace("model.path=", "model.path=caf\udce9").encode(errors="surrogateescape")
    )
    audit(folder / "old.sh", "--format", form, "-o", folder / "out")
    assert "caf\\udce9" in (folder / "out").read_text().replace("\\\\", "\\")


@pytest.mark.parametrize("form", ["text", "md"])
def test_the_cause_of_a_refusal_is_told_once_and_not_for_every_key(folder, form):
    (folder / "grpo.sh").write_text(GRPO.replace("${BATCH:-1024}", "1031"))
    _, text = audit(folder / "grpo.sh", "--format", form)
    assert "is not divisible" in " ".join(text.split()) and "TC004" not in text
    (launch,) = launches(folder / "grpo.sh")["launches"]
    assert {finding["code"] for finding in launch["findings"]} == {"TC004"}


def test_an_unset_variable_stands_in_the_value_by_name(folder):
    (launch,) = launches(folder / "grpo.sh")["launches"]
    values = {finding["key"]: finding["value"] for finding in launch["findings"]}
    assert values["data.train_files"] == "${oc.env:HOME}/gsm8k/train.parquet"
    assert values["data.train_batch_size"] == 1024


@pytest.mark.parametrize("form", ["text", "md", "json", "html"])
def test_a_given_variable_that_the_script_sets_itself_is_said_not_to_count(tmp_path, form):
    (tmp_path / "run.sh").write_text(f"N=8\n{GRPO}")
    told = audit(tmp_path / "run.sh", "--env", "N=4", "--env", "BATCH=512", "--format", form)[1]
    assert "TP113" in told and "--env N=4" in told and "--env BATCH" not in told


def test_an_empty_source_is_not_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="a SOURCE is an empty text"):
        audit("")


def test_a_syntax_error_and_no_launch_is_no_clean_bill(folder):
    broken = folder / "broken.sh"
    broken.write_text("echo hi\nif true; then\n" + GRPO)
    with pytest.raises(UserError, match=r"broken.sh:\d+: bash stops here: .*no launch stands before it"):
        audit(broken)
    data = launches(folder)
    assert [name for name in data["problems"] if name.endswith("broken.sh")]
    assert len(data["launches"]) == 2, "the others go on"


def test_a_syntax_error_behind_a_launch_leaves_the_launch(tmp_path):
    (tmp_path / "run.sh").write_text(GRPO + "if true; then\n")
    assert len(launches(tmp_path / "run.sh")["launches"]) == 1


def test_one_open_number_leaves_every_other_key_judged(folder):
    script = folder / "open.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet data.val_files=/d/b.parquet \\\n"
        "  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\\n"
        "  trainer.n_gpus_per_node=$N_GPUS trainer.total_epochs=3 data.shufle=False\n"
    )
    (launch,) = launches(script)["launches"]
    found = {finding["key"]: finding for finding in launch["findings"]}
    assert launch["outcome"] == "refused"
    assert found["trainer.n_gpus_per_node"]["status"] == "unsupported"
    assert "depends on $N_GPUS" in found["trainer.n_gpus_per_node"]["reason"]
    assert found["trainer.total_epochs"]["status"] == "mapped"
    assert found["data.shufle"]["status"] == "unknown"


def test_an_untranslated_main_s_keys_are_judged_as_main_ppo_s(folder):
    script = folder / "own.sh"
    script.write_text(
        "python3 -m recipe.prime.main_prime data.train_files=/d/a.parquet \\\n"
        "  data.val_files=/d/b.parquet \\\n"
        "  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\\n"
        "  trainer.total_epochs=3\n"
    )
    (launch,) = launches(script)["launches"]
    found = {finding["key"]: finding["status"] for finding in launch["findings"]}
    assert launch["outcome"] == "refused" and found["trainer.total_epochs"] == "mapped"


def test_every_stray_word_of_a_launch_is_named(folder):
    script = folder / "stray.sh"
    script.write_text("python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet if ready then\n")
    (launch,) = launches(script)["launches"]
    assert all(f"'{word}' has no '='" in launch["refused"] for word in ("if", "ready", "then"))
    _, text = audit(script)
    assert all(f"'{word}'" in text for word in ("if", "ready", "then"))


def test_a_refused_value_that_a_rule_drops_is_told_with_the_rule_s_reason(tmp_path, folder):
    script = folder / "grpo.sh"
    script.write_text(
        script.read_text().replace("verl.trainer.main_ppo", "verl.trainer.main_ppo data.truncation=center")
    )
    (tmp_path / "rules.yaml").write_text("data.truncation: {how: drop, why: our prompts are short}\n")
    (launch,) = launches(script, "--rules", tmp_path / "rules.yaml")["launches"]
    (found,) = [finding for finding in launch["findings"] if finding["key"] == "data.truncation"]
    assert (launch["refused"], found["status"]) == (None, "no_effect")
    assert found["reason"].startswith("our prompts are short; left out by a rule")


@pytest.mark.parametrize("form", ["text", "md"])
def test_the_keys_that_keep_their_meaning_are_counted_and_listed_with_all(folder, form):
    _, told = audit(folder / "grpo.sh", "--format", form)
    _, listed = audit(folder / "grpo.sh", "--format", form, "--all")
    assert re.search(r"^\W*\d+ keys keep their meaning \(--all lists them\)$", told, re.MULTILINE)
    assert "trainer.n_gpus_per_node=8" not in told
    assert "trainer.n_gpus_per_node=8" in listed
    assert "--all" not in listed


TWICE = """\
for lr in 1e-6 2e-6; do
  [ "$DEBUG" = 1 ] && echo debug
  if [ "$DEBUG" = 1 ]; then N=1; fi
  if [ "$DEBUG" = 1 ]; then M=1; fi
""" + GRPO.split("-x\n")[1].replace('"$@"', "actor_rollout_ref.actor.optim.lr=$lr\ndone")


def test_what_reading_tells_of_several_lines_and_launches_is_said_once(tmp_path):
    (tmp_path / "run.sh").write_text(TWICE)
    for form in ("text", "md"):
        _, text = audit(tmp_path / "run.sh", "--format", form)
        assert len(re.findall("DEBUG, which is not set", re.sub(r"\s+", " ", text))) == 1
    assert len(launches(tmp_path / "run.sh")["launches"][1]["diagnostics"]) >= 2


def test_set_counts_as_the_launchs_last_word(folder):
    (launch,) = launches(folder / "grpo.sh", "--set", "actor_rollout_ref.rollout.n=8")["launches"]
    (finding,) = (one for one in launch["findings"] if one["key"] == "actor_rollout_ref.rollout.n")
    assert (finding["value"], finding["source"]) == (8, "--set")


def test_set_gives_what_reading_cannot_know(tmp_path):
    key = "trainer.n_gpus_per_node"
    (tmp_path / "run.sh").write_text(GRPO.replace(f"{key}=8", f"{key}=$(nvidia-smi -L | wc -l)"))
    assert launches(tmp_path / "run.sh")["launches"][0]["refused"]
    (launch,) = launches(tmp_path / "run.sh", "--set", f"{key}=8")["launches"]
    assert launch["refused"] is None


def test_quiet_says_what_stops_a_launch_and_nothing_else(folder):
    assert audit("-q", folder / "grpo.sh") == (0, "")
    given = ["--quiet", str(folder), "--fail-on", "unsupported"]
    result = CliRunner().invoke(command, given, standalone_mode=False)
    assert result.stdout == "" and result.return_value == 1
    lines = result.stderr.splitlines()
    assert [line for line in lines if "grpo.sh" in line] == []
    assert lines[-1].startswith(f"{folder}/sub/prime.sh:1: cannot be translated: ")


def test_quiet_still_writes_the_report_that_is_asked_for(folder, tmp_path):
    assert audit("-q", folder / "grpo.sh", "--format", "json", "-o", tmp_path / "a.json") == (0, "")
    assert json.loads((tmp_path / "a.json").read_text())["launches"]


def test_a_variable_of_the_calling_shell_that_was_not_used_is_named(folder, monkeypatch):
    monkeypatch.setenv("BATCH", "512")
    assert "TP123 BATCH is set in this shell" in audit(folder / "grpo.sh")[1]
    assert "TP123" not in audit(folder / "grpo.sh", "--env", "BATCH=512")[1]


@pytest.mark.parametrize("words", [(), ("--fail-on", "unknown"), ("--format", "sarif"), ("-q",)])
def test_a_launch_that_cannot_be_translated_fails_the_audit_whatever_fail_on_says(tmp_path, words):
    path = tmp_path / "run.sh"
    path.write_text(GRPO.replace("1024", "1031"))
    assert audit(path, *words)[0] == 1
    path.write_text(f"# trinity-compat: ignore=TC004\n{GRPO.replace('1024', '1031')}")
    assert audit(path, *words)[0] == 0, "its source does not want to hear of it"


def test_a_named_script_that_launches_nothing_fails_the_audit(tmp_path):
    (tmp_path / "run.sh").write_text("echo hi\n")
    code, out = audit(tmp_path / "run.sh")
    assert code == 2 and "without a training launch" in out


@pytest.mark.parametrize(
    ("more", "unsupported", "told"), [("data.image_key=images", 1, ["decide"]), ("", 0, [])]
)
def test_a_launch_with_images_is_not_said_to_run_on_trinity_rft(tmp_path, more, unsupported, told):
    text = f"python3 -m verl.trainer.main_ppo data.train_files=/a data.val_files=/b {more}\n"
    (tmp_path / "run.sh").write_text(text)
    _, out = audit(tmp_path / "run.sh", "--format", "json")
    (found,) = json.loads(out)["launches"]
    assert found["counts"].get("unsupported_upstream", 0) == unsupported
    assert [caution["rank"] for caution in found["warnings"] if caution["code"] == "TW026"] == told


def test_a_key_that_stock_verl_ignores_is_said_to_be_and_listed_once(tmp_path):
    more = " actor_rollout_ref.actor.grad_clip=0.5 data.truncation=left data.seed=3\n"
    (tmp_path / "run.sh").write_text(GRPO.replace(' "$@"\n', more))
    (launch,) = launches(tmp_path / "run.sh", "--env", "HOME=/h", "--verl-version", "0.9.1")["launches"]
    reasons = {finding["key"]: finding["reason"] for finding in launch["findings"]}
    assert reasons["actor_rollout_ref.actor.grad_clip"].endswith(
        "; stock veRL 0.9.1 does not read it (0.7 did): it clips by actor.optim.clip_grad"
    )
    assert reasons["actor_rollout_ref.actor.grad_clip"].count("veRL 0.9.1") == 1
    assert "veRL 0.9.1" not in reasons["data.seed"]
    (note,) = [each for each in launch["warnings"] if each["code"] == "TW028"]
    assert note["rank"] == "note"
    assert note["message"].endswith(
        "2 keys that this launch sets: actor_rollout_ref.actor.grad_clip, data.truncation"
    )


def test_a_release_that_reads_its_keys_gets_no_note_of_ignored_ones(tmp_path):
    (tmp_path / "run.sh").write_text(GRPO.replace(' "$@"\n', " actor_rollout_ref.actor.grad_clip=0.5\n"))
    (launch,) = launches(tmp_path / "run.sh", "--env", "HOME=/h", "--verl-version", "0.5.0")["launches"]
    assert "TW028" not in [each["code"] for each in launch["warnings"]]
