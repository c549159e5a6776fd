"""One rank of the ZeRO-3 test: load each family into partitioned parameters, look at them, decode, score, step.

python ranks.py FOLDER RANK WORLD PORT; writes FOLDER/rank-RANK.json.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(folder: Path, rank: int, world: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cpu",
    }
    import deepspeed
    from deepspeed import ops

    ops.__compatible_ops__["deepspeed_shm_comm"] = False  # nothing is compiled: plain gloo
    deepspeed.init_distributed(dist_backend="gloo")
    from transformers.integrations import HfDeepSpeedConfig

    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    config = HfDeepSpeedConfig(settings)  # as long as it lives, transformers partitions what it builds
    results = {path.name: look(path, settings) for path in sorted((folder / "models").iterdir())}
    (folder / f"rank-{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    del config


def look(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What became of one checkpoint."""
    import deepspeed
    import torch
    from deepspeed.utils import set_z3_leaf_modules

    from dare_models import load
    from dare_models.testing import dense_gather

    lm = load(path)
    parameters = list(lm.module.parameters())
    shapes = {tuple(parameter.shape) for parameter in parameters}
    with deepspeed.zero.GatheredParameters(parameters):
        fingerprint = lm.fingerprint()
    if lm.leaf_modules:
        set_z3_leaf_modules(lm.module, list(lm.leaf_modules))
    optimiser = torch.optim.AdamW(parameters, lr=0.01)
    engine, *_ = deepspeed.initialize(model=lm.module, optimizer=optimiser, config=settings)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        logits = lm(ids)[0, :, :4].tolist()
    lm.verify()
    valid, target = torch.ones_like(ids, dtype=torch.bool), (ids % 2 == 1)[:, None]
    scores = lm.score(
        ids[:, None].masked_fill(target, lm.mask_id), ids, target, ids[:, None], valid, None, gather=dense_gather
    )
    engine.backward(-scores.logp.sum())
    engine.step()
    with torch.no_grad():
        moved = lm(ids)[0, :, :4].tolist()
    found = {"shapes": sorted(map(list, shapes)), "fingerprint": fingerprint, "logits": logits, "moved": moved}
    engine.destroy()
    return found | {"logp": scores.logp[0, 0].tolist()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
