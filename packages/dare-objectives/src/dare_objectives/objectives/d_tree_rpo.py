"""d-TreeRPO (arXiv 2512.09675): compare the branches of a tree of denoising trajectories."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import expm1

import torch
from torch import Tensor

from dare_objectives._errors import expect, expect_range
from dare_objectives.advantages import Singleton
from dare_objectives.batch import Batch
from dare_objectives.losses.kl import kl_k3
from dare_objectives.losses.ppo import check_clips, ppo_token
from dare_objectives.losses.self_distill import SoftTargets, self_distill, soft_targets
from dare_objectives.metrics import Mean, Metrics, masked_mean
from dare_objectives.objective import Coefficients, Objective, at_least_one
from dare_objectives.objectives.trajectory_policy import broadcast
from dare_objectives.plan import Plan
from dare_objectives.records import Branches, Tree, tree_of
from dare_objectives.score import Scored, logp_of, reference_logp
from dare_objectives.trees import sibling_advantage, tree_backup

__all__ = [
    "TreeCoefficients",
    "branch_plan",
    "d_tree_rpo",
    "d_tree_rpo_dare_compat",
    "distill_temperature",
    "distill_weight",
]

NodeAdvantage = Callable[[Tensor, Tensor], Tensor]
"""From rewards `[B, N]` of the leaves and parents `[B, N]` to advantages `[B, N]` of the nodes."""


def distill_weight(progress: float, *, largest: float = 3e-3, growth: float = 2.0) -> float:
    """lambda(t) = lambda_max (exp(g t) - 1) / (exp(g) - 1): from 0 to its maximum.

    >>> distill_weight(0.0), distill_weight(1.0)
    (0.0, 0.003)
    """
    return largest * (expm1(growth * progress) / expm1(growth) if growth else progress)


def distill_temperature(progress: float, *, largest: float = 2.0, decay: float = 0.7) -> float:
    """tau(t) = tau_max (1 - t)^b: from its maximum to 0.

    >>> distill_temperature(0.0), distill_temperature(1.0)
    (2.0, 0.0)
    """
    return largest * (1 - progress) ** decay


def d_tree_rpo(
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
    dual_clip: float | None = None,
    beta: float = 0.01,
    distill: float = 3e-3,
    growth: float = 2.0,
    temperature: float = 2.0,
    decay: float = 0.7,
) -> Objective:
    """PPO on the segments (parent, child) of a tree, and distillation of a node's better children into the policy.

    loss = mean over segments of 1/|U_c| sum_{i in U_c} [PPO(rho_ci, A_c) + beta k3_ci] + lambda(t) SD. U_c are the
    positions that the parent has open and the child has set, through its first end token, rho under the parent's
    canvas, A_c = V_c - mean value of its siblings (d-TreeRPO, arXiv 2512.09675). SD is the mean over all positions of
    all nodes of KL(q || p), see `soft_targets`. lambda and tau follow `batch.tree.progress`. What changed is read from
    the canvases, not from log-probs. A row is a tree. For full attention: a block-causal model would need the clean
    canvas of each node.

    The rewards are those of the leaves in `batch.tree`; rewards given to `prepare` are only reported.

    Args:
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of k3 to the reference; above 0 it is needed.
        distill: lambda_max.
        growth: g of `distill_weight`.
        temperature: tau_max.
        decay: b of `distill_temperature`.

    Returns:
        Objective that needs `tree`; one forward per inner node and update (published: one per segment and one more per
        inner node), with the tokens of all its children as labels `[B, K, S, C]`.
    """
    return _tree(
        "d_tree_rpo",
        "zero",
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        schedule=_Schedule(distill, growth, temperature, decay),
    )


def d_tree_rpo_dare_compat() -> Objective:
    """d-TreeRPO with the numbers of DARE: an only child keeps its value as advantage; else as published.

    Its mistakes are not reproduced: padding is attended, changed tokens are those with a log-prob other than 0,
    siblings are torn apart so that most of the distillation is skipped, and a ratio between two precisions.

    Returns:
        Objective.
    """
    return _tree(
        "d_tree_rpo_dare_compat",
        "raw",
        clip_low=0.4,
        clip_high=0.4,
        dual_clip=None,
        beta=0.01,
        schedule=_Schedule(3e-3, 2.0, 2.0, 0.7),
    )


@dataclass(frozen=True)
class _Schedule:
    distill: float
    growth: float
    temperature: float
    decay: float

    def __post_init__(self) -> None:
        for name in ("distill", "growth", "temperature", "decay"):
            expect_range(name, getattr(self, name), 0.0, torch.inf)

    def at(self, progress: float) -> tuple[float, float]:
        """lambda and tau."""
        weight = distill_weight(progress, largest=self.distill, growth=self.growth)
        return weight, distill_temperature(progress, largest=self.temperature, decay=self.decay)


def _tree(
    name: str,
    singleton: Singleton,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
    schedule: _Schedule,
) -> Objective:
    check_clips(clip_low, clip_high, dual_clip)
    expect_range("beta", beta, 0.0, torch.inf)
    advantage = partial(node_advantage, singleton=singleton)
    options = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip, "beta": beta}
    return Objective(
        name=name,
        plan=branch_plan,
        estimator=label_logp,
        advantage=advantage,
        prepare=partial(tree_coefficients, advantage=advantage, schedule=schedule, every_row=beta > 0),
        loss=partial(tree_loss, **options),
        needs=frozenset({"tree", "old", "ref"} if beta else {"tree", "old"}),
    )


def node_advantage(reward: Tensor, parent: Tensor, *, singleton: Singleton) -> Tensor:
    """Sibling advantages `[B, N]` of the values backed up from the leaves."""
    return sibling_advantage(tree_backup(reward, parent), parent, singleton=singleton)


def branch_plan(batch: Batch) -> Plan:
    """One stream per inner node: its canvas is seen; scored is what any child has set, with the children's tokens.

    Returns:
        Plan of K streams with labels `[B, K, S, C]`; a label of no child is the clean token.
    """
    tree = tree_of(batch)
    branches = tree.branches()
    canvas, active = _segments(batch, tree, branches)
    parent = _nodes(tree.canvas, branches.parent)
    there = (branches.parent >= 0)[:, :, None]
    clean = batch.tokens[:, None]
    target = active.any(3)
    return Plan(
        inputs=torch.where(there, parent, clean),
        target=target,
        labels=torch.where(active, canvas, clean[..., None]),
        weight=target.to(torch.float32),
        clean=batch.tokens,
        valid=batch.valid,
        blocks=batch.blocks,
    )


def _nodes(x: Tensor, node: Tensor) -> Tensor:
    """Entries `[B, ..., S]` of `x [B, N, S]` (or `[B, ...]` of `[B, N]`); anything for node -1."""
    row = torch.arange(len(x), device=x.device).view(-1, *(1,) * (node.ndim - 1))
    return x[row, node.clamp(min=0)]


def _segments(batch: Batch, tree: Tree, branches: Branches) -> tuple[Tensor, Tensor]:
    """The children's canvases and what each segment scores, `[B, K, S, C]`."""
    parent, child = _nodes(tree.canvas, branches.parent)[:, :, None], _nodes(tree.canvas, branches.child)
    open_, real = parent == batch.mask_id, (branches.child >= 0)[..., None]
    if bool((real & batch.valid[:, None, None] & ~open_ & (child != parent)).any()):
        raise ValueError("`tree`: expected children to keep what their parent has set, got others; check `parent`")
    active = real & open_ & (child != batch.mask_id) & batch.maskable[:, None, None]
    if tree.end is not None:
        active = active & (batch.columns < _nodes(tree.end, branches.child)[..., None])
    return child.transpose(2, 3), active.transpose(2, 3)


def label_logp(logp: Tensor, plan: Plan) -> Tensor:
    """Log-prob of each label at the targets, `[B, K, S, C]`, 0 elsewhere."""
    expect("logp", logp, "B K S C", dict(zip("BKSC", plan.labels.shape, strict=True)))
    return torch.where(plan.target[..., None], logp, 0.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeCoefficients(Coefficients):
    """Coefficients of a tree's segments: `advantage [B, K, 1, C]`, `token_weight [B, K, S, C]` = 1/|U_c| on U_c.

    Args:
        share: `[B, K, S, C]`, see `SoftTargets`.
        log_q: `[B, K, S, C]`, see `SoftTargets`.
        distill: 0-d, lambda(t) / number of positions in the whole batch.
    """

    share: Tensor
    log_q: Tensor
    distill: Tensor


def tree_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: NodeAdvantage,
    schedule: _Schedule,
    every_row: bool,
) -> TreeCoefficients:
    """Advantages and weights of the segments, the soft targets, and the number of segments as normaliser."""
    tree = tree_of(batch)
    branches = tree.branches()
    real = branches.child >= 0
    value = torch.where(real, _nodes(advantage(tree.reward, tree.parent), branches.child), 0.0)
    _, active = _segments(batch, tree, branches)
    size = active.sum(2, keepdim=True)
    weight, tau = schedule.at(tree.progress)
    compared = torch.where(real.sum(2, keepdim=True) > 1, value, 0.0)  # an only child teaches nothing
    soft = soft_targets(compared, plan.labels, active, temperature=tau)
    earns = ((value != 0) & (size[:, :, 0] > 0)).flatten(1).any(1)
    return TreeCoefficients(
        advantage=value[:, :, None],
        row_weight=((size > 0).flatten(1).any(1) & (earns | every_row)).to(value.dtype),
        normaliser=at_least_one((size > 0).sum()),
        metrics=_metrics(tree, rewards, value, real),
        token_weight=torch.where(active, 1 / size.clamp(min=1).to(value.dtype), 0.0),
        share=soft.share,
        log_q=soft.log_q,
        distill=weight / at_least_one((soft.share > 0).any(3).sum()).to(value.dtype),
    )


def _metrics(tree: Tree, rewards: Tensor | None, advantage: Tensor, real: Tensor) -> dict[str, Mean]:
    leaves = torch.where(tree.leaves, tree.reward, 0.0)
    reward = Mean(leaves.sum(), tree.leaves.sum()) if rewards is None else Mean(rewards.sum(), len(rewards))
    alone = (real.sum(2) == 1).sum()
    return {
        "reward": reward,
        "zero_advantage": Mean((real & (advantage == 0)).sum(), real.sum()),
        "only_child": Mean(alone, real.sum()),
    }


def tree_loss(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
) -> tuple[Tensor, Metrics]:
    """PPO on the segments of some trees, plus beta k3 to the reference, plus lambda KL(q || p)."""
    given = _own(coefficients)
    assert given.token_weight is not None
    logp = label_logp(logp_of(scored), plan)
    row = broadcast(given.row_weight, logp)
    weight = row * given.token_weight
    loss, metrics = ppo_token(
        logp,
        logp.detach() if old is None else label_logp(logp_of(old), plan),
        broadcast(given.advantage, logp),
        weight,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        normaliser=given.normaliser,
    )
    distance = self_distill(logp, SoftTargets(given.share, given.log_q), row)
    metrics["distill"] = Mean(distance.detach(), (given.share > 0).any(3).sum())
    loss = loss + given.distill * distance
    if not beta:
        return loss, metrics
    scored_labels = weight != 0  # other labels may have any log-prob, -inf included
    reference = label_logp(reference_logp(ref, beta), plan)
    divergence = kl_k3(torch.where(scored_labels, logp, 0.0), torch.where(scored_labels, reference, 0.0))
    metrics["kl_ref"] = masked_mean(divergence, scored_labels)
    return loss + beta * (weight * divergence).sum() / given.normaliser, metrics


def _own(coefficients: Coefficients) -> TreeCoefficients:
    if not isinstance(coefficients, TreeCoefficients):
        kind = type(coefficients).__name__
        raise TypeError(f"`coefficients`: expected TreeCoefficients, got {kind}; use this objective's own `prepare`")
    return coefficients
