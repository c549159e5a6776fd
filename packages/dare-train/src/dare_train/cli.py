"""`dare-train`: train, sample and demonstrate from the command line."""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import torch
import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from dare_eval.sampling import SamplerSettings
from dare_models import load
from dare_samplers import SamplerConfig, generate

from .checkpoint import newest_model
from .config import load_config
from .demo import DemoResult
from .demo import demo as run_demo
from .errors import CheckpointError, ConfigError, TrainError
from .progress import ProgressView
from .run import Observer, run

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, add_completion=True, help="Post-train diffusion language models.")
P = ParamSpec("P")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """End with one line and the error's exit code instead of a traceback."""
    try:
        yield
    except TrainError as error:
        Console(stderr=True).print(f"dare-train: {error}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(error.exit_code) from error
    except OSError as error:
        Console(stderr=True).print(f"dare-train: {error}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(CheckpointError.exit_code) from error
    except KeyboardInterrupt:
        Console(stderr=True).print("dare-train: stopped at once; the last checkpoint is kept")
        raise typer.Exit(130) from None


def _command(function: Callable[P, None]) -> Callable[P, None]:
    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        with _one_line_errors():
            function(*args, **kwargs)

    return wrapped


Source = Annotated[str, typer.Argument(help="A YAML file or a shipped recipe, e.g. demo/sft.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings as a.b=value, e.g. run.name=first optim.lr=1e-4.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run of this name from its newest checkpoint.")]


@app.command()
@_command
def sft(config: Source, overrides: Overrides = None, resume: Resume = False) -> None:
    """Supervised fine-tuning on prompt–completion rows."""
    _train("sft", config, overrides, resume)


@app.command()
@_command
def rl(config: Source, overrides: Overrides = None, resume: Resume = False) -> None:
    """Reinforcement learning with verifiable rewards."""
    _train("rl", config, overrides, resume)


def _train(kind: str, source: str, overrides: list[str] | None, resume: bool) -> None:
    settings = load_config(source, overrides or (), kind=kind)
    console = Console()
    with ProgressView(settings.run.name, console) as view:
        result = run(settings, resume=resume, observer=view)
    console.print(f"finished; checkpoint: {result.checkpoint}", highlight=False, soft_wrap=True)


@app.command()
@_command
def sample(
    path: Annotated[Path, typer.Argument(help="A run, a checkpoint or a model folder.")],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="Text to complete; may be given several times.")],
    gen_length: Annotated[int | None, typer.Option(help="Response positions.")] = None,
    block_length: Annotated[int | None, typer.Option(help="Positions denoised together.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps over the whole response.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Complete prompts; the settings default to those that the run was trained with."""
    try:
        folder = newest_model(path)
        lm = load(folder)
        decode = _decode(folder, gen_length, block_length, steps, temperature)
        with torch.no_grad():
            out = generate(lm, [lm.encode(text) for text in prompt], decode, keys=seed)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    for text, ids, keep in zip(prompt, out.completions, out.completion_mask, strict=True):
        body = [i for i in ids[keep].tolist() if i not in lm.eos_ids]
        typer.echo(f"{text}{lm.decode(body)}")


def _decode(
    folder: Path, gen_length: int | None, block_length: int | None, steps: int | None, temperature: float
) -> SamplerConfig:
    """Decoding settings: those of the run that the checkpoint belongs to, changed by what was given."""
    settings = _run_decode(folder)
    given = {"gen_length": gen_length, "block_length": block_length, "steps": steps}
    settings |= {name: value for name, value in given.items() if value is not None}
    if "gen_length" not in settings:
        raise ConfigError("`--gen-length` is missing: the folder belongs to no run that would tell it")
    length = settings["gen_length"]
    settings = {"kind": "llada", "block_length": length} | settings | {"temperature": temperature}
    if settings["kind"] == "llada":
        settings.setdefault("steps", length)
    return TypeAdapter(SamplerSettings).validate_python(settings).config()


def _run_decode(folder: Path) -> dict[str, Any]:
    for parent in folder.resolve().parents[:2]:
        file = parent / "resolved.json"
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
            found = config.get("rollout", {}).get("decode") or config.get("validation", {}).get("decode")
            if found:
                return dict(found)
    return {}


@app.command()
@_command
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the demo; by default the next free runs/demo-N.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the model, the data and the sampling.")] = 0,
    n: Annotated[int, typer.Option(min=1, help="Test problems.")] = 2000,
    resume: Resume = False,
) -> None:
    """SFT, then RL, then evaluation of a tiny diffusion language model; a few minutes on two CPU cores."""
    console = Console()
    folder = out or _demo_folder(resume)
    with ExitStack() as open_views:

        def stage(name: str) -> Observer:
            open_views.close()
            return open_views.enter_context(ProgressView(name, console))

        result = run_demo(folder, seed=seed, n=n, resume=resume, stage=stage)
    _print_demo(console, result, folder)


def _demo_folder(resume: bool) -> Path:
    """The next free `runs/demo-N`, or the last one to resume."""
    number = 1
    while (taken := Path(f"runs/demo-{number}")).exists():
        number += 1
    return Path(f"runs/demo-{max(1, number - 1)}") if resume else taken


def _print_demo(console: Console, result: DemoResult, out: Path) -> None:
    notes = {
        "base": "random weights",
        "sft": "fine-tuned on a few demonstrations",
        "control": f"SFT continued, {result.control_sequences} gradient sequences, lr {result.control_lr:g}",
        "rl": f"RL from the same SFT, {result.rl_sequences} gradient sequences",
    }
    table = Table(title="Accuracy on held-out problems")
    for heading in ("model", "n", "accuracy", "95 % interval", "what it is"):
        table.add_column(heading, justify="right" if heading in ("n", "accuracy") else "left")
    for name, record in result.records.items():
        low, high = record.interval
        table.add_row(
            name, str(record.n), f"{record.score:.1%}", f"[{low:.1%}, {high:.1%}]".replace("[", r"\["), notes[name]
        )
    console.print(table)
    low, high = result.gain.interval
    console.print(
        f"RL minus control, paired: {result.gain.difference:+.1%}, 95 % interval ({low:+.1%}, {high:+.1%})",
        highlight=False,
    )
    console.print(
        f"Everything is in {out}; try: dare-train sample {out}/rl -p '49303973>'", highlight=False, soft_wrap=True
    )
