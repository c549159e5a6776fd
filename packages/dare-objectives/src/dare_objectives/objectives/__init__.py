"""Objectives: one file per paper, each a factory of plain `Objective` records."""

from dare_objectives.objectives.coupled_grpo import coupled_grpo, coupled_grpo_dare_compat
from dare_objectives.objectives.diffu_grpo import diffu_grpo, diffu_grpo_dare_compat
from dare_objectives.objectives.masked_sft import masked_sft

__all__ = ["coupled_grpo", "coupled_grpo_dare_compat", "diffu_grpo", "diffu_grpo_dare_compat", "masked_sft"]
