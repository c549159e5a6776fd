"""Hypothesis strategies for any decode that the package offers, and how to compare two of them.

Not a test module: `pythonpath` in pyproject.toml makes it importable.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import torch
from hypothesis import strategies as st

from dare_samplers import (
    Categorical,
    EosStop,
    Greedy,
    Guidance,
    Infill,
    LengthStop,
    Logits,
    Record,
    Reviser,
    SamplerConfig,
    SamplerOutput,
    Suppress,
    generate,
)
from dare_samplers.caches import BlockKV, Dual, Horizon, NoCache, Prefix, Vicinity
from dare_samplers.guidance import Smoothing
from dare_samplers.revisers import (
    Levenshtein,
    MultiBlockEdit,
    RemaskBelow,
    ReMaskLowest,
    ReMDM,
    RunningConfidence,
    TokenEdit,
)
from dare_samplers.rules import Credit, LogitsHook, RepeatPenalty
from dare_samplers.schedules import Ascending, Bernoulli, DreamBudget, DreamFloor, LinearFront, LinearRound, MaskGit
from dare_samplers.scorers import (
    EosLast,
    EosScaled,
    LogProb,
    Margin,
    NegEntropy,
    PadPenalty,
    PositionScore,
    Probability,
    RandomScore,
)
from dare_samplers.selectors import (
    All,
    BudgetThreshold,
    EntropyBudget,
    Factor,
    Hybrid,
    Lead,
    SegmentMax,
    SoftTopK,
    Threshold,
    TopK,
)
from dare_samplers.stops import PadBlockStop
from dare_samplers.testing import AdversarialDenoiser, TableDenoiser, TinyTransformer, ToyDenoiser

VOCAB, EOS, MASK = 24, 22, 23
DELETE, INSERT = 4, 5
BLOCK = 4
"""Attention block of the block-causal models."""


def softened(logits: Logits, slots: object) -> Logits:
    return Logits(logits.values * 0.5)


SELECTORS = [
    TopK(),
    SoftTopK(0.5),
    All(),
    Threshold(0.2),
    Threshold(0.6, strict=True),
    Threshold(0.3, decay=0.2),
    Threshold(0.5, ties=0.05),
    Hybrid(0.4),
    BudgetThreshold(0.3),
    Lead(TopK()),
    Lead(Threshold(0.4)),
    EntropyBudget(1.5),
    EntropyBudget(1.0, "previous"),
    Factor(1.0),
    SegmentMax(0.8, 0.2),
]
SCHEDULES = [
    LinearFront(),
    LinearFront("block"),
    LinearRound(),
    LinearRound("cosine"),
    DreamFloor(),
    DreamBudget(),
    Bernoulli(),
    MaskGit(),
    MaskGit("pow2"),
    MaskGit("log"),
    MaskGit("exp"),
    Ascending(3),
]
EMPTY = [DreamFloor(empty_steps=True), MaskGit(empty_steps=True)]
SCORERS = [
    Probability(),
    LogProb(),
    Margin(),
    NegEntropy(),
    RandomScore(),
    PositionScore(),
    EosLast(Probability()),
    EosScaled(LogProb(), steps=6),
    EosScaled(Probability(), 0.0, ramp="ascending", steps=3),
    PadPenalty(NegEntropy(), 2.0),
]
PROPOSERS = [
    Greedy(),
    Greedy(top_k=3),
    Categorical(),
    Categorical(0.6),
    Categorical(1.4, top_k=6, top_p=0.9),
    Categorical(top_p=0.8, nucleus="within"),
]
RULES = [(), (Suppress((3, 2)),), (RepeatPenalty(1.5), Credit()), (LogitsHook(softened),)]
STOPS = [EosStop(), EosStop("token"), LengthStop(), PadBlockStop()]
IN_BLOCK = [
    TokenEdit(0.2, 2),
    Levenshtein(DELETE, INSERT, 0.2, 2),
    RemaskBelow(0.4),
    RemaskBelow(0.4, SegmentMax(0.6, 0.1)),
]
"""Revisers that never touch earlier blocks."""
ROW_WIDE = [MultiBlockEdit(0.2, 2), RunningConfidence(MaskGit("linear"))]
TIMED = [ReMaskLowest(1, 0.5), *(ReMDM(kind, 0.6, 0.9, 0.1) for kind in ("cap", "rescale", "conf", "fb", "loop"))]
"""Revisers that need a number of steps; they keep to the block too."""
REVISERS = [*IN_BLOCK, *ROW_WIDE, *TIMED]
STALE = [Prefix(), Prefix(2), Dual(), Dual(3), Vicinity(1, 2, 1), Horizon(2)]
BLOCK_KV = [BlockKV(), BlockKV("separate"), BlockKV("separate", final_commit=True)]
LAYOUTS = ["left", "right", "packed"]


@cache
def model_of(name: str):
    """alpha: `table`; beta: `toy`, `tiny`, `tiny_shift`; gamma: `…_causal`; epsilon: `adversarial`."""
    block = BLOCK if "causal" in name else None
    shift = int("shift" in name)
    if name == "table":
        table = 3 * torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        table[:, EOS] += 2.0
        table[:, [DELETE, INSERT]] -= 30.0
        return TableDenoiser(table, mask_id=MASK, eos_ids=(EOS,))
    if name == "adversarial":
        return AdversarialDenoiser()
    if name.startswith("toy"):
        return ToyDenoiser.random(eos_bias=4.0, block_length=block, logit_offset=shift)
    attention = "full" if block is None else "block_causal"
    return TinyTransformer.random(width=16, attention=attention, block_length=block, shift=shift, eos_bias=4.0)


FULL = ["table", "toy", "tiny", "tiny_shift", "adversarial"]
CAUSAL = ["toy_causal", "tiny_causal", "tiny_causal_shift"]
MODELS = [*FULL, *CAUSAL]


@dataclass(frozen=True)
class Scene:
    """A decode: everything that `generate` is given."""

    name: str
    config: SamplerConfig
    prompts: list
    key: int = 0

    @property
    def model(self):
        return model_of(self.name)

    @property
    def causal(self) -> bool:
        return self.name in CAUSAL

    @property
    def keys(self) -> torch.Tensor:
        return torch.arange(len(self.prompts)) + 10 * self.key

    def but(self, **changes: object) -> "Scene":
        """The scene with another config."""
        return replace(self, config=self.config.replace(**changes))

    def run(self, rows: Sequence[int] | None = None, until_step: int | None = None, **changes: object) -> SamplerOutput:
        rows = range(len(self.prompts)) if rows is None else rows
        prompts = [self.prompts[row] for row in rows]
        config = self.config.replace(**changes)
        return generate(self.model, prompts, config, keys=self.keys[list(rows)], until_step=until_step)


def prompts(random: Random, vocab: int, *, spans: bool, least: int) -> list[list[int] | Infill]:
    """Rows of any length, the mask id and end tokens among them, some with slots in the middle."""
    out: list[list[int] | Infill] = []
    for _ in range(random.randint(1, 3)):
        tokens = [random.randrange(vocab) for _ in range(random.randint(least, 6))]
        if spans and random.random() < 0.3:
            writable = [random.random() < 0.6 for _ in range(random.randint(3, 9))] + [True]
            random.shuffle(writable)
            tokens, writable = [*tokens, *[1] * len(writable)], [False] * len(tokens) + writable
            out.append(Infill(tokens, writable))
        else:
            out.append(tokens)
    return out


def sizes(random: Random, *, causal: bool) -> tuple[str, int, int | tuple[int, ...]]:
    """Grid, response and block length."""
    block = random.choice([1, 2, BLOCK] if causal else [1, 2, 3, 5])
    if causal or random.random() < 0.4:
        return "zero", random.randint(1, 9), block
    if random.random() < 0.3:
        uneven = tuple(random.randint(1, 4) for _ in range(random.randint(1, 3)))
        return "prompt", sum(uneven), uneven
    return "prompt", block * random.randint(1, 3), block


def scene_of(
    random: Random, models: Sequence[str], revisers: Sequence[Reviser], *, spans: bool = True, least: int = 0
) -> Scene:
    """One of them."""
    name = random.choice(models)
    causal = name in CAUSAL
    grid, length, block = sizes(random, causal=causal)
    reviser = random.choice(revisers) if revisers and random.random() < 0.6 else None
    selector = TopK() if reviser in TIMED else random.choice(SELECTORS)
    schedule = reviser.schedule if isinstance(reviser, RunningConfidence) else random.choice(SCHEDULES)
    config = SamplerConfig(
        gen_length=length,
        block_length=block,
        grid=grid,
        layout=random.choice(LAYOUTS),
        schedule=schedule,
        proposer=random.choice(PROPOSERS),
        scorer=random.choice(SCORERS),
        score_law=random.choice(["model", "proposal"]),
        selector=selector,
        rules=random.choice(RULES),
        guidance=random.choice([None, None, None, Guidance(0.5)]),
        smoothing=Smoothing() if name.startswith("tiny") and random.random() < 0.2 else None,
        cache=random.choice([NoCache(), NoCache(), *STALE, *(BLOCK_KV * 2 if causal else [])]),
        stop=random.choice(STOPS),
        record=Record(random.random() < 0.3, random.random() < 0.3),
    )
    if reviser in TIMED or (selector.uses_quota and random.random() < 0.7):
        config = config.replace(steps=config.blocks * random.randint(1, 5))
    config = config.replace(reviser=reviser)
    rows = prompts(random, model_of(name).vocab_size, spans=spans, least=least)
    return Scene(name, config, rows, random.randrange(100))


@st.composite
def scenes(
    draw,
    models: Sequence[str] = MODELS,
    revisers: Sequence[Reviser] = REVISERS,
    *,
    spans: bool = True,
    least: int = 0,
) -> Scene:
    """Any model with any strategy that it can run, at a small size.

    Drawn uniformly from a seed: choices that Hypothesis makes one by one hardly differ within twenty examples. A
    failure is shown whole instead of shrunk.
    """
    seed = draw(st.integers(0, 2**32))
    return scene_of(Random(seed), models, revisers, spans=spans, least=least)


WHOLE = ("completions", "completion_mask", "step_map", "first_step_map", "n_writes", "block_id", "block_step", "origin")
NUMBERS = ("logprobs", "sample_logprobs", "scores")


def text(out: SamplerOutput, row: int) -> list[int]:
    """The completion without pads."""
    return out.completions[row][out.completion_mask[row]].tolist()


def canvas(out: SamplerOutput, row: int) -> list[int]:
    """The row's tokens without pads."""
    return out.sequences[row][out.valid[row]].tolist()


def writes(out: SamplerOutput, row: int) -> list[tuple[int, ...]]:
    """(step, position, old, new, kind) of the row's events."""
    here = out.events.row == row
    columns = (out.events.step, *out.events[2:5], out.events.kind)
    return list(zip(*(column[here].tolist() for column in columns), strict=True))


def facts(out: SamplerOutput, row: int) -> dict[str, object]:
    """Whatever is no float about a row."""
    width = int((out.block_id[row] >= 0).sum())
    tables = {name: getattr(out, name)[row, :width].tolist() for name in WHOLE}
    ends = {name: int(getattr(out, name)[row]) for name in ("stop_length", "terminal_block_end", "row_nfe")}
    return {
        **tables,
        **ends,
        "finish": out.finish_reason[row],
        "canvas": canvas(out, row),
        "events": writes(out, row),
    }


def same(one: SamplerOutput, other: SamplerOutput, pairs: Sequence[tuple[int, int]] | None = None) -> None:
    """Rows of two outputs are the same: ids, steps and events exactly, numbers to 1e-10."""
    if pairs is None:
        assert len(one.row_nfe) == len(other.row_nfe)
        pairs = [(row, row) for row in range(len(one.row_nfe))]
    for mine, theirs in pairs:
        assert facts(one, mine) == facts(other, theirs)
        width = int((one.block_id[mine] >= 0).sum())
        for name in NUMBERS:
            values = getattr(one, name)[mine, :width], getattr(other, name)[theirs, :width]
            torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
