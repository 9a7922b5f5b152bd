"""What becomes of the arguments that a launch hands to vLLM by name, in the explorer's release of it."""

import pytest

from trinity_compat.translate.model import Status
from trinity_compat.translate.run_refusals import why_refused

from .helpers import translated

SECTION = "actor_rollout_ref.rollout.engine_kwargs.vllm"


@pytest.mark.parametrize(
    ("argument", "status", "said"),
    [
        (
            "enable_chunked_prefill=true",
            Status.UNSUPPORTED_UPSTREAM,
            "under the name that this vLLM release uses",
        ),
        (
            "disable_log_requests=true",
            Status.UNSUPPORTED_UPSTREAM,
            "gets enable_log_requests=False: said the",
        ),
        ("disable_mm_preprocessor_cache=true", Status.UNSUPPORTED_UPSTREAM, "gets mm_processor_cache_gb=0"),
        ("disable_mm_preprocessor_cache=false", Status.NO_EFFECT, "does not use it: a size since 0.10.1"),
        ("device=cuda", Status.NO_EFFECT, "does not use it: vLLM takes the platform that it finds"),
        ("no_such_argument=1", Status.UNSUPPORTED, "has no argument no_such_argument: "),
    ],
)
def test_an_argument_is_handed_on_renamed_left_out_or_refused(argument, status, said):
    key = f"{SECTION}.{argument.partition('=')[0]}"
    translation, _ = translated(f"+{SECTION}.{argument}")
    (found,) = [each for each in translation.findings if each.key == key]
    assert found.status is status and said in found.reason


ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"


@pytest.mark.parametrize(
    ("argument", "given", "decides"),
    [
        ("enable_expert_parallel=true", (), f"{ROLLOUT}.expert_parallel_size=1"),
        (
            "enable_expert_parallel=false",
            (f"{ROLLOUT}.expert_parallel_size=2", f"{ROLLOUT}.tensor_model_parallel_size=2"),
            f"{ROLLOUT}.expert_parallel_size=2",
        ),
        ("max_loras=4", (f"{MODEL}.lora_rank=8",), f"{MODEL}.lora_rank=8"),
        ("max_loras=4", (f"{MODEL}.lora_rank=8", f"+{MODEL}.lora.merge=True"), ""),
        ("max_loras=4", (), ""),
        ("limit_mm_per_prompt={image:4}", (f"+{ROLLOUT}.limit_images=2",), f"+{ROLLOUT}.limit_images=2"),
        ("limit_mm_per_prompt={image:4}", (), ""),
        ("max_num_seqs=4", (), ""),
    ],
)
def test_an_argument_that_verl_sets_over_the_launch_s_has_no_effect(argument, given, decides):
    key = f"{SECTION}.{argument.partition('=')[0]}"
    translation, _ = translated(f"+{SECTION}.{argument}", *given)
    (found,) = [each for each in translation.findings if each.key.startswith(key)]
    assert (found.status is Status.NO_EFFECT) == bool(decides)
    assert not decides or f"overrides it by {decides}" in found.reason


def test_adapters_of_vllm_s_are_refused_where_the_trainer_trains_none():
    key = f"{SECTION}.enable_lora"
    given = {key: True}
    assert why_refused(given.get, key)
    given[f"{MODEL}.lora_rank"] = 8  # then veRL sets it itself
    assert not why_refused(given.get, key)
