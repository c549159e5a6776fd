"""The command `dare-eval`."""

import json
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from dare_eval.comparison import Comparison, compare
from dare_eval.presets import preset_names, preset_sheet
from dare_eval.protocol import Protocol
from dare_eval.record import UNDECIDED, Record, first_error, refuse_overwrite, write_text
from dare_eval.sandbox import SandboxError
from dare_eval.tasks import get_task, miniature
from dare_eval.tasks.benchmark import sheet, sheet_names
from dare_eval.tasks.registry import TASKS

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
    return " ".join(str(error).split()) if isinstance(error, (ValueError, OSError, SandboxError)) else None


@commands.command()
def run(
    task: Annotated[str, typer.Argument(help="A task's name (see `dare-eval tasks`) or package.module:Class.")],
    model: Annotated[str, typer.Option(help="Folder of the checkpoint or adapter, or a hub id.")],
    preset: Annotated[
        str | None,
        typer.Option("--protocol", help="A preset (see `dare-eval protocols`), changed by what follows [dare-core]."),
    ] = None,
    n: Annotated[int | None, typer.Option("--n", help="Number of problems (default: all, or 1000).")] = None,
    split: Annotated[str | None, typer.Option(help="train, validation or test (default).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the problems and the sampler (default: 0).")] = None,
    gen_length: Annotated[
        int | None, typer.Option(help="Positions to generate (default: what the task's answers need).")
    ] = None,
    block_length: Annotated[int | None, typer.Option(help="Positions denoised together (default: all).")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising forwards (default: one per position).")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Commit all above this confidence (tau, at most 1), instead of --steps.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(help="core, family, or a preset of dare-samplers with --set; instead of the above.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Argument of --sampler, key=value; may be repeated.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    template: Annotated[str | None, typer.Option(help="Text around the problem, with {prompt} in it.")] = None,
    chat: Annotated[bool | None, typer.Option("--chat/--no-chat", help="Use the chat template.")] = None,
    system: Annotated[str | None, typer.Option(help="System message, with --chat.")] = None,
    shots: Annotated[int | None, typer.Option(help="Solved problems shown before the question.")] = None,
    mode: Annotated[str | None, typer.Option(help="generate, or likelihood for multiple choice.")] = None,
    samples: Annotated[int | None, typer.Option(help="Completions per problem.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A completion ends before this text; may be repeated.")] = None,
    eos: Annotated[str | None, typer.Option(help="allow, or suppress end tokens.")] = None,
    options: Annotated[list[str] | None, typer.Option(help="Task option, key=value; may be repeated.")] = None,
    likelihood: Annotated[
        list[str] | None, typer.Option(help="Setting of likelihood mode, key=value; may be repeated.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with a benchmark's rows, in place of the hub; `miniature` for our few.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the score record here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing record.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder of finished rows: a stopped run goes on.")] = None,
    workers: Annotated[int | None, typer.Option(help="Evaluate with so many workers on Ray.")] = None,
    gpus: Annotated[float, typer.Option(help="Of each worker.")] = 0,
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster; else one is started.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows decoded together; does not change the score.")] = 256,
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, …")] = "float32",
) -> None:
    """Score a checkpoint on a task."""
    if out is not None:
        refuse_overwrite(out, force)
    chosen = _pairs("--options", options)
    data = miniature(task) if data == Path("miniature") else data
    given = {
        "n": n,
        "split": split,
        "seed": seed,
        "template": template,
        "chat": chat,
        "system": system,
        "shots": shots,
        "mode": mode,
        "samples": samples,
        "stop": stop,
        "eos": eos,
        "options": chosen or None,
        "likelihood": _pairs("--likelihood", likelihood) or None,
        "data": data,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    sizes = {"gen_length": gen_length, "block_length": block_length, "steps": steps, "threshold": threshold}
    sizes |= {"temperature": temperature}
    decode = _sampler(sizes, sampler, _pairs("--set", settings))
    changes |= {} if decode is None else {"sampler": decode}
    if preset is None and any(size is not None for size in sizes.values()):
        length = get_task(task, chosen, data=data).gen_length
        protocol = Protocol.model_validate({"task": task, "sampler": _plain(length, sizes), **changes})
    else:
        if preset is not None and decode is None and any(size is not None for size in sizes.values()):
            raise ValueError("`--protocol`: expected `--gen-length` with sizes of your own, got none")
        protocol = Protocol.preset(preset or "dare-core", task, **changes)
    progress = partial(_progress, protocol)
    if workers is None:
        record = _evaluate(model, protocol, batch_size, device, dtype, cache, progress)
    else:
        from dare_eval.runner import evaluate_on_ray  # noqa: PLC0415 - loads torch

        where: dict[str, Any] = {"workers": workers, "gpus": gpus, "address": address, "device": device, "dtype": dtype}
        with progress() as update:
            record = evaluate_on_ray(model, protocol, batch_size=batch_size, cache=cache, on_progress=update, **where)
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
    """List the tasks: generated ones with an example, benchmarks with where their data is."""
    console = Console()
    table = Table(*(Column(name, overflow="fold") for name in ("generated", "options", "example", "answer", "chance")))
    for kind in TASKS:
        task = kind()
        item = task.generate("train", 1, seed=0)[0]
        options = "\n".join(f"{key}={json.dumps(value)}" for key, value in task.options.items())
        table.add_row(task.name, options, item.prompt, item.answer, f"{task.chance:.2%}")
    console.print(table)
    table = Table(*(Column(name, overflow="fold") for name in ("benchmark", "what", "data", "prompts", "chance")))
    for name in sheet_names():
        known = sheet(name)
        prompts = ", ".join([*known.prompts, *(["likelihood"] if known.likelihood else [])])
        table.add_row(name, known.title, known.hub, prompts, f"{known.chance:.0%}")
    console.print(table)


@commands.command("protocols")
def list_protocols() -> None:
    """List the protocol presets and the tasks that each has settings for."""
    table = Table("protocol", "what", Column("tasks", overflow="fold"))
    for name in preset_names():
        known = preset_sheet(name)
        table.add_row(name, known.about, ", ".join([*known.tasks, *(["all others"] if known.others else [])]))
    Console().print(table)


@commands.command("report")
def report_records(
    records: Annotated[list[Path], typer.Argument(help="Score records.")],
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page here.")] = None,
    md: Annotated[Path | None, typer.Option(help="Write Markdown here (default: print it).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Show records side by side: accuracies with intervals, speed, lengths, failures, and what looks suspicious."""
    from dare_eval.report import html_report, markdown_report  # noqa: PLC0415 - only here

    for path in (html, md):
        if path is not None:
            refuse_overwrite(path, force)
    found = [(path.stem, Record.load(path)) for path in records]
    if html is not None:
        write_text(html, html_report(found), force=force)
    if md is not None:
        write_text(md, markdown_report(found), force=force)
    elif html is None:
        print(markdown_report(found))


@commands.command("opencompass")
def run_opencompass(
    targets: Annotated[list[str], typer.Argument(help="Configuration files, or names of tasks.")],
    model: Annotated[list[str] | None, typer.Option(help="For names of tasks: checkpoint; may be repeated.")] = None,
    data: Annotated[Path | None, typer.Option(help="For one task: folder with its rows.")] = None,
    mode: Annotated[str, typer.Option(help="For names of tasks: generate, or likelihood.")] = "generate",
    shots: Annotated[int, typer.Option(help="For names of tasks: demonstrations.")] = 0,
    gen_length: Annotated[int | None, typer.Option(help="For names of tasks: positions to generate.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="For names of tasks: use the chat template.")] = False,
    work_dir: Annotated[Path, typer.Option(help="Where OpenCompass writes.")] = Path("runs/opencompass"),
    save_config: Annotated[Path | None, typer.Option(help="Keep the configuration that names of tasks make.")] = None,
    python: Annotated[
        str | None, typer.Option(envvar="DARE_OPENCOMPASS_PYTHON", help="Interpreter of OpenCompass's environment.")
    ] = None,
) -> None:
    """Evaluate with OpenCompass, in its own environment if need be: it wants numpy 1, and this one may have numpy 2."""
    from dare_eval.bridges.commands import run_opencompass as start  # noqa: PLC0415 - only here

    fields = {"data": data, "mode": mode, "shots": shots, "gen_length": gen_length, "chat": chat}
    raise typer.Exit(start(targets, model or [], fields, work_dir, save_config, python))


@commands.command("lm-eval", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_lm_eval(context: typer.Context) -> None:
    """Start lm_eval with the model `dare` added; all options are lm_eval's."""
    from dare_eval.bridges.commands import run_lm_eval as start  # noqa: PLC0415 - only here

    raise typer.Exit(start(context.args))


def _pairs(name: str, pairs: Sequence[str] | None) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"`{name}`: expected key=value, got {pair!r}")
        try:
            chosen[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"`{name}`: cannot read the value of {pair!r}; quote it") from error
    return chosen


def _sampler(sizes: Mapping[str, float | None], name: str | None, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The sampler that was asked for by name or by sizes; None where nothing was said, or only a length is missing."""
    given = {key: value for key, value in sizes.items() if value is not None}
    if name is None:
        if settings:
            raise ValueError("`--set`: expected it with `--sampler NAME`, got no name")
        return None if "gen_length" not in given else _plain(int(given["gen_length"]), sizes)
    if wrong := {"steps", "threshold", "block_length"}.intersection(given) - (
        {"block_length"} if name == "core" else set()
    ):
        options = ", ".join(f"--{key.replace('_', '-')}" for key in sorted(wrong))
        raise ValueError(f"`{options}`: expected none beside --sampler {name}; give its arguments with --set key=value")
    if "gen_length" not in given:
        raise ValueError("`--sampler`: expected `--gen-length` with it, got none")
    if name in ("core", "family"):
        return {"kind": name, **given, **settings}
    warm = {"temperature": given.pop("temperature")} if "temperature" in given else {}
    return {"kind": "preset", "name": name, **given, "settings": {**warm, **settings}}


def _plain(length: int, sizes: Mapping[str, float | None]) -> dict[str, Any]:
    """LLaDA's sampler, or a threshold's."""
    steps, threshold = sizes["steps"], sizes["threshold"]
    block = length if sizes["block_length"] is None else sizes["block_length"]
    common = {"gen_length": length, "block_length": block, "temperature": sizes["temperature"] or 0.0}
    if threshold is None:
        return {"kind": "llada", "steps": length if steps is None else steps, **common}
    if steps is not None:
        raise ValueError("`--steps` and `--threshold` exclude each other; a threshold takes as many steps as it needs")
    return {"kind": "threshold", "tau": threshold, **common}


@contextmanager
def _progress(protocol: Protocol) -> Generator[Callable[[Any], None]]:
    """A bar that appears with the first finished batch, so that an error before it stands alone."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    shown = bar.add_task(protocol.task, total=protocol.n_problems * protocol.samples)

    def update(done: Any) -> None:
        bar.start()
        speed = f" {done.tokens / done.seconds:,.0f} tokens/s" if done.seconds else ""
        description = f"{protocol.task} {done.correct / done.done:.1%}{speed}"
        bar.update(shown, completed=done.done, description=description)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


def _evaluate(
    model: str,
    protocol: Protocol,
    batch_size: int,
    device: str,
    dtype: str,
    cache: Path | None,
    progress: Callable[[], AbstractContextManager[Callable[[Any], None]]],
) -> Record:
    protocol.sampler.config()  # complain before the checkpoint is read
    from dare_eval.runner import evaluate  # noqa: PLC0415 - loads torch
    from dare_models import load  # noqa: PLC0415 - loads torch

    lm = load(model, device=device, dtype=dtype)
    with progress() as update:
        return evaluate(lm, protocol, batch_size=batch_size, cache=cache, on_progress=update)


def _print_record(record: Record, out: Path | None) -> None:
    low, high = record.interval
    table = Table(show_header=False)
    samples, rows = record.protocol.samples, len(record.rows)
    table.add_row("accuracy", f"{record.score:.1%}  [{low:.1%}, {high:.1%}]  ({record.correct} of {rows})")
    if samples > 1:
        table.add_row(f"pass@{samples}, maj@{samples}", f"{record.pass_at(samples):.1%}, {record.majority():.1%}")
    table.add_row("chance", f"{record.chance:.2%}")
    if record.protocol.mode == "generate":
        table.add_row("unparsable", f"{record.unparsable} of {rows}")
        table.add_row("no end token", f"{record.truncated} of {rows}")
        table.add_row(
            "tokens", f"{record.tokens / rows:.1f} per completion, {record.tokens_per_forward:.2f} per forward"
        )
    else:
        close = sum(row.margin is not None and row.margin < UNDECIDED for row in record.rows)
        table.add_row("undecided", f"{close} of {rows} lead by less than {UNDECIDED:g} standard errors")
    if dropped := sum(row.dropped > 0 for row in record.rows):
        table.add_row("shots dropped", f"in {dropped} of {rows} prompts")
    table.add_row("forwards", f"{sum(row.nfe for row in record.rows) / rows:.1f} per completion")
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
        f" {result.n} problems; {result.test} p = {result.p_value:.3g}: {result.conclusion}.",
        markup=False,
    )
    low, high = result.bootstrap
    console.print(f"bootstrap over problems: [{low:+.1%}, {high:+.1%}].", markup=False)
    for note in result.notes:
        console.print(f"also differs: {note}" if not note.startswith("checkpoint") else note, markup=False)


if __name__ == "__main__":
    app()
