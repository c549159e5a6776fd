# ruff: noqa: INP001
"""Decoding loops as they were published, written plainly: the yardstick of `decode.py`.

Each `straightforward_…` runs the whole batch in lockstep, takes full-vocabulary logits at every fed position, and
selects row by row on the host, in the precision of the publication. Two deviations, so that
there is something to compare: the mask token is never proposed (the published loops would hang), and prompts have one
length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dare_samplers import Denoises

__all__ = [
    "Plain",
    "Saving",
    "straightforward_block_kv",
    "straightforward_dream",
    "straightforward_dual",
    "straightforward_llada",
    "straightforward_llada21",
    "straightforward_prefix",
    "straightforward_sampling",
    "straightforward_threshold",
]

_BOTTOM = -torch.inf


class Plain(NamedTuple):
    """What a loop leaves behind.

    Attributes:
        tokens: int64 `[B, G]`, the responses.
        steps: int64 `[B, K]`, forwards that each block of each row needed.
    """

    tokens: Tensor
    steps: Tensor


@dataclass(frozen=True)
class Saving:
    """What `dare_samplers` saves per forward, switched on in a plain loop to see what each is worth.

    Args:
        head: the head runs at the block's open slots alone.
        float32: argmax and logit minus logsumexp in float32, no softmax in float64.
        batched: one comparison for the whole batch, no selection row by row on the host.
    """

    head: bool = False
    float32: bool = False
    batched: bool = False


class _Canvas:
    """Prompts and masks, with the counters."""

    def __init__(self, model: Denoises, prompts: Tensor, gen_length: int, block_length: int) -> None:
        batch, self.start = prompts.shape
        slots = torch.full((batch, gen_length), model.mask_id)
        self.model = model
        self.ids = torch.cat([prompts, slots], 1)
        self.position = torch.arange(self.ids.shape[1])
        self.block_length = block_length
        self.steps = torch.zeros(batch, gen_length // block_length, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def spans(self) -> list[tuple[int, int, int]]:
        """Number, first and end column of every block."""
        length = self.block_length
        return [(k, self.start + k * length, self.start + (k + 1) * length) for k in range(self.steps.shape[1])]

    def masked(self, begin: int, end: int) -> Tensor:
        """bool `[B, T]`, masks in a range of columns."""
        inside = (self.position >= begin) & (self.position < end)
        return (self.ids == self.model.mask_id) & inside

    def forward(
        self, begin: int, end: int, *, cache: object = None, store: int | None = None, columns: Tensor | None = None
    ) -> Tensor:
        """Logits at all of the fed columns, or at `columns` of the canvas; keys of columns below `store` are kept."""
        batch = len(self)
        positions = self.position[begin:end].expand(batch, -1)
        causal = self.model.attention == "block_causal"
        return self.model(
            self.ids[:, begin:end],
            positions=positions,
            blocks=(positions // self.block_length).to(torch.int32) if causal else None,
            write=None if store is None else positions < store,
            cache=cache,
            rows=(positions if columns is None else columns) - begin,
        )

    def result(self) -> Plain:
        """Responses and steps."""
        return Plain(self.ids[:, self.start :], self.steps)


def straightforward_sampling(
    logits: Tensor, mask_id: int, dtype: torch.dtype = torch.float64, temperature: float = 0.0
) -> tuple[Tensor, Tensor]:
    """A token per position and its probability, from arrays as large as the vocabulary.

    The token is the argmax of exp(logits) / (-ln u)^T, which is a draw from softmax(logits / T), or of the logits at
    T = 0; its probability comes from a softmax of the raw logits.

    Args:
        logits: `[..., V]`; the mask's are overwritten.
        mask_id: never proposed.
        dtype: of softmax and noise.
        temperature: T.
    """
    probability = logits.to(dtype).softmax(-1)
    logits[..., mask_id] = _BOTTOM
    if temperature > 0:
        wide = logits.to(dtype)
        noise = torch.rand_like(wide)
        tokens = (wide.exp() / (-noise.log()) ** temperature).argmax(-1)
    else:
        tokens = logits.argmax(-1)
    return tokens, probability.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _gather(logits: Tensor, mask_id: int) -> tuple[Tensor, Tensor]:
    """The same two numbers without a softmax."""
    norm = logits.logsumexp(-1)
    logits[..., mask_id] = _BOTTOM
    value, tokens = logits.max(-1)
    return tokens, (value - norm).exp()


def _commit(ids: Tensor, masked: Tensor, pick: Tensor, tokens: Tensor) -> None:
    """Write picked tokens over masks."""
    ids.copy_(torch.where(pick & masked, tokens, ids))


def _quotas(masks: Tensor, steps: int) -> Tensor:
    """int64 `[B, s]`: equal shares of each row's masks, the larger ones first."""
    return masks.unsqueeze(-1) // steps + (torch.arange(steps) < (masks % steps).unsqueeze(-1))


def _take_best(confidence: Tensor, quota: Tensor) -> Tensor:
    """The `quota[j]` best of each row, row by row."""
    pick = torch.zeros_like(confidence, dtype=torch.bool)
    for row in range(len(confidence)):
        best = torch.topk(confidence[row], k=int(quota[row])).indices
        pick[row, best] = True
    return pick


def _take_above(confidence: Tensor, masked: Tensor, tau: float) -> Tensor:
    """The best of each row and everything that reaches tau, candidate by candidate."""
    pick = torch.zeros_like(masked)
    for row in range(len(confidence)):
        count = int(masked[row].sum())
        if count == 0:
            continue
        best = torch.topk(confidence[row], k=count).indices
        pick[row, best] = True
        for candidate in best[1:]:
            if confidence[row, candidate] < tau:
                pick[row, candidate] = False
    return pick


def _take_above_batched(confidence: Tensor, masked: Tensor, tau: float) -> Tensor:
    """The same without a loop."""
    best = torch.zeros_like(masked).scatter(1, confidence.argmax(-1, keepdim=True), value=True)
    return ((confidence >= tau) | best) & masked


def straightforward_llada(model: Denoises, prompts: Tensor, gen_length: int, block_length: int, steps: int) -> Plain:
    """LLaDA's loop (arXiv:2502.09992): whole canvas, float64 softmax everywhere, a fixed number per step.

    Args:
        model: with full attention.
        prompts: int64 `[B, P]`.
        gen_length: slots.
        block_length: slots denoised together.
        steps: forwards in all.
    """
    canvas = _Canvas(model, prompts, gen_length, block_length)
    per_block = steps * block_length // gen_length
    for k, begin, end in canvas.spans():
        quota = _quotas(canvas.masked(begin, end).sum(-1), per_block)
        for step in range(per_block):
            logits = canvas.forward(0, len(canvas.position))
            masked = canvas.masked(0, len(canvas.position))
            tokens, confidence = straightforward_sampling(logits, model.mask_id)
            confidence = torch.where(masked, confidence, _BOTTOM)
            confidence[:, end:] = _BOTTOM
            canvas.steps[:, k] += 1
            _commit(canvas.ids, masked, _take_best(confidence, quota[:, step]), tokens)
    return canvas.result()


def straightforward_threshold(
    model: Denoises,
    prompts: Tensor,
    gen_length: int,
    block_length: int,
    tau: float,
    saving: Saving | None = None,
    limit: int | None = None,
) -> Plain:
    """Fast-dLLM's parallel decoding without cache (arXiv:2505.22618): a block until no row has a mask in it.

    Args:
        model: with full attention.
        prompts: int64 `[B, P]`.
        gen_length: slots.
        block_length: slots denoised together.
        tau: probability that commits a slot.
        saving: parts of ours to switch on; none by default.
        limit: stop after so many forwards.
    """
    saving = saving or Saving()
    canvas = _Canvas(model, prompts, gen_length, block_length)
    forwards = 0
    for k, begin, end in canvas.spans():
        while bool((masked := canvas.masked(begin, end)).any()):
            if forwards == limit:
                return canvas.result()
            forwards += 1
            _parallel_step(canvas, (0, len(canvas.position)), masked, k, tau, saving)
    return canvas.result()


def _parallel_step(
    canvas: _Canvas,
    fed: tuple[int, int],
    masked: Tensor,
    block: int,
    tau: float,
    saving: Saving,
    cache: object = None,
    store: int | None = None,
) -> None:
    """One forward of some columns, and the threshold rule."""
    canvas.steps[:, block] += masked.any(-1)
    if saving.head:
        columns = (~masked).to(torch.uint8).argsort(dim=-1, stable=True)[:, : int(masked.sum(-1).max())]
    else:
        columns = canvas.position[slice(*fed)].expand(len(canvas), -1)
    logits = canvas.forward(*fed, cache=cache, store=store, columns=columns)
    if saving.float32:
        some, sure = _gather(logits, canvas.model.mask_id)
    else:
        some, sure = straightforward_sampling(logits, canvas.model.mask_id)
    tokens = canvas.ids.scatter(1, columns, some)
    confidence = torch.full(masked.shape, _BOTTOM, dtype=sure.dtype).scatter(1, columns, sure)
    confidence = torch.where(masked, confidence, _BOTTOM)
    take = _take_above_batched if saving.batched else _take_above
    _commit(canvas.ids, masked, take(confidence, masked, tau), tokens)


def straightforward_prefix(model: Denoises, prompts: Tensor, gen_length: int, block_length: int, tau: float) -> Plain:
    """Fast-dLLM's prefix cache: each block refreshes the keys of everything before it, then feeds block and suffix."""
    return _cached(model, prompts, gen_length, block_length, tau, suffix=True)


def straightforward_dual(model: Denoises, prompts: Tensor, gen_length: int, block_length: int, tau: float) -> Plain:
    """Fast-dLLM's dual cache: each block refreshes all keys once, then feeds the block alone."""
    return _cached(model, prompts, gen_length, block_length, tau, suffix=False)


def _cached(model: Denoises, prompts: Tensor, gen_length: int, block_length: int, tau: float, *, suffix: bool) -> Plain:
    canvas = _Canvas(model, prompts, gen_length, block_length)
    whole = (0, len(canvas.position))
    for k, begin, end in canvas.spans():
        cache = _new_cache(model, canvas)
        fed, store = whole, begin if suffix else whole[1]
        while bool((masked := canvas.masked(begin, end)).any()):
            _parallel_step(canvas, fed, masked, k, tau, Saving(), cache, store)
            fed, store = ((begin, whole[1]), begin) if suffix else ((begin, end), end)
    return canvas.result()


def _new_cache(model: Denoises, canvas: _Canvas) -> object:
    make: Callable[[int, int], object] = model.new_cache  # pyright: ignore[reportAttributeAccessIssue]
    return make(len(canvas), len(canvas.position))


def straightforward_block_kv(
    model: Denoises,
    prompts: Tensor,
    gen_length: int,
    block_length: int,
    steps: int,
    tau: float | None = None,
) -> Plain:
    """SDAR's loop (arXiv:2510.06303): prefill, denoise a block without storing, then one forward to store it.

    Static with `tau=None`: equal shares of `steps` per block. Dynamic: everything above tau where that is at least the
    share, else the share. Softmax in the logits' precision, at all positions of the block.

    Args:
        model: block-causal, its blocks those of the decode.
        prompts: int64 `[B, P]`, P a multiple of the block length.
        gen_length: slots.
        block_length: slots denoised together.
        steps: forwards per block at most.
        tau: for the dynamic rule.
    """
    canvas = _Canvas(model, prompts, gen_length, block_length)
    cache = _new_cache(model, canvas)
    canvas.forward(0, canvas.start, cache=cache, store=canvas.start)
    quota = _quotas(torch.tensor([block_length]), steps)[0]
    for k, begin, end in canvas.spans():
        for step in range(steps):
            masked = canvas.masked(begin, end)
            if not bool(masked.any()):
                break
            canvas.steps[:, k] += masked.any(-1)
            logits = canvas.forward(begin, end, cache=cache)
            tokens, confidence = straightforward_sampling(logits, model.mask_id, logits.dtype)
            confidence = torch.where(masked[:, begin:end], confidence, _BOTTOM)
            share = quota[step].expand(len(canvas))
            if tau is None:
                pick = _take_best(confidence, share)
            else:
                pick = torch.stack([_share_or_above(row, int(quota[step]), tau) for row in confidence])
            _commit(canvas.ids[:, begin:end], masked[:, begin:end], pick, tokens)
        canvas.forward(begin, end, cache=cache, store=end)
    return canvas.result()


def _share_or_above(confidence: Tensor, share: int, tau: float) -> Tensor:
    """One row of the dynamic rule."""
    above = confidence > tau
    if int(above.sum()) >= share:
        return above
    return torch.zeros_like(above).scatter(0, torch.topk(confidence, k=share).indices, value=True)


def straightforward_dream(model: Denoises, prompts: Tensor, gen_length: int, steps: int) -> Plain:
    """Dream's loop (arXiv:2508.15487) with `alg="entropy"`: times from 1 to 0.001, one number for all rows.

    Args:
        model: with full attention and aligned logits.
        prompts: int64 `[B, P]`.
        gen_length: slots, one block.
        steps: forwards.
    """
    canvas = _Canvas(model, prompts, gen_length, gen_length)
    times = torch.linspace(1, 1e-3, steps + 1)
    for step in range(steps):
        logits = canvas.forward(0, len(canvas.position))
        masked = canvas.masked(0, len(canvas.position))
        logits = logits[masked]
        law = logits.softmax(-1)
        logits[:, model.mask_id] = _BOTTOM
        tokens = logits.argmax(-1)
        entropy = (law * (law + 1e-10).log()).sum(-1)
        mean = int(masked.sum()) / len(canvas)
        number = int(mean * (1 - times[step + 1] / times[step])) if step < steps - 1 else int(mean)
        confidence = torch.full(masked.shape, _BOTTOM).masked_scatter(masked, entropy)
        proposal = torch.zeros_like(canvas.ids).masked_scatter(masked, tokens)
        canvas.steps[:, 0] += 1
        _commit(canvas.ids, masked, _take_best(confidence, torch.full((len(canvas),), number)), proposal)
    return canvas.result()


def straightforward_llada21(
    model: Denoises,
    prompts: Tensor,
    gen_length: int,
    block_length: int,
    tau: float,
    edit: float,
    post_steps: int = 16,
) -> Plain:
    """LLaDA2.1's loop with editing, without cache: everything up to the block's end is fed at every step.

    A mask is written above `tau` (the best one where none is), a written token is replaced above `edit`. The block ends
    after a step that began without masks and edited nothing, or after `post_steps` of those.

    Args:
        model: block-causal, its blocks those of the decode.
        prompts: int64 `[B, P]`, P a multiple of the block length.
        gen_length: slots.
        block_length: slots denoised together.
        tau: probability above which a mask is written.
        edit: probability above which a token is replaced.
        post_steps: steps without masks at most.
    """
    canvas = _Canvas(model, prompts, gen_length, block_length)
    for k, begin, end in canvas.spans():
        post = torch.zeros(len(canvas), dtype=torch.int64)
        running = torch.ones(len(canvas), dtype=torch.bool)
        while True:
            masked = canvas.masked(begin, end)[:, begin:end]
            full = ~masked.any(-1)
            post += full
            running &= post <= post_steps
            if not bool(running.any()):
                break
            canvas.steps[:, k] += running
            logits = canvas.forward(0, end)
            tokens, confidence = straightforward_sampling(logits, model.mask_id, logits.dtype)
            tokens, confidence = tokens[:, begin:end], confidence[:, begin:end]
            block = canvas.ids[:, begin:end]
            sure = torch.where(masked, confidence, _BOTTOM)
            new = torch.stack([_above_or_best(*row, tau) for row in zip(sure, masked, strict=True)])
            edits = ~masked & (tokens != block) & (confidence > edit)
            change = (new | edits) & running.unsqueeze(-1)
            block.copy_(torch.where(change, tokens, block))
            running &= ~(full & ~edits.any(-1))
    return canvas.result()


def _above_or_best(confidence: Tensor, masked: Tensor, tau: float) -> Tensor:
    """One row: masks above tau, or the best one."""
    above = (confidence > tau) & masked
    if not bool(above.any()) and bool(masked.any()):
        above[confidence.argmax()] = True
    return above
