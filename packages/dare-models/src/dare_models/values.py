"""The head of a critic, for objectives that learn a value per token (TraceRL, arXiv 2509.06949)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dare_models.scoring import Scores

__all__ = ["ValueHead"]


class ValueHead(nn.Module):
    """One number for each target, from the state that would score it; give it to `score` in place of a gather.

    `critic.score(…, gather=head).logp` are then values [B, K, S] at the targets, 0 elsewhere. It starts at zero.

    Args:
        hidden_size: width d of the states, as in `lm.hidden_size`.
        dtype: of the parameters; bfloat16 rounds values away.
        device: where it lives.

    >>> ValueHead(4)(torch.ones(2, 4), torch.ones(7, 4), torch.zeros(2, dtype=torch.int64)).logp.tolist()
    [0.0, 0.0]
    """

    def __init__(
        self, hidden_size: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        /,
        *,
        temperature: float = 1.0,
        support: Tensor | None = None,
        want: tuple[str, ...] = (),
    ) -> Scores:
        """Return the values of some states; what is not named below is without effect.

        Args:
            hidden: [N, d].
            weight: of the language-model head.
            labels: [N].
            temperature: of a law over tokens.
            support: of a law over tokens.
            want: must be empty: a value has no entropy.

        Returns:
            Scores whose `logp` are the values, [N].

        Raises:
            ValueError: several labels per row, or something wanted.
        """
        del weight, temperature, support
        if labels.ndim != 1 or want:
            raise ValueError(f"expected `labels` [N] and want=() for values, got {list(labels.shape)} and {want!r}")
        return Scores(hidden.to(self.weight.dtype) @ self.weight + self.bias)
