"""Every key that a user can write changes the plan, or the output names it.

Each leaf of veRL's configuration and of Trinity's is given another legal value, in a launch, in a YAML (the
one that the launch is translated to, and one by hand) and by ``--set``.
"""

import json
import re
import shlex
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path

import pytest
import yaml
from test_trinity_fields import BASE, CLEANED, JUICER, LORA, READ, ROW, engines_installed
from trinity_files import merged

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves, put, value_at
from trinity_compat.common.releases import TRINITY
from trinity_compat.launch import read_text
from trinity_compat.run.plan.error_locations import pinned_names
from trinity_compat.run.plan.ignored_keys import known
from trinity_compat.run.plan.plan_run import plan_source
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.translate import Status, TranslateOptions, translate_launch
from trinity_compat.translate.trinity_fields import fate_of, fields
from trinity_compat.trinity.config.read_tracking import values_of
from trinity_compat.trinity.config.schema import schema
from trinity_compat.trinity.config.validate import validate
from trinity_compat.verl_config.pinned import compose_pinned

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
REWARD_MODEL = "reward.reward_model"
SDPA = {"attn_implementation": "sdpa"}  # on any machine, flash-attn or not
PER_GPU = "ppo_micro_batch_size_per_gpu"
GRPO = {
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "/d/t.parquet",
    "data.val_files": "/d/v.parquet",
    "data.train_batch_size": 64,
    "actor_rollout_ref.model.path": "org/m",
    "+actor_rollout_ref.model.override_config.attn_implementation": SDPA["attn_implementation"],
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.{PER_GPU}": 2,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 4,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 2,
    f"{REF}.log_prob_micro_batch_size_per_gpu": 2,
    "trainer.logger": ["console"],
    "trainer.total_training_steps": 100,
    "trainer.save_freq": 5,
    "trainer.test_freq": 5,
}
PPO = {
    **GRPO,
    "algorithm.adv_estimator": "gae",
    "critic.model.path": "org/c",
    f"critic.{PER_GPU}": 2,
}
# Values that mean something, where twice the number or the opposite does not.
VALUES = {
    "model_engine": "megatron",
    "algorithm.adv_estimator": "rloo",
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.kl_penalty": "mse",
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.rollout_correction.rollout_rs": "token_k1",
    f"{ACTOR}.kl_loss_type": "mse",
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum",
    f"{ACTOR}.policy_loss.loss_mode": "gspo",
    f"{ROLLOUT}.name": "sglang",
    f"{ROLLOUT}.quantization": "fp8",
    f"{ROLLOUT}.top_p": 0.5,
    "data.truncation": "left",
    "reward.reward_manager.name": "dapo",
    "reward.reward_manager.source": "importlib",
    "reward_model.reward_loop_source": "importlib",
    "reward_model.reward_manager": "dapo",
    "reward_model.rollout.tensor_model_parallel_size": 4,
    "trainer.device": "cpu",
    "trainer.logger": ["console", "wandb"],
    "trainer.resume_mode": "disable",
    "trainer.v1.trainer_mode": "separate_async",
}
# The same by a key's last name.
BY_NAME = {
    "betas": [0.8, 0.9],
    "dtype": "float16",
    "enable": True,
    "load_contents": ["model"],
    "log_prob_micro_batch_size": 32,
    "lr_scheduler_type": "cosine",
    "model_path": "/other",
    "path": "/other",
    "ppo_micro_batch_size": 32,
    "save_contents": ["model", "optimizer", "extra", "hf_model"],
    "strategy": "fsdp2",
    "warmup_style": "cosine",
}
# Key → what the launch says besides; None: leaves out.
NEEDS = {
    f"{ACTOR}.ppo_micro_batch_size": {f"{ACTOR}.{PER_GPU}": None},
    f"{REF}.log_prob_micro_batch_size": {f"{REF}.log_prob_micro_batch_size_per_gpu": None},
    f"{ROLLOUT}.log_prob_micro_batch_size": {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": None},
    "critic.ppo_micro_batch_size": {f"critic.{PER_GPU}": None},
    "trainer.v1.trainer_mode": {"trainer.v1.separate_async.parameter_sync_step": 2},
    "critic.enable": {f"critic.{PER_GPU}": 2},
    f"{REWARD_MODEL}.enable": {f"{REWARD_MODEL}.model_path": "/rm", f"{REWARD_MODEL}.rollout.name": "vllm"},
    "reward_model.enable": {f"{REWARD_MODEL}.model_path": "/rm", f"{REWARD_MODEL}.rollout.name": "vllm"},
}
CLAIMS = (
    Status.MAPPED,
    Status.DERIVED,
    Status.PASSED_THROUGH,
    Status.APPROXIMATED,
    Status.UNSUPPORTED_UPSTREAM,
)
COMPAT = "trainer.trainer_config.trinity_compat"
# Keys whose value a run does not have at the same place, and what it has instead.
ELSEWHERE = {
    "model_engine": "chooses the sections of the other engine",
    "trainer.nnodes": "both sides share the GPUs",
    "trainer.n_gpus_per_node": "both sides share the GPUs",
    f"{ROLLOUT}.name": "the explorer's engine is vLLM",
    f"{ROLLOUT}.nnodes": "the explorer's own GPUs",
    "trainer.v1.trainer_mode": "how far the explorer is ahead",
    f"{ACTOR}.ppo_micro_batch_size": "per GPU",
    f"{REF}.log_prob_micro_batch_size": "per GPU",
    f"{ROLLOUT}.log_prob_micro_batch_size": "per GPU",
    "critic.ppo_micro_batch_size": "per GPU",
    "trainer.default_local_dir": "a link to the job's folder",
}


def value_of(key, value):
    """Another value of a veRL key whose value is ``value``."""
    name = key.rpartition(".")[2]
    if key in VALUES or (name in BY_NAME and BY_NAME[name] != value):
        return VALUES.get(key, BY_NAME.get(name))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 if value > 0 else 2
    if isinstance(value, list):
        return [*value, "other"]
    return {"a": 1} if isinstance(value, dict) else "other" if isinstance(value, str) else 3


def words_of(values):
    return [f"{key}={hydra(value)}" for key, value in values.items() if value is not None]


def hydra(value):
    return value if isinstance(value, str) else re.sub(r'"([\w/.:-]*)"', r"\1", json.dumps(value))


class Planned:
    """A launch's findings by key, and its plan."""

    def __init__(self, base, changes):
        values = {**base, **changes}
        for key in changes:
            values |= NEEDS.get(key, {})
        words = [f"{'++' * isinstance(values[w.partition('=')[0]], dict)}{w}" for w in words_of(values)]
        self.lines = {word.partition("=")[0].lstrip("+"): n for n, word in enumerate(words, start=2)}
        text = "python3 -m verl.trainer.main_ppo \\\n" + " \\\n".join(map(shlex.quote, words))
        (launch,) = read_text(text, name="run.sh").launches
        translation, self.text = translate_launch(launch, TranslateOptions(resolve=True))
        self.findings = {finding.key: finding for finding in translation.findings}
        said = [{"text": word.text, "where": str(word.where)} for word in launch.arguments]
        record = {"script": "run.sh", "where": str(launch.where), "arguments": said}
        self.made = plan_of(Source(translation.config, "", record))


def plan_of(source, sets=()):
    with engines_installed():
        return plan_source(source, RunOptions(device="cuda", sets=tuple(sets)), cwd=Path("/w"))


def given(made):
    """Everything that the processes of a run are given."""
    spec = json.loads(json.dumps(made.spec.as_saved(), default=str))
    return [spec, str(made.job.root), made.local_dir, made.ray, dict(made.env), made.log_folder]


def judged(key, value, run, before):
    """What is wrong with the run of a launch whose ``key`` has another value; None where nothing is."""
    finding = run.findings.get(key) or next((f for k, f in run.findings.items() if k.startswith(key)), None)
    if finding is None:
        return f"{key}={value}: no finding"
    if finding.status not in CLAIMS:
        return None
    if any(value_at(run.made.spec.verl, name) == value for name in pinned_names(key)):
        return None
    if given(run.made) == before:
        if any(key in note for note in run.made.notes):
            return None
        return f"{key}={value}: {finding.status}, and the plan stays as it is ({finding.reason})"
    return None if key in ELSEWHERE else f"{key}={value}: {finding.status}, and verl.yaml has another value"


def wrong(base, changes, before):
    """What is wrong with launches that each have one of ``changes``. Many are tried at once: a change that
    shows among others is one."""
    try:
        run = Planned(base, changes)
    except UserError as error:
        if len(changes) == 1:
            (key,) = changes
            return [] if is_named(key, error) else [f"{key}={changes[key]}: {error}"]
        return halves(base, changes, before)
    found = {key: judged(key, value, run, before) for key, value in changes.items()}
    if len(changes) == 1:
        return [told for told in found.values() if told]
    return [
        told for key, failed in found.items() if failed for told in wrong(base, {key: changes[key]}, before)
    ]


def halves(base, changes, before):
    items = list(changes.items())
    middle = len(items) // 2
    return [told for part in (items[:middle], items[middle:]) for told in wrong(base, dict(part), before)]


def is_named(key, error):
    return any(name in str(error) for name in pinned_names(key))


SECTIONS = sorted({".".join(key.split(".")[:2]) for key, _ in leaves(compose_pinned(GRPO))})


def changes_in(base, section):
    values = dict(leaves(compose_pinned({key.lstrip("+"): value for key, value in base.items()})))
    keys = [key for key in values if key == section or key.startswith(f"{section}.")]
    return {key: value_of(key, values[key]) for key in keys if not key.endswith("._target_")}


@pytest.fixture(scope="module")
def grpo():
    return given(Planned(GRPO, {}).made)


@pytest.fixture(scope="module")
def ppo():
    return given(Planned(PPO, {}).made)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_of_a_script_is_done_or_named(section, grpo):
    assert wrong(GRPO, changes_in(GRPO, section), grpo) == []


@pytest.mark.parametrize("section", [name for name in SECTIONS if name.startswith(("critic.", "algorithm."))])
def test_a_key_of_a_script_with_a_critic_is_done_or_named(section, ppo):
    assert wrong(PPO, changes_in(PPO, section), ppo) == []


TASKSETS = "buffer.explorer_input.tasksets.0"
STALENESS = {"sample_strategy": "staleness_control", "sample_strategy_args": {"max_staleness": 4}}
WIDE = {"model_path": "/reward", "tensor_parallel_size": 2, "enforce_eager": True}


def engines(number, width):
    return {"explorer": {"rollout_model": {"engine_num": number, "tensor_parallel_size": width}}}


BY_RECIPE = merged(
    JUICER,
    {"data_processor": {"task_pipeline": {"operators": [], "config_path": "/d/recipe.yaml"}}},
)
BY_HAND = merged(
    BASE,
    {"trainer": {"trainer_config": {"actor_rollout_ref": {"model": {"override_config": SDPA}}}}},
)
# Fields of a YAML: another value, where the type does not tell one.
IN_YAML = {
    "mode": "explore",
    "algorithm.advantage_fn": "rloo",
    "buffer.batch_size": 16,
    "buffer.explorer_input.eval_tasksets.0.default_workflow_type": "other",
    f"{TASKSETS}.default_workflow_type": "other",
    "cluster.gpu_per_node": 12,
    "cluster.node_num": 3,
    "explorer.rollout_model.engine_num": 3,
    "trainer.total_steps": 100,
    "trainer.trainer_config.trinity_compat.updates_per_step": 1,
    f"{TASKSETS}.task_selector.selector_type": "sequential",
    "explorer.auxiliary_models.0.enforce_eager": False,
}
IN_YAML |= {path: value for path, (value, _) in READ.items() if path not in IN_YAML}
IN_YAML = {path.replace(ROW, TASKSETS): value for path, value in IN_YAML.items()} | IN_YAML
# Field, or section → what the file has besides.
BESIDE = {
    "algorithm.entropy_loss_fn": {"algorithm": {"entropy_loss_fn_args": {"entropy_coef": 0.1}}},
    "algorithm.sample_strategy": {"algorithm": STALENESS},
    "cluster.gpu_per_node": engines(4, 1),
    "cluster.node_num": {**engines(4, 2), "cluster": {"node_num": 2}},
    "data_processor.experience_pipeline.operators": CLEANED,
    "data_processor.task_pipeline.config_path": BY_RECIPE,
    "data_processor.task_pipeline": JUICER,
    "explorer.auxiliary_models": {
        "cluster": {"gpu_per_node": 10},
        "explorer": {"rollout_model": {"engine_num": 2}, "auxiliary_models": [WIDE]},
    },
    "explorer.rollout_model.data_parallel_size": {**engines(2, 2), "cluster": {"gpu_per_node": 12}},
    "explorer.rollout_model.pipeline_parallel_size": {**engines(2, 2), "cluster": {"gpu_per_node": 12}},
    "explorer.rollout_model.tensor_parallel_size": {**engines(4, 1), "cluster": {"gpu_per_node": 12}},
    "model.lora_configs": LORA,
}


def in_yaml(config, path, value):
    """``config`` with another value at ``path``; where a list is missing, one of a single section."""
    config = json.loads(json.dumps(config))
    above, listed, below = path.partition(".0.")
    if listed and value_at(config, above) is None:
        section = {}
        put(section, below, value)
        path, value = above, [section]
    put(config, path, value)
    return config


def yaml_value(config, path):
    """Another value of a field, by its type."""
    field = schema(TRINITY).find(path)
    now = value_at(config, path)
    kind = field.type if field else None
    if path in IN_YAML and IN_YAML[path] not in (now, field.default if field and now is None else None):
        return IN_YAML[path]
    if kind and kind.kind == "enum":
        return next(value for value in kind.values if value not in (now, field.default))
    if kind and kind.kind == "list" and kind.item.kind in ("class", "dict"):
        return [{}] if kind.item.kind == "class" else [{"a": 1}]
    now = field.default if field and now is None else now
    if now is not None or not kind:
        return value_of(path, now)
    by_kind = {"str": "other", "int": 3, "float": 0.5, "bool": True, "dict": {"a": 1}, "list": ["other"]}
    return by_kind.get(kind.kind, "other")


def paths_of(config):
    """Every field that Trinity has, and what the file has in sections that are free."""
    places = {
        "buffer.explorer_input.tasksets.*": "buffer.explorer_input.tasksets.0",
        "auxiliary_buffers.*": "auxiliary_buffers.sft_dataset",
        "experience_pipeline.inputs.*": "experience_pipeline.inputs.one",
        ".*": ".0",
    }
    here = list(values_of(config))
    found = list(here)
    for path in fields(schema(TRINITY)):
        for pattern, place in places.items():
            path = path.replace(pattern, place)
        found.append(path)
    # A stage's fields are the whole's; two sections of ours have veRL's keys for names.
    apart = ["stages.", f"{COMPAT}.stands_for.", f"{COMPAT}.verl."]
    if value_at(config, ROW):
        apart.append(TASKSETS)  # the two cannot stand together
    sections = {path[:end] for path in here for end, each in enumerate(path) if each == "."}
    return [
        path for path in dict.fromkeys(found) if path not in sections and not path.startswith(tuple(apart))
    ]


class Yaml:
    """A YAML, and the plan of it as it stands."""

    def __init__(self, folder, config):
        self.file = folder / "x.yaml"
        self.file.write_text(yaml.safe_dump(config, sort_keys=False))
        self.config = config
        made = self.plan(config)
        self.notes, self.before = set(made.notes), given(made)

    def plan(self, config, sets=()):
        return plan_of(Source(config, "", {"yaml": str(self.file)}), sets)

    def error(self, config):
        """The error of a file that says ``config``."""
        file = self.file.with_name("other.yaml")
        file.write_text(yaml.safe_dump(config, sort_keys=False))
        with pytest.raises(UserError) as error:
            plan_of(Source(config, "", {"yaml": str(file)}))
        return str(error.value)

    def all_wrong(self, paths):
        """As ``wrong``, of each. Those without effect are tried at once: a note names each."""
        idle = [path for path in paths if (fate := fate_of(path)) and fate.kind == "no effect"]
        try:
            notes = self.plan(reduce(lambda made, path: self.changed(made, path), idle, self.config)).notes
        except UserError:
            notes = ()
        named = {path for path in idle if any(path in note for note in notes)}
        return [told for path in paths if path not in named and (told := self.wrong(path))]

    def changed(self, config, path):
        return in_yaml(config, path, yaml_value(self.config, path))

    def wrong(self, path):
        """What is wrong with the plan of the file with another value at ``path``; None where nothing is."""
        value = yaml_value(self.config, path)
        config = self.changed(self.config, path)
        if problems := validate(config, TRINITY):
            return f"{path}={value} is not legal: {problems}"
        try:
            made = self.plan(config)
        except UserError as error:
            if path in (told := str(error)) or path in (told := self.error(config)):
                return None
            if not (stale := STALE.findall(told)):
                return f"{path}={value}: {told}"
            for other, wanted in stale:
                config = in_yaml(config, other, yaml.safe_load(wanted))
            made = self.plan(config)
        told = any(path in note for note in made.notes if note not in self.notes)
        if given(made) != self.before or told or any(fnmatchcase(path, name) for name in known()):
            return None
        return f"{path}={value} changes nothing, without a word"


# What an edit makes of other lines is said with what to write in them.
STALE = re.compile(r"([\w.]+)=.*: without effect here; .* makes? it (.*)")


def beside(path, *, by_hand):
    """What the file has besides, for its field at ``path``."""
    if by_hand and path in READ:
        return READ[path][1]
    return next((found for name, found in BESIDE.items() if f"{path}.".startswith(f"{name}.")), {})


@pytest.fixture(scope="module")
def wrong_fields(tmp_path_factory):
    files, every = {}, {}

    def wrong_in(config, section, *, by_hand):
        if by_hand not in every:
            every[by_hand] = paths_of(config)
        paths = [path for path in every[by_hand] if f"{path}.".startswith(f"{section}.")]
        by_file = {}
        for path in paths:
            name = json.dumps([by_hand, needs := beside(path, by_hand=by_hand)])
            if name not in files:
                files[name] = Yaml(tmp_path_factory.mktemp("yaml"), merged(config, needs))
            by_file.setdefault(name, []).append(path)
        return [told for name, found in by_file.items() for told in files[name].all_wrong(found)]

    return wrong_in


PARTS = sorted({".".join(path.split(".")[:2]) for path in paths_of(BASE)})


@pytest.mark.parametrize("section", PARTS)
def test_a_field_of_a_translated_yaml_is_done_or_named(section, wrong_fields, translated):
    assert wrong_fields(translated, section, by_hand=False) == []


@pytest.mark.parametrize("section", PARTS)
def test_a_field_of_a_yaml_by_hand_is_done_or_named(section, wrong_fields):
    assert wrong_fields(BY_HAND, section, by_hand=True) == []


@pytest.fixture(scope="module")
def translated():
    return yaml.safe_load(Planned(GRPO, {}).text)


# Of --set beside a YAML: what changes nothing without a word, and why.
SILENT = {f"{ROLLOUT}.n_gpus_per_node": "read with rollout.nnodes alone, by stock veRL too"}


def set_words(changes):
    """Those beside a change come after it: where it is tried alone, they are its needs."""
    given = dict(changes)
    for key in changes:
        given |= NEEDS.get(key, {})
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def wrong_sets(file, changes):
    """What is wrong with ``--set`` of veRL's keys beside a YAML. Many are tried at once, as in ``wrong``."""
    alone = len(changes) == 1
    try:
        made = file.plan(file.config, set_words(changes))
    except UserError as error:
        if not alone:
            return [told for key in changes for told in wrong_sets(file, {key: changes[key]})]
        return [f"{key}: {error}" for key in changes if not is_named(key, error)]
    found = []
    for key, value in changes.items():
        if value_at(made.spec.verl, key) == value:
            continue
        short = key.removeprefix("actor_rollout_ref.")
        named = any(short in note and "--set" not in note for note in made.notes)
        if not alone:
            found += wrong_sets(file, {key: value})
        elif given(made) == file.before and not named:
            found.append(f"--set {key}={value} changes nothing, without a word")
    return found


@pytest.fixture(scope="module")
def beside_a_set(tmp_path_factory, translated):
    return Yaml(tmp_path_factory.mktemp("yaml"), translated)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_of_verl_s_set_beside_a_yaml_is_done_or_named(section, beside_a_set):
    changes = changes_in(GRPO, section)
    assert wrong_sets(beside_a_set, {key: changes[key] for key in changes if key not in SILENT}) == []


@pytest.mark.parametrize("key", SILENT)
def test_a_key_of_the_table_still_changes_nothing_without_a_word(key, beside_a_set):
    assert wrong_sets(beside_a_set, {key: 16})
