"""model.*: lengths, the critic's path; explorer.rollout_model's engine."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.common.releases import VERL
from trinity_compat.job.vllm_arguments import GPU, SECTION, fate, set_by_verl
from trinity_compat.translate.launch_view import ARR, LaunchView, PathValue, Verdict
from trinity_compat.translate.model import Caution, Status, notice
from trinity_compat.translate.run_refusals import OTHER_ENGINES
from trinity_compat.translate.sections import Derived, VerlSettings, derivation, way_back
from trinity_compat.translate.trinity_reader import FieldPair, TrinityReader

PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"
FILTER, TRUNCATION = "data.filter_overlong_prompts", "data.truncation"
ROLLOUT = f"{ARR}.rollout"
ENGINE = "explorer.rollout_model"
MAX_PROMPT = FieldPair("model.max_prompt_tokens", PROMPT)
MAX_RESPONSE = FieldPair("model.max_response_tokens", RESPONSE)
POLICY = FieldPair("model.model_path", f"{ARR}.model.path")
CRITIC = FieldPair("model.critic_model_path", "critic.model.path")
ENGINE_TYPE = FieldPair(f"{ENGINE}.engine_type", f"{ROLLOUT}.name")
_MANDATORY = f"Missing mandatory value: {ENGINE_TYPE.key}"
MAX_LENGTH = FieldPair(f"{ENGINE}.max_model_len", f"{ROLLOUT}.max_model_len")
EXTRA = tuple(
    FieldPair(f"{ENGINE}.extra_engine_args.{name}", f"{ROLLOUT}.{name}")
    for name in ("max_num_batched_tokens", "max_num_seqs")
)


@derivation
def policy_model(view: LaunchView) -> Derived:
    """model.model_path. Raises KeyRefused for an empty one."""
    path = view.text(POLICY.key)
    if path == "":
        hint = "name a model: a folder, or a repository on a hub"
        raise view.refused(POLICY.key, f"{view.written(POLICY.key)} names no model", hint)
    if path is not None:
        yield POLICY.put(path)


@derivation
def lengths(view: LaunchView) -> Derived:
    """Prompt and response limits, and what happens to prompts that are too long."""
    prompt, response = view.size(PROMPT, 512), view.size(RESPONSE, 512)
    yield MAX_PROMPT.put(prompt)
    yield MAX_RESPONSE.put(response)
    if not view.published:
        yield PathValue("model.max_model_len", prompt + response, (PROMPT, RESPONSE), join=" + ")
    yield from _engine_length(view, prompt + response)
    for name, key, value in (("prompt_length", PROMPT, prompt), ("response_length", RESPONSE, response)):
        if view.value(f"{ROLLOUT}.{name}") not in (None, value):
            reason = f"trinity-compat uses {key}={value} for both"
            yield Verdict(f"{ROLLOUT}.{name}", Status.UNSUPPORTED_UPSTREAM, reason)
        else:
            yield Verdict(f"{ROLLOUT}.{name}", Status.NO_EFFECT, f"the same as {key}")
    yield from _overlong(view)


def _engine_length(view: LaunchView, needed: int) -> Derived:
    key = MAX_LENGTH.key
    given = view.value(key)
    if given is None:
        return
    if view.integer(key) < needed:
        yield Verdict(
            key, Status.APPROXIMATED, f"raised to prompt + response = {needed}, which Trinity-RFT demands"
        )
    elif given != needed:
        yield MAX_LENGTH.put(given)
    else:
        yield Verdict(key, Status.MAPPED, "is prompt + response", target="model.max_model_len")


def _overlong(view: LaunchView) -> Derived:
    filters, truncation = view.flag(FILTER), view.choice(TRUNCATION, ("error", "left", "right", "middle"))
    if view.published:
        yield PathValue("model.enable_prompt_truncation", filters, (FILTER,))
        if filters:
            yield Caution(
                "TW007",
                "enable_prompt_truncation is on, as the published guide has it: overlong prompts become "
                "masked "
                "experiences with reward 0 and spoil their group's statistics, where veRL drops them",
                view.where(FILTER),
            )
        return
    truncates = truncation == "right" and not filters
    note = None if truncates or not filters else "overlong prompts are filtered out, so none is truncated"
    yield PathValue("model.enable_prompt_truncation", truncates, (FILTER, TRUNCATION), note)
    if filters:
        reason = "no prompt is left to truncate: filter_overlong_prompts is on"
        yield Verdict(TRUNCATION, Status.NO_EFFECT, reason, "TC041")
    elif truncation in ("left", "middle"):
        reason = f"Trinity-RFT cannot truncate on the {truncation}: off in the YAML, trinity-compat does it"
        yield Verdict(TRUNCATION, Status.UNSUPPORTED_UPSTREAM, reason)
        yield Caution(
            "TW007", reason, view.where(TRUNCATION), f"set {FILTER}=True to drop long prompts instead"
        )
    elif truncates:
        yield Caution(
            "TW007",
            "Trinity-RFT keeps a truncated prompt as a masked experience with reward 0; veRL trains on it",
            view.where(TRUNCATION),
            f"set {FILTER}=True to drop long prompts instead",
        )


@derivation
def critic_path(view: LaunchView) -> Derived:
    """The critic's model, where there is a critic."""
    enable = view.value("critic.enable")
    if enable is not None and bool(enable) != view.critic:
        reason = f"Trinity's algorithm decides: it {'has a' if view.critic else 'has no'} critic"
        yield Verdict("critic.enable", Status.UNSUPPORTED_UPSTREAM, reason)
    if view.critic:
        yield CRITIC.put(view.text(CRITIC.key))
        return
    for name, setting in view.config.settings.items():
        if name.startswith("critic.") and setting.where is not None and name != "critic.enable":
            yield Verdict(name, Status.NO_EFFECT, "there is no critic", "TC022")


@derivation
def engine(view: LaunchView) -> Derived:
    """Write the inference engine, and its settings beyond Trinity's schema."""
    name = str(view.value(ENGINE_TYPE.key, "vllm"))
    known = name if name in ("vllm", "sglang") else "vllm"
    if name == "???":
        yield PathValue(ENGINE_TYPE.path, known, (ENGINE_TYPE.key,), note="rollout.name is not set")
        if view.launch.knows_all_keys:
            yield notice(
                "TW027",
                f"rollout.name is not set: veRL {view.origin.version.value} ends without it ({_MANDATORY})."
                " The YAML names vLLM, which trinity-compat runs",
                view.launch.where,
                f"write {ENGINE_TYPE.key}=vllm",
            )
        yield from _own_arguments(view)
        return
    yield ENGINE_TYPE.put(known)
    if name in OTHER_ENGINES:
        upstream = "" if known == name else f"; Trinity has no engine {name!r}, the YAML says vllm"
        reason = f"trinity-compat runs vLLM instead: same weights, same sampling parameters{upstream}"
        yield Verdict(ENGINE_TYPE.key, Status.APPROXIMATED, reason)
    elif name != known:
        reason = (
            f"veRL has no rollout {name!r}: the YAML says vllm, and trinity-compat refuses it;"
            f" write {ENGINE_TYPE.key}=vllm"
        )
        yield Verdict(ENGINE_TYPE.key, Status.UNSUPPORTED, reason)
    yield from _own_arguments(view)
    experts = f"{ROLLOUT}.expert_parallel_size"
    if view.integer(experts, 1) > 1:
        yield PathValue(f"{ENGINE}.enable_expert_parallel", True, (experts,))
    for pair in EXTRA:
        if view.old_trinity or known != "vllm":
            reason = "this trinity-rft passes no further arguments to its engine"
            yield Verdict(pair.key, Status.UNSUPPORTED_UPSTREAM, reason)
        elif (value := view.value(pair.key)) is not None:
            yield pair.put(value)


@way_back
def lengths_and_engine(reading: TrinityReader) -> VerlSettings:
    """Lengths, the critic's path, the engine."""
    yield from reading.verl_values(POLICY, MAX_PROMPT, MAX_RESPONSE, CRITIC, ENGINE_TYPE, MAX_LENGTH, *EXTRA)


def _own_arguments(view: LaunchView) -> Iterator[Verdict]:
    """Yield verdicts on the vLLM arguments that the launch passes by name, for our explorer on a GPU."""
    overwritten = set_by_verl(view.value)
    for key in view.below(SECTION):
        name, value = key.partition(".")[0], view.value(f"{SECTION}.{key}")
        if decides := overwritten.get(name):
            reason = f"veRL {VERL} overrides it by {view.written(decides)}; so does trinity-compat"
            yield Verdict(f"{SECTION}.{key}", Status.NO_EFFECT, reason)
            continue
        found = fate(name, value, GPU)
        if found.refused:
            why = f" ({found.why})" if found.why else ""
            reason = f"vLLM {GPU}, which the explorer runs, has no argument {name}{why}: {found.refused}"
            yield Verdict(f"{SECTION}.{key}", Status.UNSUPPORTED, reason)
        elif not found.written:
            yield Verdict(f"{SECTION}.{key}", Status.NO_EFFECT, f"vLLM {GPU} does not use it: {found.why}")
        elif name not in found.written:
            ((became, said),) = found.written.items()
            reason = f"the explorer's vLLM {GPU} gets {became}={said}: {found.why}"
            yield Verdict(f"{SECTION}.{key}", Status.UNSUPPORTED_UPSTREAM, reason)
