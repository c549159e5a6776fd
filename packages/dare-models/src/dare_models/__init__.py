"""Diffusion language model families as thin adapters over transformers' own classes."""

from dare_models.attention import Full
from dare_models.checkpoint import CheckpointError
from dare_models.families import Family, family_names, get_family, register
from dare_models.lm import DiffusionLM
from dare_models.loading import load
from dare_models.scoring import Scores
from dare_models.spec import ModelSpec
from dare_models.tiny import tiny
from dare_models.tokenizer import tiny_tokenizer

__all__ = [
    "CheckpointError",
    "DiffusionLM",
    "Family",
    "Full",
    "ModelSpec",
    "Scores",
    "family_names",
    "get_family",
    "load",
    "register",
    "tiny",
    "tiny_tokenizer",
]
