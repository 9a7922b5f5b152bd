"""An advantage and a policy loss: functions with the YAML's arguments as keywords.

They use methods of the tensors that they get, so this file imports no torch.
"""

from trinity_compat.trinity.algorithms.model import AdvantageInput, Loss, Tensor, Tokens


def median_baseline(answers: AdvantageInput, *, scale: float = 1.0) -> Tensor:
    """Reward minus the median of its group, [N]."""
    advantages = answers.rewards.clone()
    for group in answers.groups:
        advantages[group] -= answers.rewards[group].median()
    return scale * advantages


def capped_ratio(tokens: Tokens, *, cap: float = 5.0) -> Loss:
    """The policy gradient with the ratio of the policies cut at ``cap``."""
    ratio = tokens.log_ratio.exp()
    return Loss(-tokens.advantages * ratio.clamp(max=cap), clipped=ratio > cap)
