"""Every family with every preset that is defined for it: what docs/support.md says, run."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import FAMILIES, lively
from small_presets import SMALL

import dare_models as dm
from dare_samplers import NoCache, SamplerConfig, SamplerOutput, generate, presets, unpad

DOCS = Path(__file__).parents[1] / "docs"
SPEC = importlib.util.spec_from_file_location("support", DOCS / "support.py")
assert SPEC is not None and SPEC.loader is not None
support = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(support)

PROMPTS = ("42>", "7>", "90125>")
ALPHABET = "0123456789>abcdefghijklm"  # presets in SMALL name ids up to 22
KEYS = torch.tensor([11, 12, 13])
LAYOUTS = ("left", "right", "packed")


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request: pytest.FixtureRequest) -> dm.DiffusionLM:
    return lively(request.param, ALPHABET)


def decode(lm: dm.DiffusionLM, config: SamplerConfig, rows: list[int], pads: int = 0) -> SamplerOutput:
    """Rows decoded together, given as lists or as a rectangle with padding that is no part of the prompts."""
    prompts = [lm.encode(PROMPTS[row]) for row in rows]
    if not pads:
        return generate(lm, prompts, config, keys=KEYS[rows])
    width = max(map(len, prompts)) + pads
    mask = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
    ids = torch.tensor([[lm.mask_id] * (width - len(prompt)) + prompt for prompt in prompts])
    return generate(lm, unpad(ids, mask), config, keys=KEYS[rows])


def same(one: SamplerOutput, row: int, other: SamplerOutput, at: int) -> bool:
    """Whether a row came out as another one: ids and the step of each commit, within the shorter response."""
    size = min(one.step_map.shape[1], other.step_map.shape[1])
    width = min(one.completions.shape[1], other.completions.shape[1])
    ids = torch.equal(one.completions[row, :width], other.completions[at, :width])
    rest = not one.completion_mask[row, width:].any() and not other.completion_mask[at, width:].any()
    return ids and rest and torch.equal(one.step_map[row, :size], other.step_map[at, :size])


def check(lm: dm.DiffusionLM, config: SamplerConfig, layout: str) -> None:
    together = decode(lm, config, [0, 1, 2])
    assert not together.state.open.any()
    assert not (together.sequences == lm.mask_id).any()
    for row, prompt in enumerate(PROMPTS):
        assert together.sequences[row][together.prompt_mask[row]].tolist() == lm.encode(prompt)
    for rows in ([0], [1], [2], [2, 0, 1]):  # alone, and in another order
        other = decode(lm, config, rows)
        assert all(same(together, row, other, at) for at, row in enumerate(rows)), rows
    other = decode(lm, config.replace(layout=layout), [0, 1, 2], pads=0 if layout == "packed" else 3)
    assert all(same(together, row, other, row) for row in range(3)), layout
    if lm.attention == "block_causal" and config.cache != NoCache():
        other = decode(lm, config.replace(cache=NoCache()), [0, 1, 2])
        assert all(same(together, row, other, row) for row in range(3)), "without a cache"


@pytest.mark.parametrize("name", presets.NAMES)
def test_a_family_decodes_by_every_preset_that_is_defined_for_it(lm: dm.DiffusionLM, name: str) -> None:
    found = support.cell(lm.spec, name, SMALL[name][0])
    if found.config is None:
        with pytest.raises(ValueError, match=r"`cache`: BlockKV|`grid`, `block_length`|expected a model with \["):
            decode(lm, SMALL[name][0], [0])
        with pytest.raises(ValueError, match=rf"expected a family with \['{found.missing[0]}'"):
            lm.spec.require(found.missing, name)
        return
    check(lm, found.config, LAYOUTS[(FAMILIES.index(lm.spec.family) + presets.NAMES.index(name)) % 3])


@pytest.mark.matrix
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", presets.NAMES)
def test_a_family_decodes_by_every_preset_in_every_setting_and_layout(
    lm: dm.DiffusionLM, name: str, layout: str
) -> None:
    for setting in SMALL[name]:
        found = support.cell(lm.spec, name, setting)
        if found.config is not None:
            check(lm, found.config, layout)


def test_a_familys_own_preset_fits_it(lm: dm.DiffusionLM) -> None:
    config = presets.for_spec(lm.spec)
    lm.spec.require(config.needs, "the publisher's sampler")
    small = {"gen_length": 8} | ({"steps": 8} if "steps" in lm.spec.generation else {})
    small |= {"block_length": 4} if lm.block_length is None and "block_length" in lm.spec.generation else {}
    check(lm, presets.for_spec(replace(lm.spec, generation={**lm.spec.generation, **small})), "left")


def test_every_preset_is_defined_for_a_family_or_waits_for_a_capability_that_none_has() -> None:
    specs = support.specs().values()
    nowhere = [name for name in presets.NAMES if all(support.cell(s, name, SMALL[name][0]).missing for s in specs)]
    assert nowhere == ["llada22"]
    assert not any("insert_delete" in spec.capabilities for spec in specs)


def test_the_page_is_fresh() -> None:
    found = (DOCS / "support.md").read_text(encoding="utf-8")
    assert found == support.render(), "docs/support.md is older than the code: run `python docs/support.py`"
