# ruff: noqa: INP001
"""Write docs/paper_index.md: which paper is where, from the arXiv ids in the docstrings of all packages.

python docs/paper_index.py
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["render"]

ROOT = Path(__file__).parents[1]
ID = re.compile(r"(?<![\d.])\d{4}\.\d{5}(?!\d)")
WORD = r"(?<![\w.+&-])(?!arXiv)[A-Za-z](?=[\w.+&-]*[A-Z\d]|(?<=[A-Z]))[\w.+&-]*"
NAME = rf"({WORD}(?: {WORD}| \d[\d.]*)*)"
"""What a paper is called: words with a capital or a digit, numbers among them."""

HEAD = """# Paper index

Which paper is where: generated from the docstrings by `python docs/paper_index.py`. A test fails where it is stale.
"""


class Mention(NamedTuple):
    """A public thing whose docstring names a paper."""

    package: str
    name: str
    text: str


def mentions() -> Iterator[Mention]:
    """Of each module the public functions and classes, or the module itself, that have an id in their docstring."""
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        package, _, *inner = path.with_suffix("").relative_to(ROOT / "packages").parts
        module = ".".join(part for part in inner[1:] if part != "__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [Mention(package, f"{module}.{name}".lstrip("."), text) for name, text in _documented(tree)]
        yield from found
        known = {number for mention in found for number in ID.findall(mention.text)}
        text = ast.get_docstring(tree) or ""
        if set(ID.findall(text)) - known:
            yield Mention(package, module or inner[0], text)


def _documented(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            parts = (part for part in ast.walk(node) if isinstance(part, ast.FunctionDef | ast.ClassDef))
            text = "\n".join(ast.get_docstring(part) or "" for part in parts)
            if ID.search(text):
                yield node.name, text


def title(number: str, texts: list[str]) -> str:
    """What the docstrings call a paper most often, in front of its id; empty where they do not."""
    pattern = rf"{NAME},? \(?(?:arXiv[: ]?)?{re.escape(number)}"
    names = Counter(name for text in texts for name in re.findall(pattern, " ".join(text.split())))
    return min(names, key=lambda name: (-names[name], len(name), name)).rstrip(".") if names else ""


def render() -> str:
    """The page."""
    texts: dict[str, list[str]] = defaultdict(list)
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in ROOT.glob("packages/*/src/**/*.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for number in set(ID.findall(text)):
            texts[number].append(text)
    for mention in mentions():
        for number in sorted(set(ID.findall(mention.text))):
            texts[number].append(mention.text)
            places[number][mention.package].append(f"`{mention.name}`")
    lines = [HEAD, "| paper | called | where |", "|---|---|---|"]
    for number in sorted(places):
        where = "; ".join(f"{package}: {', '.join(names)}" for package, names in sorted(places[number].items()))
        lines.append(f"| [{number}](https://arxiv.org/abs/{number}) | {title(number, texts[number])} | {where} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "paper_index.md").write_text(render(), encoding="utf-8")
