"""Reports: what they say, what they flag, and that the page needs nothing but itself."""

import json
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dare_eval import Protocol, Record
from dare_eval.record import Option
from dare_eval.report import flags, html_report, markdown_report, step_picture
from dare_eval.report.charts import Point, bars, histogram, intervals, scatter
from dare_eval.report.summary import lengths, reasons

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MIXED = [True] * 4 + [False] * 3 + [None] * 3
PICTURE = (("2", 1), ("+", 0), ("2", 3), ("<b>", 2), ("?", -1))


def _changed(record: Record, **changes: Any) -> Record:
    """The record with every row changed; the summary follows."""
    rows = [row.model_copy(update={k: v[i] if isinstance(v, list) else v for k, v in changes.items()})
            for i, row in enumerate(record.rows)]  # fmt: skip
    facts = {name: getattr(record, name) for name in ("protocol", "prompts", "checkpoint", "device", "dtype")}
    facts |= {name: getattr(record, name) for name in ("batch_size", "versions", "forwards", "seconds", "block_length")}
    return Record.of(rows, **facts)


def _names(record: Record) -> list[str]:
    return [flag.name for flag in flags(record)]


@pytest.fixture
def two(protocol: Callable[..., Protocol], record: Callable[..., Record]) -> list[tuple[str, Record]]:
    first = _changed(record(protocol(), MIXED), picture=PICTURE, tokens=[0, 3, 5, 8, 8, 8, 2, 3, 4, 5], committed=8)
    return [("sft <1>", first), ("rl|2", record(protocol(), [True] * 8 + [False, None]))]


@pytest.mark.wheel
def test_markdown_holds_the_numbers(two: list[tuple[str, Record]]) -> None:
    shown = markdown_report(two)
    assert "| sft &lt;1> | sort | 40.0% | 16.8% – 68.7% | 10 | 0.04% | 30.0% |" in shown
    assert "rl\\|2" in shown
    assert "Lengths: mean 4.6, median 5, longest 8 tokens; 100% end by themselves, 10% are empty." in shown
    assert " 3 2+2<b>░" in shown
    assert f"{two[0][1].protocol_hash[:8]}" in shown
    with pytest.raises(ValueError, match="expected at least one record"):
        markdown_report([])
    with pytest.raises(ValueError, match="expected at least one record"):
        html_report([])


class _Page(HTMLParser):
    """Collects what a page would fetch or run, and whether its tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "line", "circle", "rect"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action", "srcset") or name.startswith("on"):
                self.fetched.append(f"{tag} {name}={value}")
        if tag in ("script", "iframe", "object", "embed", "img"):
            self.fetched.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("line", "circle", "rect")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.wheel
def test_the_page_is_whole_and_asks_for_nothing(two: list[tuple[str, Record]]) -> None:
    text = html_report(two)
    page = _Page(text)
    assert page.open == []
    assert page.fetched == ["link href=data:,"]
    assert "url(" not in text
    assert "@import" not in text
    assert "40.0%" in page.text
    assert "<b>" in page.text  # a token, shown as text
    assert "step maps" in page.text


@pytest.mark.wheel
def test_strange_completions_stay_text(protocol: Callable[..., Protocol], record: Callable[..., Record]) -> None:
    hostile = "</pre><script>alert(1)</script>\ud800\x00&amp;<img src=x>"
    made = _changed(record(protocol(), [False] * 10), completion=hostile, reason=hostile)
    text = html_report([(hostile, made)])
    assert _Page(text).fetched == ["link href=data:,"]
    assert "<script" not in text
    text.encode()
    markdown_report([(hostile, made)])


def _browse(page: Path, folder: Path, *more: str) -> tuple[list[str], list[str]]:
    """What Chromium complains of, and the addresses that the page asks for."""
    log = folder / "net.json"
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", f"--log-net-log={log}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000", *more, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    events = [event.get("params", {}) for event in json.loads(log.read_text(errors="replace"))["events"]]
    browsers_own = (None, "not an origin")
    asked = [event["url"] for event in events if "url" in event and event.get("initiator") not in browsers_own]
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line], asked


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_page_opens_in_chromium(two: list[tuple[str, Record]], tmp_path: Path) -> None:
    page, shot = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(html_report(two), encoding="utf-8")
    console, asked = _browse(page, tmp_path, f"--screenshot={shot}", "--window-size=1100,1600", "--hide-scrollbars")
    assert console == []
    assert asked == []
    width, height, rows = _png(shot)
    assert (width, height) == (1100, 1600)
    assert rows > 400, "a page with plots and text differs from row to row"


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_chromium_would_tell(tmp_path: Path) -> None:
    """The test above can fail: a page that asks for something is found out."""
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://example.invalid/x.png"><script>console.error("no")</script>')
    console, asked = _browse(page, tmp_path, "--dump-dom")
    assert console
    assert asked == ["http://example.invalid/x.png"]


def _png(path: Path) -> tuple[int, int, int]:
    """Width, height and the number of different rows' checksums, as a measure of what is drawn."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    body, at = b"", 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body += data[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    raw = zlib.decompress(body)
    stride = len(raw) // height
    return width, height, len({zlib.crc32(raw[i * stride : (i + 1) * stride]) for i in range(height)})


# --------------------------------------------------------------------------------------------------------- flags


@pytest.mark.wheel
def test_a_sound_record_has_no_flags(protocol: Callable[..., Protocol], record: Callable[..., Record]) -> None:
    assert flags(record(protocol(), [True] * 6 + [False] * 3 + [None])) == []


@pytest.mark.wheel
def test_what_looks_wrong_is_flagged_with_samples(
    protocol: Callable[..., Protocol], record: Callable[..., Record]
) -> None:
    none = record(protocol(), [False] * 10)
    assert "many answers, none right" in _names(none)
    assert "no better than chance" in _names(none)
    (flag,) = [flag for flag in flags(none) if flag.name == "many answers, none right"]
    assert flag.rows == none.rows[:3]
    good = record(protocol(), [True] * 6 + [False] * 4)
    assert "strict and lenient filters far apart" in _names(_changed(good, lenient=[True] * 8 + [False] * 2))
    assert "strict and lenient filters far apart" not in _names(_changed(good, lenient=[True] * 6 + [False] * 4))
    assert "empty completions" in _names(_changed(good, tokens=[0] * 3 + [3] * 7))
    assert "demonstrations left out" in _names(_changed(good, dropped=[1] + [0] * 9))
    lost = record(protocol(), [True] * 7 + [None] * 3)
    assert "answers that cannot be read" in _names(lost)
    assert "answers cut off" in _names(_changed(lost, truncated=True))
    close = _changed(good, margin=[0.5] * 2 + [9.0] * 8, options=(Option(value=-1.0, error=0.1),))
    assert "choices within the noise" in _names(close)


@pytest.mark.wheel
@pytest.mark.parametrize(("trained", "flagged"), [(4, False), (8, False), (6, True), (2, True), (None, False)])
def test_blocks_outside_the_trained_ones(
    trained: int | None, flagged: bool, protocol: Callable[..., Protocol], record: Callable[..., Record]
) -> None:
    made = record(protocol(), [True] * 10, block_length=trained)
    assert ("blocks that the model was not trained with" in _names(made)) is flagged


# --------------------------------------------------------------------------------------------- numbers and pictures


@pytest.mark.wheel
def test_like_failures_count_together(protocol: Callable[..., Protocol], record: Callable[..., Record]) -> None:
    why = [
        "expected 42",
        "expected 7",
        "not a number",
        "no closed box",
        "expected 3 digits, got 4",
        "expected 5 digits, got 9",
    ]
    made = record(protocol(n=6), [False] * 6)
    assert reasons(_changed(made, reason=why)) == [
        ("wrong: another answer", 2),
        ("wrong: expected … digits, got …", 2),
        ("wrong: not a number", 1),
        ("wrong: no closed box", 1),
    ]
    assert lengths(made) == (3.0, 3, 3, 1.0, 0.0)


@pytest.mark.wheel
def test_step_pictures() -> None:
    assert step_picture([]) == ""
    assert step_picture([("a", -1), ("b", -1)]) == ""
    shown = step_picture([(chr(97 + i), i) for i in range(26)], lines=4).splitlines()
    assert [int(line[:2]) for line in shown] == [6, 12, 19, 25]
    assert shown[-1].endswith("abcdefghijklmnopqrstuvwxyz")
    assert step_picture([("a\nb", 0)]) == " 0 a⏎b"


@pytest.mark.wheel
def test_charts_keep_to_their_frame() -> None:
    points = [Point(f"name {i}" * 9, 2.0**i, 0.0, i / 9, 1.0) for i in range(10)]
    charts = [intervals(points, 0.25), scatter(points, "x"), scatter(points[:1], "x"), bars([("why", 3), ("<b>", 1)])]
    for chart in (*charts, histogram([0, 5, 700], "tokens"), histogram([0], "tokens")):
        page = _Page(chart)
        assert page.open == []
        assert "nan" not in chart
        assert "inf" not in chart.replace("info", "")
