"""Masks, likelihood estimators, advantages and losses for diffusion language models; needs torch, nothing else."""

from dare_objectives.advantages import center, group_normalize, leave_one_out
from dare_objectives.batch import Batch
from dare_objectives.estimators import elbo_draws, elbo_seq, token_logp, weighted_token_logp
from dare_objectives.gather import Gathered, gather_logp
from dare_objectives.keyed import fold, make_key, row_keys, uniform
from dare_objectives.losses import kl_abs, kl_k1, kl_k1_corrected, kl_k2, kl_k3, ppo_token, weighted_nll
from dare_objectives.metrics import Max, Mean, merge_metrics
from dare_objectives.objective import Coefficients, Objective
from dare_objectives.objectives import (
    coupled_grpo,
    coupled_grpo_dare_compat,
    diffu_grpo,
    diffu_grpo_dare_compat,
    masked_sft,
)
from dare_objectives.plan import Plan, mask_plan
from dare_objectives.plans import (
    bernoulli,
    count_complementary,
    count_stratified,
    coupled,
    coupled_masks,
    full_response,
)
from dare_objectives.registry import get, names
from dare_objectives.score import Score, Scored, evaluate, from_logits

__all__ = [
    "Batch",
    "Coefficients",
    "Gathered",
    "Max",
    "Mean",
    "Objective",
    "Plan",
    "Score",
    "Scored",
    "bernoulli",
    "center",
    "count_complementary",
    "count_stratified",
    "coupled",
    "coupled_grpo",
    "coupled_grpo_dare_compat",
    "coupled_masks",
    "diffu_grpo",
    "diffu_grpo_dare_compat",
    "elbo_draws",
    "elbo_seq",
    "evaluate",
    "fold",
    "from_logits",
    "full_response",
    "gather_logp",
    "get",
    "group_normalize",
    "kl_abs",
    "kl_k1",
    "kl_k1_corrected",
    "kl_k2",
    "kl_k3",
    "leave_one_out",
    "make_key",
    "mask_plan",
    "masked_sft",
    "merge_metrics",
    "names",
    "ppo_token",
    "row_keys",
    "token_logp",
    "uniform",
    "weighted_nll",
    "weighted_token_logp",
]
