"""In one layer keys and values depend on a token and its position alone, so that any cached forward has an exact twin.

The twin is an uncached forward of a canvas that holds, at each position, the fed token, else the stored one, else
padding.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROWS, SIZE = 2, 6
per_row = {"min_size": ROWS, "max_size": ROWS}
feeds = st.fixed_dictionaries(
    {
        "at": st.lists(st.lists(st.integers(0, SIZE - 1), unique=True, max_size=SIZE), **per_row),
        "write": st.lists(st.lists(st.booleans(), min_size=SIZE, max_size=SIZE), **per_row),
        "packed": st.booleans(),
        "token": st.integers(1, 30),
    }
)
events = st.one_of(
    feeds,
    st.tuples(st.just("truncate"), st.lists(st.integers(0, SIZE), **per_row)),
    st.lists(st.sampled_from((0, 1)), **per_row),
)


def rows_of(feed):
    """(token, position, write) of each fed token, row by row."""
    return [
        [((feed["token"] + 3 * p + 7 * b) % 38 + 1, p, w) for p, w in zip(at, write, strict=False)]
        for b, (at, write) in enumerate(zip(feed["at"], feed["write"], strict=True))
    ]


def tensors(rows, packed):
    """ids, positions, write and documents, with padding on the right of short rows, or one padding behind them all."""
    documents = None
    if packed:
        documents = torch.tensor([[b for b, row in enumerate(rows) for _ in row] + [-1]])
        rows = [[token for row in rows for token in row]]
    width = max(map(len, rows)) + packed
    padded = torch.tensor([row + [(0, -1, True)] * (width - len(row)) for row in rows]).reshape(len(rows), width, 3)
    ids, positions, write = padded.unbind(-1)
    return ids, positions, write.bool(), documents


def twin(lm, stored, fed):
    """Logits of the fed tokens of one row, uncached."""
    canvas = {**stored, **{p: token for token, p, _ in fed}}
    held = sorted(canvas)
    logits = lm(torch.tensor([[canvas[p] for p in held]]), positions=torch.tensor([held]))[0]
    return [logits[held.index(p)] for _, p, _ in fed]


@pytest.mark.parametrize("attention", ["full", "block_causal"])
@given(history=st.lists(events, min_size=1, max_size=6))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_has_a_twin(make_stock, attention, history):
    lm = make_stock(attention=attention, block_length=2, layers=1)
    cache, stored = lm.new_cache(ROWS, SIZE), [{} for _ in range(ROWS)]
    for event in history:
        if isinstance(event, list):
            cache, stored = cache.select(torch.tensor(event)), [dict(stored[b]) for b in event]
        elif isinstance(event, tuple):
            cache.truncate(torch.tensor(event[1]))
            stored = [{p: t for p, t in row.items() if p < n} for row, n in zip(stored, event[1], strict=True)]
        elif any(event["at"]):
            rows = rows_of(event)
            ids, positions, write, documents = tensors(rows, event["packed"])
            logits = lm(ids, positions=positions, write=write, documents=documents, cache=cache)
            assert logits.isfinite().all()
            flat = [row for b in range(len(ids)) for row, p in zip(logits[b], positions[b], strict=True) if p >= 0]
            wanted = [row for b in range(ROWS) if rows[b] for row in twin(lm, stored[b], rows[b])]
            assert float((torch.stack(flat) - torch.stack(wanted)).detach().abs().max()) < 1e-10
            for b, row in enumerate(rows):
                stored[b].update({p: token for token, p, w in row if w})
