import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import generate, presets
from dare_samplers.testing import ToyDenoiser

TOY = ToyDenoiser.random(eos_bias=1.0)
PROMPTS = [[1, 2, 3], [4], [5, 6]]
CONFIG = presets.llada(12, 4, 6, temperature=1.0)


@pytest.mark.wheel
@given(st.lists(st.integers(0, 7), max_size=3))
def test_resuming_any_number_of_times_changes_nothing(stops):
    whole = generate(TOY, PROMPTS, CONFIG, keys=3)
    out = generate(TOY, PROMPTS, CONFIG, keys=3, until_step=0)
    for stop in sorted(stops):
        out = generate(TOY, None, CONFIG, state=out.state, until_step=stop)
    out = generate(TOY, config=CONFIG, state=out.state)
    assert torch.equal(out.sequences, whole.sequences)
    assert torch.equal(out.step_map, whole.step_map)
    torch.testing.assert_close(out.logprobs, whole.logprobs, rtol=0, atol=1e-10)
    assert (out.nfe, out.tokens_forwarded, out.finish_reason) == (
        whole.nfe,
        whole.tokens_forwarded,
        whole.finish_reason,
    )


def test_an_unfinished_decode_says_so():
    out = generate(TOY, PROMPTS, CONFIG, keys=3, until_step=1)
    assert out.finish_reason == ("steps",) * 3
    assert torch.equal(out.completion_mask, out.step_map == 0)
    assert bool((out.completions[~out.completion_mask] == TOY.mask_id).all())
    assert out.tpf == 2.0


def test_children_share_the_past_and_part_ways():
    past = generate(TOY, PROMPTS, CONFIG, keys=3, until_step=2)
    out = generate(TOY, config=CONFIG, state=past.state.fork(4))
    assert len(out.sequences) == 12
    early = (past.step_map >= 0).repeat_interleave(4, 0)
    assert torch.equal(out.step_map[early], past.step_map.repeat_interleave(4, 0)[early])
    assert torch.equal(out.completions[early][:8], past.completions.repeat_interleave(4, 0)[early][:8])
    assert len({tuple(row) for row in out.completions[:4].tolist()}) > 1


def test_fork_with_the_parents_keys_repeats_the_parent():
    past = generate(TOY, PROMPTS, CONFIG, keys=3, until_step=2)
    out = generate(TOY, config=CONFIG, state=past.state.fork(2, past.state.key.repeat_interleave(2)))
    whole = generate(TOY, PROMPTS, CONFIG, keys=3)
    assert torch.equal(out.sequences, whole.sequences.repeat_interleave(2, 0))


def test_fork_draws_do_not_depend_on_the_batch():
    past = generate(TOY, PROMPTS, CONFIG, keys=3, until_step=2)
    all_rows = generate(TOY, config=CONFIG, state=past.state.fork(2))
    one_row = generate(TOY, config=CONFIG, state=past.state.select([1]).fork(2))
    assert torch.equal(all_rows.completions[2:4], one_row.completions)
    assert torch.equal(all_rows.step_map[2:4], one_row.step_map)


def test_the_state_given_is_not_changed():
    past = generate(TOY, PROMPTS, CONFIG, keys=3, until_step=2).state
    before = copy.deepcopy(past)
    generate(TOY, config=CONFIG, state=past)
    assert torch.equal(past.tokens, before.tokens)
    assert torch.equal(past.trace.step_map, before.trace.step_map)
    assert past.nfe == before.nfe


def test_a_state_survives_torch_save(tmp_path):
    past = generate(TOY, PROMPTS, CONFIG, keys=3, until_step=2).state
    torch.save(past, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=False)
    assert torch.equal(
        generate(TOY, config=CONFIG, state=loaded).sequences, generate(TOY, PROMPTS, CONFIG, keys=3).sequences
    )


def test_misuse_is_named():
    state = generate(TOY, PROMPTS, CONFIG, until_step=1).state
    with pytest.raises(ValueError, match="`n`: expected at least 1 child"):
        state.fork(0)
    with pytest.raises(ValueError, match=r"`keys`: expected shape \[6\]"):
        state.fork(2, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="resume with the layout it was begun with"):
        generate(TOY, None, presets.llada(8, 4), state=state)
    with pytest.raises(ValueError, match="a state carries its own"):
        generate(TOY, None, CONFIG, state=state, keys=3)
    with pytest.raises(ValueError, match="expected one of the two"):
        generate(TOY, PROMPTS, CONFIG, state=state)
