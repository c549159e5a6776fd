"""Records as Markdown."""

from collections.abc import Sequence

from dare_eval.record import Record
from dare_eval.report.flags import flags
from dare_eval.report.steps import step_picture
from dare_eval.report.summary import cells, headings, lengths, reasons, settings

__all__ = ["markdown_report"]

REASONS = 8


def markdown_report(records: Sequence[tuple[str, Record]]) -> str:
    """A table of records, then each one's suspicions, failures, lengths, settings and a step map.

    Args:
        records: names and records, in the order to show.

    Raises:
        ValueError: without records.
    """
    if not records:
        raise ValueError("expected at least one record, got none")
    lines = ["# Scores", "", _row(headings()), _row(["---"] * len(headings()))]
    lines += [_row(cells(name, record)) for name, record in records]
    for name, record in records:
        lines += ["", f"## {_escaped(name)}", ""]
        lines += [f"- **{flag.name}**: {_escaped(flag.detail)}" for flag in flags(record)] or ["- nothing suspicious"]
        sizes = lengths(record)
        lines += [
            "",
            (
                f"Lengths: mean {sizes.mean:.1f}, median {sizes.median}, longest {sizes.longest} tokens;"
                f" {sizes.ended:.0%} end by themselves, {sizes.empty:.0%} are empty."
            ),
            "",
        ]
        if found := reasons(record):
            lines += [_row(["failures", "count"]), _row(["---", "---"])]
            lines += [_row([reason, str(count)]) for reason, count in found[:REASONS]]
            lines.append("")
        pictured = next((row for row in record.rows if row.picture), None)
        if pictured is not None and pictured.picture is not None:
            lines += [f"Steps of problem {pictured.uid}:", "", "```text", step_picture(pictured.picture), "```", ""]
        lines += [_row(["setting", "value"]), _row(["---", "---"])]
        lines += [_row([key, value]) for key, value in settings(record)]
    return "\n".join(lines) + "\n"


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, values))} |"


def _escaped(text: str) -> str:
    """On one line, and without what Markdown reads as markup."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
