"""Under DeepSpeed ZeRO-3 a family loads into partitioned parameters and computes what it computes whole."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dare_models as dm
from dare_models import lora
from dare_models.testing import example

pytest.importorskip("deepspeed", reason="`nox -s zero3` brings deepspeed")
pytestmark = pytest.mark.zero3

WORLD = 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zero3")
    for family in dm.family_names():
        example(family, dtype="float32").save(folder / "models" / family)
    return folder


@pytest.fixture(scope="module")
def ranks(models: Path) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("ranks.py")), str(models)]
    logs = [models / f"log-{rank}.txt" for rank in range(WORLD)]
    running: list[subprocess.Popen[str]] = []
    try:
        for rank, log in enumerate(logs):
            with log.open("w") as out:
                running.append(
                    subprocess.Popen([*command, str(rank), str(WORLD), str(port)], stdout=out, stderr=out, text=True)
                )
        codes = [process.wait(timeout=900) for process in running]
    finally:
        for process in running:
            process.kill()
    assert codes == [0] * WORLD, "\n".join(log.read_text()[-3000:] for log in logs)
    return [json.loads((models / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]


def step(lm: dm.DiffusionLM, ranks_module: Any, canvases: list[int]) -> None:
    """One SGD step on the mean loss of some ranks."""
    trained = [parameter for parameter in lm.module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=ranks_module.LR)
    (sum(ranks_module.loss(lm, ranks_module.canvas(rank))[1] for rank in canvases) / len(canvases)).backward()
    optimiser.step()
    optimiser.zero_grad()


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def program() -> Any:
    """The module that the ranks run, for the same computations here."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("ranks", Path(__file__).with_name("ranks.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", dm.family_names())
def test_partitioned_is_whole(family: str, models: Path, ranks: list[dict[str, Any]], program: Any) -> None:
    lm = dm.load(models / "models" / family)
    fingerprint, whole = lm.fingerprint(), program.numbers(lm)
    logp = [program.loss(lm, program.canvas(rank))[0][0, 0].tolist() for rank in range(WORLD)]
    step(lm, program, [*range(WORLD)])
    moved = program.numbers(lm)["logits"]
    for rank, found in enumerate(results[family] for results in ranks):
        assert found["shapes"] == [[0]]  # nothing is whole between forwards
        assert (found["fingerprint"], found["verified"]) == (fingerprint, True)
        for name in ("logits", "cached", "soft"):
            close(found[name], whole[name])
        close(found["logp"], logp[rank])
        close(found["moved"], moved)
    assert float((torch.tensor(moved) - torch.tensor(whole["logits"])).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("cache", "expected `lm.version` to be set"),
        ("dtype", "expected dtype='float32', in which the DeepSpeed config partitions"),
        ("engine", "expected an engine"),
        ("fingerprint", "expected whole parameters for a fingerprint"),
        ("head", "expected whole parameters for `head_weight`"),
        ("save", "expected a model of its own"),
    ],
)
def test_what_needs_whole_parameters_says_so(what: str, words: str, models: Path, ranks: list[dict[str, Any]]) -> None:
    for family in dm.family_names():
        assert words in ranks[0][family]["refused"][what]
    assert not (models / "models" / "never").exists()


@pytest.mark.parametrize("family", dm.family_names())
def test_an_adapter_trains(family: str, models: Path, ranks: list[dict[str, Any]], program: Any) -> None:
    lm = dm.load(models / "models" / family)
    off = program.numbers(lm)["logits"]
    lora.attach(lm, rank=2)
    for _ in range(2):
        step(lm, program, [0])
    moved = program.numbers(lm)["logits"]
    for rank, found in enumerate(results[f"{family} lora"] for results in ranks):
        close(found["moved"], moved)
        close(found["off"], off)
        assert float((torch.tensor(moved) - torch.tensor(off)).abs().max()) > 1e-3
        assert "expected whole parameters to write the adapter" in found["refused"]
        again = dm.load(models / f"{family}-adapter-{rank}")
        close(program.numbers(again)["logits"], moved)


@pytest.mark.parametrize("family", dm.family_names())
def test_half_precision(family: str, models: Path, ranks: list[dict[str, Any]], program: Any) -> None:
    lm = dm.load(models / "models" / family, dtype="bfloat16")
    logits = program.numbers(lm)["logits"]
    for found in (results[f"{family} half"] for results in ranks):
        assert "expected dtype='bfloat16', in which the DeepSpeed config partitions" in found["refused"]
        assert (found["fingerprint"], found["verified"]) == (lm.fingerprint(), True)
        close(found["logits"], logits)
