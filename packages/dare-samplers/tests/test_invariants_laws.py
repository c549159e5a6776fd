"""Invariants 13, 14, 16 and 25 of the design's list: laws, ranges, order and precision (numbers in brackets)."""

import pytest
import torch
from arbitrary import SELECTORS, VOCAB, facts, model_of, scenes, text
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_samplers import (
    Categorical,
    Greedy,
    Logits,
    Probability,
    RandomScore,
    Record,
    SamplerConfig,
    TopK,
    generate,
    presets,
)
from dare_samplers.scorers import EosLast, EosScaled, LogProb, Margin, NegEntropy, PadPenalty
from dare_samplers.selectors import Lead, SegmentMax, SoftTopK
from dare_samplers.testing import JointDenoiser, TableDenoiser, ToyDenoiser

SEEDS = st.integers(0, 10_000)


def chi_square(cells: torch.Tensor, law: torch.Tensor) -> float:
    expected = len(cells) * law.flatten()
    observed = torch.bincount(cells, minlength=law.numel()).double()
    return float(((observed - expected) ** 2 / expected).sum())


def joint(seed: int) -> torch.Tensor:
    law = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2 + 0.02
    return law / law.sum()


ONE_BY_ONE = [
    presets.llada(3, temperature=1.0, remasking="random"),
    presets.llada(3, temperature=1.0, remasking="left_to_right"),
    presets.first_hitting(3),
    presets.just_grpo(3),
]


@settings(max_examples=2)
@given(SEEDS)
def test_draws_from_the_joint_law(seed):
    """[13] One slot per step, chosen without regard to its token, at temperature 1 on exact conditionals.

    Chi-square over all 27 outcomes: 61.7 is the 0.9999 quantile for 26 degrees of freedom.
    """
    law = joint(seed)
    for config in ONE_BY_ONE:
        out = generate(JointDenoiser(law), [[]] * 2000, config, keys=seed)
        assert chi_square((out.completions * torch.tensor([9, 3, 1])).sum(-1), law) < 61.7


def test_a_choice_by_the_drawn_token_distorts_the_law():
    """[13] Low confidence looks at the token that was drawn: the test above must notice."""
    law = joint(2)
    config = presets.llada(3, temperature=1.0)
    out = generate(JointDenoiser(law), [[]] * 2000, config, keys=0)
    assert chi_square((out.completions * torch.tensor([9, 3, 1])).sum(-1), law) > 61.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_tail_of_the_vocabulary_is_drawn(dtype):
    """[13] Zipf's law, mass beyond rank 100 included, which half-precision noise loses; test_proposers.py has more."""
    table = (-1.5 * torch.arange(1, 2050, dtype=torch.float64).log()).to(dtype)[None]
    out = generate(TableDenoiser(table, mask_id=2048), [[]] * 3000, SamplerConfig(
        gen_length=1, block_length=1, proposer=Categorical()
    ))  # fmt: skip
    law = table[0, :2048].double().softmax(-1)
    bins = torch.tensor([1, 2, 4, 10, 30, 100])
    cells = torch.bucketize(out.completions[:, 0], bins, right=True)
    masses = torch.stack([part.sum() for part in law.tensor_split([1, 2, 4, 10, 30, 100])])
    assert chi_square(cells, masses) < 27.9  # 0.9999 quantile, 6 degrees of freedom


@given(SEEDS, st.sampled_from([0.1, 1.0, 30.0]), st.sampled_from([torch.float32, torch.float64]))
def test_scores_keep_to_their_ranges(slots, seed, scale, dtype):
    """[14] Probabilities and margins in [0, 1], entropies below 0; the peaked position before the flat one."""
    generator = torch.Generator().manual_seed(seed)
    values = scale * torch.randn(2, 5, 11, generator=generator, dtype=dtype)
    values[:, 0], values[:, 1] = 0.0, 0.0
    values[:, 1, seed % 11] = 4.0
    values[1, 2, 3:] = -torch.inf
    logits, before = Logits.of(values), values.clone()
    tokens, opened = values.argmax(-1), slots(torch.ones(2, 5, dtype=torch.bool), eos_ids=(3,), pad_id=4)
    for scorer, low, high in (
        (Probability(), 0, 1), (Margin(), 0, 1), (LogProb(), -torch.inf, 0), (NegEntropy(), -torch.inf, 0),
    ):  # fmt: skip
        score = scorer.score(logits, tokens, opened)
        assert bool(((score >= low) & (score <= high + 1e-6)).all())
        assert bool((score[:, 1] > score[:, 0]).all())
        for wrapped in (EosScaled(scorer, 0.0, 0.5, steps=3), PadPenalty(scorer, 3.0), EosLast(scorer)):
            other = wrapped.score(logits, tokens, opened)
            assert bool((other <= score).all())
            assert torch.equal(other[(tokens != 3) & (tokens != 4)], score[(tokens != 3) & (tokens != 4)])
    RandomScore().score(logits, tokens, opened)
    assert torch.equal(values, before)


@settings(max_examples=12)
@given(scenes(["table", "toy", "toy_causal", "tiny"], revisers=[]))
def test_an_end_token_never_precedes_another_candidate(scene):
    """[14] With `EosLast` one is committed only where all that stays open is proposed to end as well."""
    eos = scene.model.eos_ids[0]
    out = scene.run(scorer=EosLast(Probability()), selector=TopK(), record=Record(proposals=True))
    seen = out.proposals
    for step, row in {(one, two) for one, two in zip(seen.step.tolist(), seen.row.tolist(), strict=True)}:
        here = (seen.step == step) & (seen.row == row)
        position, token = seen.position[here], seen.new[here]
        now = out.step_map[row][position] == step
        window = out.block_id[row][position] == int(out.block_id[row][position][now].max())
        if bool((token[now] == eos).any()):
            assert bool((token[window & ~now] == eos).all())


@given(SEEDS, st.sampled_from(SELECTORS), st.integers(1, 4), st.integers(1, 8))
def test_only_eligible_slots_are_selected(slots, seed, selector, quota, width):
    """[16] Nothing but open slots, whatever the scores; of equal ones the lowest; filler changes nothing."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(-3, 3, (4, width), generator=generator).double() / 3
    score[score < -0.8] = -torch.inf
    opened = torch.rand(4, width, generator=generator) < 0.6
    pick = selector.select(score, slots(opened), torch.full((4,), quota))
    assert not bool((pick & ~opened).any())
    filler = torch.nn.functional.pad
    wide = selector.select(filler(score, (0, 3), value=9.0), slots(filler(opened, (0, 3))), torch.full((4,), quota))
    assert torch.equal(wide, filler(pick, (0, 3)))
    if isinstance(selector, SoftTopK | SegmentMax | Lead):
        return
    for row in range(4):
        for first in range(width):
            for second in range(first + 1, width):
                if score[row, first] == score[row, second] and opened[row, first] and pick[row, second]:
                    assert pick[row, first]


def test_ties_go_to_the_lowest_position_and_id():
    """[16] In a decode."""
    out = generate(TableDenoiser(torch.zeros(6, 5), mask_id=4), [[]], presets.llada(6, 3, 6))
    assert out.step_map.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert out.completions.tolist() == [[0] * 6]


def permuted(order: torch.Tensor, constant: float) -> tuple[ToyDenoiser, ToyDenoiser]:
    """A toy, and the one that calls token `order[i]` i and adds a constant to all logits."""
    toy = model_of("toy")
    place = order.argsort()
    parts = {"kernel": toy.kernel, "position": toy.position, "mask_id": toy.mask_id}
    plain = ToyDenoiser(**parts, embed=toy.embed, head=toy.head, bias=toy.bias, eos_ids=toy.eos_ids, pad_id=0)
    return plain, ToyDenoiser(
        **parts,
        embed=toy.embed[order],
        head=toy.head[:, order],
        bias=toy.bias[order] + constant,
        eos_ids=(int(place[toy.eos_ids[0]]),),
        pad_id=int(place[0]),
    )


@settings(max_examples=12)
@given(scenes(["toy"], spans=False), SEEDS, st.sampled_from([0.0, 16.0, -64.0]))
def test_names_of_tokens_and_constants_do_not_matter(scene, seed, constant):
    """[16] Equivariance under permutations of the vocabulary, all but control tokens; a constant changes nothing."""
    free = torch.tensor([i for i in range(VOCAB - 1) if i not in (4, 5)])
    order = torch.arange(VOCAB)
    order[free] = free[torch.randperm(len(free), generator=torch.Generator().manual_seed(seed))]
    plain, other = permuted(order, constant)
    config = scene.config.replace(proposer=Greedy(), rules=())
    renamed = [order.argsort()[torch.tensor(prompt, dtype=torch.int64)].tolist() for prompt in scene.prompts]
    one, two = generate(plain, scene.prompts, config), generate(other, renamed, config)
    for row in range(len(scene.prompts)):
        assert text(one, row) == order[torch.tensor(text(two, row), dtype=torch.int64)].tolist()
        for name in ("step_map", "n_writes", "row_nfe", "finish"):
            assert facts(one, row)[name] == facts(two, row)[name]


@settings(max_examples=15)
@given(scenes(["table"]), SEEDS, st.sampled_from([torch.bfloat16, torch.float16]))
def test_half_precision_logits_are_upcast(scene, seed, low):
    """[25] The result is that of the same logits in float32, to the bit."""
    table = (4 * torch.randn(32, VOCAB, generator=torch.Generator().manual_seed(seed))).to(low)
    half, full = (
        generate(TableDenoiser(one, mask_id=VOCAB - 1, eos_ids=(VOCAB - 2,)), scene.prompts, scene.config)
        for one in (table, table.float())
    )
    assert torch.equal(half.sequences, full.sequences)
    assert torch.equal(half.step_map, full.step_map)
    assert torch.equal(half.logprobs, full.logprobs)
    assert torch.equal(half.sample_logprobs, full.sample_logprobs)
    assert half.logprobs.dtype == torch.float32
