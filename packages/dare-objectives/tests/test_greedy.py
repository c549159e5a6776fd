"""Whether greedy decoding writes the answer."""

from dataclasses import replace

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import ToyWorld, toy_batch


def _decode(world: ToyWorld, tokens: torch.Tensor, maskable: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """One token per step, the most confident position first."""
    ids, width = tokens.masked_fill(~maskable & (tokens == 9), world.mask_id), len(tokens)
    ids = ids.masked_fill(maskable, world.mask_id)
    still = maskable.clone()
    while still.any():
        logp = world.logits(ids[None])[0].detach().log_softmax(-1).masked_fill(~support, -torch.inf).log_softmax(-1)
        top, token = logp.max(-1)
        place = max((i for i in range(width) if still[i]), key=lambda i: float(top[i]))
        ids[place], still[place] = token[place], False
    return ids


@pytest.mark.wheel
@pytest.mark.parametrize("banned", [None, 1])
def test_greedy_answers_match_and_others_do_not(banned):
    world, batch = ToyWorld.random(7, 5, seed=4), toy_batch()
    support = torch.ones(5, dtype=torch.bool) if banned is None else torch.arange(5) != banned
    tokens = batch.tokens.clone()
    for row in range(6):
        end = int(batch.valid[row].sum())
        tokens[row, :end] = _decode(world, batch.tokens[row, :end], batch.maskable[row, :end], support)
    greedy = replace(batch, tokens=torch.where(batch.maskable, tokens, batch.tokens))
    given = None if banned is None else support
    assert do.greedy_match(world.score, greedy, support=given).tolist() == [True] * 6
    for change in range(1, 5):  # another last token, first token, ...
        column = (batch.maskable.cumsum(1) == change).long().argmax(1)
        has = batch.lengths >= change
        other = tokens.scatter(1, column[:, None], (tokens.gather(1, column[:, None]) + 1) % 5)
        wrong = replace(batch, tokens=torch.where(batch.maskable & has[:, None], other, greedy.tokens))
        assert do.greedy_match(world.score, wrong, support=given).tolist() == (~has).tolist()


def test_rows_that_differ_are_not_computed_further():
    world, batch, rows = ToyWorld.random(7, 5, seed=4), toy_batch(), []

    def score(inputs, *rest, **options):
        rows.append(len(inputs))
        return world.score(inputs, *rest, **options)

    found = do.greedy_match(score, batch)
    assert sum(rows) < int(batch.lengths.sum())
    assert rows[0] == 6
    assert sorted(rows, reverse=True) == rows
    empty = replace(batch, maskable=batch.maskable & False)
    assert do.greedy_match(score, empty).all()
    alone = torch.cat([do.greedy_match(world.score, batch[[row]]) for row in range(6)])
    assert torch.equal(found, alone)


def test_a_score_without_top_k_is_refused():
    with pytest.raises(ValueError, match="returned no `topk`"):
        do.greedy_match(lambda inputs, *_, **__: torch.zeros(inputs.shape), toy_batch())
