"""Invariant 18 of the design's list: a replay from the events alone, by code of its own, gives every recorded number.

26, one wait for the device per step, is in test_syncs.py.
"""

from itertools import groupby

import torch
from arbitrary import CAUSAL, FULL, Scene, scenes
from hypothesis import given, settings

from dare_samplers import Categorical, Greedy, Infill, NoCache, SamplerOutput, generate, presets
from dare_samplers.testing import JointDenoiser
from dare_samplers.trace import EDITED, FORCED, MOVED, REOPENED, SAMPLED


def initial(scene: Scene, row: int, slots: int) -> tuple[list[int], list[int]]:
    """A row's canvas before the first step, and the columns of its slots."""
    prompt, mask = scene.prompts[row], scene.model.mask_id
    if isinstance(prompt, Infill):
        tokens = [mask if slot else token for token, slot in zip(prompt.tokens, prompt.writable, strict=True)]
        return tokens, [column for column, slot in enumerate(prompt.writable) if slot]
    return [*prompt, *[mask] * slots], list(range(len(prompt), len(prompt) + slots))


def logits_at(scene: Scene, tokens: list[int], columns: list[int]) -> torch.Tensor:
    """The model's own logits `[slots, V]`, from a forward over the whole canvas of one row."""
    positions = torch.arange(len(tokens))[None]
    blocks = positions // scene.model.block_length if scene.causal else None
    logits = scene.model(torch.tensor([tokens]), positions=positions, blocks=blocks, rows=torch.tensor([columns]))[0]
    return logits.clamp(max=torch.finfo(logits.dtype).max)


def replay(scene: Scene, out: SamplerOutput, row: int) -> list[int]:
    """Check every event of a row against the canvas before it, and return the final canvas."""
    slots = int((out.block_id[row] >= 0).sum())
    tokens, columns = initial(scene, row, slots)
    here = out.events.row == row
    events = list(zip(*(column[here].tolist() for column in out.events), strict=True))
    close = 1e-9 if out.logprobs.dtype == torch.float64 else 1e-4
    born: dict[int, float] = {}
    total = 0.0
    for _, group in groupby(events, key=lambda event: event[0]):
        step = list(group)
        logits = logits_at(scene, tokens, columns)
        logp = logits - logits.logsumexp(-1, keepdim=True)
        carried = dict(born)
        for _, _, place, old, new, number, score, kind in step:
            assert tokens[columns[place]] == old
            tokens[columns[place]] = new
            assert kind in (SAMPLED, FORCED, EDITED, MOVED, REOPENED)
            if kind == REOPENED:
                assert (new, number, score) == (scene.model.mask_id, 0.0, 0.0)
                born.pop(place, None)
                continue
            born[place] = number
            if kind == MOVED:
                moved_now = logp[:, new].tolist()
                assert any(abs(number - one) < close for one in [*carried.values(), *moved_now])
            else:
                assert abs(number - float(logp[place, new])) < close
                total += number
    for place in range(slots):
        assert abs(float(out.logprobs[row, place]) - born.get(place, 0.0)) < 1e-12
    if scene.config.reviser is None:
        assert abs(float(out.logprobs[row].sum()) - total) < close
    filled = {columns[place] for place in range(slots) if int(out.origin[row, place]) == 3}
    return [scene.model.pad_id if column in filled else token for column, token in enumerate(tokens)]


@settings(max_examples=18)
@given(scenes([*FULL, *CAUSAL]))
def test_the_events_alone_give_every_canvas_and_number(scene):
    """[18] With any reviser and stop rule; caches where they are exact."""
    changes = {} if scene.causal else {"cache": NoCache()}
    out = scene.run(**changes, smoothing=None)
    for row in range(len(scene.prompts)):
        expected = out.state.tokens[row][out.state.positions[row] >= 0].tolist()
        assert replay(scene, out, row) == expected


@settings(max_examples=10)
@given(scenes(["toy", "tiny", "toy_causal", "tiny_causal_shift"], revisers=[]))
def test_sampling_probabilities_are_those_of_the_tempered_law(scene):
    """[18] log q without filters: a replay's softmax over temperature, without the mask; 0 at temperature 0."""
    for temperature in (0.0, 0.7):
        proposer = Categorical(temperature) if temperature else Greedy()
        out = scene.run(proposer=proposer, rules=(), guidance=None, smoothing=None, cache=NoCache())
        for row in range(len(scene.prompts)):
            slots = int((out.block_id[row] >= 0).sum())
            tokens, columns = initial(scene, row, slots)
            for step in range(int(out.row_nfe[row])):
                logits = logits_at(scene, tokens, columns)
                logits[:, scene.model.mask_id] = -torch.inf
                law = (logits / (temperature or 1)).log_softmax(-1)
                for place in (out.step_map[row, :slots] == step).nonzero().flatten().tolist():
                    token = int(out.state.tokens[row, columns[place]])
                    wanted = float(law[place, token]) if temperature else 0.0
                    assert abs(float(out.sample_logprobs[row, place]) - wanted) < 1e-9
                    tokens[columns[place]] = token


@settings(max_examples=5)
@given(scenes(["toy"]))
def test_left_to_right_adds_up_to_the_joint(scene):
    """[18] Autoregressive scoring: the log-probabilities of JustGRPO's rollout are those of the whole response."""
    law = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(scene.key), dtype=torch.float64)
    law = law / law.sum()
    out = generate(JointDenoiser(law), [[]] * 20, presets.just_grpo(3), keys=scene.key)
    expected = law[tuple(out.completions.T)].log()
    torch.testing.assert_close(out.logprobs.sum(-1), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(out.sample_logprobs, out.logprobs, rtol=0, atol=1e-12)
