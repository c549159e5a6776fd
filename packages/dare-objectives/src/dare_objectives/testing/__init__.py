"""For tests, yours included: an enumerable toy world and the conformance suite of objectives."""

from dare_objectives.testing.conformance import objective_conformance, toy_batch
from dare_objectives.testing.rollouts import toy_states, toy_tree, toy_values, with_records
from dare_objectives.testing.trajectories import with_step_map
from dare_objectives.testing.world import BlockWorld, ToyWorld, all_masks, any_order_nll, block_causal

__all__ = [
    "BlockWorld",
    "ToyWorld",
    "all_masks",
    "any_order_nll",
    "block_causal",
    "objective_conformance",
    "toy_batch",
    "toy_states",
    "toy_tree",
    "toy_values",
    "with_records",
    "with_step_map",
]
