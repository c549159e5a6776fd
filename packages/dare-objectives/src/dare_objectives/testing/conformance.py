"""What every objective must satisfy, checked on a toy world in float64."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dare_objectives.batch import Batch
from dare_objectives.keyed import row_keys, uniform
from dare_objectives.metrics import Metrics, merge_metrics
from dare_objectives.objective import Coefficients, Objective
from dare_objectives.objectives.sequence_policy import SequenceCoefficients
from dare_objectives.plan import Plan
from dare_objectives.score import evaluate
from dare_objectives.testing.rollouts import with_records
from dare_objectives.testing.world import ToyWorld

__all__ = ["objective_conformance", "toy_batch"]

_TOLERANCE = 1e-12
_PROMPT = 2


def toy_batch(*, rows: int = 6, response: int = 5, vocab: int = 5, seed: int = 0) -> Batch:
    """Rows of two prompt tokens and 1..`response` response tokens, in blocks of three columns and groups of three."""
    width = _PROMPT + response
    column = torch.arange(width)
    keys = row_keys(seed, range(rows))
    length = _PROMPT + 1 + (torch.arange(rows) * 2 + response - 1) % response
    valid = column < length[:, None]
    return Batch(
        tokens=(uniform(keys[:, None], "data", column) * vocab).long().clamp(max=vocab - 1),
        valid=valid,
        maskable=valid & (column >= _PROMPT),
        blocks=torch.where(valid, column // 3, -1).to(torch.int32),
        keys=keys,
        group=torch.arange(rows) // 3,
        mask_id=vocab,
    )


def objective_conformance(
    objective: Objective, batch: Batch | None = None, *, world: ToyWorld | None = None, reinforce: bool = True
) -> None:
    """Check an objective in one line: `objective_conformance(do.get("mine"))`.

    Plans depend on a row's key alone and leave global generators untouched; values off target do not matter; the
    ratio on policy is exactly 1 and the gradient that of REINFORCE; loss, gradient and metrics do not depend on
    micro-batches, row order or padding; groups that are constant, single or empty give finite numbers.

    Args:
        objective: the objective under test.
        batch: default `toy_batch()`; rollout records that the objective needs and the batch lacks are made up.
        world: the model, with at least as many positions and tokens; default: one that fits the batch.
        reinforce: whether -advantage x row_weight x d(sum of estimator) / normaliser is the gradient on policy (over
            the row's `length` and times `token_weight` as well, where the coefficients have them).

    Raises:
        AssertionError: naming the property that fails.
    """
    batch = with_records(toy_batch() if batch is None else batch, objective.needs)
    world = ToyWorld.random(batch.tokens.shape[1], batch.mask_id) if world is None else world
    case = _case(objective, batch, world)
    _check_plan(objective, batch)
    _check_decoys(case)
    _check_on_policy(case, reinforce=reinforce)
    _check_partition(case)
    _check_order(case)
    _check_padding(case)
    _check_degenerate(objective, batch, world)


@dataclass(frozen=True, eq=False)
class _Case:
    objective: Objective
    world: ToyWorld
    batch: Batch
    rewards: Tensor
    plan: Plan
    old: Tensor
    ref: Tensor
    coefficients: Coefficients


def _case(objective: Objective, batch: Batch, world: ToyWorld, rewards: Tensor | None = None) -> _Case:
    if rewards is None:
        rewards = uniform(batch.keys, "eval", dtype=torch.float64)
    plan = objective.plan(batch)
    logp = evaluate(world.score, plan).logp.detach()
    noise = [_like(uniform(batch.keys[:, None], "eval", i, batch.columns, dtype=torch.float64), logp) for i in (1, 2)]
    known = {"old": logp + (noise[0] - 0.5) / 3, "ref": logp + (noise[1] - 0.5) / 3}
    given = replace(batch, **{name: x for name, x in known.items() if name in objective.needs})
    coefficients = objective.prepare(given, plan, rewards, logp)
    return _Case(objective, world, batch, rewards, plan, known["old"], known["ref"], coefficients)


def _like(x: Tensor, logp: Tensor) -> Tensor:
    """Numbers `[B, S]` as an array against log-probs `[B, K, S]` or `[B, K, S, C]`."""
    return x[:, None] if logp.ndim == 3 else x[:, None, :, None]


def _loss(
    case: _Case, logp: Tensor, rows: slice | Tensor = slice(None), **fixed: Tensor | None
) -> tuple[Tensor, Metrics]:
    """The loss of log-probs of some rows, with the old and reference ones that the objective needs."""
    known = {name: value for name, value in ({"old": case.old, "ref": case.ref} | fixed).items() if value is not None}
    given = {name: value[rows] for name, value in known.items() if name in case.objective.needs}
    return case.objective.loss(logp, case.plan[rows], case.coefficients[rows], **given)


class _Run(NamedTuple):
    loss: Tensor
    gradient: tuple[Tensor, ...]
    metrics: dict[str, float]


def _run(case: _Case, splits: Sequence[slice | Tensor] = (slice(None),)) -> _Run:
    """Loss, gradient and metrics, accumulated over micro-batches."""
    losses: list[Tensor] = []
    gradients: list[tuple[Tensor, ...]] = []
    metrics: list[Metrics] = []
    for rows in splits:
        loss, found = _loss(case, evaluate(case.world.score, case.plan[rows]).logp, rows)
        gradients.append(torch.autograd.grad(loss, case.world.parameters, allow_unused=True, materialize_grads=True))
        losses.append(loss.detach())
        metrics.append(found)
    gradient = tuple(torch.stack(parts).sum(0) for parts in zip(*gradients, strict=True))
    values = {name: metric.value for name, metric in merge_metrics(metrics).items()}
    return _Run(torch.stack(losses).sum(), gradient, values)


def _same(what: str, found: Tensor, wanted: Tensor) -> None:
    scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
    close = found.shape == wanted.shape and bool(((found - wanted).abs() <= _TOLERANCE * scale).all())
    assert close, f"{what}: expected {wanted}, got {found}"


def _same_run(what: str, found: _Run, wanted: _Run) -> None:
    _same(f"loss, {what}", found.loss, wanted.loss)
    for one, other in zip(found.gradient, wanted.gradient, strict=True):
        _same(f"gradient, {what}", one, other)
    assert found.metrics.keys() == wanted.metrics.keys(), f"{what}: other metrics than {sorted(wanted.metrics)}"
    for name, value in wanted.metrics.items():
        difference = abs(found.metrics[name] - value)
        assert difference <= 1e-9 * max(1.0, abs(value)), f"metric {name}, {what}: differs by {difference}"


def _equal_plans(what: str, found: Plan, wanted: Plan) -> None:
    used = max(_used_streams(found), _used_streams(wanted))
    for name in ("inputs", "target", "weight"):
        one, other = getattr(found, name)[:, :used], getattr(wanted, name)[:, :used]
        assert torch.equal(one, other), f"{what}: the plans' `{name}` differ"
    one, other = _labels(found)[:, :used], _labels(wanted)[:, :used]
    common = min(one.shape[3], other.shape[3])
    clean = wanted.clean[:, None, :, None]
    spare = torch.cat([one[..., common:], other[..., common:]], 3)
    same = torch.equal(one[..., :common], other[..., :common]) and bool((spare == clean).all())
    assert same, f"{what}: the plans' `labels` differ"


def _labels(plan: Plan) -> Tensor:
    """Labels `[B, K, S, C]`; where another row of the batch needs more of them, the spare ones are clean tokens."""
    return plan.labels if plan.labels.ndim == 4 else plan.labels[..., None]


def _used_streams(plan: Plan) -> int:
    """Streams without the empty ones at the end, which a batch has more of if another row needs more streams."""
    used = plan.target.any(2).any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0


def _check_plan(objective: Objective, batch: Batch) -> None:
    before = torch.get_rng_state()
    plan = objective.plan(batch)
    assert torch.equal(before, torch.get_rng_state()), "the plan touched the global random generator"
    _equal_plans("same keys twice", objective.plan(batch), plan)
    for row in range(len(batch)):
        _equal_plans(f"row {row} alone", objective.plan(batch[[row]]), plan[[row]])
    padded = objective.plan(_pad(batch, 3))
    width = batch.tokens.shape[1]
    names = ("inputs", "target", "labels", "weight")
    cut = replace(plan, **{name: getattr(padded, name)[:, :, :width] for name in names})
    _equal_plans("three more padding columns", cut, plan)


def _check_decoys(case: _Case) -> None:
    logp = evaluate(case.world.score, case.plan).logp.detach()
    on = case.plan.target if logp.ndim == 3 else case.plan.target[..., None]
    for decoy in (-7.0, float("nan")):
        given = torch.where(on, logp, decoy).requires_grad_()
        old, ref = (torch.where(on, x, decoy) for x in (case.old, case.ref))
        loss, _ = _loss(case, given, old=old, ref=ref)
        (gradient,) = torch.autograd.grad(loss, given)
        _same("loss with decoys off target", loss.detach(), _loss(case, logp)[0])
        assert bool((gradient[~case.plan.target] == 0).all()), "the loss has a gradient off target"


def _check_on_policy(case: _Case, *, reinforce: bool) -> None:
    logp = evaluate(case.world.score, case.plan).logp.detach().requires_grad_()
    loss, metrics = _loss(case, logp, old=logp.detach(), ref=logp.detach())
    if "old" in case.objective.needs and case.objective.on_policy_shortcut:
        short, _ = _loss(case, logp, old=None, ref=logp.detach())
        assert torch.equal(loss, short), f"old = detached new: expected {loss}, got {short} when `old` is left out"
    for name in ("ratio", "ratio_max"):
        if name in metrics:
            assert metrics[name].value == 1, f"{name} on policy: expected exactly 1, got {metrics[name].value}"
    if not reinforce:
        return
    (gradient,) = torch.autograd.grad(loss, logp)
    surrogate = -_reinforce(case.coefficients, case.objective.estimator(logp, case.plan))
    _same("gradient on policy", gradient, torch.autograd.grad(surrogate, logp)[0])


def _reinforce(coefficients: Coefficients, estimate: Tensor) -> Tensor:
    """Sum over rows of advantage x row weight x estimate / normaliser, term by term where the advantage has terms."""
    weight = coefficients.row_weight.double() / coefficients.normaliser
    if isinstance(coefficients, SequenceCoefficients):
        weight = weight / coefficients.length
    if coefficients.token_weight is not None:
        estimate = estimate * coefficients.token_weight
    return (weight * _rows(_against(coefficients.advantage.double(), estimate) * estimate)).sum()


def _against(x: Tensor, like: Tensor) -> Tensor:
    return x[(...,) + (None,) * (like.ndim - x.ndim)]


def _rows(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1) if x.ndim > 1 else x


def _check_partition(case: _Case) -> None:
    whole = _run(case)
    rows = len(case.batch)
    for cuts in ([1] * rows, [1, rows - 1], [rows // 2, rows - rows // 2]):
        _same_run(f"micro-batches of {cuts} rows", _run(case, torch.arange(rows).split(cuts)), whole)


def _check_order(case: _Case) -> None:
    shuffled = torch.arange(len(case.batch)).flip(0)
    other = _case(case.objective, case.batch[shuffled], case.world, case.rewards[shuffled])
    _same_run("reversed row order", _run(other), _run(case))


def _check_padding(case: _Case) -> None:
    other = _case(case.objective, _pad(case.batch, 3), case.world, case.rewards)
    _same_run("three more padding columns", _run(other), _run(case))


def _pad(batch: Batch, columns: int) -> Batch:
    """The batch with more padding on the right; the padding holds mask tokens, which must not matter."""
    fill = {"tokens": batch.mask_id, "valid": False, "maskable": False, "blocks": -1}
    padded = {name: functional.pad(getattr(batch, name), (0, columns), value=value) for name, value in fill.items()}
    if batch.step_map is not None:
        padded["step_map"] = functional.pad(batch.step_map, (0, columns), value=-1)
    records = {name: getattr(batch, name) for name in ("states", "tree", "value")}
    known = {name: record.padded(columns, batch.mask_id) for name, record in records.items() if record is not None}
    return replace(batch, **padded, **known)


def _same_rewards(batch: Batch) -> Batch:
    """The batch with equal rewards in its records."""
    states, tree = batch.states, batch.tree
    if states is not None:
        states = replace(states, rewards=torch.full_like(states.rewards, 0.1))
    if tree is not None:
        tree = replace(tree, reward=torch.full_like(tree.reward, 0.1))
    return replace(batch, states=states, tree=tree)


def _check_degenerate(objective: Objective, batch: Batch, world: ToyWorld) -> None:
    nothing = replace(batch, maskable=batch.maskable & (batch.columns < 0))
    first_empty = replace(batch, maskable=batch.maskable & (torch.arange(len(batch)) > 0)[:, None])
    ones = torch.ones(len(batch), dtype=torch.float64)
    cases = {
        "equal rewards": _case(objective, _same_rewards(batch), world, ones * 0.1),
        "one row": _case(objective, batch[:1], world, ones[:1]),
        "one row without maskable tokens": _case(objective, first_empty, world),
        "no maskable token at all": _case(objective, nothing, world),
    }
    for what, case in cases.items():
        loss, gradient, metrics = _run(case)
        assert bool(loss.isfinite()), f"{what}: expected a finite loss, got {loss}"
        assert all(bool(part.isfinite().all()) for part in gradient), f"{what}: the gradient is not finite"
        assert all(abs(value) < float("inf") for value in metrics.values()), (
            f"{what}: expected finite metrics: {metrics}"
        )
