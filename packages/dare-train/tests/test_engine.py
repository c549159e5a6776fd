"""The torch engine: schedule, dropped steps, and a state that goes round."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from dare_models import load
from dare_objectives import Plan
from dare_objectives.metrics import Metrics
from dare_train import CheckpointError, DivergedError, SftConfig
from dare_train.config import OptimConfig
from dare_train.data import load_rows
from dare_train.engines.torch import TorchEngine
from dare_train.pipelines.sft import SftPipeline
from dare_train.protocols import LossFn
from dare_train.schedule import learning_rate


def test_learning_rate() -> None:
    cosine = OptimConfig(lr=2.0, warmup=4, schedule="cosine", final_ratio=0.25)
    rates = [learning_rate(cosine, update, 24) for update in range(25)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[14] == pytest.approx(2.0 * (0.25 + 0.75 * 0.5))
    assert rates[24] == pytest.approx(0.5)
    assert all(a >= b for a, b in pairwise(rates[3:]))
    assert learning_rate(OptimConfig(lr=2.0), 1000, 10) == 2.0


class SpoiltEngine(TorchEngine):
    """Its gradients turn into nan from a given call on."""

    def __init__(self, model: Path, spoilt: int) -> None:
        super().__init__(load(model), OptimConfig(lr=0.01))
        self._left = spoilt

    def accumulate(self, plan: Plan, loss_fn: LossFn) -> Metrics:
        metrics = super().accumulate(plan, loss_fn)
        self._left -= 1
        if self._left < 0:
            next(self.lm.module.parameters()).grad.fill_(math.nan)
        return metrics


def pipeline(config: SftConfig, engine: TorchEngine) -> SftPipeline:
    return SftPipeline(config, engine, load_rows(config.data, completions=True), lambda lm: {})


def test_bad_gradients_are_dropped_then_stop_the_run(sft_config: Callable[..., SftConfig], base_model: Path) -> None:
    engine = SpoiltEngine(base_model, spoilt=2)
    worker = pipeline(sft_config(), engine)
    assert [worker.step(i).metrics["opt/skipped"] for i in range(3)] == [0, 0, 1]
    before = [p.clone() for p in engine.lm.module.parameters()]
    for i in range(3, 6):
        worker.step(i)
    with pytest.raises(
        DivergedError, match=r"5 updates in a row, after 2 good ones; start a new run with a lower `optim.lr`"
    ):
        worker.step(6)
    assert not worker.optimiser.healthy
    assert all(torch.equal(a, b) for a, b in zip(before, engine.lm.module.parameters(), strict=True))


def test_state_goes_round(sft_config: Callable[..., SftConfig], base_model: Path) -> None:
    config = sft_config("model.dtype=float64")
    one = pipeline(config, TorchEngine(load(base_model), config.optim))
    for i in range(3):
        one.step(i)
    other = TorchEngine(load(base_model), config.optim)
    other.lm.module.load_state_dict(one.engine.lm.module.state_dict())
    other.load_state(one.engine.state())
    two = pipeline(config, other)
    two.optimiser.restore(one.optimiser.counters())
    assert one.step(3).metrics["policy/nll"] == two.step(3).metrics["policy/nll"]
    pairs = zip(one.engine.lm.module.parameters(), two.engine.lm.module.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_foreign_state_is_refused(base_model: Path) -> None:
    engine = TorchEngine(load(base_model), OptimConfig(lr=0.1))
    with pytest.raises(CheckpointError, match=r"does not fit the model; it differs in .*exp_avg"):
        engine.load_state({"exp_avg/nothing": torch.zeros(1)})
