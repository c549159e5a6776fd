"""Post-training of diffusion language models: SFT and reinforcement learning with exact resume."""

from .config import RlConfig, RunConfig, SftConfig, load_config
from .errors import CheckpointError, ConfigError, DataError, DivergedError, Interrupted, RewardError, TrainError
from .protocols import Engine, Group, Request, Rollout, RolloutBackend, Runtime, StepStats, Storage
from .run import Parts, RunResult, run

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DivergedError",
    "Engine",
    "Group",
    "Interrupted",
    "Parts",
    "Request",
    "RewardError",
    "RlConfig",
    "Rollout",
    "RolloutBackend",
    "RunConfig",
    "RunResult",
    "Runtime",
    "SftConfig",
    "StepStats",
    "Storage",
    "TrainError",
    "load_config",
    "run",
]
