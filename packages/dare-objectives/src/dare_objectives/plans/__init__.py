"""Plans: one file per way of corrupting a batch. All draws are keyed per row, stream and column."""

from dare_objectives.plans.bernoulli import (
    bernoulli,
    bernoulli_antithetic,
    bernoulli_complementary,
    bernoulli_nonempty,
)
from dare_objectives.plans.block_suffix import block_suffix
from dare_objectives.plans.count import count_complementary, count_stratified, count_stratified_llada_compat
from dare_objectives.plans.coupled import coupled, coupled_masks
from dare_objectives.plans.full_response import full_response
from dare_objectives.plans.given_states import given_states
from dare_objectives.plans.left_to_right import left_to_right
from dare_objectives.plans.per_block_count import per_block_count
from dare_objectives.plans.trajectory import segment_steps, shrink_steps, trajectory
from dare_objectives.plans.transition import transition

__all__ = [
    "bernoulli",
    "bernoulli_antithetic",
    "bernoulli_complementary",
    "bernoulli_nonempty",
    "block_suffix",
    "count_complementary",
    "count_stratified",
    "count_stratified_llada_compat",
    "coupled",
    "coupled_masks",
    "full_response",
    "given_states",
    "left_to_right",
    "per_block_count",
    "segment_steps",
    "shrink_steps",
    "trajectory",
    "transition",
]
