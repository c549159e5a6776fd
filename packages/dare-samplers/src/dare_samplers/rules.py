"""Logits rules: edits of the logits before proposing and scoring."""

from dataclasses import dataclass

from dare_samplers.parts import Logits, Slots

__all__ = ["Suppress"]


@dataclass(frozen=True)
class Suppress:
    """Never propose these token ids; probabilities are renormalised over the rest.

    Args:
        ids: token ids, for example the end tokens, to force answers of full length.
    """

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse an empty or negative list."""
        if not self.ids or min(self.ids) < 0:
            raise ValueError(
                f"`ids`: expected at least one token id >= 0, got {self.ids!r}; leave the rule out instead"
            )
        object.__setattr__(self, "ids", tuple(self.ids))

    def apply(self, logits: Logits, slots: Slots) -> Logits:
        """Logits with -inf at `ids`."""
        return logits.without(self.ids)
