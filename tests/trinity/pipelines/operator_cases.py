"""Batches, and the operators that both packages take them through."""

# (task, run, reward, metrics, info, truncated) of each answer; three tasks of two tasksets.
BATCH = [
    ("a", 0, 1.0, {"accuracy": 1.0}, {"quality": 0.5}, False),
    ("a", 1, 0.0, {"accuracy": 0.0}, {"quality": 2.0}, True),
    ("a", 2, 0.5, {"accuracy": 1.0}, {}, False),
    ("b", 0, 1.0, {"accuracy": 1.0}, {"quality": 0.0}, False),
    ("b", 1, 1.0, {"accuracy": 1.0}, {"quality": 3.0}, True),
    ("b", 2, 0.9, {"accuracy": 1.0}, {"quality": 1.0}, False),
    ("c", 0, -0.1, {}, {}, True),
    ("c", 1, -0.1, {"accuracy": 0.0}, {"quality": 1.0}, False),
    ("d", 0, 0.3, {}, {}, False),
]
TASKSETS = {"a": (0, 3), "b": (0, 7), "c": (1, 3), "d": (1, 4)}
NAN = ("d", 1, float("nan"), {}, {}, False)
NONE = ("d", 2, None, {}, {}, False)


def shaped(*rules):
    return {"reward_shaping_configs": list(rules)}


CASES = [
    ("reward_filter", {}, BATCH),
    ("reward_filter", {"threshold": 0.5}, BATCH),
    ("reward_filter", {"threshold": 0.5}, [*BATCH, NAN]),
    ("reward_std_filter", {}, BATCH),
    ("reward_std_filter", {"threshold": 0.05}, BATCH),
    ("reward_std_filter", {}, []),
    ("dapo_dynamic_sampling", {}, BATCH),
    ("dapo_dynamic_sampling", {"metric_key": "nothing", "correct_threshold": 0.95}, BATCH),
    ("mask_response_truncated", {}, BATCH),
    ("invalid_reward_filter", {}, [*BATCH, NAN, NONE]),
    ("reward_shaping_mapper", {}, BATCH),
    ("reward_shaping_mapper", {}, []),
    ("reward_shaping_mapper", shaped({"stats_key": "quality"}), [*BATCH, NONE]),
    ("reward_shaping_mapper", shaped({"stats_key": "quality", "op_type": "SUB", "weight": 2}), BATCH),
    ("reward_shaping_mapper", shaped({"stats_key": "quality", "op_type": "DIV", "weight": 0.5}), BATCH),
    (
        "reward_shaping_mapper",
        shaped({"stats_key": "quality", "op_type": "MUL"}, {"stats_key": "nothing"}, {"op_type": "ADD"}),
        BATCH,
    ),
    ("pass_rate_calculator", {}, BATCH),
]


def experiences(rows, experience, eid):
    return [
        experience(
            eid=eid(batch=3, task=task, run=run),
            tokens=[5, 6, 7, 8],
            prompt_length=2,
            reward=reward,
            metrics=dict(metrics),
            info={**info, "task_index": {"taskset_id": TASKSETS[task][0], "index": TASKSETS[task][1]}},
            truncate_status="response_truncated" if truncated else None,
        )
        for task, run, reward, metrics, info, truncated in rows
    ]


def told(kept, metrics):
    """An operator's answer as JSON has it."""
    parts = [
        [each.eid.task, each.eid.run, each.reward, [bool(own) for own in each.action_mask]] for each in kept
    ]
    return {"kept": parts, "metrics": {name: plain(value) for name, value in metrics.items()}}


def plain(value):
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else float(value)
