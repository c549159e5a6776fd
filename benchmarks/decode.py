# ruff: noqa: INP001
"""Decoding against a straightforward implementation of the same loop, on the same weights: one JSON line per strategy.

    python benchmarks/decode.py            # at most four minutes on two cores
    python benchmarks/decode.py --quick    # seconds, toy sizes; the ratios mean nothing

What the lines hold is in README.md beside this file.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final, Literal, NamedTuple

import baselines
import torch
from baselines import Plain, Saving
from measure import Metered, Outcome, Shape, beside, build, in_turn, machine, median, once, timed
from micro import sampling
from torch import Tensor

from dare_samplers import SamplerConfig, State, generate, presets
from dare_samplers.caches import BlockKV, Dual, Prefix
from dare_samplers.proposers import Categorical
from dare_samplers.revisers import TokenEdit
from dare_samplers.schedules import DreamFloor
from dare_samplers.scorers import NegEntropy
from dare_samplers.selectors import Hybrid, Threshold

Cost = Literal["none", "prefix", "dual", "block_kv"]
TAU: Final = 0.9
TPF: Final = 3.0
PROBE: Final = 2.7
POST: Final = 4
HEAVY: Final = Shape("head-heavy", vocab=4096)
LIGHT: Final = Shape("head-light", vocab=1024)
QUICK: Final = {
    "head-heavy": Shape("head-heavy", vocab=512, width=32, layers=2, heads=1, batch=2, prompt=16, gen=16, block=8),
    "head-light": Shape("head-light", vocab=64, width=32, layers=4, heads=1, batch=2, prompt=16, gen=16, block=8),
}


class Options(NamedTuple):
    """Threads of torch, and seconds per strategy before repeats are left out."""

    threads: int
    seconds: float


@dataclass(frozen=True)
class Strategy:
    """A published loop and the same strategy in the library.

    Args:
        name: for the report.
        baseline: `straightforward_…` of `baselines`, with all but model and prompts bound.
        config: ours.
        cost: how an ideal implementation feeds it.
        causal: whether the model is block-causal.
    """

    name: str
    baseline: "partial[Plain]"
    config: SamplerConfig
    cost: Cost
    causal: bool = False


def strategies(shape: Shape) -> list[Strategy]:
    """All that are measured."""
    G, B = shape.gen, shape.block
    fixed, per_block = G // 4, round(B / TPF)
    sizes = {"gen_length": G, "block_length": B}
    llada, threshold = presets.llada(G, B, fixed), presets.threshold(G, B, TAU)
    prefix, dual = threshold.replace(cache=Prefix()), threshold.replace(cache=Dual())
    dream = SamplerConfig(gen_length=G, block_length=G, steps=fixed, schedule=DreamFloor(), scorer=NegEntropy())
    causal = SamplerConfig(gen_length=G, block_length=B, grid="zero", cache=BlockKV())
    static = causal.replace(steps=per_block * shape.blocks)
    dynamic = causal.replace(steps=G, selector=Hybrid(TAU))
    editing = causal.replace(selector=Threshold(TAU, strict=True), reviser=TokenEdit(TAU, max_post_steps=POST))
    plain_editing = partial(baselines.straightforward_llada21, **sizes, tau=TAU, edit=TAU, post_steps=POST)
    plain_block_kv = partial(baselines.straightforward_block_kv, **sizes)
    return [
        Strategy("threshold", partial(baselines.straightforward_threshold, **sizes, tau=TAU), threshold, "none"),
        Strategy("prefix", partial(baselines.straightforward_prefix, **sizes, tau=TAU), prefix, "prefix"),
        Strategy("dual", partial(baselines.straightforward_dual, **sizes, tau=TAU), dual, "dual"),
        Strategy("llada", partial(baselines.straightforward_llada, **sizes, steps=fixed), llada, "none"),
        Strategy("dream_entropy", partial(baselines.straightforward_dream, gen_length=G, steps=fixed), dream, "none"),
        Strategy("sdar_static", partial(plain_block_kv, steps=per_block), static, "block_kv", causal=True),
        Strategy("sdar_dynamic", partial(plain_block_kv, steps=B, tau=TAU), dynamic, "block_kv", causal=True),
        Strategy("llada21_editing", plain_editing, editing, "block_kv", causal=True),
    ]


def plain(model: Metered, prompts: Tensor, baseline: "partial[Plain]") -> Outcome:
    """One decode of a baseline."""

    def decode() -> tuple[Tensor, Tensor, int]:
        result = baseline(model, prompts)
        return result.tokens, result.steps, 0

    outcome = timed(model, decode)
    return outcome._replace(row_forwards=outcome.counts.forwards * len(prompts))


def ours(model: Metered, prompts: Tensor, config: SamplerConfig) -> Outcome:
    """One decode of the library."""

    def decode() -> tuple[Tensor, None, int]:
        out = generate(model, prompts, config)
        return out.completions, None, int(out.row_nfe.sum())

    return timed(model, decode)


# ------------------------------------------------------------------------------------------------------------- weights


def sharpen(shape: Shape, *, causal: bool) -> tuple[float, float, int]:
    """A factor on the logits at which about three tokens per forward are accepted, that number, and an end token.

    The dual cache is quick to probe with, and accepts a little less than the loop without: 2.7 there is 3 on average.
    The end token is the one whose first occurrences leave the rows nearest to four fifths of their length on average.
    """
    base, prompts = build(shape, causal=causal), shape.prompts()
    sizes = {"gen_length": shape.gen, "block_length": shape.block}

    def probe(factor: float, rows: int) -> Plain:
        model = base.sharpened(factor)
        if causal:
            return baselines.straightforward_block_kv(model, prompts[:rows], **sizes, steps=shape.block, tau=TAU)
        return baselines.straightforward_dual(model, prompts[:rows], **sizes, tau=TAU)

    factor = 5.0
    for _ in range(6):
        tpf = 2 * shape.gen / int(probe(factor, 2).steps.sum())
        if abs(tpf - PROBE) < 0.1:
            break
        factor *= (PROBE / tpf) ** 0.6
    result = probe(factor, shape.batch)
    ends = {
        int(token): abs(sum(_useful(row, int(token)) for row in result.tokens.tolist()) / shape.batch - 0.8 * shape.gen)
        for token in result.tokens.unique()
    }
    return factor, shape.batch * shape.gen / int(result.steps.sum()), min(ends, key=lambda token: ends[token])


def _useful(row: list[int], end: int) -> int:
    """Tokens up to the first end token, which is included."""
    return row.index(end) + 1 if end in row else len(row)


# --------------------------------------------------------------------------------------------------------------- lines


def ideal(strategy: Strategy, shape: Shape, steps: list[list[int]], useful: list[int]) -> tuple[int, int]:
    """Forwards and token-forwards of an ideal implementation, for blocks that need `steps` forwards each.

    A row ends with the block of its end token. It waits for no other, except where a cache is renewed by a forward of
    the whole canvas, which the rows of a batch make together: each would pad all the others.
    """
    P, B = shape.prompt, shape.gen if strategy.name == "dream_entropy" else shape.block
    T = P + shape.gen
    forwards: list[list[int]] = []
    tokens = 0
    for row, length in zip(steps, useful, strict=True):
        used = row[: -(-length // B)]
        forwards.append(used)
        for k, s in enumerate(used):
            later = {"none": T, "prefix": T - P - k * B, "dual": B, "block_kv": B}[strategy.cost]
            first = later + (P if k == 0 else B) if strategy.cost == "block_kv" else T
            tokens += first + (s - 1) * later
    if strategy.cost in ("prefix", "dual"):
        return sum(map(max, zip_longest(*forwards, fillvalue=0))), tokens
    return max(map(sum, forwards)) + (strategy.cost == "block_kv"), tokens


class Measured(NamedTuple):
    """A strategy's line, and what it was made of."""

    line: dict[str, Any]
    theirs: list[Outcome]
    mine: list[Outcome]


def measure(strategy: Strategy, shape: Shape, model: Metered, options: Options) -> Measured:
    """Decode with both, in turn."""
    prompts, end = shape.prompts(), model.eos_ids[0]
    jobs = [partial(plain, model, prompts, strategy.baseline), partial(ours, model, prompts, strategy.config)]
    (theirs, their_peak), (mine, my_peak) = in_turn(jobs, options.threads, options.seconds)
    texts = [[row[: _useful(row, end)] for row in outcomes[0].tokens] for outcomes in (theirs, mine)]
    useful = [len(row) for row in texts[0]]
    forwards, tokens = ideal(strategy, shape, theirs[0].steps, useful)
    line = {
        "strategy": strategy.name,
        "shape": shape.name,
        **_costs(mine, my_peak, sum(useful)),
        "ideal_forwards": forwards,
        "ideal_token_forwards": tokens,
        "tokens_per_forward": round(sum(map(len, theirs[0].tokens)) / sum(map(sum, theirs[0].steps)), 2),
        "equal_tokens": texts[0] == texts[1],
        "ratio": median([a.seconds / b.seconds for a, b in zip(theirs, mine, strict=True)]),
        "repeats": len(mine),
        "baseline": {"name": strategy.baseline.func.__name__, **_costs(theirs, their_peak, sum(useful))},
    }
    return Measured(line, theirs, mine)


def _costs(outcomes: list[Outcome], peak: float, useful: int) -> dict[str, Any]:
    seconds = median([one.seconds for one in outcomes])
    counts = outcomes[0].counts
    return {
        "seconds": seconds,
        "forwards": counts.forwards,
        "token_forwards": counts.tokens,
        "padded_token_forwards": counts.padded,
        "scored_positions": counts.scored,
        "row_forwards": outcomes[0].row_forwards,
        "useful_tokens": useful,
        "useful_tokens_per_second": median([useful / seconds]),
        "sampling_share": median([1 - one.counts.seconds / one.seconds for one in outcomes]),
        "peak_memory_mb": round(peak, 1),
    }


# ------------------------------------------------------------------------------------------------------------- savings


def rungs(model: Metered, prompts: Tensor, baseline: "partial[Plain]", forwards: int) -> list[list[float]]:
    """Seconds per forward of the plain loop, and with one saving after another switched on; two rounds."""
    ladder = [
        Saving(),
        Saving(float32=True),
        Saving(float32=True, head=True),
        Saving(float32=True, head=True, batched=True),
    ]
    rounds = [
        [plain(model, prompts, partial(baseline, saving=saving, limit=forwards)) for saving in ladder] for _ in range(2)
    ]
    return [[one.seconds / one.counts.forwards for one in row] for row in rounds]


def group(model: Metered, prompts: Tensor, config: SamplerConfig) -> dict[str, dict[str, float]]:
    """Cost of the first forward of a group of samples of one prompt, shared and apart."""
    begun = generate(model, prompts[:1].expand(len(prompts), -1), config, until_step=0).state
    result: dict[str, dict[str, float]] = {}
    for name, state in (("shared", begun), ("apart", replace(begun, twins=tuple(range(len(prompts)))))):

        def decode(state: State = state) -> tuple[Tensor, None, int]:
            return generate(model, None, config, state=state, until_step=1).completions, None, 0

        decode()
        outcome = timed(model, decode)
        result[name] = {"seconds": median([outcome.seconds]), "token_forwards": outcome.counts.tokens}
    return result


def savings(shape: Shape, model: Metered, none: Measured, dual: Measured, options: Options) -> dict[str, Any]:
    """What each saving contributes to the seconds between the plain threshold loop without cache and ours."""
    strategy, prompts = strategies(shape)[0], shape.prompts()
    rounds = once(partial(rungs, model, prompts, strategy.baseline, 3), options.threads)
    sampled = strategy.config.replace(proposer=Categorical(1.0))
    first = once(partial(group, model, prompts, sampled), options.threads)
    total, mine = none.line["baseline"]["seconds"], none.line["seconds"]
    level = [statistics.median(column) for column in zip(*rounds, strict=True)]
    left = [total * one / level[0] for one in level]
    needed = sum(map(sum, none.theirs[0].steps))
    waiting = none.theirs[0].row_forwards - needed
    leaving = needed - none.mine[0].row_forwards
    rows = (left[3] - mine) / max(waiting + leaving, 1)
    saved = {
        "float32 gather for float64 softmax": left[0] - left[1],
        "head at open slots alone": left[1] - left[2],
        "selection for the whole batch at once": left[2] - left[3],
        "rows wait for no other": rows * waiting,
        "rows leave after their end token": rows * leaving,
    }
    return {
        "savings": strategy.name,
        "shape": shape.name,
        "head_share_of_flops": round(shape.head_share, 3),
        "ratio": none.line["ratio"],
        "seconds": {"baseline": total, "ours": mine},
        "saved": {
            name: {"seconds": round(one, 3), "part": round(one / (total - mine), 3)} for name, one in saved.items()
        },
        "dual cache on top": {"seconds": round(mine - dual.line["seconds"], 3), "ratio": dual.line["ratio"]},
        "first forward of a group": first,
    }


# ---------------------------------------------------------------------------------------------------------------- main


def run(shape: Shape, names: Sequence[str], options: Options) -> list[dict[str, Any]]:
    """All lines of a shape, printed as they come."""
    chosen = [one for one in strategies(shape) if one.name in names]
    models = {causal: _weights(shape, causal=causal, options=options) for causal in {one.causal for one in chosen}}
    measured: dict[str, Measured] = {}
    for strategy in chosen:
        measured[strategy.name] = measure(strategy, shape, models[strategy.causal], options)
        emit(measured[strategy.name].line)
    emit(savings(shape, models[False], measured["threshold"], measured["dual"], options))
    return [one.line for one in measured.values()]


def _weights(shape: Shape, *, causal: bool, options: Options) -> Metered:
    """The sharpened model."""
    factor, tpf, end = once(partial(sharpen, shape, causal=causal), options.threads)
    emit(
        {
            "weights": shape.name,
            "attention": "block_causal" if causal else "full",
            "sharpness": round(factor, 3),
            "tokens_per_forward": round(tpf, 2),
            "end_token": end,
        }
    )
    return build(shape, causal=causal).sharpened(factor, end)


def emit(line: dict[str, Any]) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")  # one write: two processes print lines
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; with `--check` the status says whether the requirements hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1 by default")
    parser.add_argument("--quick", action="store_true", help="toy sizes, for tests")
    parser.add_argument("--check", action="store_true", help="status 1 where a requirement is missed")
    parser.add_argument("--seconds", type=float, default=14.0, help="per strategy, before repeats are left out")
    given = parser.parse_args(arguments)
    options = Options(given.threads, 0.0 if given.quick else given.seconds)
    torch.set_num_threads(1)  # the workers are forked, and set their own number
    torch.set_grad_enabled(False)
    begin = time.perf_counter()
    emit(machine(options.threads))
    heavy, light = (QUICK[one.name] if given.quick else one for one in (HEAVY, LIGHT))
    micro = [
        once(partial(sampling, 500 if given.quick else 126_464, 64, temperature), options.threads)
        for temperature in (1.0, 0.0)
    ]
    for line in micro:
        emit(line)
    lighter = partial(run, light, ["threshold", "dual"], options)
    if options.threads == 1 and (os.cpu_count() or 1) > 1:
        lighter = beside(lighter)
    lines = run(heavy, [one.name for one in strategies(heavy)], options) + lighter()
    verdict = {
        "equal_tokens": all(one["equal_tokens"] for one in lines),
        "ideal_forwards": all(one["forwards"] <= one["ideal_forwards"] for one in lines),
        "ideal_token_forwards": all(one["token_forwards"] <= one["ideal_token_forwards"] for one in lines),
        "never_slower": all(one["ratio"] >= 1 for one in lines),
        "sampling_3.5x_per_row": micro[0]["ratio_per_row"] >= 3.5,
    }
    spent = [sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    emit(
        {
            "requirements": verdict,
            "seconds": round(time.perf_counter() - begin, 1),
            "processor_seconds": round(sum(spent), 1),
        }
    )
    return int(given.check and not all(verdict.values()))


if __name__ == "__main__":
    sys.exit(main())
