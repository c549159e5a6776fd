"""Records as one HTML page that needs nothing but itself."""

from collections.abc import Sequence
from html import escape
from typing import Final

from dare_eval.record import Record, Row
from dare_eval.report.charts import Point, bars, histogram, intervals, scatter
from dare_eval.report.flags import flags
from dare_eval.report.summary import cells, examples, headings, lengths, reasons, settings

__all__ = ["html_report"]

REASONS: Final = 10
TEXT: Final = 2_000
"""Characters of a completion that are shown."""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_STYLE: Final = """
:root { color-scheme: light dark; --bg: #fdfdfb; --fg: #1f2428; --soft: #667; --line: #d9dbe0; --card: #f3f4f2;
  --warn: #9a5b00; --a: #2b6cb0; --late: 220 70% 50%; }
@media (prefers-color-scheme: dark) { :root { --bg: #16181c; --fg: #e6e6e3; --soft: #9aa0a8; --line: #33373d;
  --card: #1e2126; --warn: #f0b45b; --a: #7db3ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 2rem 1.25rem 4rem; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 1rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: .95rem; margin: 1.5rem 0 .4rem; color: var(--soft); font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.scores td { white-space: nowrap; }
td.set { overflow-wrap: anywhere; }
svg { width: 100%; max-width: 760px; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--fg); }
svg .tick { fill: var(--soft); text-anchor: middle; } svg .end, svg .label { text-anchor: end; }
svg .grid { stroke: var(--line); } svg .chance { stroke: var(--warn); stroke-dasharray: 4 4; }
svg .whisker { stroke-width: 2.5; stroke-linecap: round; opacity: .55; }
.k0 { --k: #2b6cb0; } .k1 { --k: #c2571a; } .k2 { --k: #2f855a; } .k3 { --k: #97266d; } .k4 { --k: #b7791f; }
.k5 { --k: #285e61; } .k6 { --k: #6b46c1; } .k7 { --k: #9b2c2c; }
svg circle, svg rect { fill: var(--k); } svg .whisker { stroke: var(--k); }
.flag { border-left: 4px solid var(--warn); background: var(--card); padding: .5rem .9rem; margin: .5rem 0; }
.fine { color: var(--soft); }
pre { background: var(--card); padding: .6rem .8rem; margin: .3rem 0 .8rem; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 12.5px/1.5 ui-monospace, monospace; max-height: 20rem; overflow-y: auto; }
.steps span { background: hsl(215 75% 55% / calc(.06 + .6 * var(--t))); border-radius: 2px; }
.steps .never { opacity: .4; text-decoration: line-through; }
details summary { cursor: pointer; color: var(--a); margin: .4rem 0; }
"""


def html_report(records: Sequence[tuple[str, Record]]) -> str:
    """A page with plots, suspicions, failures, lengths, completions and their step maps.

    It holds no scripts and asks for nothing: it can be mailed, archived, and opened offline.

    Args:
        records: names and records, in the order to show.

    Raises:
        ValueError: without records.
    """
    if not records:
        raise ValueError("expected at least one record, got none")
    tasks = list(dict.fromkeys(record.protocol.task for _, record in records))
    plots = "".join(_plots(task, [(n, r) for n, r in records if r.protocol.task == task]) for task in tasks)
    sections = "".join(_section(name, record) for name, record in records)
    table = _table(headings(), [cells(name, record) for name, record in records], kind="scores")
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Scores</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head><body><h1>Scores</h1>'
        f'<div class="wide">{table}</div>{plots}{sections}</body></html>\n'
    )
    return page.encode("utf-8", "replace").decode()  # no lone surrogates


def _plots(task: str, records: Sequence[tuple[str, Record]]) -> str:
    points = [
        Point(name, sum(row.nfe for row in r.rows) / len(r.rows), r.interval[0], r.score, r.interval[1])
        for name, r in records
    ]
    chance = records[0][1].chance
    hashes = {record.protocol_hash for _, record in records}
    note = "" if len(hashes) == 1 else '<p class="flag">Scored under unlike protocols: these are not comparable.</p>'
    return (
        f"<h2>{escape(task)}</h2>{note}"
        f"<h3>accuracy, {records[0][1].level:.0%} intervals</h3>{intervals(points, chance)}"
        f"<h3>accuracy against forwards per completion</h3>{scatter(points, 'forwards per completion')}"
    )


def _section(name: str, record: Record) -> str:
    found = flags(record)
    suspicions = "".join(
        f'<div class="flag"><b>{escape(flag.name)}</b>: {escape(flag.detail)}'
        f"{_fold('completions', ''.join(map(_completion, flag.rows))) if flag.rows else ''}</div>"
        for flag in found
    )
    sizes, faults = lengths(record), reasons(record)[:REASONS]
    failures = f"<h3>failures by reason</h3>{bars(faults)}" if faults else ""
    return (
        f"<h2>{escape(name)}: {record.score:.1%}</h2>"
        f"{suspicions or '<p class=fine>None of the checks objects.</p>'}{failures}"
        f"<h3>lengths in tokens: mean {sizes.mean:.1f}, median {sizes.median}, longest {sizes.longest};"
        f" {sizes.ended:.0%} end by themselves, {sizes.empty:.0%} are empty</h3>"
        f"{histogram([row.tokens for row in record.rows], 'tokens before the end')}"
        f"{_pictures(record)}"
        f"{_fold('completions', ''.join(map(_completion, examples(record))))}"
        f"{_fold('protocol and conditions', _table(['setting', 'value'], [list(pair) for pair in settings(record)]))}"
    )


def _pictures(record: Record) -> str:
    shown = [_picture(row) for row in record.rows if row.picture]
    if not shown:
        return ""
    return (
        "<h3>step maps: the darker, the later a token was committed</h3>"
        f"{shown[0]}{_fold(f'{len(shown) - 1} more', ''.join(shown[1:])) if len(shown) > 1 else ''}"
    )


def _picture(row: Row) -> str:
    picture = row.picture or ()
    last = max((step for _, step in picture), default=0) or 1
    tokens = "".join(
        f'<span style="--t:{max(step, 0) / last:.2f}" title="step {step}">{escape(text)}</span>'
        if step >= 0
        else f'<span class="never" style="--t:0">{escape(text)}</span>'
        for text, step in picture
    )
    return f'<pre class="steps">{tokens}</pre>'


def _completion(row: Row) -> str:
    verdict = {True: "right", False: "wrong", None: row.status}[row.correct]
    text = row.completion if len(row.completion) <= TEXT else f"{row.completion[:TEXT]}…"
    why = f", {row.reason}" if row.reason else ""
    said = f"{verdict}{why}; problem {row.uid}, {row.tokens} tokens, {row.nfe} forwards"
    return f'<p class="fine">{escape(said)}</p><pre>{escape(text)}</pre>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f'<td class="set">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows)
    return f'<table class="{kind}"><tr>{top}</tr>{body}</table>'


def _fold(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"
