"""Losses: pure functions of scores, weights and a given normaliser."""

from dare_objectives.losses.kl import kl_abs, kl_k1, kl_k1_corrected, kl_k2, kl_k3
from dare_objectives.losses.nll import weighted_nll
from dare_objectives.losses.ppo import ppo_token

__all__ = ["kl_abs", "kl_k1", "kl_k1_corrected", "kl_k2", "kl_k3", "ppo_token", "weighted_nll"]
