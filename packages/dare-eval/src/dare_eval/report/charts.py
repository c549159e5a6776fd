"""Plots as inline SVG: no scripts, no fonts, no requests. Colours come from the page's style sheet."""

from collections.abc import Sequence
from html import escape
from math import log2
from typing import NamedTuple

__all__ = ["Point", "bars", "histogram", "intervals", "scatter"]

WIDTH = 720
LEFT = 220
ROW = 26
KINDS = 8
"""Colours of the style sheet."""


class Point(NamedTuple):
    """A score to draw."""

    name: str
    x: float
    low: float
    value: float
    high: float


def intervals(points: Sequence[Point], chance: float | None = None) -> str:
    """Scores with their intervals, one line each, from 0 to 100 %."""
    height = ROW * len(points) + 30
    body = [_axis(height, [i / 5 for i in range(6)], 1.0, "{:.0%}")]
    if chance:
        body.append(f'<line class="chance" x1="{_x(chance)}" x2="{_x(chance)}" y1="4" y2="{height - 24}"/>')
    for i, point in enumerate(points):
        y = ROW * i + 18
        shown = f"{point.name}: {point.value:.1%} [{point.low:.1%}, {point.high:.1%}]"
        body.append(
            f'<g class="k{i % KINDS}"><title>{escape(shown)}</title>'
            f'<text class="label" x="{LEFT - 10}" y="{y + 4}">{escape(_short(point.name))}</text>'
            f'<line class="whisker" x1="{_x(point.low)}" x2="{_x(point.high)}" y1="{y}" y2="{y}"/>'
            f'<circle cx="{_x(point.value)}" cy="{y}" r="5"/></g>'
        )
    return _svg(height, body, "accuracies with intervals")


def scatter(points: Sequence[Point], label: str) -> str:
    """Scores against what they cost, on a logarithmic scale of the cost."""
    height = 260
    low, high = (f(log2(max(point.x, 1e-9)) for point in points) for f in (min, max))
    low, high = low - 0.5, high + 0.5
    plot = height - 44

    def at(value: float) -> float:
        return 60 + (log2(max(value, 1e-9)) - low) / (high - low) * (WIDTH - 90)

    def up(value: float) -> float:
        return 10 + (1 - value) * plot

    body = [
        f'<line class="grid" x1="60" x2="{WIDTH - 20}" y1="{up(i / 5):.1f}" y2="{up(i / 5):.1f}"/>'
        f'<text class="tick end" x="54" y="{up(i / 5) + 4:.1f}">{i / 5:.0%}</text>'
        for i in range(6)
    ]
    body += [
        f'<text class="tick" x="{at(2.0**power):.1f}" y="{height - 18}">{2.0**power:g}</text>'
        for power in range(round(low), round(high) + 1)
        if low <= power <= high
    ]
    body.append(f'<text class="tick" x="{WIDTH / 2}" y="{height - 3}">{escape(label)}</text>')
    names = _apart([up(point.value) - 6 for point in points])
    for i, (point, name) in enumerate(zip(points, names, strict=True)):
        shown = f"{point.name}: {point.value:.1%} at {point.x:.1f}"
        body.append(
            f'<g class="k{i % KINDS}"><title>{escape(shown)}</title>'
            f'<line class="whisker" x1="{at(point.x):.1f}" x2="{at(point.x):.1f}" y1="{up(point.low):.1f}"'
            f' y2="{up(point.high):.1f}"/>'
            f'<circle cx="{at(point.x):.1f}" cy="{up(point.value):.1f}" r="5"/>'
            f'<text class="name" x="{at(point.x) + 10:.1f}" y="{name:.1f}">{escape(_short(point.name))}</text></g>'
        )
    return _svg(height, body, f"accuracy against {label}")


def bars(values: Sequence[tuple[str, int]]) -> str:
    """Counts by name."""
    height, scale = ROW * len(values) + 8, (WIDTH - LEFT - 80) / max((count for _, count in values), default=1)
    body = [
        f'<g class="k0"><title>{escape(name)}: {count}</title>'
        f'<text class="label" x="{LEFT - 10}" y="{ROW * i + 18}">{escape(_short(name))}</text>'
        f'<rect x="{LEFT}" y="{ROW * i + 5}" width="{max(count * scale, 1):.1f}" height="{ROW - 9}"/>'
        f'<text class="name" x="{LEFT + count * scale + 8:.1f}" y="{ROW * i + 18}">{count}</text></g>'
        for i, (name, count) in enumerate(values)
    ]
    return _svg(height, body, "failures by reason")


def histogram(values: Sequence[int], label: str, *, bins: int = 24) -> str:
    """How often values come up, from 0 to the largest."""
    height, top = 150, max(values, default=0) + 1
    bins = min(bins, top)
    counts = [0] * bins
    for value in values:
        counts[value * bins // top] += 1
    most, wide = max(counts, default=1) or 1, (WIDTH - 90) / bins
    body = [
        f'<g class="k0"><title>{i * top // bins} to {max((i + 1) * top // bins - 1, i * top // bins)}: {count}</title>'
        f'<rect x="{60 + i * wide:.1f}" y="{10 + (1 - count / most) * 100:.1f}" width="{max(wide - 2, 1):.1f}"'
        f' height="{count / most * 100:.1f}"/></g>'
        for i, count in enumerate(counts)
    ]
    body += [
        f'<text class="tick" x="{60 + i * (WIDTH - 90) / 4:.1f}" y="126">{i * (top - 1) / 4:.0f}</text>'
        for i in range(5)
    ]
    body.append(f'<text class="tick" x="{WIDTH / 2}" y="145">{escape(label)}</text>')
    return _svg(height, body, label)


def _apart(heights: Sequence[float]) -> list[float]:
    """Heights of names, moved down where two would overlap."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved, last = list(heights), float("-inf")
    for i in order:
        moved[i] = last = max(heights[i], last + 13)
    return moved


def _axis(height: int, ticks: Sequence[float], most: float, form: str) -> str:
    return "".join(
        f'<line class="grid" x1="{_x(tick / most)}" x2="{_x(tick / most)}" y1="4" y2="{height - 24}"/>'
        f'<text class="tick" x="{_x(tick / most)}" y="{height - 8}">{form.format(tick)}</text>'
        for tick in ticks
    )


def _x(share: float) -> str:
    return f"{LEFT + share * (WIDTH - LEFT - 40):.1f}"


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:14]}…{name[-14:]}"


def _svg(height: int, body: Sequence[str], label: str) -> str:
    inner = "".join(body)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">{inner}</svg>'
