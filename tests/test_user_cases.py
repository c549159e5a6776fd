"""What users of such software run into, on every family: batches, padding, and caches of rows that went apart."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from families import FAMILIES, lively
from torch import Tensor
from torch.nn.functional import pad

import dare_models as dm
from dare_samplers import (
    Bernoulli,
    BlockKV,
    Dual,
    Horizon,
    LengthStop,
    NoCache,
    Prefix,
    RandomScore,
    SamplerConfig,
    SamplerOutput,
    Threshold,
    Vicinity,
    generate,
)

EXACT = 1e-8
SAMPLERS: dict[str, dict[str, Any]] = {
    "full": {"block_length": 12, "steps": 6},
    "block": {"block_length": 4, "steps": 6},
    "threshold": {"block_length": 4, "selector": Threshold(0.3)},
    "prefix": {"block_length": 4, "selector": Threshold(0.3), "cache": Prefix()},
    "dual": {"block_length": 4, "selector": Threshold(0.3), "cache": Dual()},
}
RUNS = (((0, 1, 2), "left", (0, 0)), ((2, 0, 1), "right", (1, 0)), ((1, 2, 0), "left", (0, 7)))
"""Order of the rows, side of the padding, and pad columns beyond it that the network is fed with."""


class Padded(dm.DiffusionLM):
    """The same model, fed with more pad columns than the loop gives it."""

    before = after = 0

    def __call__(self, ids: Tensor, **given: Any) -> Tensor:
        fillers = {"positions": -1, "blocks": -1, "write": False}
        sides = (self.before, self.after)
        wide = {
            name: pad(value, sides, value=fillers[name]) if name in fillers and value is not None else value
            for name, value in given.items()
        }
        return super().__call__(pad(ids, sides, value=self.pad_id), **wide | {"rows": given["rows"] + self.before})


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request: pytest.FixtureRequest) -> Padded:
    model = lively(request.param, "0123456789>")
    return Padded(model.module, model.spec, model.tokenizer)


@pytest.fixture
def prompts(lm: Padded) -> list[list[int]]:
    """Prompts of 3, 9 and 14 ids; a mask and an end of text are among them, as any other token."""
    given = [[(7 * place + 3 * row) % lm.vocab_size for place in range(size)] for row, size in enumerate((3, 9, 14))]
    given[1][1], given[2][5] = lm.mask_id, lm.eos_ids[0]
    return given


def keys_of(rows: Iterable[int]) -> Tensor:
    return torch.tensor([101 + row for row in rows])


def fitting(lm: Padded, settings: dict[str, Any]) -> SamplerConfig:
    """The strategy on the family's grid."""
    config = SamplerConfig(gen_length=12, **settings)
    return config if lm.block_length is None else config.replace(grid="zero", block_length=lm.block_length)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_prompts_of_any_length_decode_alike_alone_and_together(
    lm: Padded, prompts: list[list[int]], sampler: str
) -> None:
    config = fitting(lm, SAMPLERS[sampler])
    lm.before = lm.after = 0
    singles = [generate(lm, [prompts[row]], config, keys=keys_of([row])) for row in range(3)]
    for rows, layout, (lm.before, lm.after) in RUNS:
        out = generate(lm, [prompts[row] for row in rows], config.replace(layout=layout), keys=keys_of(rows))
        for place, row in enumerate(rows):
            single, width = singles[row], singles[row].step_map.shape[1]
            real = out.valid[place].nonzero()[:, 0]
            assert bool((real.diff() == 1).all()), "no gap between prompt and response"
            assert out.sequences[place][real[: len(prompts[row])]].tolist() == prompts[row]
            assert out.sequences[place][real].tolist() == single.sequences[0][single.valid[0]].tolist()
            assert out.step_map[place, :width].tolist() == single.step_map[0].tolist()
            assert int(out.row_nfe[place]) == int(single.row_nfe[0])
            close(out.logprobs[place, :width], single.logprobs[0])


def test_a_finished_row_is_frozen(lm: Padded, prompts: list[list[int]]) -> None:
    lm.before = lm.after = 0
    config = fitting(lm, SAMPLERS["threshold"])
    out = generate(lm, prompts, config, keys=keys_of(range(3)))
    first = int(out.row_nfe.argmin())
    assert out.row_nfe.min() < out.row_nfe.max()
    early = generate(lm, prompts, config, keys=keys_of(range(3)), until_step=int(out.row_nfe.min()))
    for name in ("sequences", "step_map", "logprobs"):
        assert torch.equal(getattr(early, name)[first], getattr(out, name)[first])


def ragged(lm: Padded, cache: Any) -> SamplerConfig:
    """Rows that draw how many slots to commit, and which: they are soon in different blocks, whatever the model."""
    drawn = {"schedule": Bernoulli(), "scorer": RandomScore()}
    settings = {"block_length": 4, "steps": 12, "stop": LengthStop()} | drawn
    return fitting(lm, settings).replace(cache=cache)


def went_apart(out: SamplerOutput) -> bool:
    """Whether at some step the rows worked on different blocks, and committed unlike numbers of slots."""
    steps = range(int(out.row_nfe.min()))
    blocks = [{int(b[s >= step].min()) for b, s in zip(out.block_id, out.step_map, strict=True)} for step in steps]
    commits = [set((out.step_map == step).sum(1).tolist()) for step in steps]
    return any(len(at) > 1 for at in blocks) and any(len(sizes) > 1 for sizes in commits)


def test_a_cache_that_is_always_fresh_is_a_full_recomputation(lm: Padded, prompts: list[list[int]]) -> None:
    lm.before = lm.after = 0
    plain = generate(lm, prompts, ragged(lm, NoCache()), keys=keys_of(range(3)))
    assert went_apart(plain)
    caches = [Dual(refresh=1), Prefix(refresh=1), Vicinity(64, 64)]
    if lm.attention == "block_causal":
        caches += [Dual(), Prefix(2), Horizon(ahead=4), Vicinity(1, 1, 1), BlockKV(), BlockKV("separate")]
    for cache in caches:
        out = generate(lm, prompts, ragged(lm, cache), keys=keys_of(range(3)))
        assert torch.equal(out.sequences, plain.sequences) and torch.equal(out.step_map, plain.step_map), cache
        close(out.logprobs, plain.logprobs)


@pytest.mark.parametrize("cache", [Dual(), Dual(3), Prefix(2), Horizon(1), Vicinity(1, 2, 1)], ids=repr)
def test_a_stale_cache_fits_rows_that_went_apart(lm: Padded, prompts: list[list[int]], cache: Any) -> None:
    """The first forward of every row stores what the cacheless one sees, so it decides alike; later ones may drift."""
    lm.before = lm.after = 0
    plain = generate(lm, prompts, ragged(lm, NoCache()), keys=keys_of(range(3)))
    out = generate(lm, prompts, ragged(lm, cache), keys=keys_of(range(3)))
    assert bool(out.logprobs.isfinite().all()) and torch.equal(out.step_map >= 0, plain.step_map >= 0)
    first = plain.step_map == 0
    assert torch.equal(out.step_map == 0, first)
    close(out.logprobs[first], plain.logprobs[first])
