import pytest
import torch

from dare_samplers import FILLED, GIVEN, Infill, LengthStop, generate, presets
from dare_samplers.testing import TableDenoiser, ToyDenoiser

TOY = ToyDenoiser.random(eos_bias=3.0)
PROMPTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
CONFIG = presets.llada(16, 4, 8, temperature=1.0)


@pytest.fixture(scope="module")
def out():
    return generate(TOY, PROMPTS, CONFIG, keys=2)


@pytest.mark.wheel
def test_shapes_and_types(out):
    assert out.sequences.shape == out.valid.shape == out.prompt_mask.shape == (4, 20)
    for name in (
        "completions",
        "completion_mask",
        "step_map",
        "block_id",
        "block_step",
        "logprobs",
        "scores",
        "origin",
    ):
        assert getattr(out, name).shape == (4, 16)
    assert out.step_map.dtype == out.block_id.dtype == out.block_step.dtype == torch.int32
    assert out.logprobs.dtype == out.sample_logprobs.dtype == torch.float64
    assert "eos" in out.finish_reason


def test_float32_models_are_recorded_in_float32():
    model = ToyDenoiser.random(dtype=torch.float32)
    assert generate(model, [[1]], presets.llada(4)).logprobs.dtype == torch.float32


def test_completion_ends_with_the_first_end_token(out):
    for row, reason in enumerate(out.finish_reason):
        kept = out.completions[row][out.completion_mask[row]]
        ends = (kept == TOY.eos_ids[0]).nonzero().flatten().tolist()
        assert ends == ([len(kept) - 1] if reason == "eos" else [])
        assert int(out.completion_mask[row].long().diff().clamp(min=0).sum()) == 0
        assert bool((out.completions[row][~out.completion_mask[row]] == TOY.pad_id).all())


def test_rows_that_stopped_are_filled(out):
    filled = out.origin == FILLED
    assert torch.equal(filled, out.step_map < 0)
    assert not bool((out.origin == GIVEN).any())
    assert torch.equal(out.valid[:, 4:], ~filled)
    assert bool((out.sequences[:, 4:][filled] == TOY.pad_id).all())
    terminal = out.block_id.masked_fill(filled, -1).amax(-1, keepdim=True)
    assert bool((out.step_map[out.block_id <= terminal] >= 0).all())


def test_stopping_early_does_not_change_the_text(out):
    """The text up to the first end token is that of a full decode, for less work."""
    full = generate(TOY, PROMPTS, CONFIG.replace(stop=LengthStop()), keys=2)
    assert torch.equal(full.completions, out.completions)
    assert torch.equal(full.completion_mask, out.completion_mask)
    assert set(full.finish_reason) == {"length"}
    assert int(full.row_nfe.sum()) > int(out.row_nfe.sum())


def test_canvases_grow_monotonically(out):
    canvases = list(out.history())
    assert len(canvases) == out.nfe + 1
    for step, canvas in enumerate(canvases):
        open_slots = canvas[:, 4:] == TOY.mask_id
        assert torch.equal(
            open_slots[out.row_nfe > step],
            (out.step_map < 0)[out.row_nfe > step] | (out.step_map >= step)[out.row_nfe > step],
        )
        assert torch.equal(canvas[:, :4], out.sequences[:, :4])
    assert torch.equal(canvases[-1], out.sequences)
    assert torch.equal(out.canvas_at(out.nfe), out.sequences)
    with pytest.raises(ValueError, match="`step`: expected at least 0"):
        out.canvas_at(-1)


def test_events_are_the_writes_in_order(out):
    events = out.events
    assert len(events.step) == int((out.step_map >= 0).sum())
    order = list(zip(events.step.tolist(), events.row.tolist(), events.position.tolist(), strict=True))
    assert order == sorted(order)
    assert set(events.old.tolist()) == {TOY.mask_id}
    assert torch.equal(events.logp, out.logprobs[events.row, events.position])


def test_block_step_has_no_gaps(out):
    for row in range(4):
        for block in range(4):
            steps = out.block_step[row][(out.block_id[row] == block) & (out.step_map[row] >= 0)]
            assert sorted(set(steps.tolist())) == list(range(len(set(steps.tolist()))))


def test_accounting(out):
    assert out.tpf == pytest.approx(int((out.step_map >= 0).sum()) / int(out.row_nfe.sum()))
    lengths = torch.tensor([3, 1, 2, 4]) + 16
    assert out.tokens_forwarded == int((out.row_nfe * lengths).sum())


def test_zero_grid_shares_the_first_block_with_the_prompt():
    out = generate(TOY, [[1, 2, 3], [4]], presets.llada(8, 4).replace(grid="zero", stop=LengthStop()))
    assert out.block_id.tolist() == [
        [0, 1, 1, 1, 1, 2, 2, 2, 2, -1, -1],
        [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2],
    ]


def test_the_last_block_of_the_zero_grid_is_whole_and_then_cut():
    """What a replay needs is all there; the completion is as long as was asked for."""
    model = ToyDenoiser.random(eos_bias=-20.0)
    out = generate(model, [[1, 2, 3], [4]], presets.llada(8, 4).replace(grid="zero"))
    assert out.completion_mask.sum(-1).tolist() == [8, 8] == out.stop_length.tolist()
    assert out.terminal_block_end.tolist() == [9, 11]
    assert torch.equal(out.step_map >= 0, out.block_id >= 0)
    assert bool((out.completions[:, 8:] == TOY.pad_id).all())


def test_an_end_token_between_given_tokens_ends_nothing():
    """Only the last span can end a row."""
    end = TOY.eos_ids[0]
    table = torch.zeros(8, TOY.vocab_size)
    table[:, end] = 9.0
    model = TableDenoiser(table, mask_id=TOY.mask_id, eos_ids=(end,))
    gap = Infill([1, 0, 0, 2, 0, 0, 0], [False, True, True, False, True, True, True])
    out = generate(model, [gap], CONFIG)
    assert out.completions.tolist() == [[end, end, end, 0, 0]]
    assert out.completion_mask.tolist() == [[True, True, True, False, False]]
    assert bool((out.step_map >= 0).all())
