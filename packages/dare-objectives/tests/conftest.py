"""Golden cases and comparison, as fixtures."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dare_objectives as do

_GOLDEN = Path(__file__).parent / "golden"


def _load(name: str) -> dict:
    return json.loads((_GOLDEN / f"{name}.json").read_text())


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("golden")
    if marker is not None:
        name, prefix = marker.args
        cases = [case for case in _load(name)["cases"] if case["id"].startswith(prefix)]
        assert cases, f"no golden case in {name} starts with {prefix}"
        metafunc.parametrize("case", cases, ids=[case["id"] for case in cases])


@pytest.fixture(scope="session")
def worlds() -> list[dict]:
    """The two enumerable worlds."""
    return [_load("world_len4"), _load("world_len6")]


@pytest.fixture(scope="session")
def tensor():
    """A golden list as a tensor: float64, bool or int64; null becomes 0."""

    def convert(value) -> Tensor:
        numbers = _without_null(value)
        kind = torch.tensor(numbers)
        return torch.tensor(numbers, dtype=torch.float64) if kind.is_floating_point() else kind

    return convert


def _without_null(value):
    if isinstance(value, list):
        return [_without_null(part) for part in value]
    return 0.0 if value is None else value


@pytest.fixture(scope="session")
def check(tensor):
    """Compare with a golden number at its stated tolerance."""
    special = _load("tolerance")

    def compare(found: Tensor, expected, case_id: str = "") -> None:
        wanted = expected if isinstance(expected, Tensor) else tensor(expected).double()
        scale = max(1.0, float(wanted.abs().max())) if wanted.numel() else 1.0
        assert found.shape == wanted.shape
        assert float((found.detach() - wanted).abs().max()) <= special.get(case_id, 1e-9) * scale

    return compare


@pytest.fixture(scope="session")
def golden_toy():
    """The denoiser of the golden likelihoods, `net(ids, valid) -> logits`, full attention, right padding.

    m_i = sum_j K[j - i + R] * E[x_j] (elementwise), logits_i = tanh(Q_i + m_i) H + b, in float64.
    """
    weights = {name: value.double() for name, value in torch.load(_GOLDEN / "toy.pt", weights_only=True).items()}

    def net(ids: Tensor, valid: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1])
        kernel = weights["kernel"][place - place[:, None] + len(weights["position"])]
        seen = weights["embed"][ids] * valid[..., None]
        state = torch.tanh(weights["position"][: ids.shape[1]] + torch.einsum("ijd,njd->nid", kernel, seen))
        return state @ weights["head"] + weights["bias"]

    return net


@pytest.fixture(scope="session")
def make_batch():
    """A batch around maskable positions: everything up to the last maskable column is valid."""

    def build(
        maskable: Tensor, *, tokens: Tensor | None = None, mask_id: int = 9, seed: int = 0, group=None
    ) -> do.Batch:
        rows, width = maskable.shape
        column = torch.arange(width)
        last = torch.where(maskable, column, 1).amax(1)
        valid = column <= last[:, None]
        return do.Batch(
            tokens=(column + torch.arange(rows)[:, None]) % mask_id if tokens is None else tokens,
            valid=valid,
            maskable=maskable,
            blocks=torch.where(valid, column // 4, -1).to(torch.int32),
            keys=do.row_keys(seed, range(rows)),
            group=torch.arange(rows) // 3 if group is None else group,
            mask_id=mask_id,
        )

    return build


@pytest.fixture(scope="session")
def one_answer():
    """A batch of one answer without a prompt, `rows` times."""

    def build(answer: list[int], rows: int = 1, *, vocab: int = 5, seed: int = 0) -> do.Batch:
        tokens = torch.tensor(answer).expand(rows, -1).contiguous()
        yes = torch.ones_like(tokens, dtype=torch.bool)
        zero = torch.zeros(rows, dtype=torch.int64)
        blocks = torch.zeros_like(tokens, dtype=torch.int32)
        return do.Batch(tokens, yes, yes, blocks, do.row_keys(seed, range(rows)), zero, mask_id=vocab)

    return build
