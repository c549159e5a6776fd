"""Where a completion begins and ends: the ids that a verifier may see."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["Visible", "visible"]


@dataclass(frozen=True)
class Visible:
    """The part of a completion that counts."""

    ids: list[int]
    truncated: bool
    """No end token was found: the completion stopped because the canvas was full."""


def visible(ids: Sequence[int], *, eos_ids: Collection[int], pad_id: int | None = None, mask_id: int) -> Visible:
    """The ids before the first end token, without padding at either side.

    Args:
        ids: one completion as generated.
        eos_ids: end tokens; only what precedes the first of them counts.
        pad_id: padding, dropped at both sides; may equal an end token (then it ends the text).
        mask_id: must not be left in the part that counts.

    Raises:
        ValueError: if a mask token is left, because an unfinished canvas is an error and no text.

    >>> visible([5, 7, 2, 9, 2], eos_ids=[2], mask_id=1)
    Visible(ids=[5, 7], truncated=False)
    """
    end = next((i for i, token in enumerate(ids) if token in eos_ids), len(ids))
    kept, stop = list(ids[:end]), end
    while stop and kept[stop - 1] == pad_id:
        stop -= 1
    start = next((i for i in range(stop) if kept[i] != pad_id), stop)
    if mask_id in kept:
        raise ValueError(
            f"expected a finished completion, got the mask id {mask_id} at position {kept.index(mask_id)};"
            " raise the number of steps or report the sampler"
        )
    return Visible(kept[start:stop], truncated=end == len(ids))
