"""P8: the cut into micro-batches, and rows with one supervised token or none, change no loss and no gradient."""

import pytest
import torch

import dare_objectives as do
from dare_objectives.metrics import merge_metrics
from dare_objectives.testing import ToyWorld

LENGTHS = [1, 0, 2, 5, 9, 13, 18, 18]  # of the responses, behind two prompt tokens: sequences of 2 to 20


def batch_of(rows: list[int]) -> do.Batch:
    """Rows of these numbers, each with its own key and length."""
    column = torch.arange(20)
    lengths = torch.tensor([2 + LENGTHS[row] for row in rows])[:, None]
    keys = do.row_keys(7, rows)
    valid = column < lengths
    return do.Batch(
        tokens=(do.uniform(keys[:, None], "data", column) * 5).long(),
        valid=valid,
        maskable=valid & (column >= 2),
        blocks=torch.where(valid, column // 4, -1).to(torch.int32),
        keys=keys,
        group=torch.arange(len(rows)) // 4,
        mask_id=5,
    )


def learn(
    objective: do.Objective, rows: list[int], size: int
) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, float]]:
    """Loss, gradients and metrics from micro-batches of `size` rows."""
    world, batch = ToyWorld.random(20, 5), batch_of(rows)
    plan = objective.plan(batch)
    rewards = torch.tensor([float(3 * row % 7) for row in rows], dtype=torch.float64)
    rewards = None if objective.advantage is None else rewards
    coefficients = objective.prepare(batch, plan, rewards)
    losses, found = [], []
    for part in torch.arange(len(rows)).split(size):
        loss, metrics = objective.loss(do.evaluate(world.score, plan[part]), plan[part], coefficients[part])
        loss.backward()
        losses.append(loss.detach())
        found.append(metrics)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in world.parameters]
    return torch.stack(losses).sum(), gradients, {name: m.value for name, m in merge_metrics(found).items()}


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("masked_sft", {"normaliser": "sequence"}),
        ("masked_sft", {"normaliser": "token"}),
        ("masked_sft", {"normaliser": "batch"}),
        ("block_sft", {}),
        ("d1_sft", {}),
        ("coupled_grpo", {}),
        ("ebpo", {"draws": 2}),
        ("wd1", {}),
    ],
)
def test_accumulation_changes_nothing(name, options):
    objective = do.get(name, options)
    loss, gradients, metrics = learn(objective, list(range(8)), 8)
    assert loss.isfinite()
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert any(bool(gradient.any()) for gradient in gradients)
    for size in (4, 2, 1):
        other, same, logged = learn(objective, list(range(8)), size)
        torch.testing.assert_close(other, loss, rtol=1e-12, atol=1e-12)
        assert logged == pytest.approx(metrics, rel=1e-12, abs=1e-12)
        for one, whole in zip(same, gradients, strict=True):
            torch.testing.assert_close(one, whole, rtol=0, atol=1e-6 * float(whole.abs().max()) + 1e-15)


@pytest.mark.parametrize("normaliser", ["sequence", "token"])
def test_a_batch_twice_has_the_loss_of_the_batch(normaliser):
    objective = do.masked_sft(normaliser=normaliser)
    once, gradients, _ = learn(objective, list(range(8)), 4)
    twice, same, _ = learn(objective, list(range(8)) * 2, 4)
    torch.testing.assert_close(twice, once, rtol=1e-12, atol=1e-12)
    for one, other in zip(same, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_rows_without_a_supervised_token_teach_nothing_and_break_nothing():
    loss, gradients, _ = learn(do.masked_sft(), [1, 1], 2)
    assert float(loss) == 0.0
    assert not any(bool(gradient.any()) for gradient in gradients)
