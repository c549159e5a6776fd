"""Every ```python block of a README or docs page runs, top to bottom, in one namespace per page."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")])
WITH_CODE = [page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")]


def python_lines(page: str) -> str:
    """The page with every line blanked that is not in a ```python block, so that line numbers stay true."""
    kept: list[str] = []
    inside = False
    for line in page.splitlines():
        fence = line.startswith("```")
        kept.append(line if inside and not fence else "")
        inside = (line.strip() == "```python") if fence else inside
    return "\n".join(kept)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = python_lines(page.read_text(encoding="utf-8"))
    script = tmp_path / f"{page.stem}.py"
    script.write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


def test_blocks_keep_their_line_numbers() -> None:
    page = "# Title\n```python\na = 1\n```\ntext\n```bash\nls\n```\n```python\nb = a\n```"
    assert python_lines(page) == "\n\na = 1\n\n\n\n\n\n\nb = a\n"
