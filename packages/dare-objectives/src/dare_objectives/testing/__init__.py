"""For tests, yours included: an enumerable toy world and the conformance suite of objectives."""

from dare_objectives.testing.conformance import objective_conformance, toy_batch
from dare_objectives.testing.world import ToyWorld, all_masks, any_order_nll

__all__ = ["ToyWorld", "all_masks", "any_order_nll", "objective_conformance", "toy_batch"]
