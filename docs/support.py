# ruff: noqa: INP001
"""Write docs/support.md: which family decodes with which preset and learns by which objective.

python docs/support.py

`tests/test_support.py` and `tests/test_contract.py` run the cells that are said to work; a test fails where the page is
older than this.
"""

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path

import dare_models as dm
import dare_objectives as do
from dare_models.families import FAMILIES
from dare_models.spec import CAPABILITIES
from dare_samplers import SamplerConfig, presets

__all__ = ["Cell", "cell", "render"]

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "packages" / "dare-samplers" / "tests"))
from small_presets import SMALL  # noqa: E402

COMPAT = "_dare_compat"

HEAD = """# Support

What works with what: generated from the code by `python docs/support.py`. A test runs every cell with a check mark on a
tiny random model of the family; another fails where this page is stale.
"""
SPECS = """
A spec lists them (`lm.spec.capabilities`), a config says which it needs (`config.needs`), and `generate` refuses what
does not fit; `lm.spec.require` does so at any time. `llama`, `qwen2` and `qwen3` come from `from_autoregressive`: with
a block length they have the capabilities of `sdar`.
"""
DECODING = """
Under block-causal attention a preset with blocks takes the family's block length and grid. Each cell decodes ragged
prompts: rows come out alone as in a batch, in any order, with padding on either side and packed, and with an exact
cache as without one.
"""
LEARNING = f"""
Each cell makes a plan from what the family sampled, scores it (one stream at a time as all together) and reaches every
parameter with its gradient. The `{COMPAT}` presets work alike.
"""


@dataclass(frozen=True)
class Cell:
    """A preset for a family.

    Args:
        config: how the family decodes with it, or None.
        missing: the capabilities for lack of which it does not.
    """

    config: SamplerConfig | None
    missing: tuple[str, ...] = ()


def cell(spec: dm.ModelSpec, name: str, config: SamplerConfig) -> Cell:
    """What a preset is for a family: under block-causal attention, one with blocks gets the family's grid.

    Args:
        spec: of the family.
        name: of the preset.
        config: the preset in some setting.
    """
    blocks = "block_length" in inspect.signature(getattr(presets, name)).parameters
    if spec.block_length is not None and config.grid == "prompt" and blocks:
        count = -(-config.gen_length // spec.block_length)
        steps = None if config.steps is None else count * max(config.steps // count, 1)
        config = config.replace(grid="zero", block_length=spec.block_length, steps=steps)
    missing = tuple(need for need in config.needs if need not in spec.capabilities)
    return Cell(None, missing) if missing else Cell(config)


def specs() -> dict[str, dm.ModelSpec]:
    """A spec of each family of this package, with blocks of 4 where it has blocks."""
    tokenizer = dm.tiny_tokenizer("01")
    found = {family.name: dm.tiny(family.name, tokenizer=tokenizer).spec for family in FAMILIES}
    return {
        name: spec if spec.block_length is None else dm.tiny(name, tokenizer=tokenizer, block_length=4).spec
        for name, spec in found.items()
    }


def table(head: str, rows: dict[str, list[str]], columns: list[str]) -> str:
    """A Markdown table."""
    lines = [f"| {head} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| `{name}` | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def render() -> str:
    """The page."""
    known = specs()
    families = [f"`{name}`" for name in known]
    abilities = {name: ["✓" if name in spec.capabilities else "" for spec in known.values()] for name in CAPABILITIES}
    reasons: dict[tuple[str, ...], str] = {}
    decoding: dict[str, list[str]] = {}
    for name in presets.NAMES:
        cells = [cell(spec, name, SMALL[name][0]) for spec in known.values()]
        for one in cells:
            if one.missing:
                reasons.setdefault(one.missing, "abcdefgh"[len(reasons)])
        decoding[name] = ["✓" if one.config is not None else reasons[one.missing] for one in cells]
    notes = [
        f"- {letter}: needs {' and '.join(f'`{name}` ({CAPABILITIES[name]})' for name in missing)}."
        for missing, letter in reasons.items()
    ]
    learning = {name: ["✓"] * len(known) for name in do.names() if not name.endswith(COMPAT)}
    parts = [HEAD, "## What a family can do\n", table("capability", abilities, families), SPECS]
    parts += ["## Decoding: preset by family\n", table("preset", decoding, families), DECODING, *notes]
    parts += ["\n## Training: objective by family\n", table("objective", learning, families), LEARNING]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "support.md").write_text(render(), encoding="utf-8")
