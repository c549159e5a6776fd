"""Toy models with known answers, a tiny transformer, and a conformance kit for strategies and their parts."""

from dare_samplers.testing.conformance import Part, sampler_conformance
from dare_samplers.testing.level2 import PositionCache
from dare_samplers.testing.toys import AdversarialDenoiser, JointDenoiser, TableDenoiser, ToyDenoiser
from dare_samplers.testing.transformer import TinyTransformer

__all__ = [
    "AdversarialDenoiser",
    "JointDenoiser",
    "Part",
    "PositionCache",
    "TableDenoiser",
    "TinyTransformer",
    "ToyDenoiser",
    "sampler_conformance",
]
