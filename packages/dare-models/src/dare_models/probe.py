"""Logits on a fixed probe: what a saved model computed, to compare with what the loaded one does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dare_models import keyed
from dare_models.dtypes import dtype_name

if TYPE_CHECKING:
    from dare_models.lm import DiffusionLM

__all__ = ["ProbeError", "check_probe", "take_probe"]

ROWS, IDS = 8, 16
DIGITS = 6
TOLERANCE = {"float64": 1e-4, "float32": 1e-4}
"""Largest error of any row, in standard deviations of the recorded logits, where both dtypes are among these."""
SAME = 1e-5
"""Below this a record still holds, and is written again as it was read."""
HALF_TOLERANCE = 0.3
"""Largest median error of the rows where either side is half precision: there a row may route otherwise."""


class ProbeError(ValueError):
    """A loaded model does not compute what it computed when it was saved."""


def take_probe(lm: DiffusionLM) -> dict[str, Any]:
    """Return the logits of a fixed canvas as plain data: 8 positions times 16 ids, to six digits.

    The canvas reaches into a second block, holds masks and is made of the vocabulary's size alone, so that a change of
    any weight matrix, of the rotary angles, of the attention or of the shift shows. A record that the model was loaded
    with and still meets is returned as it is.

    Args:
        lm: the model; its training mode is left as it was.

    Raises:
        ProbeError: logits that are not finite.
    """
    length = min(max(24, (lm.block_length or 0) + 8), lm.spec.max_positions)
    probe: dict[str, Any] = {
        "ids": [_draw("id", i, lm.vocab_size) if i % 3 else lm.mask_id for i in range(length)],
        "rows": [i * (length - 1) // (ROWS - 1) for i in range(ROWS)],
        "columns": [_draw("column", i, lm.vocab_size) for i in range(IDS)],
        "block_length": lm.block_length,
        "mask_token_id": lm.mask_id,
        "dtype": dtype_name(lm.dtype),
    }
    logits = _logits(lm, probe)
    if not bool(logits.isfinite().all()):
        raise ProbeError("expected finite logits, got NaN or infinity; the weights are damaged, look before you save")
    known = lm.probe
    unchanged = known is not None and all(known.get(name) == value for name, value in probe.items())
    if known is not None and unchanged and float(_errors(logits, known).max()) <= SAME:
        return dict(known)
    values = [[float(f"{value:.{DIGITS - 1}e}") for value in row] for row in logits.tolist()]
    return {**probe, "logits": values}


def check_probe(lm: DiffusionLM, probe: Mapping[str, Any], *, chosen: Collection[str] = ()) -> None:
    """Compare the logits of the loaded model with those that were recorded when it was saved.

    Args:
        lm: the loaded model.
        probe: from `take_probe`.
        chosen: of "block_length" and "mask_token_id", those that were given at loading and may differ.

    Raises:
        ProbeError: they differ by more than the two dtypes explain, or the record is damaged.
    """
    for name, value in (("block_length", lm.block_length), ("mask_token_id", lm.mask_id)):
        if name not in chosen and probe.get(name) != value:
            raise ProbeError(
                f"`{name}`: expected {probe.get(name)!r}, with which the model was saved, got {value!r} from "
                f"config.json; pass load(…, {name}={value!r}) if that was meant"
            )
    try:
        dtypes = (str(probe["dtype"]), dtype_name(lm.dtype))
        errors = _errors(_logits(lm, probe), probe)
    except (KeyError, TypeError, IndexError, RuntimeError) as error:
        raise ProbeError(f"`probe`: expected rows, columns and logits, got a damaged record ({error!r})") from error
    exact = all(dtype in TOLERANCE for dtype in dtypes)
    error = float(errors.max() if exact else errors.median())
    allowed = max(TOLERANCE[dtype] for dtype in dtypes) if exact else HALF_TOLERANCE
    if not error <= allowed:
        worst = int(errors.nan_to_num(torch.inf).argmax())
        raise ProbeError(
            f"expected the logits that were recorded when the model was saved (in {dtypes[0]}), got others (in "
            f"{dtypes[1]}): off by {error:.2g} of their standard deviation, {allowed:.2g} allowed, most at position "
            f"{probe['rows'][worst]}; weights or config.json were changed, or this library computes something else. "
            "Copy the checkpoint again, or pass verify=False if the change was meant"
        )


def _errors(logits: Tensor, probe: Mapping[str, Any]) -> Tensor:
    """Largest error of each row of the logits, in standard deviations of the recorded ones."""
    expected = torch.tensor(probe["logits"], dtype=torch.float64)
    if expected.shape != logits.shape:
        raise TypeError(f"logits of shape {list(expected.shape)}")
    return (logits - expected).abs().amax(1) / max(float(expected.std()), 1e-12)


@torch.no_grad()
def _logits(lm: DiffusionLM, probe: Mapping[str, Any]) -> Tensor:
    """The probe's logits [rows, columns] in float64 on the CPU, by the block length they were recorded with."""
    ids = torch.tensor([probe["ids"]], device=lm.device)
    length = probe["block_length"]
    blocks = None if length is None else torch.arange(ids.shape[1], device=lm.device)[None] // length
    modes = {module: module.training for module in lm.module.modules()}
    lm.module.eval()
    try:
        logits = lm(ids, blocks=blocks, rows=torch.tensor([probe["rows"]], device=lm.device))
    finally:
        for module, mode in modes.items():
            module.training = mode
    return logits[0].index_select(1, torch.tensor(probe["columns"], device=lm.device)).double().cpu()


def _draw(purpose: str, index: int, below: int) -> int:
    return keyed.number(f"{purpose}/{index}") % below
