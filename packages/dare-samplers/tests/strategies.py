"""The strategies, caches and layouts that the tests combine, and a covering array over such factors.

Not a test module: `pythonpath` in pyproject.toml makes it importable.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, product

import torch
from torch.nn.functional import pad

from dare_samplers.caches import BlockKV, Dual, Horizon, NoCache, Prefix, Vicinity
from dare_samplers.config import SamplerConfig
from dare_samplers.guidance import Guidance, Smoothing
from dare_samplers.layout import Infill
from dare_samplers.parts import CachePolicy
from dare_samplers.proposers import Categorical, Greedy
from dare_samplers.revisers import (
    Levenshtein,
    MultiBlockEdit,
    RemaskBelow,
    ReMaskLowest,
    ReMDM,
    RunningConfidence,
    TokenEdit,
)
from dare_samplers.rules import Credit, RepeatPenalty, Suppress
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
)
from dare_samplers.stops import EosStop, LengthStop, PadBlockStop
from dare_samplers.testing import TinyTransformer
from dare_samplers.trace import Record

MASK, EOS, DELETE, INSERT = 23, 22, 9, 2
BLOCK = 4


@dataclass(frozen=True)
class Strategy:
    """A row of the table of strategies.

    Attributes:
        parts: fields of the config, apart from sizes, proposer, cache and layout.
        pace: schedule steps per 4 slots; None for one commit per step or as many as the selector needs.
        filters: of the proposer.
        block: slots denoised together; None for the whole response where attention is full.
        sizes: block sizes where attention is full, but for the last.
        spans: slots in the middle of the row too.
    """

    parts: Mapping[str, object] = field(default_factory=dict)
    pace: int | None = None
    filters: Mapping[str, object] = field(default_factory=dict)
    block: int | None = BLOCK
    sizes: tuple[int, ...] = ()
    spans: bool = False


def table(**parts: object) -> dict[str, object]:
    return parts


STRATEGIES: dict[str, Strategy] = {
    "llada": Strategy(pace=2),
    "llada_random": Strategy(table(scorer=RandomScore(), rules=(Suppress((EOS,)), RepeatPenalty(1.0))), pace=2),
    "llada_left_to_right": Strategy(table(scorer=PositionScore(), schedule=LinearRound()), pace=3),
    "llada_eos_last": Strategy(table(scorer=EosLast(LogProb()), stop=PadBlockStop()), pace=2),
    "bernoulli": Strategy(table(scorer=RandomScore(), schedule=Bernoulli()), pace=2, block=None),
    "dream_entropy": Strategy(
        table(
            scorer=NegEntropy(),
            score_law="proposal",
            schedule=DreamFloor(),
            record=Record(entropies=True, proposals=True),
        ),
        pace=2,
        block=None,
        filters=table(top_p=0.95, order="top_p_first"),
    ),
    "dream_margin": Strategy(
        table(scorer=Margin(), score_law="proposal", schedule=DreamFloor()),
        pace=2,
        block=None,
        filters=table(top_k=5, top_p=0.9, nucleus="within"),
    ),
    "soft_topk": Strategy(table(selector=SoftTopK(0.5), score_law="proposal"), pace=2, filters=table(top_k=4)),
    "budget": Strategy(table(selector=BudgetThreshold(0.4), schedule=DreamBudget()), pace=2, block=None),
    "threshold": Strategy(table(selector=Threshold(0.4), stop=EosStop("token"))),
    "factor": Strategy(table(selector=Factor(1.5))),
    "credit": Strategy(table(selector=Threshold(0.4), rules=(Credit(),))),
    "hierarchy": Strategy(table(selector=SegmentMax(0.5, 0.2))),
    "remask_below": Strategy(
        table(selector=SegmentMax(0.5, 0.2), reviser=RemaskBelow(0.4, SegmentMax(0.5, 0.2)), stop=LengthStop())
    ),
    "smoothing": Strategy(table(selector=Threshold(0.3, decay=0.3), smoothing=Smoothing())),
    "hybrid": Strategy(
        table(selector=Hybrid(0.5), schedule=LinearFront("block"), score_law="proposal"), pace=2, filters=table(top_k=8)
    ),
    "entropy_budget": Strategy(table(selector=EntropyBudget(2.0), scorer=NegEntropy())),
    "lead": Strategy(table(selector=Lead(Threshold(0.3, strict=True)), scorer=PadPenalty(Probability(), 2.0))),
    "token_edit": Strategy(table(selector=Threshold(0.4, strict=True), reviser=TokenEdit(0.3, 2))),
    "multi_block_edit": Strategy(table(selector=Threshold(0.3), reviser=MultiBlockEdit(0.4, 1), stop=LengthStop())),
    "levenshtein": Strategy(table(selector=Threshold(0.4), reviser=Levenshtein(DELETE, INSERT, 0.3, 1))),
    "rcr": Strategy(
        table(schedule=MaskGit("linear"), reviser=RunningConfidence(MaskGit("linear")), score_law="proposal"), pace=2
    ),
    "remdm": Strategy(table(reviser=ReMDM("conf", eta=0.8)), pace=3),
    "remask_lowest": Strategy(table(reviser=ReMaskLowest(1, 1.0, 1)), pace=4),
    "eoser": Strategy(table(scorer=EosScaled(Probability(), 0.1)), pace=2),
    "ascending": Strategy(
        table(schedule=Ascending(3), scorer=EosScaled(Probability(), 0.01, ramp="ascending", steps=3)), sizes=(3,)
    ),
    "guidance": Strategy(table(guidance=Guidance(0.7)), pace=2),
    "just_grpo": Strategy(table(scorer=PositionScore()), block=1),
    "infill": Strategy(table(selector=Threshold(0.3), stop=LengthStop()), spans=True),
    "all": Strategy(table(selector=All())),
}

CACHES: dict[str, CachePolicy] = {
    "none": NoCache(),
    "prefix": Prefix(2),
    "dual": Dual(),
    "vicinity": Vicinity(2, 2, 1),
    "horizon": Horizon(2),
    "block_kv": BlockKV(),
    "block_kv_separate": BlockKV("separate", final_commit=True),
}


@dataclass(frozen=True)
class Cell:
    """One combination of the factors."""

    strategy: str
    cache: str
    layout: str = "right"
    attention: str = "full"
    temperature: float = 0.0
    shift: int = 0

    def __str__(self) -> str:
        return f"{self.strategy}-{self.cache}-{self.layout}-{self.attention}-{self.temperature}-{self.shift}"

    def config(self, gen_length: int = 2 * BLOCK) -> SamplerConfig:
        strategy, causal = STRATEGIES[self.strategy], self.attention == "block_causal"
        block = BLOCK if strategy.block is None else strategy.block
        if not causal and strategy.block is None:
            block = gen_length
        if not causal and strategy.sizes:
            block = (*strategy.sizes, gen_length - sum(strategy.sizes))
        return SamplerConfig(
            gen_length=gen_length,
            block_length=block,
            steps=strategy.pace and strategy.pace * (gen_length // BLOCK),
            grid="zero" if causal else "prompt",
            layout=self.layout,
            proposer=Categorical(self.temperature, **strategy.filters)
            if self.temperature
            else Greedy(**strategy.filters),
            cache=CACHES[self.cache],
            **strategy.parts,
        )

    def model(self, before: int = 0, after: int = 0) -> "Padded":
        return padded(self.attention, self.shift, before, after)

    def prompts(self, rows: Iterable[int]) -> list[list[int] | Infill]:
        return [SPANS[row] if STRATEGIES[self.strategy].spans else PROMPTS[row] for row in rows]


def why_not(cell: Cell) -> str | None:
    """Why a combination cannot exist, or None; `generate` refuses exactly these."""
    if cell.cache.startswith("block_kv") and cell.attention == "full":
        return "no block is ever final under full attention, so there is nothing to store once and for all"
    return None


FACTORS: dict[str, Sequence[object]] = {
    "strategy": tuple(STRATEGIES),
    "cache": tuple(CACHES),
    "layout": ("left", "right", "packed"),
    "attention": ("full", "block_causal"),
    "temperature": (0.0, 0.7),
    "shift": (0, 1),
}


def cells(**fixed: object) -> list[Cell]:
    """All possible combinations, with some factors fixed."""
    values = [[fixed[name]] if name in fixed else choices for name, choices in FACTORS.items()]
    return [cell for cell in (Cell(*row) for row in product(*values)) if why_not(cell) is None]


def pairs(row: Sequence[object]) -> list[tuple[int, object, int, object]]:
    """Every two values of a row, with the factors they belong to."""
    return [(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)]


def pairwise(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """A few of `rows` that contain every pair of values that any of them contains.

    Greedy and without randomness: for every pair of the first two factors the row with most new pairs, then, as long as
    a pair is missing, of the rows that have it the one with most missing ones.
    """
    missing: dict[tuple[int, object, int, object], list[tuple[object, ...]]] = {}
    heads: dict[tuple[object, object], list[tuple[object, ...]]] = {}
    for row in rows:
        heads.setdefault((row[0], row[1]), []).append(row)
        for pair in pairs(row):
            missing.setdefault(pair, []).append(row)
    chosen: list[tuple[object, ...]] = []

    def choose(candidates: Sequence[tuple[object, ...]]) -> None:
        chosen.append(max(candidates, key=lambda row: sum(pair in missing for pair in pairs(row))))
        for pair in pairs(chosen[-1]):
            missing.pop(pair, None)

    for candidates in heads.values():
        choose(candidates)
    while missing:
        choose(next(iter(missing.values())))
    return chosen


PROMPTS = ([3, 1, 4], [2, MASK, 8, 18, 2, EOS, 4, 5, 9], [16, 1, 8, 0, 3, 3, 9, 8, 8, 7, 4, 9, 8, 19])


def _spans(prompt: Sequence[int], gap: int, tail: int) -> Infill:
    """Slots after the first token and at the end."""
    tokens = [prompt[0], *[0] * gap, *prompt[1:], *[0] * tail]
    return Infill(tokens, [False, *[True] * gap, *[False] * (len(prompt) - 1), *[True] * tail])


SPANS = (_spans(PROMPTS[0], 5, 3), _spans(PROMPTS[1], 3, 4), _spans(PROMPTS[2], 6, 2))


class Padded(TinyTransformer):
    """The tiny transformer, fed with `before` and `after` more pad columns than the loop gives it."""

    before = 0
    after = 0

    def __call__(self, ids, *, positions, blocks=None, write=None, cache=None, rows, documents=None, added=None):
        def wide(tensor, value):
            return None if tensor is None else pad(tensor, (self.before, self.after), value=value)

        return super().__call__(
            wide(ids, self.pad_id),
            positions=wide(positions, -1),
            blocks=wide(blocks, -1),
            write=wide(write, False),
            cache=cache,
            rows=rows + self.before,
            documents=wide(documents, -1),
            added=None if added is None else pad(added, (0, 0, self.before, self.after)),
        )


@cache
def padded(attention: str, shift: int, before: int, after: int) -> Padded:
    model = Padded.random(
        attention=attention,
        block_length=None if attention == "full" else BLOCK,
        shift=shift,
        eos_bias=EOS_BIAS,
        seed=SEED,
    )
    model.before, model.after = before, after
    return model


SEED, EOS_BIAS = 5, 3.0


def keys_of(rows: Iterable[int]) -> torch.Tensor:
    """A key per prompt, so that a row draws alike wherever it stands."""
    return torch.tensor([101 + row for row in rows])
