"""One rank of the ZeRO-3 tests: load models into partitioned parameters, look at them, decode, score, step.

python ranks.py FOLDER RANK WORLD PORT; reads FOLDER/models, writes FOLDER/rank-RANK.json.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LR = 0.001


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

    results: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        # As long as it lives, transformers partitions what it builds.
        alive = HfDeepSpeedConfig(settings := settings_of(dtype))
        for path in sorted((folder / "models").iterdir()):
            if dtype == "float32":
                results[path.name] = look(path, settings, rank)
                results[f"{path.name} lora"] = adapt(path, settings, folder / f"{path.name}-adapter-{rank}")
            else:
                results[f"{path.name} half"] = half(path, settings)
        del alive
    (folder / f"rank-{rank}.json").write_text(json.dumps(results), encoding="utf-8")


def settings_of(dtype: str) -> dict[str, Any]:
    """Nothing is too small to be partitioned, nothing is clipped (DeepSpeed clips at 1 unless told)."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "bf16": {"enabled": dtype == "bfloat16"},
    }


def canvas(rank: int) -> Any:
    """Each rank's own ids [1, 8]."""
    import torch

    return (torch.arange(8) * (rank + 1) + rank)[None] % 12


def loss(lm: Any, ids: Any) -> tuple[Any, Any]:
    """Log-probabilities of the odd positions, masked, and minus their sum."""
    import torch

    from dare_models.testing import dense_gather

    valid, target = torch.ones_like(ids, dtype=torch.bool), (torch.arange(ids.shape[1])[None, None] % 2 == 1)
    noisy = ids[:, None].masked_fill(target, lm.mask_id)
    logp = lm.score(noisy, ids, target, ids[:, None], valid, None, gather=dense_gather).logp
    return logp, -logp.sum()


def cached(lm: Any) -> Any:
    """Logits [4, 4] of four tokens beside eight cached ones."""
    import torch

    ids, at, cache = canvas(0), torch.arange(12)[None], lm.new_cache(1, 12)
    lm(ids, write=torch.ones_like(ids, dtype=torch.bool), cache=cache)
    return lm(ids[:, 2:6], positions=at[:, 8:], cache=cache)[0, :, :4]


def numbers(lm: Any) -> dict[str, Any]:
    """What a model computes, as plain data."""
    import torch

    laws = torch.full((1, 1, lm.vocab_size), 1 / lm.vocab_size, dtype=lm.dtype)
    with torch.no_grad():
        logits = lm(canvas(0))[0, :, :4]
        return {
            "logits": logits.tolist(),
            "cached": cached(lm).tolist(),
            "soft": lm(canvas(0), added=lm.mix(laws.expand(1, 8, -1)))[0, :, :4].tolist(),
        }


def look(path: Path, settings: dict[str, Any], rank: int) -> dict[str, Any]:
    """One family, whole: what `load` left, what it computes, one step."""
    import deepspeed
    import torch
    from deepspeed.utils import set_z3_leaf_modules

    from dare_models import load

    lm = load(path)
    parameters = list(lm.module.parameters())
    found: dict[str, Any] = {"shapes": sorted({tuple(parameter.shape) for parameter in parameters})}
    refused = {
        "dtype": lambda: load(path, dtype="bfloat16"),
        "engine": lm.verify,
        "fingerprint": lm.fingerprint,
        "head": lambda: lm.head_weight,
        "save": lambda: lm.save(path.with_name("never")),
    }
    found["refused"] = {name: message(call) for name, call in refused.items()}
    with deepspeed.zero.GatheredParameters(parameters):
        found["fingerprint"] = lm.fingerprint()
    if lm.leaf_modules:
        set_z3_leaf_modules(lm.module, list(lm.leaf_modules))
    optimiser = torch.optim.SGD(parameters, lr=LR)
    engine, *_ = deepspeed.initialize(model=lm.module, optimizer=optimiser, config=settings)
    found["verified"] = lm.verify()
    found["refused"]["cache"] = message(lambda: lm.new_cache(1, 4))
    lm.version = 0
    found |= numbers(lm)
    logp, total = loss(lm, canvas(rank))
    engine.backward(total)
    engine.step()
    lm.version = 1
    found |= {"logp": logp[0, 0].tolist(), "moved": numbers(lm)["logits"]}
    engine.destroy()
    return found


def adapt(path: Path, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One family with an adapter: attach, step, write."""
    import deepspeed
    import torch
    from deepspeed.utils import set_z3_leaf_modules

    from dare_models import load, lora

    lm = load(path)
    with deepspeed.zero.GatheredParameters(list(lm.module.parameters())):
        lora.attach(lm, rank=2)
    if lm.leaf_modules:
        set_z3_leaf_modules(lm.module, list(lm.leaf_modules))
    trained = [parameter for parameter in lm.module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=LR)
    engine, *_ = deepspeed.initialize(model=lm.module, optimizer=optimiser, config=settings)
    for _ in range(2):
        engine.backward(loss(lm, canvas(0))[1])
        engine.step()
    with lora.disabled(lm), torch.no_grad():
        off = lm(canvas(0))[0, :, :4].tolist()
    lm.version = 2
    moved = numbers(lm)["logits"]
    refused = message(lambda: lora.save(lm, folder))
    with deepspeed.zero.GatheredParameters(trained):
        lora.save(lm, folder)
    engine.destroy()
    return {"moved": moved, "off": off, "refused": refused}


def half(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """One family in bfloat16."""
    import deepspeed

    from dare_models import load

    refused = message(lambda: load(path))
    lm = load(path, dtype="bfloat16")
    with deepspeed.zero.GatheredParameters(list(lm.module.parameters())):
        fingerprint = lm.fingerprint()
    engine, *_ = deepspeed.initialize(model=lm.module, config=settings)
    lm.version = 0
    verified, logits = lm.verify(), numbers(lm)["logits"]
    engine.destroy()
    return {"refused": refused, "fingerprint": fingerprint, "verified": verified, "logits": logits}


def message(call: Callable[[], object]) -> str:
    """How a call is refused."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
