"""The batches and arguments that ours and trinity-rft's functions are both called with.

Plain Python, so that both venvs can import it: numbers from ``random``, which gives the same everywhere.
"""

import random

ROWS, LENGTH = 4, 5


def _table(draw):
    return [[draw() for _ in range(LENGTH)] for _ in range(ROWS)]


def token_batch(name):
    """What a policy loss or a KL term sees: log_prob, old, ref, advantages [N][T], mask of 0 and 1."""
    rng = random.Random(f"tokens {name}")
    old = _table(lambda: -rng.uniform(0.01, 4))
    far = {"near": 0.1, "far": 1.0, "extreme": 30.0, "all masked": 1.0}[name]
    moved = [[value + rng.uniform(-far, far) for value in row] for row in old]
    lengths = [0] * ROWS if name == "all masked" else [LENGTH, 3, 1, 0 if name == "extreme" else 2]
    advantages = [rng.choice([1.0, -1.0, 0.0, 0.37, -2.5]) for _ in range(ROWS)]
    return {
        "log_prob": moved,
        "old": old,
        "ref": [[value + rng.uniform(-far, far) for value in row] for row in old],
        "advantages": [[value] * LENGTH for value in advantages],
        "mask": [[int(place < length) for place in range(LENGTH)] for length in lengths],
    }


TOKEN_BATCHES = ("near", "far", "extreme", "all masked")

ANSWER_BATCHES = {
    "random": [[1.0, 0.0, 0.5, 0.25], [0.0, -1.0, 3.0, 0.7]],
    "equal": [[1.0, 1.0, 1.0], [0.1, 0.1, 0.1]],
    "one answer": [[0.75], [0.0]],
    "unequal groups": [[1.0, 0.0], [0.5], [0.0, 0.0, 1.0]],
    "extreme": [[1e6, -1e6, 0.0], [1e-6, 0.0, 0.0]],
}


def answer_batch(name):
    """What an advantage sees: rewards of each group, and for the estimators of tokens also mask and
    values."""
    rng = random.Random(f"answers {name}")
    groups = ANSWER_BATCHES[name]
    count = sum(map(len, groups))
    lengths = [rng.randint(2, LENGTH) for _ in range(count)]
    mask = [[int(place < length) for place in range(LENGTH)] for length in lengths]
    return {
        "rewards": [reward for group in groups for reward in group],
        "tasks": [task for task, group in enumerate(groups) for _ in group],
        "mask": mask,
        "values": [[keep * rng.uniform(-1, 1) for keep in row] for row in mask],
        "baselines": [rng.uniform(0, 1) for _ in range(count)],
        "old": [[-rng.uniform(0.01, 4) for _ in row] for row in mask],
        "teacher": [[-rng.uniform(0.01, 4) for _ in row] for row in mask],
    }


def turns(name):
    """What an environment told of each turn of each answer; of some batches not all."""
    rng = random.Random(f"turns {name}")
    count = sum(map(len, ANSWER_BATCHES[name]))
    missing = {"equal": ("step_reward",), "extreme": ("env_state_hash",)}.get(name, ())
    return [
        [
            {key: value for key, value in _turn(rng).items() if key not in missing}
            for _ in range(rng.randint(1, TURNS))
        ]
        for _ in range(count)
    ]


TURNS = (LENGTH + 1) // 2  # of one token each, the environment's between them


def _turn(rng):
    gains = rng.choice([0.0, 1.0, -0.5]), rng.choice([0.25, 2.0])
    return {
        "env_state_hash": rng.choice("abc"),
        "step_reward": gains[0],
        "place": rng.choice("de"),
        "gain": gains[1],
    }


def _each(name, *arguments):
    return [(name, given) for given in arguments]


# None: the YAML gives no arguments, and the function's default_args count.
POLICY_LOSSES = [
    *_each(
        "ppo",
        None,
        {"clip_range_low": 0.1, "clip_range_high": 0.3, "clip_ratio_c": 1.5},
        {"clip_range": 0.2, "enable_sequence_masking": True},
        {"clip_range": 0.2, "fallback_to_policy_gradient": True},
    ),
    *_each("opmd", None, {"tau": 0.25, "loss_agg_mode": "seq-mean-token-sum"}),
    *_each("opmd", {"loss_agg_mode": "seq-mean-token-mean"}, {"loss_agg_mode": "seq-mean-token-sum-norm"}),
    *_each("topr", None, {"advantage_threshold": 0.5}),
    *_each("cispo", None, {"enable_mask_clip": True, "mask_clip_range_low": 0.5}),
    *_each("gspo", None, {"clip_range": 0.2}),
    *_each("sapo", None, {"tau_pos": 0.5, "tau_neg": 2.0}),
    *_each("sppo", None, {"epsilon": 0.05}),
    *_each(
        "rec",
        None,
        {"clip_mode": "one-side", "weight": "importance_sampling"},
        {"clip_mode": "gspo-one-side", "weight": "gspo_importance_sampling"},
        {"clip_mode": "two-side", "weight": "advantage", "temp": 0.5},
        {"clip_mode": "ring"},
        {"clip_mode": "ring", "epsilon_low_prime": 0.6, "epsilon_high_prime": 2.0},
        {"regularizer": "k2", "regularizer_coef": 0.3},
        {"regularizer": "forward-kl", "regularizer_coef": 0.3},
    ),
    *_each("importance_sampling", None),
    *_each("sft", None),
    *_each("sft_is", None),
    *_each("sft_phi", None, {"cutoff_prob": 0.3}),
    *_each("dpo", None, {"beta": 0.5, "label_smoothing": 0.2}),
    *_each(
        "mix",
        {"mu": 0.3, "clip_range": 0.2},
        {"clip_range_low": 0.1, "clip_range_high": 0.3, "sft_loss_agg_mode": "seq-mean-token-sum"},
        {"clip_range": 0.2, "grpo_loss_agg_mode": "seq-mean-token-mean"},
    ),
    *_each(
        "mix_chord",
        {"clip_range": 0.2},
        {"clip_range": 0.2, "mu_warmup_steps": 4, "mu_peak": 0.5, "enable_phi_function": False},
        {"clip_range": 0.2, "mu_decay_steps": 9, "mu_peak": 0.9, "mu_valley": 0.05},
    ),
]
STEP = 3  # what chord's schedule is asked for
# What mix's arguments say of the trainer's sizes: the batch is one update, a micro-batch of one GPU.
EXPERTS = [False, True, True, False]
SIZES = {
    "ppo_mini_batch_size": ROWS,
    "ppo_micro_batch_size_per_gpu": ROWS,
    "train_batch_size_usual": EXPERTS.count(False),
    "train_batch_size_expert": EXPERTS.count(True),
}

ADVANTAGES = [
    *_each("ppo", None, {"gamma": 0.9, "lam": 0.8}),
    *_each("grpo", None, {"std_cal_level": "batch"}, {"epsilon": 0.1}, {"rank_penalty": 0.3}),
    *_each("grpo_verl", None),
    *_each("step_wise_grpo", None, {"std_cal_level": "batch"}, {"enable_step_norm": True}),
    *_each("reinforceplusplus", None, {"gamma": 0.9}),
    *_each("reinforce", None),
    *_each("rloo", None),
    *_each("remax", None),
    *_each("opmd", None, {"opmd_baseline": "logavgexp", "tau": 0.5}),
    *_each("opmd_verl", None),
    *_each("asymre", None, {"baseline_shift": 0.2}),
    *_each("asymre_verl", None),
    *_each("rec", None, {"std_normalize": True}),
    *_each(
        "gigpo",
        None,
        {"omega": 0.5, "gamma": 0.9, "fnorm": "std"},
        {"step_reward_key": "gain", "env_state_hash_key": "place"},
    ),
    *_each("clipb", None, {"mu": 0.5}, {"mu": 0.1, "epsilon": 0.1}),
    *_each("on_policy_distill", None, {"kl_coef": 0.3}),
    *_each(
        "jsd",
        None,
        {"lambda_coef": 0.0, "kl_coef": 2.0},
        {"lambda_coef": 1.0},
        {"lambda_coef": 0.2, "temperature": 0.7, "chunk_size": 3},
    ),
]

KL_LOSSES = [(name, None) for name in ("none", "k1", "k2", "k3", "low_var_kl", "abs", "corrected_k3")]

# What trinity-rft 0.6.0 cannot answer: it raises UnboundLocalError there.
RAISES = {("rec", "one answer"), ("rec", "unequal groups")}


def cases():
    """Of each case its key in the fixture, kind, function, arguments and batch."""
    for kind, functions, batches in (
        ("policy_loss_fn", POLICY_LOSSES, TOKEN_BATCHES),
        ("kl_loss_fn", KL_LOSSES, TOKEN_BATCHES),
        ("advantage_fn", ADVANTAGES, ANSWER_BATCHES),
    ):
        for name, arguments in functions:
            for batch in batches:
                if (name, batch) not in RAISES:
                    yield f"{kind} {name} {arguments} {batch}", kind, name, arguments, batch
