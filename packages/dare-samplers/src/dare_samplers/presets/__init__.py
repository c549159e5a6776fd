"""Published strategies, as values to use or to `.replace` parts of. Token ids of a model are the model's own."""

from typing import Final

from dare_samplers.presets.dinfer import dinfer
from dare_samplers.presets.dream import dream, fast_dllm_dream
from dare_samplers.presets.eoser import ascending, eoser
from dare_samplers.presets.fast_dllm import fast_dllm, fast_dllm_v2, threshold
from dare_samplers.presets.llada import llada, llada_instruct
from dare_samplers.presets.llada2 import llada2, llada21, llada22
from dare_samplers.presets.mdlm import first_hitting, mdlm, remdm, remdm_llada
from dare_samplers.presets.rollout import d1, d_tree_rpo, dllm_rl, espo, just_grpo, rcr, spg
from dare_samplers.presets.sdar import sdar
from dare_samplers.presets.spec import for_spec

__all__ = [
    "ascending",
    "d1",
    "d_tree_rpo",
    "dinfer",
    "dllm_rl",
    "dream",
    "eoser",
    "espo",
    "fast_dllm",
    "fast_dllm_dream",
    "fast_dllm_v2",
    "first_hitting",
    "for_spec",
    "just_grpo",
    "llada",
    "llada2",
    "llada21",
    "llada22",
    "llada_instruct",
    "mdlm",
    "rcr",
    "remdm",
    "remdm_llada",
    "sdar",
    "spg",
    "threshold",
]

NAMES: Final = tuple(name for name in __all__ if name != "for_spec")
"""The presets."""
