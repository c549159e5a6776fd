"""ESPO (arXiv 2512.03759): one ratio per sequence, from complementary masks."""

from functools import partial

from dare_objectives._errors import expect_count
from dare_objectives.advantages import leave_one_out
from dare_objectives.objective import Objective
from dare_objectives.objectives.sequence_policy import (
    DivergenceName,
    divergence_named,
    sequence_policy,
    valid_lengths,
)
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named
from dare_objectives.plans.count import count_complementary

__all__ = ["espo", "espo_dare_compat"]


def espo(
    *,
    pairs: int = 2,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 1e-3,
    divergence: DivergenceName = "k2",
    advantage: AdvantageName = "leave_one_out",
) -> Objective:
    """PPO on rho_b = exp((s_b - s_b^old) / L_b), s the mean bound over masks of k tokens and their complements.

    loss = 1/B sum_b [PPO(rho_b, A_b) + beta KL(s_b, s_b^ref) / L_b], k ~ U{0..L}, weights (L + 1) / k and
    (L + 1) / (L - k) (ESPO, arXiv 2512.03759). L_b counts the valid tokens of the row, not the padded response. The
    divergence is taken of the undivided bounds. Published: two pairs, 8 updates per rollout, beta 1e-3 (maths), 3e-3
    (countdown, with both clips 0: every improving move off ratio 1 is cut) or 1e-2 (sudoku).

    Args:
        pairs: M, masks with their complements.
        clip_low: see `ppo_seq`.
        clip_high: see `ppo_seq`.
        dual_clip: see `ppo_seq`.
        beta: weight of the divergence from the reference; 0 for none, which then is not needed.
        divergence: `"k2"` (published), `"k1_corrected"`, `"k3"`, `"k1"` or `"abs"`.
        advantage: `"center"`, `"group_normalize"` or `"leave_one_out"`.

    Returns:
        Objective; 2 M forwards per update, in memory of one with `replay_backward` (which adds 2 M without a graph).

    >>> sorted(espo().needs), sorted(espo(beta=0.0).needs)
    (['old', 'ref'], ['old'])
    """
    expect_count("pairs", pairs)
    return sequence_policy(
        "espo",
        partial(count_complementary, pairs=pairs),
        advantage_named(advantage),
        length=valid_lengths,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        divergence=divergence_named(divergence),
    )


def espo_dare_compat() -> Objective:
    """ESPO with the numbers of the DARE reference: a group of one keeps its reward; else as published.

    Its mistake is not reproduced: a ratio divided by the padded length while the masks count valid tokens.

    Returns:
        Objective.
    """
    return sequence_policy(
        "espo_dare_compat",
        partial(count_complementary, pairs=2),
        partial(leave_one_out, singleton="raw"),
        length=valid_lengths,
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=None,
        beta=1e-3,
        divergence=divergence_named("k2"),
    )
