"""Runs of several steps, and the advantages that are taken of them. What trinity-rft makes of each step is in
steps.json, made by upstream_steps.py."""

# Of each task its runs, of each run its steps: reward, and what the environment told.
RUNS = [
    [
        [(0.2, {"env_state_hash": "a"}), (1.0, {"env_state_hash": "b"})],
        [(0.5, {"env_state_hash": "a"})],
        [(0.1, {"env_state_hash": "a"}), (0.2, {"env_state_hash": "c"}), (0.0, {"env_state_hash": "b"})],
    ],
    [
        [
            (1.0, {"step_reward": 0.4, "env_state_hash": "d"}),
            (1.0, {"step_reward": 0.6, "env_state_hash": "e"}),
        ],
        [(0.0, {"step_reward": -0.1, "env_state_hash": "d"}), (0.3, {"env_state_hash": "d"})],
    ],
    [[(0.7, {})]],
]
CASES = [
    *(
        ("step_wise_grpo", {"enable_step_norm": norm, "std_cal_level": level})
        for norm in (False, True)
        for level in ("group", "batch")
    ),
    *(("grpo", {"std_cal_level": level}) for level in ("group", "batch")),
    ("gigpo", {}),
    ("gigpo", {"gamma": 0.9, "omega": 0.5, "fnorm": "std"}),
]


def steps():
    """(task, run, step, reward, info) of each, in order."""
    for task, runs in enumerate(RUNS):
        for run, of_run in enumerate(runs):
            for step, (reward, info) in enumerate(of_run):
                yield task, run, step, reward, dict(info)
