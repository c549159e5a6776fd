"""The demo: a tiny diffusion language model learns a task by SFT, then by RL, and is evaluated with honest intervals.

Nothing here is scripted: the stages are ordinary runs of the recipes `demo/sft` and `demo/rl`, in folders that every
other command accepts.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_eval import Comparison, Record, compare, evaluate
from dare_eval.tasks import generated_task
from dare_models import load, tiny, tiny_tokenizer

from .config import RlConfig, SftConfig, TaskData, load_config
from .errors import ConfigError
from .run import Observer, Parts, RunResult, decode_protocol, run, validation_protocol
from .rundir import write_text

__all__ = ["DemoResult", "demo"]

_PROMPT_SEED = 1_000_000  # RL draws its prompts with seeds that no demonstration draw uses
_CONTROL_SEED = 2_000_000  # continued SFT goes on with masks and an order of its own
_TEST_SEED = 2026  # the test problems are the same for every demo seed

Stage = Callable[[str], Observer]
"""Opens the progress display of a named stage."""


@dataclass(frozen=True)
class DemoResult:
    """The demo's table."""

    records: dict[str, Record]
    """`base`, `sft`, `control` and `rl` on the same test problems."""
    gain: Comparison
    """RL minus control, paired on the problems."""
    control_lr: float
    """The control's learning rate, chosen on the validation split."""
    control_sequences: int
    """Gradient sequences of the control."""
    rl_sequences: int
    """Gradient sequences of RL, all streams counted."""


def demo(
    out: Path,
    *,
    seed: int = 0,
    n: int = 2000,
    resume: bool = False,
    stage: Stage | None = None,
    parts: Parts | None = None,
    sft_overrides: tuple[str, ...] = (),
    rl_overrides: tuple[str, ...] = (),
) -> DemoResult:
    """Make a model, train it both ways, and evaluate every stage.

    Args:
        out: folder of the demo; must be new unless `resume`.
        seed: of the model, the demonstrations, the prompts and all sampling.
        n: test problems.
        resume: continue an interrupted demo where it stopped.
        stage: opens a progress display per stage.
        parts: implementations behind the trainer's protocols.
        sft_overrides: dotted settings for the SFT recipe.
        rl_overrides: dotted settings for the RL recipe.

    Raises:
        ConfigError: where `out` exists and `resume` is off, or holds a demo with other settings.
    """
    _claim(out, {"seed": seed, "n": n, "sft": list(sft_overrides), "rl": list(rl_overrides)}, resume)
    runner = _Runner(out, seed, resume, parts, stage)
    sft_config = runner.sft("sft", out / "base", sft_overrides)
    rl_config = runner.rl(rl_overrides)
    _make_base(out / "base", sft_config, seed)
    sft = runner.run(sft_config)
    rl_config = rl_config.model_copy(update={"model": rl_config.model.model_copy(update={"path": str(sft.checkpoint)})})
    rl = runner.run(rl_config)
    rl_sequences = int(rl.metrics["opt/grad_sequences"])
    steps = math.ceil(rl_sequences / sft_config.batch)
    control, control_lr = _best_control(runner, sft, sft_config, rl_config, steps, sft_overrides)
    models = {"base": out / "base", "sft": sft.checkpoint, "control": control.checkpoint, "rl": rl.checkpoint}
    records = {name: _evaluate(out / "eval" / f"{name}.json", path, rl_config, n) for name, path in models.items()}
    result = DemoResult(
        records=records,
        gain=compare(records["control"], records["rl"]),
        control_lr=control_lr,
        control_sequences=steps * sft_config.batch,
        rl_sequences=rl_sequences,
    )
    write_text(out / "results.json", json.dumps(_summary(result, seed), indent=2) + "\n")
    return result


def _claim(out: Path, settings: dict[str, Any], resume: bool) -> None:
    """Start the demo's folder, or check that it is the one to resume."""
    file = out / "demo.json"
    if out.exists() and not resume:
        raise ConfigError(f"{str(out)!r} exists; add --resume to continue it, or choose another --out")
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before != settings:
            raise ConfigError(f"{str(out)!r} was started with {before}, not {settings}; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(settings) + "\n")


@dataclass(frozen=True)
class _Runner:
    out: Path
    seed: int
    resume: bool
    parts: Parts | None
    stage: Stage | None

    def sft(self, name: str, model: Path, overrides: tuple[str, ...]) -> SftConfig:
        common = (f"run.name={name}", f"run.dir={self.out}", f"run.seed={self.seed}", f"model.path={model}")
        config = load_config("demo/sft", (*common, f"data.seed={self.seed}", *overrides))
        assert isinstance(config, SftConfig)
        return config

    def rl(self, overrides: tuple[str, ...]) -> RlConfig:
        common = (f"run.dir={self.out}", f"run.seed={self.seed}", f"data.seed={self.seed + _PROMPT_SEED}")
        config = load_config("demo/rl", (*common, *overrides))
        assert isinstance(config, RlConfig)
        return config

    def run(self, config: SftConfig | RlConfig) -> RunResult:
        """A stage; one that was started is continued, and a finished one is only read back."""
        started = (config.run.dir / config.run.name / "resolved.json").exists()
        observer = self.stage(config.run.name) if self.stage else None
        return run(config, resume=started and self.resume, parts=self.parts, observer=observer)


def _make_base(folder: Path, config: SftConfig, seed: int) -> None:
    if folder.exists():
        return
    assert isinstance(config.data, TaskData)
    tokenizer = tiny_tokenizer(generated_task(config.data.task, config.data.options).alphabet)
    tiny("llada", tokenizer=tokenizer, seed=seed).save(folder)


def _best_control(
    runner: _Runner,
    sft: RunResult,
    sft_config: SftConfig,
    rl_config: RlConfig,
    steps: int,
    overrides: tuple[str, ...],
) -> tuple[RunResult, float]:
    """SFT continued for as many gradient sequences as RL used, at the better of two learning rates on validation."""
    best: tuple[float, RunResult, float] | None = None
    for lr in (rl_config.optim.lr, sft_config.optim.lr):
        seed = f"run.seed={runner.seed + _CONTROL_SEED}"
        changes = (*overrides, seed, f"run.steps={steps}", f"optim.lr={lr}")
        config = runner.sft(f"control-lr-{lr:g}", sft.checkpoint, changes)
        result = runner.run(config)
        score = evaluate(load(result.checkpoint), validation_protocol(config)).score
        if best is None or score > best[0]:
            best = (score, result, lr)
    assert best is not None
    return best[1], best[2]


def _evaluate(file: Path, model: Path, config: RlConfig, n: int) -> Record:
    assert isinstance(config.data, TaskData)
    greedy = config.rollout.decode.model_copy(update={"temperature": 0.0})
    if file.exists():
        return Record.load(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    record = evaluate(load(model), decode_protocol(config.data, greedy, split="test", n=n, seed=_TEST_SEED))
    record.save(file)
    return record


def _summary(result: DemoResult, seed: int) -> dict[str, Any]:
    rows = {name: {"n": r.n, "accuracy": r.score, "interval": list(r.interval)} for name, r in result.records.items()}
    return {
        "seed": seed,
        "rows": rows,
        "rl_minus_control": {"difference": result.gain.difference, "interval": list(result.gain.interval)},
        "control_lr": result.control_lr,
        "control_gradient_sequences": result.control_sequences,
        "rl_gradient_sequences": result.rl_sequences,
    }
