"""Remasking diffusion: ReMDM."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from dare_samplers.parts import Logits, Proposal, Revision, Slots
from dare_samplers.revisers.places import spread

if TYPE_CHECKING:
    from dare_samplers.config import SamplerConfig

__all__ = ["ReMDM"]

Kind = Literal["cap", "rescale", "conf", "loop", "fb"]

_REMASK = 1  # word of the draws that decide on re-masking; those that commit have none


class _Law(NamedTuple):
    """One step from t to s: alpha at both ends and sigma, `[b]`."""

    alpha_t: Tensor
    alpha_s: Tensor
    sigma: Tensor


@dataclass(frozen=True)
class ReMDM:
    """Committed tokens fall back to masks with probability sigma (ReMDM, arXiv:2503.00307).

    From t to s < t, with alpha = 1 - t: a committed slot is masked w.p. σ; an open one is committed w.p.
    (α_s - (1 - σ) α_t) / (1 - α_t), which keeps the marginals of MDLM. With σ_max = min(1, (1 - α_s) / α_t):

    - "cap": σ = min(eta, σ_max)
    - "rescale": σ = eta σ_max
    - "conf": σ_i = eta σ_max softmax(-p)_i over the committed slots, p their score at commit; 0 at open slots
    - "fb": σ = (α_s - α_t) / α_t, at most σ_max: forward-backward steps
    - "loop": MDLM up to `alpha` for t > t_on, a plateau of constant alpha with σ = min(eta, σ_max) down to t_off, and
      MDLM from there

    σ = 0 outside t_off < t <= t_on and in the last step, which commits everything. eta = 0 is MDLM. Time runs over the
    steps of the block: t = 1 - clock / steps. Draws are keyed per slot; the selector has no say.

    Args:
        kind: how sigma is made.
        eta: in [0, 1]; not used by "fb".
        t_on: time at which re-masking begins; 1 is the start.
        t_off: time at which it ends; 0 is the end.
        alpha: of the plateau, for "loop" only.

    >>> ReMDM("loop", eta=0.02, t_on=0.55, t_off=0.05, alpha=0.9).kind
    'loop'
    """

    kind: Kind = "cap"
    eta: float = 0.02
    t_on: float = 1.0
    t_off: float = 0.0
    alpha: float = 0.9
    sees: ClassVar[Literal["open", "block", "row"]] = "block"
    decides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse an unknown kind and numbers out of range."""
        if self.kind not in get_args(Kind):
            raise ValueError(f"`kind`: expected one of {get_args(Kind)}, got {self.kind!r}; eta=0 is plain MDLM")
        if not 0 <= self.eta <= 1:
            raise ValueError(f"`eta`: expected a number in [0, 1], got {self.eta!r}; 0.02 is a published value")
        if not 0 <= self.t_off <= self.t_on <= 1:
            raise ValueError(
                f"`t_on`, `t_off`: expected 0 <= t_off <= t_on <= 1, got {self.t_on!r} and {self.t_off!r}; time runs "
                "from 1 to 0"
            )
        if self.kind == "loop" and not (0 < self.t_off < self.t_on < 1 and 0 < self.alpha < 1):
            raise ValueError(
                f"`t_on`, `t_off`, `alpha`: expected 0 < t_off < t_on < 1 and 0 < alpha < 1 for the loop, got "
                f"{self.t_on!r}, {self.t_off!r} and {self.alpha!r}; 0.55, 0.05 and 0.9 are published values"
            )

    def check(self, config: "SamplerConfig") -> None:
        """Refuse a config without steps."""
        _given(config.steps)

    def revise(
        self, logits: Logits, proposal: Proposal, score: Tensor, slots: Slots, pick: Tensor, stored: Tensor
    ) -> Revision:
        """`pick`, `reopen` and `hold`.

        Raises:
            ValueError: without a number of steps.
        """
        steps, dtype = _given(slots.steps), logits.values.dtype
        last = slots.clock >= steps - 1
        law = self._law(slots.clock.to(dtype), steps)
        law = law._replace(sigma=torch.where(last, 0.0, law.sigma))
        take = (slots.uniform("order", dtype) < self._commits(law)) | last.unsqueeze(-1)
        drop = slots.uniform("order", dtype, _REMASK) < self._remasks(law, slots, stored)
        return Revision(
            pick=slots.open & take,
            reopen=spread(slots.committed & drop, slots, stored.shape[-1]),
            hold=~last,
        )

    def _law(self, clock: Tensor, steps: int) -> _Law:
        t, s = 1 - clock / steps, 1 - (clock + 1) / steps
        alpha_t, alpha_s = self._alpha(t), self._alpha(s)
        most = ((1 - alpha_s) / alpha_t).nan_to_num(nan=1.0, posinf=1.0).clamp(0, 1)
        if self.kind == "fb":
            sigma = torch.minimum((alpha_s - alpha_t) / alpha_t, most)
        elif self.kind in {"cap", "loop"}:
            sigma = most.clamp(max=self.eta)
        else:
            sigma = self.eta * most
        return _Law(alpha_t, alpha_s, torch.where((t > self.t_off) & (t <= self.t_on), sigma, 0.0))

    def _alpha(self, t: Tensor) -> Tensor:
        """1 - t, or the loop's rise, plateau and rise."""
        if self.kind != "loop":
            return 1 - t
        rise = ((1 - t) * self.alpha / (1 - self.t_on)).clamp(max=self.alpha)
        return torch.where(t > self.t_off, rise, 1 - t * (1 - self.alpha) / self.t_off)

    def _commits(self, law: _Law) -> Tensor:
        """Probability `[b, 1]` that an open slot is committed."""
        sigma = torch.zeros_like(law.sigma) if self.kind == "conf" else law.sigma
        return ((law.alpha_s - (1 - sigma) * law.alpha_t) / (1 - law.alpha_t)).unsqueeze(-1)

    def _remasks(self, law: _Law, slots: Slots, stored: Tensor) -> Tensor:
        """Probability `[b, 1]` or `[b, N]` that a committed slot is masked."""
        sigma = law.sigma.unsqueeze(-1)
        if self.kind != "conf":
            return sigma
        held = stored.gather(-1, slots.index.clamp(0, stored.shape[-1] - 1)).to(sigma.dtype)
        weight = torch.where(slots.committed, -held.nan_to_num(nan=1.0), -torch.inf).softmax(-1)
        return sigma * weight.nan_to_num(nan=0.0)


def _given(steps: int | None) -> int:
    if steps is None:
        raise ValueError("`steps`: expected a number for ReMDM, got None; its time runs over the steps of a block")
    return steps
