# ruff: noqa: INP001
"""Memory and time of one update of each objective, against logits of all streams in one graph: one JSON line each.

    python benchmarks/objectives.py            # at most four minutes on two cores
    python benchmarks/objectives.py --check    # status 1 where a requirement is missed
    python benchmarks/objectives.py --light    # a small vocabulary, where the body dominates; the bounds are not for it
    python benchmarks/objectives.py --quick    # seconds, toy sizes; the ratios mean nothing

What the lines hold is in README.md beside this file.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch
from fulllogits import FORMULAS, Known, Net, full_logp
from measure import clock, in_turn, machine, median, once
from torch import Tensor

import dare_objectives as do
from dare_objectives.testing import toy_states, toy_tree

Way = Literal["graph", "stream", "replay"]
LIMIT: Final = 8 << 30
"""Bytes that an update may take before it is given up."""

PAPER: Final = {"response": 256, "vocabulary": 126_464}
"""The sizes of LLaDA, at which the bytes are counted instead of measured."""

CHUNK: Final = 32
"""Rows of logits at once in `gather_logp`."""

ARRAYS: Final = {"baseline": 3, "ours": 2}
"""Arrays over the vocabulary that are alive at the peak, which is in the backward pass.

Baseline: log-softmax, and the gradients of it and of the logits. Ours, for a chunk: the same and the probabilities.
"""


@dataclass(frozen=True)
class Shape:
    """Sizes of the network and of the batch."""

    vocab: int = 32_768
    width: int = 64
    layers: int = 2
    rows: int = 4
    prompt: int = 32
    response: int = 32
    block: int = 8

    @property
    def length(self) -> int:
        """Columns."""
        return self.prompt + self.response

    @property
    def head_share(self) -> float:
        """Part of the head in the FLOPs of a forward, all positions scored."""
        head = 2 * self.width * self.vocab
        return head / (head + self.layers * (24 * self.width**2 + 4 * self.width * self.length))


LIGHT: Final = Shape(vocab=1024, width=256, layers=4)
QUICK: Final = Shape(vocab=256, width=16, layers=1, prompt=4, response=8, block=4)


class Entry(NamedTuple):
    """An objective with its published number of streams.

    Args:
        way: `graph`: one graph (of one stream); `stream`: a sum over streams, one graph at a time; `replay`: a second
            forward, one graph at a time.
        options: of the factory.
        group_size: answers to one prompt.
    """

    way: Way
    options: Mapping[str, Any] = {}
    group_size: int = 4


OBJECTIVES: Final[Mapping[str, Entry]] = {
    "masked_sft": Entry("graph"),
    "block_sft": Entry("graph"),
    "cart_sft": Entry("graph"),
    "d1_sft": Entry("graph"),
    "vrpo": Entry("stream", group_size=2),
    "diffu_grpo": Entry("graph"),
    "wd1": Entry("graph"),
    "coupled_grpo": Entry("replay"),
    "unigrpo": Entry("stream"),
    "random_mask": Entry("stream"),
    "bgpo": Entry("stream"),
    "ebpo": Entry("replay"),
    "espo": Entry("replay"),
    "spg": Entry("replay"),
    "mdpo": Entry("replay"),
    "cj_grpo": Entry("replay"),
    "cj_grpo_step_equal": Entry("replay"),
    "tracerl": Entry("stream", {"shrink": 8}),
    "d_tree_rpo": Entry("replay"),
    "just_grpo": Entry("stream"),
}
LEAST_MEMORY: Final = {"vrpo": 4.0, "espo": 4.0, "ebpo": 4.0, "bgpo": 4.0}
SECOND_FORWARD: Final = "vrpo"
"""Streams, but its pairs are coupled by a pass without gradient."""


def most_time(name: str) -> float:
    """Largest ratio of our time to the baseline's."""
    return 1.35 if OBJECTIVES[name].way == "replay" or name == SECOND_FORWARD else 1.0


# --------------------------------------------------------------------------------------------------------------- cases


class Case(NamedTuple):
    """An objective on a batch, with the log-probs that it needs."""

    name: str
    objective: do.Objective
    batch: do.Batch
    plan: do.Plan
    rewards: Tensor
    old: Tensor
    ref: Tensor


def sequences(shape: Shape, group_size: int) -> do.Batch:
    """Rows of one length, with a trajectory of two tokens per step, 16 states and a tree of 4 x 4 leaves."""
    columns, keys = torch.arange(shape.length), do.row_keys(0, range(shape.rows))
    shuffled = do.uniform(keys[:, None], "order", columns[: shape.response]).argsort(1).argsort(1)
    batch = do.Batch(
        tokens=(do.uniform(keys[:, None], "data", columns) * shape.vocab).long().clamp(max=shape.vocab - 1),
        valid=torch.ones(shape.rows, shape.length, dtype=torch.bool),
        maskable=(columns >= shape.prompt).repeat(shape.rows, 1),
        blocks=(columns // shape.block).to(torch.int32).repeat(shape.rows, 1),
        keys=keys,
        group=torch.arange(shape.rows) // group_size,
        mask_id=shape.vocab,
        step_map=torch.nn.functional.pad(shuffled // 2, (shape.prompt, 0), value=-1).to(torch.int32),
    )
    twice = batch[torch.arange(shape.rows).repeat_interleave(2)]
    trees = toy_tree(twice, branch=4)[torch.arange(0, len(twice), 2)]  # every second toy tree is another
    return replace(batch, states=toy_states(batch, steps=16), tree=trees)


def case_of(name: str, shape: Shape, net: Net, threads: int) -> Case:
    """The case of an objective; old and reference log-probs lie near the policy's own."""
    entry = OBJECTIVES[name]
    objective, batch = do.get(name, entry.options), sequences(shape, entry.group_size)
    plan = objective.plan(batch)
    own = once(partial(_detached, net, plan), threads)  # in a process of its own: this one's memory stays as it is
    noise = [do.uniform(batch.keys[:, None], "eval", i, batch.columns) - 0.5 for i in (1, 2)]
    old, ref = (own + 0.02 * (x[:, None] if own.ndim == 3 else x[:, None, :, None]) for x in noise)
    rewards = do.uniform(batch.keys, "eval", 3)
    return Case(name, objective, batch, plan, rewards, old, ref)


def _detached(net: Net, plan: do.Plan) -> Tensor:
    with torch.no_grad():
        return do.evaluate(gathered(net), plan, streams=1).logp


# --------------------------------------------------------------------------------------------------------- both updates


def gathered(net: Net) -> do.Score:
    """The network's score function: the head runs at the targets, in chunks."""

    def score(
        inputs: Tensor,
        clean: Tensor,
        target: Tensor,
        labels: Tensor,
        valid: Tensor,
        blocks: Tensor,
        *,
        want: tuple[str, ...] = (),
        temperature: float = 1.0,
        support: Tensor | None = None,
        streams: int | None = None,
    ) -> Tensor:
        size = streams or inputs.shape[1]
        parts = zip(inputs.split(size, 1), target.split(size, 1), labels.split(size, 1), strict=True)
        return torch.cat([_part(net, *part) for part in parts], 1)

    return score


def _part(net: Net, inputs: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    hidden = net(inputs.flatten(0, 1)).view(*inputs.shape, -1)
    at = target.nonzero(as_tuple=True)
    logp = do.gather_logp(hidden[at], net.head, labels[at], chunk=CHUNK).logp
    return logp.new_zeros(labels.shape).index_put(at, logp)


def ours(net: Net, case: Case) -> Tensor:
    """The library's update."""
    score, plan, objective = gathered(net), case.plan, case.objective
    known = {name: x for name, x in (("old", case.old), ("ref", case.ref)) if name in objective.needs}
    detached = _detached(net, plan) if case.name == SECOND_FORWARD else None
    coefficients = objective.prepare(replace(case.batch, **known), plan, case.rewards, detached)

    def whole(scored: do.Scored) -> tuple[Tensor, Any]:
        return objective.loss(scored, plan, coefficients, **known)

    def some(scored: do.Scored, part: do.Plan, at: slice) -> tuple[Tensor, Any]:
        return objective.loss(scored, part, coefficients, **{name: x[:, at] for name, x in known.items()})

    match OBJECTIVES[case.name].way:
        case "graph":
            loss, _ = whole(do.evaluate(score, plan))
            loss.backward()
        case "stream":
            loss, _ = do.stream_backward(score, plan, some)
        case "replay":
            loss, _ = do.replay_backward(score, plan, whole)
    return loss.detach()


def straightforward(net: Net, case: Case) -> Tensor:
    """One graph over full logits; the loss from the papers' formula where `FORMULAS` has one, else the library's."""
    logp, entry = full_logp(net, case.plan), OBJECTIVES[case.name]
    if case.name in FORMULAS:
        response = int(case.batch.lengths[0])
        loss = FORMULAS[case.name](logp, case.plan, Known(case.old, case.ref, case.rewards, entry.group_size, response))
    else:
        known = {name: x for name, x in (("old", case.old), ("ref", case.ref)) if name in case.objective.needs}
        coefficients = case.objective.prepare(replace(case.batch, **known), case.plan, case.rewards, None)
        loss, _ = case.objective.loss(logp, case.plan, coefficients, **known)
    loss.backward()
    return loss.detach()


Update = Callable[[Net, Case], Tensor]


# ------------------------------------------------------------------------------------------------------------ measuring


class Outcome(NamedTuple):
    """One update: its loss, entries of its gradient, the sequences that went through the network, and seconds."""

    loss: float
    gradient: dict[str, list[float]]
    rows: int
    seconds: float


def timed(update: Update, net: Net, case: Case) -> Outcome | None:
    """Run an update; None where it needs more than `LIMIT`."""
    net.zero_grad(set_to_none=True)
    net.rows = 0
    begin = clock()
    try:
        with torch.enable_grad():
            loss = update(net, case)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        return None
    seconds = clock() - begin
    return Outcome(float(loss), {name: _entries(x.grad) for name, x in net.named_parameters()}, net.rows, seconds)


def _entries(gradient: Tensor | None, most: int = 4096) -> list[float]:
    """Evenly spaced entries: a prime number apart, or all of them."""
    assert gradient is not None
    flat = gradient.flatten()
    step = max(1, len(flat) // most)
    return flat[:: step + (step % 2 == 0)].tolist()


def warm(update: Update, net: Net, case: Case) -> None:
    """Load the code that an update needs, by one of toy size, and bound the memory from here on."""
    timed(update, net, case)
    table = Path("/proc/self/statm")
    if table.exists():
        most = int(table.read_text(encoding="ascii").split()[0]) * resource.getpagesize() + LIMIT
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def difference(one: Outcome, other: Outcome) -> dict[str, float]:
    """Relative difference of losses, and the largest of gradients by parameter."""
    gradients: list[float] = []
    for name, wanted in other.gradient.items():
        a, b = torch.tensor(one.gradient[name]).double(), torch.tensor(wanted).double()
        gradients.append(float((a - b).norm() / b.norm().clamp(min=1e-30)))
    loss = abs(one.loss - other.loss) / max(abs(other.loss), 1e-6)
    return {"loss": float(f"{loss:.1e}"), "gradient": float(f"{max(gradients):.1e}")}


def analytic(rows: int, streams: int) -> dict[str, Any]:
    """Bytes over the vocabulary at the sizes of `PAPER`, prompt as long as the response; no gradients of weights."""
    response, vocab = PAPER["response"], PAPER["vocabulary"]
    theirs, mine = (4 * vocab * n for n in (rows * streams * 2 * response, min(rows * response, CHUNK)))
    return {**PAPER, "baseline_gb": _gb(ARRAYS["baseline"] * theirs), "ours_gb": _gb(ARRAYS["ours"] * mine)}


def _gb(size: int) -> float:
    return float(f"{size / 2**30:.3g}")


def measure(name: str, shape: Shape, threads: int, seconds: float) -> dict[str, Any]:
    """The line of an objective."""
    net, toy = Net(shape.vocab, shape.width, shape.layers, shape.length), Net(256, 16, 1, QUICK.length)
    case, small = case_of(name, shape, net, threads), case_of(name, QUICK, toy, threads)
    updates: list[Update] = [straightforward, ours]
    jobs = [partial(timed, update, net, case) for update in updates]
    (theirs, their_peak), (mine, my_peak) = in_turn(
        jobs, threads, seconds, [partial(warm, update, toy, small) for update in updates]
    )
    line: dict[str, Any] = {"objective": name, "way": OBJECTIVES[name].way, "streams": case.plan.streams}
    done = [[one for one in outcomes if one is not None] for outcomes in (theirs, mine)]
    line |= _costs(done[1], my_peak, shape)
    line["baseline"] = {
        "formula": "paper" if name in FORMULAS else "library's loss",
        **_costs(done[0], their_peak, shape),
    }
    line["analytic"] = analytic(shape.rows, case.plan.streams)
    if not all(done):
        return line | {"aborted": [side for side, kept in zip(("baseline", "ours"), done, strict=True) if not kept]}
    ratios = [b.seconds / a.seconds for a, b in zip(*done, strict=True)]
    return line | {
        "memory_ratio": median([their_peak / max(my_peak, 0.1)]),
        "time_ratio": median(ratios),
        "time_bound": most_time(name),
        "difference": difference(done[1][0], done[0][0]),
        "repeats": len(ratios),
    }


def _costs(outcomes: list[Outcome], peak: float, shape: Shape) -> dict[str, Any]:
    if not outcomes:
        return {}
    return {
        "seconds": median([one.seconds for one in outcomes]),
        "peak_memory_mb": round(peak, 1),
        "forwards": outcomes[0].rows // shape.rows,
    }


# ----------------------------------------------------------------------------------------------------------------- main


def verdict(lines: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """The requirements."""
    by_name = {line["objective"]: line for line in lines if "aborted" not in line}
    return {
        "none_aborted": len(by_name) == len(lines),
        "equal_losses": all(line["difference"]["loss"] <= 1e-3 for line in by_name.values()),
        "equal_gradients": all(line["difference"]["gradient"] <= 1e-3 for line in by_name.values()),
        "memory_4x": all(
            name in by_name and by_name[name]["memory_ratio"] >= least for name, least in LEAST_MEMORY.items()
        ),
        "time_within_bound": all(line["time_ratio"] <= line["time_bound"] for line in by_name.values()),
    }


def emit(line: Mapping[str, Any]) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")  # one write: two processes print lines
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; with `--check` the status says whether the requirements hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1 by default")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="toy sizes, for tests")
    sizes.add_argument("--light", action="store_true", help="a head with little of the FLOPs")
    parser.add_argument("--check", action="store_true", help="status 1 where a requirement is missed")
    parser.add_argument("--seconds", type=float, default=3.0, help="per objective, before repeats are left out")
    parser.add_argument("--only", nargs="+", choices=list(OBJECTIVES), default=list(OBJECTIVES), help="objectives")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the workers are forked, and set their own number
    shape = QUICK if given.quick else LIGHT if given.light else Shape()
    begin = time.perf_counter()
    shown = {name: getattr(shape, name) for name in ("vocab", "width", "layers", "rows", "prompt", "response")}
    emit(machine(given.threads) | {"shape": shown, "head_share_of_flops": round(shape.head_share, 3)})
    lines: list[dict[str, Any]] = []
    for name in given.only:
        lines.append(measure(name, shape, given.threads, 0.0 if given.quick else given.seconds))
        emit(lines[-1])
    found = verdict(lines)
    emit({"requirements": found, "seconds": round(time.perf_counter() - begin, 1)})
    return int(given.check and not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
