"""RAFT: supervised learning on the policy's own answers.

    L = −log π, whatever the reward

arXiv 2304.06767. Which answers are trained on is chosen before, by what fills the buffer. The advantage
counts for nothing; ``reinforce`` needs neither a critic nor a group. Columns: none.
"""

from __future__ import annotations

from trinity_compat.trinity.algorithms.model import algorithm

algorithm(
    "raft",
    "RAFT",
    paper="2304.06767",
    advantage_fn="reinforce",
    policy_loss_fn="sft",
    kl_loss_fn="none",
    entropy_loss_fn="none",
)
