"""Toy models with known answers, and a conformance kit for strategies and their parts."""

from dare_samplers.testing.conformance import Part, sampler_conformance
from dare_samplers.testing.toys import AdversarialDenoiser, JointDenoiser, TableDenoiser, ToyDenoiser

__all__ = ["AdversarialDenoiser", "JointDenoiser", "Part", "TableDenoiser", "ToyDenoiser", "sampler_conformance"]
