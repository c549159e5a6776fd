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
from dare_models.testing import dense_gather, example

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
    running = [
        subprocess.Popen(
            [*command, str(rank), str(WORLD), str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=600)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * WORLD, "\n".join(out[-3000:] for out in outputs)
    return [json.loads((models / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("family", dm.family_names())
def test_partitioned_is_whole(family: str, models: Path, ranks: list[dict[str, Any]]) -> None:
    lm = dm.load(models / "models" / family)
    ids = torch.arange(8)[None]
    logits = lm(ids)[0, :, :4].detach()
    target = (ids % 2 == 1)[:, None]
    noisy = ids[:, None].masked_fill(target, lm.mask_id)
    valid = torch.ones_like(ids, dtype=torch.bool)
    scores = lm.score(noisy, ids, target, ids[:, None], valid, None, gather=dense_gather)
    for found in (rank[family] for rank in ranks):
        assert found["shapes"] == [[0]]  # nothing is whole between forwards
        assert found["fingerprint"] == lm.fingerprint()
        torch.testing.assert_close(torch.tensor(found["logits"]), logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.tensor(found["logp"]), scores.logp[0, 0].detach(), rtol=0, atol=1e-5)
        assert found["moved"] != found["logits"]
    assert ranks[0][family]["moved"] == ranks[1][family]["moved"]
