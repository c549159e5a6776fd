"""Diffusion language model families as thin adapters over transformers' own classes."""

from dare_models.attention import BlockCausal, Dense, Documents, Full, NoisyClean
from dare_models.cache import PositionCache
from dare_models.checkpoint import CheckpointError
from dare_models.families import Family, family_names, get_family, register
from dare_models.lm import DiffusionLM
from dare_models.loading import load
from dare_models.scoring import Scores
from dare_models.spec import ModelSpec
from dare_models.tiny import tiny
from dare_models.tokenizer import tiny_tokenizer
from dare_models.values import ValueHead

__all__ = [
    "BlockCausal",
    "CheckpointError",
    "Dense",
    "DiffusionLM",
    "Documents",
    "Family",
    "Full",
    "ModelSpec",
    "NoisyClean",
    "PositionCache",
    "Scores",
    "ValueHead",
    "family_names",
    "get_family",
    "load",
    "register",
    "tiny",
    "tiny_tokenizer",
]
