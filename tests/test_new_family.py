"""A new family is one file and one line: the file of docs/extending.md, announced by another distribution."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dare_models as dm

ROOT = Path(__file__).parents[1]


@pytest.fixture
def distribution(tmp_path: Path) -> Path:
    """A folder with the page's family and an entry point that names it, as pip would install them."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    code = page.split("## A model family")[1].split("```python\n")[1].split("```")[0]
    (tmp_path / "nova.py").write_text(code, encoding="utf-8")
    info = tmp_path / "nova-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nova\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[dare_models]\nnova = nova:NOVA_FAMILY\n", encoding="utf-8")
    return tmp_path


def run(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr[-2000:]


def test_one_file_and_one_line_make_a_family(distribution: Path) -> None:
    out = run(
        distribution,
        "import dare_models as dm\n"
        "from dare_models.testing import CHECKS, family_conformance\n"
        "assert dm.family_names()[-1] == 'nova'\n"
        "print(len(CHECKS) == len(family_conformance('nova')))\n"
        "from safetensors.torch import load_file\n"
        "import json, tempfile\n"
        "folder = tempfile.mkdtemp() + '/saved'\n"
        "dm.tiny('nova', tokenizer=dm.tiny_tokenizer('01')).save(folder)\n"
        "print(sorted(load_file(folder + '/model.safetensors'))[0], json.load(open(folder + '/config.json'))['dim'])\n"
        "print(dm.load(folder).spec.family)\n",
    )
    assert out.splitlines() == ["True", "blocks.0.input_layernorm.weight 64", "nova"]


@pytest.fixture
def here(distribution: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder, on the path of this process."""
    monkeypatch.syspath_prepend(distribution)
    yield distribution
    sys.modules.pop("nova", None)


def test_a_family_in_use_keeps_its_name(here: Path) -> None:
    file = here / "nova.py"
    file.write_text(file.read_text(encoding="utf-8").replace('name="nova"', 'name="llada"'), encoding="utf-8")
    with pytest.raises(ValueError, match=r"one family of each name, got several called \['llada'\]; uninstall all but"):
        dm.family_names()


def test_what_is_no_family_is_named(here: Path) -> None:
    (here / "nova.py").write_text("NOVA_FAMILY = 3\n", encoding="utf-8")
    with pytest.raises(
        TypeError, match="entry point 'nova' of 'dare_models': expected a Family, got 3 from nova:NOVA_"
    ):
        dm.family_names()
