"""Diffusion language model families as thin adapters over transformers' own classes."""

from dare_models.attention import BlockCausal, Dense, Documents, Full, NoisyClean
from dare_models.cache import PositionCache
from dare_models.chat import Dialogue
from dare_models.checkpoint import CheckpointError
from dare_models.conversion import from_autoregressive
from dare_models.families import Family, family_names, get_family, register
from dare_models.lm import DiffusionLM
from dare_models.loading import load
from dare_models.probe import ProbeError
from dare_models.scoring import Scores
from dare_models.spec import ModelSpec
from dare_models.tiny import tiny
from dare_models.tokenizer import tiny_tokenizer
from dare_models.values import ValueHead

__all__ = [
    "BlockCausal",
    "CheckpointError",
    "Dense",
    "Dialogue",
    "DiffusionLM",
    "Documents",
    "Family",
    "Full",
    "ModelSpec",
    "NoisyClean",
    "PositionCache",
    "ProbeError",
    "Scores",
    "ValueHead",
    "family_names",
    "from_autoregressive",
    "get_family",
    "load",
    "register",
    "tiny",
    "tiny_tokenizer",
]
