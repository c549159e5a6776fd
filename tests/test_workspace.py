"""What no single package can check: equal copies, and what importing a package does not load."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("dare-eval", "dare-models", "dare-objectives", "dare-samplers", "dare-train")
HEAVY = ("datasets", "deepspeed", "lm_eval", "opencompass", "peft", "ray", "tensorboard", "vllm", "wandb")


def undeclared_siblings(package: str) -> set[str]:
    pyproject = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {re.split(r"[^\w-]", line)[0] for line in pyproject["project"]["dependencies"]}
    return {name.replace("-", "_") for name in {*PACKAGES} - declared - {package}}


def loaded_by(module: str) -> set[str]:
    """Top-level names in sys.modules of a fresh interpreter after `import module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("package", PACKAGES)
def test_licence_is_the_root_licence(package: str) -> None:
    assert (ROOT / "packages" / package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_both_copies_of_the_keyed_hash_are_equal() -> None:
    copies = [ROOT / "packages" / f"dare-{name}/src/dare_{name}/keyed.py" for name in ("samplers", "objectives")]
    assert copies[0].read_bytes() == copies[1].read_bytes()


@pytest.mark.parametrize("package", PACKAGES)
def test_import_loads_nothing_undeclared_or_heavy(package: str) -> None:
    loaded = loaded_by(package.replace("-", "_"))
    assert not loaded & (undeclared_siblings(package) | {*HEAVY})


def test_verifiers_load_no_torch() -> None:
    assert not loaded_by("dare_eval.verify") & {"torch", "transformers", "numpy", *HEAVY}
