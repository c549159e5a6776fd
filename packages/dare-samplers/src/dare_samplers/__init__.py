"""Decoding and rollout of diffusion language models; needs torch, nothing else."""

from dare_samplers import presets
from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoiser, Denoises
from dare_samplers.keyed import fold, make_key, row_keys, uniform
from dare_samplers.loop import generate
from dare_samplers.output import Events, SamplerOutput
from dare_samplers.parts import (
    Logits,
    LogitsRule,
    Proposal,
    Proposer,
    Schedule,
    Scorer,
    Selector,
    Slots,
    StopRule,
)
from dare_samplers.proposers import Categorical, Greedy
from dare_samplers.rules import Suppress
from dare_samplers.schedules import LinearFront
from dare_samplers.scorers import PositionScore, Probability, RandomScore
from dare_samplers.selectors import Threshold, TopK
from dare_samplers.state import State
from dare_samplers.stops import EosStop, LengthStop
from dare_samplers.trace import FILLED, FORCED, GIVEN, SAMPLED, Record

__all__ = [
    "FILLED",
    "FORCED",
    "GIVEN",
    "SAMPLED",
    "Categorical",
    "Denoiser",
    "Denoises",
    "EosStop",
    "Events",
    "Greedy",
    "LengthStop",
    "LinearFront",
    "Logits",
    "LogitsRule",
    "PositionScore",
    "Probability",
    "Proposal",
    "Proposer",
    "RandomScore",
    "Record",
    "SamplerConfig",
    "SamplerOutput",
    "Schedule",
    "Scorer",
    "Selector",
    "Slots",
    "State",
    "StopRule",
    "Suppress",
    "Threshold",
    "TopK",
    "fold",
    "generate",
    "make_key",
    "presets",
    "row_keys",
    "uniform",
]
