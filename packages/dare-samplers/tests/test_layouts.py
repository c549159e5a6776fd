"""How rows are fed changes no result, and what is shown on each layout."""

import pytest
import torch
from arbitrary import LAYOUTS, MASK, canvas, same, scenes
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_samplers import Denoiser, Infill, LengthStop, SamplerConfig, generate, unpad
from dare_samplers.testing import TinyTransformer, ToyDenoiser

CONFIG = SamplerConfig(gen_length=4, block_length=2, stop=LengthStop())
PROMPTS = [[3, 1, 4], [], [5, MASK]]


@settings(max_examples=12)
@given(scenes())
def test_layouts_are_equal(scene):
    """[10] Left, right and packed: the same to 1e-10, with every part, cache and kind of row."""
    left, right, packed = (scene.run(layout=layout) for layout in LAYOUTS)
    same(left, right)
    same(packed, right)
    assert (left.nfe, left.tokens_forwarded) == (right.nfe, right.tokens_forwarded)
    if not scene.config.cache.stores:
        assert (packed.nfe, packed.tokens_forwarded) == (right.nfe, right.tokens_forwarded)


class Watched(ToyDenoiser):
    """Keeps what it is fed."""

    def __call__(self, ids, *, positions, blocks=None, write=None, cache=None, rows, documents=None):
        self.seen = getattr(self, "seen", [])
        self.seen.append((ids.clone(), positions.clone(), documents))
        return super().__call__(
            ids, positions=positions, blocks=blocks, write=write, cache=cache, rows=rows, documents=documents
        )


def fed(layout: str):
    model = Watched.random()
    generate(model, PROMPTS, CONFIG.replace(layout=layout), until_step=1)
    return model.seen[0]


def test_left_pads_on_the_left():
    ids, positions, _ = fed("left")
    assert ids.tolist() == [[3, 1, 4, *[MASK] * 4], [0, 0, 0, *[MASK] * 4], [0, 5, MASK, *[MASK] * 4]]
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5, 6], [-1, -1, -1, 0, 1, 2, 3], [-1, 0, 1, 2, 3, 4, 5]]


def test_right_pads_on_the_right():
    ids, positions, _ = fed("right")
    assert ids.tolist() == [[3, 1, 4, *[MASK] * 4], [*[MASK] * 4, 0, 0, 0], [5, *[MASK] * 5, 0]]
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, -1, -1, -1], [0, 1, 2, 3, 4, 5, -1]]


def test_packed_has_no_pads():
    ids, positions, documents = fed("packed")
    assert ids.tolist() == [[3, 1, 4, *[MASK] * 4, *[MASK] * 4, 5, MASK, *[MASK] * 4]]
    assert positions.tolist() == [[*range(7), *range(4), *range(6)]]
    assert documents.tolist() == [[0] * 7 + [1] * 4 + [2] * 6]


def test_what_is_shown():
    """On the left layout responses begin at one column, otherwise prompts do."""
    model = ToyDenoiser.random()
    left, right, packed = (generate(model, PROMPTS, CONFIG.replace(layout=layout)) for layout in LAYOUTS)
    assert left.prompt_mask.tolist() == [[True] * 3 + [False] * 4, [False] * 7, [False, True, True] + [False] * 4]
    assert torch.equal(left.sequences[:, 3:], left.completions)
    assert right.prompt_mask.tolist() == [[True] * 3 + [False] * 4, [False] * 7, [True, True] + [False] * 5]
    assert torch.equal(right.sequences, packed.sequences)
    for row in range(3):
        assert canvas(left, row) == canvas(right, row)


def test_left_aligns_the_first_slots_of_spans():
    rows = [Infill([5, 0, 6], [False, True, False]), Infill([0, 7], [True, False]), [1, 2]]
    out = generate(ToyDenoiser.random(eos_bias=-9.0), rows, CONFIG.replace(layout="left", gen_length=2))
    assert out.sequences.shape == (3, 4)
    assert (
        out.sequences[:, 2] == torch.tensor([out.completions[0, 0], out.completions[1, 0], out.completions[2, 0]])
    ).all()


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=4), st.booleans())
def test_unpad_takes_pads_off_either_side(rows, left):
    width = max(map(len, rows))
    padded, keep = [], []
    for row in rows:
        pads = [7] * (width - len(row))
        padded.append(pads + row if left else row + pads)
        keep.append([0] * len(pads) + [1] * len(row) if left else [1] * len(row) + [0] * len(pads))
    ids, mask = torch.tensor(padded).view(len(rows), width).long(), torch.tensor(keep).view(len(rows), width)
    assert unpad(ids, mask) == rows
    assert unpad(ids, mask.bool()) == rows


def test_a_padded_batch_decodes_like_its_rows():
    model = TinyTransformer.random(width=16)
    ids, mask = torch.tensor([[0, 0, 4], [7, 1, 2]]), torch.tensor([[0, 0, 1], [1, 1, 1]])
    same(generate(model, unpad(ids, mask), CONFIG), generate(model, [[4], [7, 1, 2]], CONFIG))


def test_unpad_checks_shapes():
    with pytest.raises(ValueError, match=r"`attention_mask`: expected the shape \[B, P\] of `ids`, got \[1, 2\]"):
        unpad(torch.zeros(1, 3), torch.zeros(1, 2))


def test_packing_needs_a_model_that_packs():
    model = Denoiser(lambda ids: torch.zeros(*ids.shape, 5), mask_id=4)
    with pytest.raises(ValueError, match='`layout`: "packed" needs a model that declares `packs`, got Denoiser'):
        generate(model, [[1]], CONFIG.replace(layout="packed"))
