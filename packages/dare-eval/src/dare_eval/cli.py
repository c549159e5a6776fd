"""The command `dare-eval`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from dare_eval.comparison import Comparison, compare
from dare_eval.protocol import Protocol
from dare_eval.record import Record, first_error, refuse_overwrite
from dare_eval.sampling import LladaSampler, SamplerSettings, ThresholdSampler
from dare_eval.tasks import get_task, names

__all__ = ["app", "commands"]

commands = typer.Typer(
    name="dare-eval",
    help="Score diffusion language models, with intervals.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def app(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Bad input ends with exit code 2 and one line that says what to do."""
    try:
        code = commands(args=arguments, prog_name="dare-eval", standalone_mode=False)
    except typer.Abort:  # Ctrl-C
        sys.exit(130)
    except Exception as error:
        message = _one_line(error)
        if message is None:
            raise
        Console(stderr=True, soft_wrap=True).print(f"error: {message}", markup=False, highlight=False)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _one_line(error: Exception) -> str | None:
    """The message of an error that the user can mend; None for any other, whose traceback is wanted."""
    if isinstance(error, ValidationError):
        return first_error(error)
    format_message = getattr(error, "format_message", None)
    if callable(format_message):  # click's errors; typer has them from the click it brings or the one installed
        return f"{format_message()} See dare-eval --help."
    return " ".join(str(error).split()) if isinstance(error, (ValueError, OSError)) else None


@commands.command()
def run(
    task: Annotated[str, typer.Argument(help="A task's name (see `dare-eval tasks`) or package.module:Class.")],
    model: Annotated[Path, typer.Option(help="Folder of the checkpoint.")],
    n: Annotated[int, typer.Option("--n", help="Number of problems.")] = 1000,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    seed: Annotated[int, typer.Option(help="Of the problems and the sampler.")] = 0,
    gen_length: Annotated[
        int | None, typer.Option(help="Positions to generate (default: the task's longest answer).")
    ] = None,
    block_length: Annotated[int | None, typer.Option(help="Positions denoised together (default: all).")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising forwards (default: one per position).")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Commit all above this confidence (tau, at most 1), instead of --steps.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    template: Annotated[str, typer.Option(help="Text around the problem.")] = "{prompt}",
    chat: Annotated[bool, typer.Option("--chat", help="Use the chat template.")] = False,
    eos: Annotated[str, typer.Option(help="allow, or suppress end tokens.")] = "allow",
    options: Annotated[list[str] | None, typer.Option(help="Task option, key=value; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the score record here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing record.")] = False,
    batch_size: Annotated[int, typer.Option(help="Rows decoded together; does not change the score.")] = 256,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, …")] = "float32",
) -> None:
    """Score a checkpoint on a task."""
    if out is not None:
        refuse_overwrite(out, force)
    chosen = _options(options or [])
    length = get_task(task, chosen).max_answer_chars if gen_length is None else gen_length
    protocol = Protocol.model_validate(
        {
            "task": task,
            "options": chosen,
            "split": split,
            "n": n,
            "seed": seed,
            "template": template,
            "chat": chat,
            "eos": eos,
            "sampler": _sampler(length, block_length, steps, threshold, temperature),
        }
    )
    record = _evaluate(model, protocol, batch_size, device, dtype)
    if out is not None:
        record.save(out, force=force)
    _print_record(record, out)


@commands.command("compare")
def compare_records(
    a: Annotated[Path, typer.Argument(help="Score record of the baseline.")],
    b: Annotated[Path, typer.Argument(help="Score record to compare with it.")],
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.95,
    ignore: Annotated[list[str] | None, typer.Option(help="device, dtype or prompts: may differ.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two records of one protocol, problem by problem."""
    result = compare(Record.load(a), Record.load(b), level=level, ignore=ignore or [])
    if as_json:
        print(json.dumps(asdict(result) | {"conclusion": result.conclusion}, indent=1))
    else:
        _print_comparison(result, a, b)


@commands.command("tasks")
def list_tasks() -> None:
    """List the tasks with their options and chance levels."""
    table = Table(*(Column(name, overflow="fold") for name in ("task", "options", "example", "answer", "chance")))
    for name in names():
        task = get_task(name)
        item = task.generate("train", 1, seed=0)[0]
        options = "\n".join(f"{key}={json.dumps(value)}" for key, value in task.options.items())
        table.add_row(name, options, item.prompt, item.answer, f"{task.chance:.2%}")
    Console().print(table)


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"`--options`: expected key=value, got {pair!r}")
        try:
            chosen[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"`--options`: cannot read the value of {pair!r}; quote it") from error
    return chosen


def _sampler(
    length: int, block: int | None, steps: int | None, threshold: float | None, temperature: float
) -> SamplerSettings:
    block = length if block is None else block
    if threshold is None:
        steps = length if steps is None else steps
        return LladaSampler(gen_length=length, block_length=block, steps=steps, temperature=temperature)
    if steps is not None:
        raise ValueError("`--steps` and `--threshold` exclude each other; a threshold takes as many steps as it needs")
    return ThresholdSampler(gen_length=length, block_length=block, tau=threshold, temperature=temperature)


def _evaluate(model: Path, protocol: Protocol, batch_size: int, device: str, dtype: str) -> Record:
    protocol.sampler.config()  # complain before the checkpoint is read
    from dare_eval.runner import Progress as Done  # noqa: PLC0415 - loads torch
    from dare_eval.runner import evaluate  # noqa: PLC0415 - loads torch
    from dare_models import load  # noqa: PLC0415 - loads torch

    lm = load(model, device=device, dtype=dtype)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task(protocol.task, total=protocol.n)

        def update(done: Done) -> None:
            bar.update(shown, completed=done.done, description=f"{protocol.task} {done.correct / done.done:.1%}")

        return evaluate(lm, protocol, batch_size=batch_size, on_progress=update)


def _print_record(record: Record, out: Path | None) -> None:
    low, high = record.interval
    table = Table(show_header=False)
    table.add_row("accuracy", f"{record.score:.1%}  [{low:.1%}, {high:.1%}]  ({record.correct} of {record.n})")
    table.add_row("chance", f"{record.chance:.2%}")
    table.add_row("unparsable", f"{record.unparsable} of {record.n}")
    table.add_row("no end token", f"{record.truncated} of {record.n}")
    table.add_row("forwards", f"{sum(row.nfe for row in record.rows) / record.n:.1f} per completion")
    table.add_row("speed", f"{record.tokens_per_second:,.0f} tokens/s on {record.device}, {record.dtype}")
    table.add_row("protocol", record.protocol_hash[:12])
    table.add_row("checkpoint", record.checkpoint[:12])
    if out is not None:
        table.add_row("record", str(out))
    Console().print(table)


def _print_comparison(result: Comparison, a: Path, b: Path) -> None:
    low, high = result.interval
    table = Table("", "accuracy", "solved alone")
    table.add_row(f"a  {a}", f"{result.score_a:.1%}", str(result.only_a))
    table.add_row(f"b  {b}", f"{result.score_b:.1%}", str(result.only_b))
    console = Console()
    console.print(table)
    console.print(
        f"b − a: {result.difference:+.1%}  {result.level:.0%} interval [{low:+.1%}, {high:+.1%}], paired over"
        f" {result.n} problems; exact McNemar p = {result.p_value:.3g}: {result.conclusion}.",
        markup=False,
    )
    for note in result.notes:
        console.print(f"also differs: {note}" if not note.startswith("checkpoint") else note, markup=False)
