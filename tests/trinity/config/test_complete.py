"""What trinity-rft makes of a file before it starts: ``complete`` says the same, or refuses as it does."""

import pytest
from trinity_files import CASES, LEAST, TASKSET, merged

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.trinity.config.complete import completed, expert_rows


def full(change=None, target=TRINITY):
    return completed(merged(LEAST, change or {}), target)


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_said_follows_from_what_is(case):
    change, expected = CASES[case]
    found = full(change)
    assert {path: found.at(path) for path in expected} == expected


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"), [(None, 32, (1, 31)), (None, 40, (1, 31)), (32, None, (31, 1))]
)
def test_a_length_that_takes_the_whole_leaves_a_token_for_the_other(prompt, answer, expected):
    lengths = {"max_model_len": 32, "max_prompt_tokens": prompt, "max_response_tokens": answer}
    found = full({"model": lengths})
    assert (found.at("model.max_prompt_tokens"), found.at("model.max_response_tokens")) == expected


REFUSED = {
    "lengths that do not fit": ({"model": {"max_model_len": 16}}, "max_model_len=16 is less"),
    "no length": ({"model": {"max_response_tokens": None}}, "model.max_model_len is not given"),
    "two ways to say tasksets": (
        {"buffer": {"explorer_input": {"tasksets": [TASKSET]}}},
        "cannot both be given",
    ),
    "an interval of 0": ({"synchronizer": {"sync_interval": 0}}, "sync_interval=0"),
    "no answers": ({"algorithm": {"repeat_times": 0}}, r"algorithm\.repeat_times=0: it should be 1 or more"),
    "fewer tasks than none": ({"buffer": {"batch_size": -16}}, r"batch_size=-16: it should be 1 or more"),
    "no room": ({"model": {"max_prompt_tokens": -48}}, r"max_prompt_tokens=-48: it should be 1 or more"),
    "no engine": ({"explorer": {"rollout_model": {"engine_num": 0}}}, "engine_num=0: it should be 1 or more"),
    "an engine of no GPU": (
        {"explorer": {"rollout_model": {"tensor_parallel_size": 0}}},
        "tensor_parallel_size=0: it should be 1 or more",
    ),
    "fewer GPUs than none": ({"cluster": {"gpu_per_node": -1}}, "gpu_per_node=-1: it should be 0 or more"),
    "GPUs without end": ({"cluster": {"gpu_per_node": 10**22}}, "gpu_per_node=1.* are more than 65536"),
    "an end before the start": ({"buffer": {"total_steps": -5}}, "total_steps=-5: it should be 0 or more"),
    "a part of a group": (
        {"algorithm": {"repeat_times": 4}, "buffer": {"train_batch_size": 22}},
        "train_batch_size=22",
    ),
    "a step of the explorer that ends within an update": (
        {"algorithm": {"repeat_times": 2}, "buffer": {"train_batch_size": 18, "total_steps": 4}},
        "buffer.total_steps=4 explorer steps of 6 tasks",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_its_field(case):
    change, said = REFUSED[case]
    with pytest.raises(UserError, match=said):
        full(change)


@pytest.mark.parametrize(
    ("tasks", "rows", "steps", "hint"),
    [
        (6, 18, 4, "write 3 or 6"),
        (16, 512, 10, "write 8 or 12"),
        (6, 18, 1, "write 3"),
    ],
)
def test_the_nearest_steps_that_end_with_an_update_are_offered(tasks, rows, steps, hint):
    repeats = 2 if tasks == 6 else 8
    sizes = {"batch_size": tasks, "train_batch_size": rows, "total_steps": steps}
    with pytest.raises(UserError) as error:
        full({"algorithm": {"repeat_times": repeats}, "buffer": sizes})
    assert error.value.hint == hint
    for number in map(int, hint.removeprefix("write ").split(" or ")):
        full({"algorithm": {"repeat_times": repeats}, "buffer": {**sizes, "total_steps": number}})


@pytest.mark.parametrize(
    ("tasks", "updates_of", "syncs", "steps"),
    [(4, 3, 1, 5), (4, 3, 2, 5), (4, 3, 4, 7), (6, 8, 3, 5), (8, 6, 5, 12), (12, 8, 1, 7)],
)
def test_an_interval_of_evaluations_that_is_offered_is_accepted(tasks, updates_of, syncs, steps):
    """Where the explorer syncs more rarely, it is rounded to a multiple of that as well."""

    def completed_with(interval):
        sizes = {"batch_size": tasks, "train_batch_size": 2 * updates_of}
        change = {"explorer": {"eval_interval": interval}, "synchronizer": {"sync_interval": syncs}}
        return full({"algorithm": {"repeat_times": 2}, "buffer": sizes, **change})

    with pytest.raises(UserError, match=rf"explorer\.eval_interval={steps} ") as error:
        completed_with(steps)
    for number in map(int, error.value.hint.removeprefix("write ").split(" or ")):
        assert completed_with(number).at("explorer.eval_interval") == number * tasks // updates_of


def test_a_trainer_batch_unlike_the_explorer_s_counts_for_both():
    sizes = {"train_batch_size": 6, "total_steps": 10}  # updates of 3 tasks × 2
    found = full({"algorithm": {"repeat_times": 2}, "buffer": sizes, "trainer": {"save_interval": 7}})
    assert found.at("buffer.batch_size") == 3
    assert found.at("buffer.total_steps") == 20
    assert found.at("explorer.eval_interval") == 200
    assert (
        found.at("synchronizer.explorer_sync_interval"),
        found.at("synchronizer.trainer_sync_interval"),
    ) == (2, 1)
    assert found.at("trainer.save_interval") == 7
    assert "3 tasks × 2 answers" in " ".join(found.notes)


def test_a_trainer_batch_of_the_explorer_s_size_says_both():
    sizes = {"batch_size": 6, "train_batch_size": 12}
    found = full({"algorithm": {"repeat_times": 2}, "buffer": sizes})
    assert found.sources["buffer.batch_size"] == "buffer.train_batch_size"


def test_an_interval_that_the_file_does_not_say_is_never_refused_for_it():
    found = full({"algorithm": {"repeat_times": 2}, "buffer": {"train_batch_size": 16}})  # updates of 8 tasks
    assert found.at("explorer.eval_interval") == 75


def test_a_trainer_alone_has_no_explorer_s_batch():
    found = full({"mode": "train", "algorithm": {"repeat_times": 2}, "buffer": {"train_batch_size": 16}})
    assert (found.at("buffer.batch_size"), found.notes) == (8, [])


def test_a_value_that_moved_is_known_by_its_place_in_the_file():
    found = full({"buffer": {"explorer_input": {"taskset": {**TASKSET, "task_selector": {"seed": 3}}}}})
    place = "buffer.explorer_input.tasksets.0"
    assert found.sources[f"{place}.path"] == "buffer.explorer_input.taskset.path"
    assert found.sources[f"{place}.data_selector.seed"] == "buffer.explorer_input.taskset.task_selector.seed"


def test_the_file_itself_stays_as_it_was():
    given = merged(LEAST, {"synchronizer": {"sync_method": "online"}})
    completed(given, TRINITY)
    assert given["buffer"]["explorer_input"] == {"taskset": TASKSET}
    assert given["synchronizer"] == {"sync_method": "online"}


def test_the_older_release_always_trains_on_the_rollout_s_log_probabilities():
    assert full({"algorithm": {"bypass_old_logprobs": False}}).at("algorithm.bypass_old_logprobs") is False
    assert full(target=TRINITY_OLD).at("algorithm.bypass_old_logprobs") is True


@pytest.mark.parametrize(("ratio", "rows"), [(None, 8), (0.25, 4), (0.3, 5)])
def test_an_experts_part_of_an_update_is_a_half_unless_the_file_says_it(ratio, rows):
    arguments = {"expert_data_ratio": ratio} if ratio else {}
    algorithm = {"sample_strategy": "mix", "sample_strategy_args": arguments}
    assert expert_rows({"algorithm": algorithm, "buffer": {"train_batch_size": 16}}) == rows
