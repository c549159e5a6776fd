"""Objectives: one file per paper, each a factory of plain `Objective` records."""

from dare_objectives.objectives.bgpo import bgpo, bgpo_dare_compat
from dare_objectives.objectives.block_sft import block_sft, block_sft_llada2, block_sft_sdar
from dare_objectives.objectives.cart_sft import cart_sft
from dare_objectives.objectives.cj_grpo import (
    cj_grpo,
    cj_grpo_dare_compat,
    cj_grpo_step_equal,
    cj_grpo_step_equal_dare_compat,
)
from dare_objectives.objectives.coupled_grpo import coupled_grpo, coupled_grpo_dare_compat
from dare_objectives.objectives.d1_sft import d1_sft
from dare_objectives.objectives.d_tree_rpo import d_tree_rpo, d_tree_rpo_dare_compat
from dare_objectives.objectives.diffu_grpo import diffu_grpo, diffu_grpo_dare_compat
from dare_objectives.objectives.ebpo import ebpo, ebpo_dare_compat
from dare_objectives.objectives.espo import espo, espo_dare_compat
from dare_objectives.objectives.just_grpo import just_grpo, just_grpo_dare_compat
from dare_objectives.objectives.masked_sft import masked_sft, masked_sft_dare_compat
from dare_objectives.objectives.mdpo import mdpo, mdpo_dare_compat
from dare_objectives.objectives.random_mask import random_mask
from dare_objectives.objectives.spg import spg, spg_dare_compat
from dare_objectives.objectives.tracerl import tracerl, tracerl_critic, tracerl_value
from dare_objectives.objectives.unigrpo import unigrpo
from dare_objectives.objectives.vrpo import vrpo, vrpo_dare_compat, vrpo_hinge, vrpo_ipo
from dare_objectives.objectives.wd1 import wd1

__all__ = [
    "bgpo",
    "bgpo_dare_compat",
    "block_sft",
    "block_sft_llada2",
    "block_sft_sdar",
    "cart_sft",
    "cj_grpo",
    "cj_grpo_dare_compat",
    "cj_grpo_step_equal",
    "cj_grpo_step_equal_dare_compat",
    "coupled_grpo",
    "coupled_grpo_dare_compat",
    "d1_sft",
    "d_tree_rpo",
    "d_tree_rpo_dare_compat",
    "diffu_grpo",
    "diffu_grpo_dare_compat",
    "ebpo",
    "ebpo_dare_compat",
    "espo",
    "espo_dare_compat",
    "just_grpo",
    "just_grpo_dare_compat",
    "masked_sft",
    "masked_sft_dare_compat",
    "mdpo",
    "mdpo_dare_compat",
    "random_mask",
    "spg",
    "spg_dare_compat",
    "tracerl",
    "tracerl_critic",
    "tracerl_value",
    "unigrpo",
    "vrpo",
    "vrpo_dare_compat",
    "vrpo_hinge",
    "vrpo_ipo",
    "wd1",
]
