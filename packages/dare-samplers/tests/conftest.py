import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from dare_samplers import Slots
from dare_samplers.testing import ToyDenoiser

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("dare", deadline=None, derandomize=True, database=None, max_examples=25)
settings.load_profile("dare")
torch.set_num_threads(1)


@dataclass(frozen=True)
class Case:
    """A golden case: the reference's settings and results."""

    settings: Mapping[str, object]
    tensors: Mapping[str, Tensor]
    model: ToyDenoiser

    @property
    def prompts(self) -> list[list[int]]:
        prompt = self.tensors["prompt"]
        real = self.tensors.get("attention_mask", torch.ones_like(prompt)).bool()
        return [row[keep].tolist() for row, keep in zip(prompt, real, strict=True)]


def read(name: str) -> Case:
    data = json.loads((GOLDEN / f"{name}.json").read_text())
    weights = torch.load(GOLDEN / "toy.pt", weights_only=True)
    settings, tensors = data["settings"], data["tensors"]
    model = ToyDenoiser(
        **weights,
        mask_id=data["mask_token_id"],
        eos_ids=(tensors.get("stop_id", data["pad_token_id"]),),
        pad_id=data["pad_token_id"],
        scale=data["model"]["kernel_scale"],
        logit_bias={int(token): value for token, value in data["model"]["logit_bias"].items()},
        block_length=settings["block_length"] if data["model"]["attention"] == "block-causal" else None,
        logit_offset=data["model"].get("logit_offset", 0),
        dtype=getattr(torch, data["model"]["output_dtype"]),
    )
    return Case(settings, {name: torch.tensor(value) for name, value in tensors.items()}, model)


@pytest.fixture
def golden() -> Callable[[str], Case]:
    return read


@pytest.fixture
def golden_path() -> Path:
    return GOLDEN


def slots_of(
    open: Tensor,
    *,
    step: int = 0,
    key: int = 0,
    steps: int | None = None,
    committed: Tensor | None = None,
    tokens: Tensor | None = None,
    mask_id: int = -1,
    eos_ids: tuple[int, ...] = (),
    pad_id: int = 0,
) -> Slots:
    """One block of open, committed and filler slots; everything else follows from `step`."""
    rows, width = open.shape
    count = torch.full((rows,), step)
    return Slots(
        index=torch.arange(width).expand_as(open),
        open=open,
        committed=torch.zeros_like(open) if committed is None else committed,
        tokens=torch.full_like(open, mask_id, dtype=torch.int64) if tokens is None else tokens,
        left=torch.full_like(open, mask_id, dtype=torch.int64),
        key=torch.arange(rows) + key,
        step=count,
        block_step=count,
        clock=count,
        idle=torch.zeros_like(count),
        size=torch.full_like(count, width),
        steps=steps,
        total_steps=steps,
        mask_id=mask_id,
        eos_ids=eos_ids,
        pad_id=pad_id,
    )


@pytest.fixture(scope="session")
def slots() -> Callable[..., Slots]:
    """Builds `Slots` for parts that are tested alone."""
    return slots_of
