"""Insertion, deletion and substitution of committed tokens: LLaDA2.2."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from dare_samplers.parts import Logits, Proposal, Revision, Slots
from dare_samplers.revisers.places import spread
from dare_samplers.revisers.splice import splice
from dare_samplers.revisers.token_edit import check_editing
from dare_samplers.selectors import rank

__all__ = ["Levenshtein"]

_BITS = 21  # of an id in the memory, which keeps three in one number


class _Past(NamedTuple):
    """What is remembered of the block.

    Attributes:
        introduced: bool `[b, N]`, masks that an insertion or the padding of the tail made; moves with the contents.
        shifted: bool `[b]`, whether a control token has been obeyed.
        post: int64 `[b]`, earlier rounds without an original mask.
        states: int64 `[b, N, T]`, 1 + the token at the begin of each step; 0 where none was.
        samples: int64 `[b, N, 2 T]`, 1 + the tokens that each step chose and, lest it change nothing, committed; or 0.
    """

    introduced: Tensor
    shifted: Tensor
    post: Tensor
    states: Tensor
    samples: Tensor


class _Round(NamedTuple):
    """What is written in a round, before the splice.

    Attributes:
        original: bool `[b, N]`, open slots that no edit made.
        post: int64 `[b]`, rounds without one, with this.
        last: bool `[b]`, the cleaning round: no control token, no mask left.
        written: bool `[b, N]`, slots that are committed or edited.
        tokens: int64 `[b, N]`, what is written.
        plain: int64 `[b, N]`, the best token that is no control token.
    """

    original: Tensor
    post: Tensor
    last: Tensor
    written: Tensor
    tokens: Tensor
    plain: Tensor


@dataclass(frozen=True)
class Levenshtein:
    """Edit committed tokens, and let two control tokens delete and insert (LLaDA2.2's Levenshtein editing).

    Per round of a block of n slots, with the masks that edits introduced kept apart from the original ones:

    - M2T: what the selector picks, topped up by score to 1 + (introduced masks) while original ones remain, so that one
      of these is resolved; else every mask. An original mask cannot take INSERT, which would leave it unresolved.
    - T2T: {i committed : x̂_i ≠ x_i and p(x̂_i) > tau}, as in `TokenEdit`.
    - A DELETE that is written drops the slot, an INSERT turns x_i into (M, x_i); the tail is cut or padded with masks.
      Tokens outside the slots, such as the end of the prompt in the first block, never move.

    The cleaning round writes no control token and fills every mask: it is the `max_post_steps`-th round without an
    original mask, and at the latest round n + max_post_steps + 1. If the block has been in this state before and
    control tokens had a part in it, the least probable change is made with a token never tried at that slot. A round
    that would change nothing commits its best slot without control tokens. Without control tokens this is `TokenEdit`.

    Args:
        delete_id: token that deletes.
        insert_id: token that inserts.
        tau: editing threshold on p of the raw logits.
        max_post_steps: most rounds in a block that begin without an original mask; 0 cleans up with the last of them.
    """

    delete_id: int
    insert_id: int
    tau: float
    max_post_steps: int = 16
    needs: ClassVar[tuple[str, ...]] = ("insert_delete",)
    sees: ClassVar[Literal["open", "block", "row"]] = "block"
    decides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse what is no threshold, no count or no pair of tokens."""
        check_editing(self.tau, self.max_post_steps)
        if self.delete_id == self.insert_id or min(self.delete_id, self.insert_id) < 0:
            raise ValueError(
                f"`delete_id`, `insert_id`: expected two token ids >= 0, got {self.delete_id} and {self.insert_id}; "
                "the tokenizer names them"
            )

    def width(self, slots_per_block: int) -> int:
        """Flags and counter, and one number per step that a block can take."""
        return 2 + slots_per_block + self.max_post_steps

    def revise(
        self, logits: Logits, proposal: Proposal, score: Tensor, slots: Slots, pick: Tensor, stored: Tensor
    ) -> Revision:
        """All fields; a slot that was open receives a token that is not its proposal by `write`.

        Raises:
            ValueError: for a vocabulary of 2^21 or more.
        """
        if logits.values.shape[-1] >= 1 << _BITS:
            raise ValueError(
                f"expected a vocabulary below {1 << _BITS} ids, got {logits.values.shape[-1]}; the memory of the block "
                "keeps 21 bits of each"
            )
        memory = slots.memory
        if memory is None:
            memory = slots.index.new_zeros(*slots.index.shape, self.width(slots.index.shape[-1]))
        past = _recall(memory, slots)
        now = self._round(logits, proposal, score, slots, pick, past)
        drop, insert = now.written & (now.tokens == self.delete_id), now.written & (now.tokens == self.insert_id)
        filled, source = splice(drop, insert, slots.open | slots.committed)
        kept = torch.where(now.written & ~insert, now.tokens, slots.tokens).gather(-1, source)
        unresolved = (slots.open & (~now.written | insert)).gather(-1, source)
        masked = (slots.open | slots.committed) & (~filled | unresolved)
        moved = filled & ~masked & (source != torch.arange(source.shape[-1], device=source.device))
        write = moved | (filled & ~masked & (slots.open | (kept != slots.tokens)))
        idle = ~((write & (kept != slots.tokens)) | (masked & slots.committed)).any(-1, keepdim=True)
        rescue = idle & slots.open & (rank(score, slots.open) == 0)
        write, masked, kept = write | rescue, masked & ~rescue, torch.where(rescue, now.plain, kept)
        taken = write & ~moved & slots.open & (kept == proposal.tokens)
        introduced = masked & (~filled | past.introduced.gather(-1, source))
        return Revision(
            pick=taken,
            write=write & ~taken,
            tokens=kept,
            moved=moved,
            source=source,
            reopen=spread(masked & slots.committed, slots, stored.shape[-1]),
            hold=now.written.any(-1) & ~now.last,
            memory=_remember(memory, slots, now, rescue, introduced, past.shifted | (drop | insert).any(-1)),
        )

    def _round(
        self, logits: Logits, proposal: Proposal, score: Tensor, slots: Slots, pick: Tensor, past: _Past
    ) -> _Round:
        original = slots.open & ~past.introduced
        missing = original.sum(-1)
        post = past.post + (missing == 0).long()
        last = (post >= max(self.max_post_steps, 1)) | (slots.block_step >= slots.size + self.max_post_steps)
        need = torch.where((missing > 0) & ~last, 1 + slots.remaining - missing, slots.remaining)
        need = torch.maximum(need, pick.sum(-1)).unsqueeze(-1)
        take = slots.open & (rank(torch.where(pick, torch.inf, score), slots.open) < need)
        if self.max_post_steps == 0:
            last = last | ~(original & ~take).any(-1)
            take = slots.open & (take | last.unsqueeze(-1))
        plain = logits.without([slots.mask_id, self.delete_id, self.insert_id]).values.argmax(-1)
        tokens = self._allowed(logits, proposal.tokens, plain, original, last, slots.mask_id)
        chance = logits.logp(tokens).exp()
        written = take | (slots.committed & (tokens != slots.tokens) & (chance > self.tau))
        now = _Round(original, post, last, written, tokens, plain)
        return now._replace(tokens=self._renewed(logits, chance, slots, past, now))

    def _allowed(
        self, logits: Logits, tokens: Tensor, plain: Tensor, original: Tensor, last: Tensor, mask_id: int
    ) -> Tensor:
        """The proposals, with the next best where a control token or the mask may not be written."""
        masks, deletes, inserts = (tokens == one for one in (mask_id, self.delete_id, self.insert_id))
        delete = torch.full_like(tokens, self.delete_id)
        second = torch.where(logits.at(delete) > logits.at(plain), delete, plain)
        tokens = torch.where(masks | (inserts & original), second, tokens)
        return torch.where(last.unsqueeze(-1) & (masks | deletes | inserts), plain, tokens)

    def _renewed(self, logits: Logits, chance: Tensor, slots: Slots, past: _Past, now: _Round) -> Tensor:
        """`now.tokens`, with one never tried at the least probable change if the block goes round in circles."""
        active = slots.open | slots.committed
        same = (past.states == slots.tokens.unsqueeze(-1) + 1) | ~active.unsqueeze(-1)
        control = (now.tokens == self.delete_id) | (now.tokens == self.insert_id)
        mixed = past.shifted | (now.written & control).any(-1)
        stuck = same.all(1).any(-1) & mixed & ~now.last
        change = now.written & (now.tokens != slots.tokens)
        target = change & (rank(-chance, change) == 0) & stuck.unsqueeze(-1)
        column = target.int().argmax(-1, keepdim=True)
        values = logits.values.gather(1, column.unsqueeze(-1).expand(-1, -1, logits.values.shape[-1])).squeeze(1)
        tried = past.samples.gather(1, column.unsqueeze(-1).expand(-1, -1, past.samples.shape[-1])).squeeze(1) - 1
        barred = torch.where(now.original.gather(-1, column), self.insert_id, slots.mask_id)
        tried = torch.cat([tried, slots.tokens.gather(-1, column), barred], -1)
        values = values.scatter(-1, torch.where(tried < 0, slots.mask_id, tried), -torch.inf)
        best, token = values.max(-1, keepdim=True)
        return torch.where(target & (best > -torch.inf), token, now.tokens)


def _recall(memory: Tensor, slots: Slots) -> _Past:
    """Undo `_remember`."""
    flags, steps = memory[..., 0], memory[..., 1:]
    block = torch.where(slots.open | slots.committed, flags, 0).amax(-1)
    low = (1 << _BITS) - 1
    samples = torch.cat([(steps >> _BITS) & low, steps >> 2 * _BITS], -1)
    return _Past((flags & 1) > 0, (block & 2) > 0, block >> 2, steps & low, samples)


def _remember(memory: Tensor, slots: Slots, now: _Round, rescue: Tensor, introduced: Tensor, shifted: Tensor) -> Tensor:
    """Flags and counter first, then three ids per step in one number; filler keeps what it had."""
    flags = introduced.long() + (2 * shifted.long() + 4 * now.post).unsqueeze(-1)
    chosen, saved = torch.where(now.written, now.tokens + 1, 0), torch.where(rescue, now.plain + 1, 0)
    entry = slots.tokens + 1 + (chosen << _BITS) + (saved << 2 * _BITS)
    step = 1 + slots.block_step.clamp(max=memory.shape[-1] - 2)
    new = memory.scatter(-1, step[:, None, None].expand(*entry.shape, 1), entry.unsqueeze(-1))
    new = torch.cat([flags.unsqueeze(-1), new[..., 1:]], -1)
    return torch.where((slots.open | slots.committed).unsqueeze(-1), new, memory)
