"""Invariant 23 of the design's list: what revisers are where their number says nothing."""

from itertools import product

import torch
from arbitrary import DELETE, INSERT, facts, scenes, text, writes
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_samplers import (
    EosStop,
    Greedy,
    NoCache,
    Probability,
    Threshold,
    TopK,
    generate,
    presets,
)
from dare_samplers.revisers import Levenshtein, MultiBlockEdit, RemaskBelow, RunningConfidence, TokenEdit
from dare_samplers.schedules import LinearFront, MaskGit
from dare_samplers.selectors import All
from dare_samplers.testing import JointDenoiser, ToyDenoiser

THRESHOLD = {"steps": None, "schedule": LinearFront(), "selector": Threshold(0.4), "stop": EosStop()}


def moves(out, row: int) -> list[tuple[int, ...]]:
    """Step, position and token of the row's writes, whatever they are called."""
    return [(step, position, new) for step, position, _, new, _ in writes(out, row)]


@settings(max_examples=12)
@given(scenes(revisers=[]), st.sampled_from([TokenEdit, MultiBlockEdit]), st.sampled_from([1.0, 2.0]))
def test_an_edit_that_nothing_is_sure_of_is_none(scene, kind, tau):
    """[23] The same forwards without post steps, and one more per block that asks for a confirmation."""
    if kind == MultiBlockEdit and not scene.causal:
        scene = scene.but(cache=NoCache())  # it feeds all that is committed, which renews what a cache holds of it
    plain, edited = scene.run(**THRESHOLD), scene.run(**THRESHOLD, reviser=kind(tau, 0))
    for row in range(len(scene.prompts)):
        assert facts(edited, row) == facts(plain, row)
    changes = {**THRESHOLD, "proposer": Greedy(), "scorer": Probability(), "smoothing": None, "rules": ()}
    plain, asked = scene.run(**changes), scene.run(**changes, reviser=kind(tau, 3))
    for row in range(len(scene.prompts)):
        assert text(asked, row) == text(plain, row)
        decoded = int(plain.block_id[row][plain.step_map[row] >= 0].max()) + 1
        assert int(asked.row_nfe[row]) == int(plain.row_nfe[row]) + decoded


@settings(max_examples=8)
@given(scenes(["toy", "toy_causal"], revisers=[]), st.sampled_from([0.0, 0.3]), st.integers(0, 3))
def test_levenshtein_without_control_tokens_is_token_edit(scene, tau, post):
    """[23]"""
    block = scene.model.block_length
    model = ToyDenoiser.random(eos_bias=2.0, block_length=block)
    model.bias[[DELETE, INSERT]] = -60.0
    edit, indel = (
        generate(model, scene.prompts, scene.config.replace(**THRESHOLD, reviser=reviser), keys=scene.keys)
        for reviser in (TokenEdit(tau, post), Levenshtein(DELETE, INSERT, tau, post))
    )
    for row in range(len(scene.prompts)):
        assert text(edit, row) == text(indel, row)
        assert moves(edit, row) == moves(indel, row)


@settings(max_examples=12)
@given(scenes(revisers=[]))
def test_running_confidence_in_one_step_fills_all(scene):
    """[23] As does the selector of everything."""
    schedule = MaskGit("linear")
    one = scene.run(selector=TopK(), schedule=schedule, reviser=RunningConfidence(schedule), steps=scene.config.blocks)
    every = scene.run(steps=None, selector=All())
    for row in range(len(scene.prompts)):
        assert moves(one, row) == moves(every, row)


@settings(max_examples=6)
@given(scenes(revisers=[]))
def test_remasking_below_zero_is_none(scene):
    """[23]"""
    plain, reviser = scene.run(**THRESHOLD), scene.run(**THRESHOLD, reviser=RemaskBelow(0.0))
    for row in range(len(scene.prompts)):
        assert moves(reviser, row) == moves(plain, row)


def marginal(law: torch.Tensor, axes: list[int]) -> torch.Tensor:
    """Summed over these axes, which stay with length 1."""
    return law.sum(axes, keepdim=True) if axes else law


def law_of_mdlm(law: torch.Tensor, steps: int) -> torch.Tensor:
    """What MDLM draws in so many steps: every slot comes up at each of them with the same probability.

    Slots of a step are drawn independently, given those of the steps before.
    """
    axes = range(law.ndim)
    total = torch.zeros_like(law)
    for when in product(range(steps), repeat=law.ndim):
        part = torch.ones_like(law)
        for axis in axes:
            unknown = [other for other in axes if when[other] >= when[axis]]
            others = [other for other in unknown if other != axis]
            part = part * marginal(law, others) / marginal(law, unknown)
        total = total + part / steps**law.ndim
    return total


@settings(max_examples=1)
@given(st.integers(0, 10_000))
def test_remdm_without_remasking_is_mdlm(seed):
    """[23] The same law, that of three steps of the process: chi-square over all 27 outcomes, 26 degrees of freedom."""
    law = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2 + 0.02
    law = law / law.sum()
    rows, model = 2500, JointDenoiser(law)
    expected = rows * law_of_mdlm(law, 3).flatten()
    for config in (
        presets.mdlm(3, 3, eps=0.0),
        *(presets.remdm(3, 3, kind, eta=0.0, top_p=None) for kind in ("cap", "conf")),
    ):
        out = generate(model, [[]] * rows, config, keys=seed)
        cell = (out.completions * torch.tensor([9, 3, 1])).sum(-1)
        observed = torch.bincount(cell, minlength=27).double()
        assert float(((observed - expected) ** 2 / expected).sum()) < 61.7  # 0.9999 quantile
        assert bool((out.n_writes == 1).all())
        if config.reviser is not None:  # every step is a forward, and slots come up at all of them alike
            share = torch.bincount(out.step_map.flatten(), minlength=3).double() / out.step_map.numel()
            assert float((share - 1 / 3).abs().max()) < 5 * (2 / 9 / out.step_map.numel()) ** 0.5
