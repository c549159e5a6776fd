"""Plans: one file per way of corrupting a batch. All draws are keyed per row, stream and column."""

from dare_objectives.plans.bernoulli import bernoulli
from dare_objectives.plans.count import count_complementary, count_stratified
from dare_objectives.plans.coupled import coupled, coupled_masks
from dare_objectives.plans.full_response import full_response

__all__ = ["bernoulli", "count_complementary", "count_stratified", "coupled", "coupled_masks", "full_response"]
