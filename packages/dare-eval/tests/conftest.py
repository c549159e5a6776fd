"""Shared by the tests: a tiny model, records made without one."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dare_eval import LladaSampler, Protocol, Record, Row, get_task

HERE = Path(__file__).parent

settings.register_profile("dare", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dare")


@pytest.fixture
def golden() -> Callable[[str], list[dict[str, Any]]]:
    """The rows of a golden file."""

    def read(name: str) -> list[dict[str, Any]]:
        lines = (HERE / "golden" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    return read


@pytest.fixture
def fuzz_count() -> Callable[[int], int]:
    """How many strange texts: a test's own number, or that of `nox -s fuzz`."""
    return lambda count: int(os.environ.get("DARE_FUZZ", count))


@pytest.fixture
def protocol() -> Callable[..., Protocol]:
    """A protocol of the sorting task, with changes."""

    def make(*, steps: int = 4, temperature: float = 0.0, **changes: Any) -> Protocol:
        sampler = LladaSampler(gen_length=8, block_length=4, steps=steps, temperature=temperature)
        return Protocol(**{"task": "sort", "n": 10, "sampler": sampler} | changes)

    return make


@pytest.fixture
def record() -> Callable[..., Record]:
    """A record whose rows are right (True), wrong (False) or unparsable (None)."""

    def make(protocol: Protocol, correct: list[bool | None], **changes: Any) -> Record:
        rows = [
            Row(
                uid=item.uid,
                correct=one,
                score=float(one or 0),
                status="unparsable" if one is None else "ok",
                reason="" if one else "why",
                pred=None,
                completion="x",
                tokens=3,
                nfe=4,
                truncated=False,
            )
            for item, one in zip(protocol.items(), correct, strict=True)
        ]
        facts = {"prompts": "p", "checkpoint": "c", "device": "cpu", "dtype": "float32", "batch_size": 4}
        facts |= {"versions": {"torch": "2"}}
        return Record.of(rows, **{"protocol": protocol, "forwards": 4, "seconds": 0.5} | facts | changes)

    return make


@pytest.fixture(scope="session")
def model() -> Any:
    """A random model over the alphabet of the sorting task."""
    import torch

    import dare_models

    torch.set_num_threads(1)
    return dare_models.tiny(tokenizer=dare_models.tiny_tokenizer(get_task("sort").alphabet))
