"""Revisers inside a loop of a few lines: golden cases, termination, identities."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dare_samplers.keyed import uniform
from dare_samplers.parts import Logits, Proposal, Slots
from dare_samplers.revisers import (
    Levenshtein,
    MultiBlockEdit,
    RemaskBelow,
    ReMaskLowest,
    ReMDM,
    RunningConfidence,
    TokenEdit,
)
from dare_samplers.selectors import rank


@dataclass
class Run:
    """One row, decoded block by block with argmax proposals."""

    tokens: Tensor
    forwards: int = 0
    opened: list[int] = field(default_factory=list)
    canvases: list[list[int]] = field(default_factory=list)


def drive(logits_of, reviser, sizes, *, mask, tau=None, score="prob", steps=None, most=2000) -> Run:
    """Decode sum(sizes) slots. `logits_of(tokens [G], forward) -> [G, V]`; tau: commit p > tau, or the best one."""
    length = sum(sizes)
    run = Run(torch.full((length,), mask))
    block = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    opened = torch.ones(length, dtype=torch.bool)
    stored = torch.full((1, length), torch.nan, dtype=torch.float64)
    width = reviser.width(max(sizes)) if hasattr(reviser, "width") else 0
    memory = torch.zeros(length, width, dtype=torch.int64)
    for number, size in enumerate(sizes):
        begun, idle, held = run.forwards, 0, True
        while held:
            window = opened & (block <= number)
            shown = window | (block <= number if reviser.sees == "row" else block == number)
            index = shown.nonzero().flatten()
            logits = Logits.of(logits_of(run.tokens, run.forwards)[index][None]).without([mask])
            slots = slots_at(run, index, window, begun, idle, size, mask, steps, memory if width else None)
            proposal = Proposal(logits.values.argmax(-1), torch.zeros(1, len(index)), logits)
            value = points(logits, proposal.tokens, score)
            chance = logits.logp(proposal.tokens).exp()
            pick = slots.open & (
                (rank(value, slots.open) == 0) | (torch.tensor(tau is not None) & (chance > (tau or 0)))
            )
            out = reviser.revise(logits, proposal, value, slots, pick, stored.where(~opened, torch.nan))
            idle += int(slots.remaining) == 0
            apply(run, out, pick, slots, proposal, value, opened, stored, memory)
            run.forwards += 1
            run.opened.append(int(opened.sum()))
            run.canvases.append(run.tokens.tolist())
            held = bool((opened & (block <= number)).any()) or (out.hold is not None and bool(out.hold))
            assert run.forwards < most
    return run


def slots_at(run, index, window, begun, idle, size, mask, steps, memory):
    row = torch.tensor([run.forwards - begun])
    return Slots(
        index=index[None],
        open=window[index][None],
        committed=(~window & (run.tokens != mask))[index][None],
        tokens=run.tokens[index][None],
        left=torch.full((1, len(index)), mask),
        key=torch.tensor([7]),
        step=torch.tensor([run.forwards]),
        block_step=row,
        clock=row,
        idle=torch.tensor([idle]),
        size=torch.tensor([size]),
        steps=steps,
        mask_id=mask,
        memory=None if memory is None else memory[index][None],
    )


def points(logits, tokens, kind):
    p = (logits.values - logits.log_norm.unsqueeze(-1)).exp()
    if kind == "entropy":
        return -logits.entropy()
    if kind == "margin":
        two = p.topk(2).values
        return two[..., 0] - two[..., 1]
    return logits.logp(tokens).exp()


def apply(run, out, pick, slots, proposal, value, opened, stored, memory):
    pick = pick if out.pick is None else out.pick
    write = torch.zeros_like(pick) if out.write is None else out.write
    assert not (pick & (write | ~slots.open)).any()
    new = torch.where(write, torch.zeros_like(proposal.tokens) if out.tokens is None else out.tokens, proposal.tokens)
    for column in (pick | write)[0].nonzero().flatten().tolist():
        place = slots.index[0, column]
        run.tokens[place], opened[place], stored[0, place] = new[0, column], False, value[0, column]
    if out.reopen is not None:
        assert not (out.reopen[0] & opened).any()
        run.tokens[out.reopen[0]] = slots.mask_id
        opened |= out.reopen[0]
    if out.memory is not None:
        memory[slots.index[0]] = out.memory[0]


# --- golden cases

V = 160  # of the toy; two more ids, never proposed, serve as control tokens


def on_canvas(case, prompt, width):
    """Logits of the response positions, with later blocks on the canvas as in the reference."""

    def logits_of(tokens, forward):
        ids = torch.cat([prompt, tokens])[None]
        positions = torch.arange(ids.shape[1])[None]
        length = case.model.block_length
        blocks = None if length is None else (positions // length).to(torch.int32)
        rows = torch.arange(width, ids.shape[1])[None]
        logits = case.model(ids, positions=positions, blocks=blocks, rows=rows)[0]
        assert logits.shape[-1] == V
        return torch.nn.functional.pad(logits, (0, 2), value=-torch.inf)

    return logits_of


@pytest.mark.parametrize("make", [
    lambda s: TokenEdit(s["editing_threshold"], s["max_post_steps"]),
    lambda s: Levenshtein(V, V + 1, s["editing_threshold"], s["max_post_steps"]),
], ids=["edit", "levenshtein"])  # fmt: skip
@pytest.mark.parametrize("name", ["edit", "edit_partial_prompt", "no_post", "speed"])
def test_llada21(golden, name, make):
    """Levenshtein editing is token editing where no control token is proposed."""
    case = golden(f"llada21_{name}")
    s, prompt = case.settings, case.tensors["prompt"][0]
    size, width = s["block_length"], len(prompt)
    end = -(-(width + s["gen_length"]) // size) * size
    bounds = [width, *range((width // size + 1) * size, end + 1, size)]
    sizes = [b - a for a, b in pairwise(bounds)]
    mask = case.model.mask_id
    run = drive(on_canvas(case, prompt, width), make(s), sizes, mask=mask, tau=s["threshold"])
    assert run.forwards == int(case.tensors["nfe"])
    assert torch.equal(run.tokens[: s["gen_length"]], case.tensors["final_canvas"][0, width:])


@dataclass(frozen=True)
class Later:
    """The sum of a block's later quotas."""

    quota: tuple[int, ...]

    def masked_after(self, slots):
        return torch.tensor([sum(self.quota[int(slots.clock[0]) + 1 :])])


@pytest.mark.parametrize(
    ("name", "score"), [("prob_linear", "prob"), ("entropy_cosine", "entropy"), ("margin_two_blocks", "margin")]
)
def test_running_confidence(golden, name, score):
    case = golden(f"rcr_{name}")
    s, prompt = case.settings, case.tensors["prompt"][0]
    quotas = case.tensors["quota"][:, 0]
    assert (quotas == quotas[:1]).all()
    blocks = s["gen_length"] // s["block_length"]
    run = drive(
        on_canvas(case, prompt, len(prompt)),
        RunningConfidence(Later(tuple(quotas[0].tolist()))),
        [s["block_length"]] * blocks,
        mask=case.model.mask_id,
        score=score,
    )
    assert torch.equal(run.tokens, case.tensors["sequences"][0, -s["gen_length"] :])
    assert run.forwards == int(case.tensors["nfe"])
    commit = [
        max(
            i
            for i in range(run.forwards)
            if (run.canvases[i - 1][slot] if i else case.model.mask_id) != run.canvases[i][slot]
        )
        for slot in range(s["gen_length"])
    ]
    assert commit == case.tensors["commit_step"][0, len(prompt) :].tolist()


# --- termination


def restless(seed, vocab, delete, insert, favour):
    """A model that changes its mind with every canvas and likes control tokens."""

    def logits_of(tokens, forward):
        key = torch.tensor(seed)
        for token in tokens.tolist():
            key = key * 31 + token
        place, id_ = torch.arange(len(tokens))[:, None], torch.arange(vocab)[None]
        logits = 6 * uniform(key, "data", place, id_, dtype=torch.float64)
        logits[:, [delete, insert]] += favour
        return logits

    return logits_of


@given(st.integers(0, 10_000), st.sampled_from([0.0, 2.0, 9.0]), st.integers(0, 5), st.sampled_from([0.0, 0.4]))
def test_levenshtein_ends_within_its_bound_and_leaves_no_control_token(seed, favour, most, tau):
    vocab, mask, delete, insert, sizes = 9, 8, 7, 6, (3, 5, 1)
    run = drive(
        restless(seed, vocab, delete, insert, favour), Levenshtein(delete, insert, tau, most), sizes, mask=mask, tau=0.6
    )
    assert run.forwards <= sum(sizes) + len(sizes) * (most + 1)
    assert not set(run.tokens.tolist()) & {mask, delete, insert}
    assert all(not set(one) & {delete, insert} for one in run.canvases)


@pytest.mark.parametrize("control", [7, 6])
def test_levenshtein_survives_a_model_that_wants_nothing_but_control_tokens(control):
    def logits_of(tokens, forward):
        logits = torch.zeros(len(tokens), 9)
        logits[:, control] = 9.0
        logits[:, 8] = 20.0
        return logits

    run = drive(logits_of, Levenshtein(7, 6, 0.5, 3), (4, 4), mask=8, tau=0.5)
    assert not set(run.tokens.tolist()) & {6, 7, 8}
    assert run.forwards <= 8 + 2 * 4


def test_a_cycle_is_left():
    """INSERT before a token, then the token it pushed out, for ever: the second visit tries something else."""

    def logits_of(tokens, forward):
        logits = torch.zeros(2, 9)
        logits[:, 3] = 1.0
        logits[1, 2] = 5.0
        if tokens.tolist() == [1, 2]:
            logits[1, 6] = 9.0  # insert: 1 M
        elif tokens.tolist() == [1, 8]:
            logits[1, 2] = 9.0  # fill: 1 2
        else:
            logits[0, 1] = 9.0
        logits[0, 1] += 7.0
        return logits

    run = drive(logits_of, Levenshtein(7, 6, 0.5, 16), (2,), mask=8, tau=0.5)
    assert run.canvases[:3] == [[1, 2], [1, 8], [1, 2]]
    assert run.canvases[3] not in run.canvases[:3]


def by_lists(logits_of, size, *, mask, delete, insert, tau, commit, most):
    """The same block in lists and sets, one slot at a time."""
    tokens, introduced, post, rounds, obeyed = [mask] * size, [False] * size, 0, 0, False
    seen, tried, canvases = set(), [set() for _ in range(size)], []
    while True:
        logits = logits_of(torch.tensor(tokens), rounds).double()
        logits[:, mask] = -torch.inf
        p = logits.softmax(-1).tolist()

        def best(slot, barred, p=p):
            return max((one for one in range(len(p[0])) if one not in barred), key=lambda one: (p[slot][one], -one))

        masks = [slot for slot in range(size) if tokens[slot] == mask]
        old = [slot for slot in masks if not introduced[slot]]
        post, rounds = post + (not old), rounds + 1
        last = post >= max(most, 1) or rounds > size + most
        order = sorted(masks, key=lambda slot: (-max(p[slot]), slot))
        sure = [slot for slot in order if max(p[slot]) > commit] or order[:1]
        need = 1 + len(masks) - len(old) if old and not last else len(masks)
        take = order[: max(need, len(sure))]
        if not most and not set(old) - set(take):
            last, take = True, masks
        new = [best(slot, {mask, insert} if slot in old else {mask}) for slot in range(size)]
        if last:
            new = [
                best(slot, {mask, delete, insert}) if new[slot] in {delete, insert} else new[slot]
                for slot in range(size)
            ]
        edit = [slot for slot in range(size) if tokens[slot] not in {mask, new[slot]} and p[slot][new[slot]] > tau]
        write = sorted({*take, *edit})
        control = any(new[slot] in {delete, insert} for slot in write)
        if tuple(tokens) in seen and (obeyed or control) and not last and write:
            slot = min(write, key=lambda slot: (p[slot][new[slot]], slot))
            barred = tried[slot] | {mask, tokens[slot]} | ({insert} if slot in old else set())
            if barred != set(range(len(p[0]))):
                new[slot] = best(slot, barred)
        seen.add(tuple(tokens))
        obeyed |= any(new[slot] in {delete, insert} for slot in write)
        after, flags = [], []
        for slot in range(size):
            tried[slot] |= {new[slot]} if slot in write else set()
            if slot in write and new[slot] == insert:
                after, flags = [*after, mask, tokens[slot]], [*flags, True, introduced[slot]]
            elif slot not in write or new[slot] != delete:
                after, flags = [*after, new[slot] if slot in write else tokens[slot]], [*flags, introduced[slot]]
        after, flags = (after + [mask] * size)[:size], (flags + [True] * size)[:size]
        if after == tokens and masks:
            after[order[0]] = best(order[0], {mask, delete, insert})
            tried[order[0]].add(after[order[0]])
        tokens, introduced = after, flags
        canvases.append(tokens)
        if mask not in tokens and (last or not write):
            return canvases


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.sampled_from([0.0, 1.0, 2.0, 4.0]),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.2, 0.4]),
)
def test_levenshtein_is_the_rule_in_lists(seed, size, favour, most, tau):
    logits_of = restless(seed, 9, 7, 6, favour)
    run = drive(logits_of, Levenshtein(7, 6, tau, most), (size,), mask=8, tau=0.4)
    assert run.canvases == by_lists(logits_of, size, mask=8, delete=7, insert=6, tau=tau, commit=0.4, most=most)


@given(st.integers(0, 10_000), st.integers(0, 4))
def test_levenshtein_without_control_tokens_is_token_edit(seed, most):
    logits_of = restless(seed, 9, 7, 6, -50.0)
    runs = [
        drive(logits_of, one, (4, 3), mask=8, tau=0.5) for one in (TokenEdit(0.3, most), Levenshtein(7, 6, 0.3, most))
    ]
    assert runs[0].canvases == runs[1].canvases


@given(st.integers(0, 10_000), st.integers(0, 4))
def test_token_edit_ends_within_slots_and_budget(seed, most):
    run = drive(restless(seed, 9, 7, 6, -50.0), MultiBlockEdit(0.0, most), (4, 3), mask=8)
    assert run.forwards <= 7 + 2 * most and 8 not in run.tokens


def test_editing_the_row_reaches_earlier_blocks():
    def logits_of(tokens, forward):
        logits = torch.zeros(4, 9)
        logits[:, 1] = 5.0
        if tokens[3] != 8:
            logits[0, 2] = 9.0
        return logits

    for reviser, first in ((TokenEdit(0.5), 1), (MultiBlockEdit(0.5), 2)):
        run = drive(logits_of, reviser, (2, 2), mask=8, tau=0.5)
        assert run.tokens.tolist() == [first, 1, 1, 1]


@given(st.integers(0, 10_000), st.sampled_from(["cap", "rescale", "conf", "fb", "loop"]))
def test_remdm_takes_exactly_its_steps(seed, kind):
    reviser = ReMDM(kind, eta=0.6, t_on=0.8, t_off=0.2)
    run = drive(restless(seed, 9, 7, 6, -50.0), reviser, (6,), mask=8, steps=9)
    assert run.forwards == 9 and 8 not in run.tokens


@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([0.5, 7 / 8, 1.0]))
def test_remask_lowest_takes_its_shares_and_corrections(seed, number, start):
    run = drive(restless(seed, 9, 7, 6, -50.0), ReMaskLowest(number, start), (6, 6), mask=8, steps=10)
    assert run.forwards == 20 and 8 not in run.tokens


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_remask_below_never_takes_more_forwards_than_slots(seed, tau):
    run = drive(restless(seed, 9, 7, 6, -50.0), RemaskBelow(tau), (6, 3), mask=8)
    assert run.forwards <= 9 and 8 not in run.tokens
    assert run.opened == sorted(run.opened, reverse=True)


def test_running_confidence_of_one_step_fills_all():
    run = drive(restless(1, 9, 7, 6, -50.0), RunningConfidence(Later((6,))), (6,), mask=8)
    assert run.forwards == 1 and 8 not in run.tokens
