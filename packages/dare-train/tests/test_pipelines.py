"""What a training step does, seen from outside: gradients, randomness, and objectives nobody knew of."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import dare_objectives as do
from dare_models import DiffusionLM, load
from dare_train import RlConfig, RunResult, SftConfig, run
from dare_train.rundir import read_metrics


def weights(result: RunResult) -> dict[str, torch.Tensor]:
    return load(result.checkpoint, dtype="float64").module.state_dict()


def largest_difference(a: RunResult, b: RunResult) -> float:
    first, second = weights(a), weights(b)
    return max((first[name] - second[name]).abs().max().item() for name in first)


def steady(*overrides: str) -> tuple[str, ...]:
    """Float64, and an optimiser offset that keeps round-off from being blown up where a gradient is almost 0."""
    return ("model.dtype=float64", "optim.eps=1e-3", "optim.lr=0.01", *overrides)


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_sft_does_not_depend_on_the_split(sft_config: Callable[..., SftConfig], micro_batch: int) -> None:
    whole = run(sft_config(*steady("run.name=whole", "update.micro_batch=4")))
    split = run(sft_config(*steady("run.name=split", f"update.micro_batch={micro_batch}")))
    assert largest_difference(whole, split) < 1e-12
    for a, b in zip(read_metrics(whole.path), read_metrics(split.path), strict=True):
        assert a["policy/nll"] == pytest.approx(b["policy/nll"], rel=1e-12)
        assert a["opt/grad_norm"] == pytest.approx(b["opt/grad_norm"], rel=1e-9)


@pytest.mark.parametrize("objective", ["diffu_grpo", "coupled_grpo"])
def test_rl_does_not_depend_on_the_split(rl_config: Callable[..., RlConfig], objective: str) -> None:
    options = steady(f"objective.name={objective}", "objective.options.beta=0.1", "update.iterations=2")
    whole = run(rl_config(*options, "run.name=whole", "update.micro_batch=8"))
    split = run(rl_config(*options, "run.name=split", "update.micro_batch=3", "rollout.batch=5"))
    assert read_metrics(whole.path)[-1]["opt/updates"] == 8
    assert largest_difference(whole, split) < 1e-12


@pytest.mark.parametrize("objective", ["cj_grpo", "espo", "vrpo", "wd1", "unigrpo"])
def test_objectives_that_couple_more_do_not_depend_on_the_split_either(
    rl_config: Callable[..., RlConfig], objective: str
) -> None:
    """Trajectories, bounds of sequences with a reference, pairs, a softmax over the group, a divergence from old."""
    options = steady(f"objective={{name: {objective}}}")
    whole = run(rl_config(*options, "run.name=whole", "update.micro_batch=8"))
    split = run(rl_config(*options, "run.name=split", "update.micro_batch=3", "rollout.batch=5"))
    assert largest_difference(whole, split) < 1e-12
    assert any(row["opt/grad_norm"] > 0 for row in read_metrics(whole.path))


def test_repeated_run_is_bit_equal_and_touches_no_global_generator(rl_config: Callable[..., RlConfig]) -> None:
    first = run(rl_config("run.name=first"))
    torch.manual_seed(99)
    random.seed(99)
    before, before_python = torch.get_rng_state(), random.getstate()
    second = run(rl_config("run.name=second"))
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == before_python
    a, b = weights(first), weights(second)
    assert all(torch.equal(a[name], b[name]) for name in a)
    other = run(rl_config("run.name=other", "run.seed=1"))
    assert largest_difference(first, other) > 0


def test_equal_rewards_change_nothing(rl_config: Callable[..., RlConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flat_rewards", SimpleNamespace(flat=lambda completions: [0.5] * len(completions)))
    config = rl_config("rewards=[{source: 'flat_rewards:flat'}]")
    result = run(config)
    assert result.metrics["opt/skipped"] == 1
    assert result.metrics["opt/updates"] == 0
    assert result.metrics["opt/grad_sequences"] == 0, "no forward for rows that cannot contribute"
    assert result.metrics["group/zero_std_frac"] == 1
    before = load(Path(config.model.path), dtype="float64").module.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(result).items())


def made_up_objective(*, pull: float = 1.0) -> do.Objective:
    """REINFORCE on the fully masked response: an objective that the package does not know."""
    base = do.diffu_grpo(prompt_mask=0.0)

    def loss(scored, plan, coefficients, /, *, old=None, ref=None):
        score = (scored.logp * plan.target).sum((1, 2)) * coefficients.advantage
        return -pull * score.sum() / coefficients.normaliser, {"pull": do.Mean(pull, 1.0)}

    return replace(base, name="made_up", loss=loss, needs=frozenset())


def test_made_up_objective_trains(rl_config: Callable[..., RlConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_up", SimpleNamespace(made_up_objective=made_up_objective))
    result = run(rl_config("objective.name='made_up:made_up_objective'", "objective.options.pull=2.0", "run.steps=2"))
    assert result.metrics["policy/pull"] == 2.0
    assert result.metrics["opt/updates"] == 2


def test_sft_learns(sft_config: Callable[..., SftConfig]) -> None:
    config = sft_config(
        "run.steps=150", "optim.lr=0.01", "optim.warmup=5", "validation.every=150", "data.size=400", "batch=32"
    )
    result = run(config)
    losses = [record["policy/nll"] for record in read_metrics(result.path)]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert result.metrics["validation/accuracy"] > 0.1


def test_rl_raises_the_reward(rl_config: Callable[..., RlConfig]) -> None:
    config = rl_config("run.steps=30", "optim.lr=0.01", "rollout.n=8", "rollout.prompts=4", "checkpoint.every=0")
    result = run(config)
    rewards = [record["reward/mean"] for record in read_metrics(result.path)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


def test_the_reference_stays_frozen(rl_config: Callable[..., RlConfig]) -> None:
    result = run(rl_config("objective.options.beta=0.5", "optim.lr=0.01"))
    kl = [record["policy/kl_ref"] for record in read_metrics(result.path)]
    assert kl[0] == 0.0
    assert kl[-1] > 0.0
    base = load(Path(rl_config().model.path))
    assert isinstance(base, DiffusionLM)
    stored = load_file(result.checkpoint / "trainer" / "optimizer.safetensors")
    reference = {k.removeprefix("reference/"): v for k, v in stored.items() if k.startswith("reference/")}
    assert all(torch.equal(reference[name], tensor) for name, tensor in base.module.state_dict().items())
