"""Losses: pure functions of scores, weights and a given normaliser."""

from dare_objectives.losses.bgpo import bgpo_loss
from dare_objectives.losses.dpo import dpo
from dare_objectives.losses.hinge import hinge
from dare_objectives.losses.ipo import ipo
from dare_objectives.losses.kl import kl_abs, kl_k1, kl_k1_corrected, kl_k2, kl_k3
from dare_objectives.losses.nll import weighted_nll
from dare_objectives.losses.ppo import ppo_token
from dare_objectives.losses.ppo_seq import ppo_seq
from dare_objectives.losses.self_distill import SoftTargets, self_distill, soft_targets
from dare_objectives.losses.spg import spg_loss
from dare_objectives.losses.value import value_loss
from dare_objectives.losses.weighted_likelihood import group_softmax, likelihood_weights, weighted_likelihood

__all__ = [
    "SoftTargets",
    "bgpo_loss",
    "dpo",
    "group_softmax",
    "hinge",
    "ipo",
    "kl_abs",
    "kl_k1",
    "kl_k1_corrected",
    "kl_k2",
    "kl_k3",
    "likelihood_weights",
    "ppo_seq",
    "ppo_token",
    "self_distill",
    "soft_targets",
    "spg_loss",
    "value_loss",
    "weighted_likelihood",
    "weighted_nll",
]
