"""dInfer."""

from typing import Literal

from dare_samplers.caches import Dual, NoCache, Vicinity
from dare_samplers.config import SamplerConfig
from dare_samplers.guidance import Smoothing
from dare_samplers.presets.choices import one_of, proposer
from dare_samplers.revisers import RemaskBelow
from dare_samplers.rules import Credit
from dare_samplers.selectors import SegmentMax, Threshold

__all__ = ["dinfer"]


def dinfer(
    gen_length: int = 256,
    block_length: int = 32,
    kind: Literal["threshold", "credit", "hierarchy", "smoothing"] = "threshold",
    tau: float = 0.9,
    tau_low: float = 0.4,
    remask: float | None = None,
    vicinity: tuple[int, int, int] | None = (16, 16, 4),
    refresh: int | None = None,
    temperature: float = 0.0,
    *,
    compat: bool = False,
) -> SamplerConfig:
    """dInfer's decoders and caches for full-attention models (arXiv:2510.08666).

    Args:
        gen_length: response slots.
        block_length: slots denoised together.
        kind: `threshold`; `credit`, the same on logits that favour what has been most probable before; `hierarchy`, the
            best slot of every run of masks as well; or `smoothing`, soft mask embeddings and a threshold that falls
            from 1 by 0.02 per step (the model must offer `mix`).
        tau: commit everything above.
        tau_low: of `hierarchy`: commit a run's best above this.
        remask: of `hierarchy`: decide committed slots again whose proposal is less probable; 0.4 in dInfer.
        vicinity: columns before and behind the block that every step renews, and full forwards to begin with; None for
            the block alone, fully renewed after `refresh` steps; without a `refresh` only where a block begins.
        refresh: of the dual cache; not with `vicinity`. 1 for no approximation.
        temperature: of the proposal; 0 for the most probable token.
        compat: commit what comes within 1e-5 of the best slot together with it, as published.

    Raises:
        ValueError: for sizes that do not fit, an unknown kind, or settings that the kind does not have.

    >>> dinfer(kind="credit").rules, dinfer().cache
    ((Credit(alpha=0.7, gamma=0.2, beta=0.8),), Vicinity(before=16, after=16, warmup=4))
    """
    ties = 1e-5 if compat else None
    hierarchy = SegmentMax(tau, tau_low)
    selectors = {
        "threshold": Threshold(tau, ties=ties),
        "credit": Threshold(tau, ties=ties),
        "hierarchy": hierarchy,
        "smoothing": Threshold(tau, decay=0.02, ties=ties),
    }
    if remask is not None and kind != "hierarchy":
        raise ValueError(f'`remask`: expected None for kind={kind!r}, got {remask!r}; use kind="hierarchy"')
    if vicinity is not None and refresh is not None:
        raise ValueError(f"`refresh`: expected None with a vicinity, got {refresh}; pass vicinity=None")
    return SamplerConfig(
        gen_length=gen_length,
        block_length=block_length,
        proposer=proposer(temperature),
        selector=one_of("kind", kind, selectors),
        reviser=None if remask is None else RemaskBelow(remask, hierarchy),
        rules=(Credit(),) if kind == "credit" else (),
        smoothing=Smoothing() if kind == "smoothing" else None,
        cache=_cache(vicinity, refresh),
    )


def _cache(vicinity: tuple[int, int, int] | None, refresh: int | None) -> NoCache | Dual | Vicinity:
    if vicinity is not None:
        return Vicinity(*vicinity)
    return NoCache() if refresh == 1 else Dual(refresh)
