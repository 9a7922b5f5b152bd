"""The teachers of on-policy distillation: their engines and their GPUs.

They have a pool of their own beside the launch's other GPUs (verl 0.9.1, main_ppo_v0.py and
ppo/v1/trainer_base.py: "teacher_pool"), of which each teacher takes a part; so they do here. On a CPU each
has one engine. Modes that train nothing have none.
"""

from __future__ import annotations

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import section_at, value_at
from trinity_compat.job.distillation import ENABLED, POOL, TeacherEntry, pool_gpus, teacher_entries
from trinity_compat.job.vllm_arguments import fate, refusal, release_for
from trinity_compat.run.plan import served
from trinity_compat.run.plan.verl_view import Step, VerlView
from trinity_compat.translate.run_refusals import refused_of_teacher

_UNTAUGHT = ("bench", "serve")  # modes
_SIZES = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
_ON_A_CPU = {"dtype": "float32", "enforce_eager": True}  # as overrides/cpu.yaml has it for other engines


def with_teachers(verl: VerlView, *, device: str, mode: str, explorers: int) -> Step:
    """Place the teachers.

    ``explorers``: the number of commands that serve a part of each. Raises UserError for what no teacher's
    engine can do, and for teachers that do not fit their pool.
    """
    if not value_at(verl.tree, ENABLED):
        return verl, []
    if mode in _UNTAUGHT:
        return verl.changed({ENABLED: False}), []
    _check_sizes(verl)
    lines: list[str] = []
    for entry in teacher_entries(verl.tree):
        verl, more = served.on_vllm(verl, f"{entry.section}.inference", _named(entry))
        lines += more
        _check_settings(verl, entry, device)
        mtp = f"{entry.section}.inference.mtp.enable"
        if value_at(verl.tree, mtp):
            lines.append(f"{mtp}=True: without effect, since a teacher generates nothing")
    if device == "cpu":
        return _on_a_cpu(verl), lines
    entries = teacher_entries(verl.tree)
    if mode == "colocate":
        raise served.refusal_of_turns(ENABLED, "the teachers have", "--mode both gives each its own GPUs")
    for entry in entries:
        served.checked_engines(entry.servers, explorers if mode != "train" else 1, _named(entry))
        if entry.width > (each := verl.size(POOL[1])):
            raise UserError(
                f"{entry.section}.inference.tensor_model_parallel_size={entry.width}: an engine is one"
                f" machine's here, and {POOL[1]}={each}",
                hint=f"write {each}, if the model fits",
            )
    shares = " + ".join(f"{_named(entry)}: {entry.servers} engine(s) of {entry.width}" for entry in entries)
    return verl, [*lines, f"{pool_gpus(verl.tree)} GPUs of their own for the teachers ({shares})"]


def _named(entry: TeacherEntry) -> str:
    return f"the teacher {entry.key}" if entry.key else "the teacher"


def _check_sizes(verl: VerlView) -> None:
    """Check the pool as veRL does before anything else; its objects check the rest (run/checks)."""
    for key in POOL:
        if not value_at(verl.tree, key) or verl.size(key) < 1:
            raise UserError(
                f"{ENABLED}=True with {key}={value_at(verl.tree, key)}: config.{key} must be greater than 0",
                hint=f"{POOL[0]} × {POOL[1]} are the GPUs of the teachers, beside the trainer's",
            )
    for section in section_at(verl.tree, "distillation.teacher_models"):
        for size in _SIZES:
            verl.size(f"distillation.teacher_models.{section}.inference.{size}")
        verl.size(f"distillation.teacher_models.{section}.num_replicas")
    for entry in teacher_entries(verl.tree):
        if not entry.path:
            raise UserError(
                f"{entry.section}.model_path is not set: veRL has no teacher by default",
                hint=f"write {entry.section}.model_path=…",
            )


def _check_settings(verl: VerlView, entry: TeacherEntry, device: str) -> None:
    """Refuse what a teacher's engine does not do, and arguments that vLLM does not have."""
    for name, value, why, hint in refused_of_teacher(lambda key: value_at(verl.tree, key), entry.section):
        raise UserError(f"{name}={value} cannot be run decoupled: {why}", hint=hint)
    release, arguments = release_for(device), f"{entry.section}.inference.engine_kwargs.vllm"
    for name, value in section_at(verl.tree, arguments).items():
        found = fate(name, value, release)
        if found.refused:
            raise refusal(name, value, release, found, section=arguments)


def _on_a_cpu(verl: VerlView) -> VerlView:
    """Give each teacher one engine of one process, in the policy's precision where the launch sets none.

    Sizes that veRL refuses stay, so that its objects say so.
    """
    entries = teacher_entries(verl.tree)
    if sum(entry.gpus for entry in entries) != pool_gpus(verl.tree):
        return verl
    values: dict[str, object] = {POOL[0]: 1, POOL[1]: len(entries)}
    for entry in entries:
        own = section_at(verl.tree, f"{entry.section}.inference")
        settings: dict[str, object] = dict.fromkeys((*_SIZES, "expert_parallel_size"), 1)
        settings |= {name: value for name, value in _ON_A_CPU.items() if own.get(name) is None}
        values |= {f"{entry.section}.inference.{name}": value for name, value in settings.items()}
        values[f"{entry.section}.num_replicas"] = 1
    return verl.changed(values)
