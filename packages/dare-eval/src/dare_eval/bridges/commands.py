"""The commands that start another harness."""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

from dare_eval.bridges.configuration import dataset, model
from dare_eval.record import write_text

__all__ = ["opencompass_config", "run_lm_eval", "run_opencompass"]


def run_opencompass(
    targets: Sequence[str],
    models: Sequence[str],
    fields: Mapping[str, Any],
    work_dir: Path,
    save_config: Path | None,
    python: str | None,
) -> int:
    """Start OpenCompass on configuration files, or on one made of names of tasks, and wait for it.

    Args:
        targets: files, or names of tasks.
        models: checkpoints, for names of tasks.
        fields: `data`, `mode`, `shots`, `gen_length` and `chat`, for names of tasks.
        work_dir: where it writes.
        save_config: keep the configuration here.
        python: interpreter of its environment; None takes this one.

    Returns:
        Its exit code.

    Raises:
        ValueError: for targets of both kinds, a missing model, or an environment without OpenCompass.
    """
    files = [target for target in targets if target.endswith(".py")]
    if files and (len(files) < len(targets) or models):
        raise ValueError("expected configuration files, or names of tasks with --model, got both")
    if not files and not models:
        raise ValueError("`--model`: expected the checkpoint to evaluate on these tasks, got none")
    interpreter = python or sys.executable
    _expect(interpreter)
    with tempfile.TemporaryDirectory() as folder:
        if not files:
            path = Path(folder, "dare_config.py") if save_config is None else save_config
            write_text(path, opencompass_config(targets, models, fields))
            files = [str(path)]
        codes = [_opencompass(interpreter, file, work_dir) for file in files]
    return max(codes)


def opencompass_config(tasks: Sequence[str], models: Sequence[str], fields: Mapping[str, Any]) -> str:
    """A configuration for some tasks and models.

    Args:
        tasks: names of tasks.
        models: checkpoints.
        fields: `data`, `mode`, `shots`, `gen_length` and `chat`.

    Raises:
        ValueError: for an unknown task, or data for several.
    """
    data = fields.get("data")
    if data is not None and len(tasks) > 1:
        raise ValueError(f"`--data`: expected it for one task, got {len(tasks)}; start them one by one")
    sampler = {"kind": "core"} | ({} if fields.get("gen_length") is None else {"gen_length": fields["gen_length"]})
    given = {"mode": fields.get("mode", "generate"), "shots": fields.get("shots", 0)}
    given |= {} if data is None else {"data": str(Path(data).resolve())}
    found = [str(Path(path).resolve()) if Path(path).exists() else path for path in models]
    entries = {
        "models": [model(path, sampler=sampler, chat=bool(fields.get("chat"))) for path in found],
        "datasets": [dataset(task, **given) for task in tasks],
    }
    return (
        "\n".join(f"{name} = {pformat(value, width=118, sort_dicts=False)}" for name, value in entries.items()) + "\n"
    )


def run_lm_eval(arguments: Sequence[str]) -> int:
    """Start lm-evaluation-harness in this process's environment, with the model `dare` added.

    Args:
        arguments: its own.

    Returns:
        Its exit code.

    Raises:
        ValueError: where it is not installed.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError("expected lm-evaluation-harness in this environment, got none; install dare-eval[lm-eval]")
    start = "import dare_eval.bridges.lm_eval; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    return subprocess.run([sys.executable, "-c", start, *arguments], check=False).returncode  # noqa: S603 - our own line


def _opencompass(interpreter: str, file: str, work_dir: Path) -> int:
    """One configuration, with a process per task, as OpenCompass does by itself."""
    work_dir.mkdir(parents=True, exist_ok=True)  # it also leaves files in the folder where it is started
    command = [interpreter, "-m", "opencompass.cli.main", str(Path(file).resolve()), "-w", str(work_dir.resolve())]
    return subprocess.run(command, cwd=work_dir, check=False).returncode  # noqa: S603 - as asked


def _expect(interpreter: str) -> None:
    """Complain before anything is started.

    Raises:
        ValueError: for an interpreter that has no OpenCompass or no dare-eval.
    """
    look = "from importlib.util import find_spec as f; print([n for n in ('opencompass', 'dare_eval') if f(n) is None])"
    try:
        command = [interpreter, "-c", look]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603 - as asked
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"`--python`: cannot start {interpreter!r}: {error}") from error
    if done.returncode or done.stdout.strip() != "[]":
        raise ValueError(
            f"expected opencompass and dare_eval with {interpreter}, got none of {done.stdout.strip() or done.stderr};"
            " make an environment with `pip install 'dare-eval[opencompass]'` and name its interpreter by --python"
        )
