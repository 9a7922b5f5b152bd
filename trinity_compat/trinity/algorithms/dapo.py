"""DAPO: GRPO's advantage, an asymmetric clip, no reference model.

arXiv 2503.14476. What else DAPO has is set beside it: ``policy_loss_fn_args.clip_range_high``, token-mean,
``algorithm.filter_groups`` and the overlong penalty (docs/rewards.md).
"""

from trinity_compat.trinity.algorithms.model import algorithm

algorithm("dapo", "DAPO", paper="2503.14476", advantage_fn="grpo", kl_loss_fn="none")
