"""P2: before the first optimiser step every importance ratio is 1 and every divergence 0, for every RL objective."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_models import load
from dare_objectives import Plan, Scored
from dare_objectives.metrics import Metrics
from dare_train import RlConfig, Rollout
from dare_train.config import RECORDED, OptimConfig
from dare_train.data import Row, load_rows
from dare_train.engines.torch import TorchEngine
from dare_train.pipelines.rl import RlPipeline
from dare_train.protocols import LossFn, Request, StepStats
from dare_train.rewards import Outcome

OBJECTIVES = tuple(
    name for name in do.names() if "old" in do.get(name).needs <= RECORDED and do.get(name).advantage is not None
)
FIXED = ("cj_grpo", "tracerl", "just_grpo")
"""Objectives whose plan follows from the trajectory, so that no draw is made."""
RANDOM = tuple(name for name in OBJECTIVES if not name.startswith(FIXED))


class RecordingEngine(TorchEngine):
    """Keeps what every call saw and gave."""

    def __init__(self, model: Path) -> None:
        super().__init__(load(model, dtype="float64"), OptimConfig(lr=0.05), reference=True)
        self.olds: list[tuple[Plan, Tensor]] = []
        self.updates: list[list[tuple[Plan, Tensor, Metrics]]] = [[]]

    def score(self, plan: Plan) -> Tensor:
        logp = super().score(plan)
        self.olds.append((plan, logp))
        return logp

    def accumulate(self, plan: Plan, loss_fn: LossFn) -> Metrics:
        def recording(scored: Scored) -> tuple[Tensor, Metrics]:
            loss, metrics = loss_fn(scored)
            self.updates[-1].append((plan, scored.logp.detach(), metrics))
            return loss, metrics

        return super().accumulate(plan, recording)

    def step(self, lr: float) -> StepStats:
        self.updates.append([])
        return super().step(lr)


class UnevenRollout:
    """Scripted completions of lengths 1, 2, …: lengths are what padding mistakes hide behind."""

    def publish(self, lm: object, version: int) -> None:
        pass

    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        return [self._rollout(request, 1 + (5 * i) % 9) for i, request in enumerate(requests)]

    def _rollout(self, request: Request, length: int) -> Rollout:
        response = [request.prompt[i % 4] for i in range(length)]
        steps = [i % 3 for i in range(length)]
        return Rollout(request.uid, request.prompt, response, steps, [0.0] * length, False, 3, 0)


def judge(rows: Sequence[Row], completions: Sequence[str]) -> list[Outcome]:
    return [Outcome(score=float(len(text)), correct=None, parts={}, reason="") for text in completions]


def one_step(config: RlConfig) -> RecordingEngine:
    engine = RecordingEngine(Path(config.model.path))
    rows = load_rows(config.data, completions=False)
    RlPipeline(config, engine, UnevenRollout(), rows, judge, lambda lm: {}).step(0)
    return engine


@pytest.mark.parametrize("reuse", [1, 2, 3])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_ratio_is_one(rl_config: Callable[..., RlConfig], objective: str, accumulation: int, reuse: int) -> None:
    micro_batch = -(-8 // accumulation)  # 8, 4, 3: the last one is uneven
    config = rl_config(
        f"objective={{name: {objective}}}",
        f"update.micro_batch={micro_batch}",
        f"update.iterations={reuse}",
        "update.old=pass",
    )
    engine = one_step(config)
    updates = engine.updates[:-1]
    assert len(updates) == reuse
    assert len(updates[0]) == accumulation
    for (old_plan, old), (plan, new, metrics) in zip(engine.olds, updates[0], strict=False):
        assert torch.equal(old_plan.inputs, plan.inputs)
        assert torch.equal(old_plan.target, plan.target)
        assert torch.equal(old, new), "the same split must give the same bits"
        assert metrics["ratio"].value == metrics["ratio_max"].value == 1.0
        assert metrics["log_ratio_max"].value == metrics["approx_kl"].value == 0.0
    for later in updates[1:]:
        assert max(metrics["log_ratio_max"].value for *_, metrics in later) > 1e-6, "the weights moved"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_ratio_is_one_under_another_split(rl_config: Callable[..., RlConfig], objective: str) -> None:
    old = one_step(rl_config(f"objective={{name: {objective}}}", "update.old=pass", "update.micro_batch=8")).olds
    new = one_step(rl_config(f"objective={{name: {objective}}}", "update.old=pass", "update.micro_batch=3")).updates[0]
    (_, whole), parts = old[0], torch.cat([pad(logp, old[0][1]) for _, logp, _ in new])
    assert (whole - parts).abs().max() <= 1e-12


def pad(logp: Tensor, like: Tensor) -> Tensor:
    return torch.nn.functional.pad(logp, (0, like.shape[-1] - logp.shape[-1]))


@pytest.mark.parametrize("objective", RANDOM)
def test_masks_are_fresh_in_each_pass_only(rl_config: Callable[..., RlConfig], objective: str) -> None:
    options = (f"objective={{name: {objective}}}", "update.micro_batch=3")
    once, again = (one_step(rl_config(*options, "update.iterations=2")) for _ in range(2))
    plans = [[plan.inputs for plan, *_ in update] for update in once.updates[:-1]]
    repeated = [[plan.inputs for plan, *_ in update] for update in again.updates[:-1]]
    assert all(torch.equal(a, b) for x, y in zip(plans, repeated, strict=True) for a, b in zip(x, y, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(*plans, strict=True)), "a second pass draws other masks"
    split = one_step(rl_config(*options, "update.iterations=2", "update.minibatches=2"))
    first_pass = torch.cat([plan.inputs for update in split.updates[:2] for plan, *_ in update])
    assert torch.equal(first_pass, torch.cat(plans[0])), "mini-batches of one pass share its masks"


def test_the_shortcut_gives_the_same_weights(rl_config: Callable[..., RlConfig]) -> None:
    shortcut, separate = one_step(rl_config()), one_step(rl_config("update.old=pass"))
    assert not shortcut.olds
    assert separate.olds
    pairs = zip(shortcut.lm.module.parameters(), separate.lm.module.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
