"""A template: copy this file into a package of yours, and change what differs.

One line makes it known by name, in the `pyproject.toml` of that package:

    [project.entry-points.dare_objectives]
    reinforce = "your_package.reinforce:reinforce"

After that `dare_objectives.get("reinforce")` finds it, and a trainer takes it by that name. Without the line, the
address `"your_package.reinforce:reinforce"` does. Inside dare-objectives it would be one file in `objectives/` and
one export line there.
"""

from functools import partial

from torch import Tensor

from dare_objectives import (
    Batch,
    Coefficients,
    Mean,
    Objective,
    Plan,
    Scored,
    center,
    full_response,
    weighted_token_logp,
)
from dare_objectives.metrics import Metrics
from dare_objectives.score import logp_of

__all__ = ["reinforce"]


def reinforce(*, prompt_mask: float = 0.0) -> Objective:
    """REINFORCE on the fully masked response, loss = -sum_b A_b sum_i l_bi / number of tokens, A = r - mean_G r.

    Args:
        prompt_mask: rate of masked prompt tokens.

    Returns:
        Objective without needs; one forward per update.
    """
    return Objective(
        name="reinforce",
        plan=partial(full_response, prompt_mask=prompt_mask),
        estimator=weighted_token_logp,
        advantage=center,
        prepare=_prepare,
        loss=_loss,
    )


def _prepare(batch: Batch, plan: Plan, rewards: Tensor | None = None, detached: Tensor | None = None) -> Coefficients:
    """All that couples rows, on the whole batch."""
    if rewards is None:
        raise ValueError("`rewards`: expected one number per row, got None; pass the rewards of the batch")
    advantage = center(rewards, batch.group)
    computed = (advantage != 0).to(advantage.dtype)  # a row of weight 0 needs no forward
    normaliser = batch.lengths.sum().clamp(min=1).to(advantage.dtype)
    return Coefficients(advantage, computed, normaliser, {"reward": Mean(rewards.sum(), len(batch))})


def _loss(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
) -> tuple[Tensor, Metrics]:
    """The share of some rows; the parts of a batch add up."""
    score = weighted_token_logp(logp_of(scored), plan).sum(1)
    weight = coefficients.advantage * coefficients.row_weight / coefficients.normaliser
    return -(weight * score).sum(), {"score": Mean(score.detach().sum(), len(plan))}
