"""The seams of the trainer: what a runtime, an engine, a rollout backend and a storage must offer.

The pipelines are written once against these. `local` + `torch` is the reference: every other implementation must give
the same numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from dare_models import DiffusionLM
from dare_objectives import Plan, Scored
from dare_objectives.metrics import Metrics

__all__ = ["Engine", "Group", "LossFn", "Request", "Rollout", "RolloutBackend", "Runtime", "StepStats", "Storage"]

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)
R = TypeVar("R")

LossFn = Callable[[Scored], tuple[Tensor, Metrics]]
"""From the scores of a plan to its summed loss and its metrics."""


@dataclass(frozen=True)
class StepStats:
    """What one optimiser step did."""

    grad_norm: float
    """Norm before clipping."""
    applied: bool
    """False where the gradient was not finite and the step was dropped."""


class Engine(Protocol):
    """Holds the policy and its optimiser on one rank."""

    @property
    def lm(self) -> DiffusionLM:
        """The policy."""
        ...

    def score(self, plan: Plan) -> Tensor:
        """Log-probs `[B,K,S]` under the policy, without gradient."""
        ...

    def score_reference(self, plan: Plan) -> Tensor:
        """Log-probs `[B,K,S]` under the frozen reference, without gradient."""
        ...

    def accumulate(self, plan: Plan, loss_fn: LossFn) -> Metrics:
        """Forward and backward of one micro-batch; gradients add up until `step`."""
        ...

    def step(self, lr: float) -> StepStats:
        """Clip, apply and clear the accumulated gradients."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Optimiser tensors, for a checkpoint."""
        ...

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` gave."""
        ...


@dataclass(frozen=True)
class Request:
    """One completion to sample."""

    uid: int
    """Id of the prompt."""
    prompt: list[int]
    """Its token ids."""
    key: int
    """Key of all of the sampler's draws for this completion."""


@dataclass(frozen=True)
class Rollout:
    """One sampled completion with what reinforcement learning needs of its making."""

    uid: int
    prompt: list[int]
    response: list[int]
    """Ids through the first end token, if there is one."""
    step_map: list[int]
    """Step at which each response token was committed."""
    logprobs: list[float]
    """Log-prob of each token at its commit, under the policy that sampled it (temperature 1, whole vocabulary)."""
    finished: bool
    """Whether the completion ended with an end token."""
    nfe: int
    """Forward calls that this row took part in."""
    version: int
    """Version of the weights that sampled it."""


class RolloutBackend(Protocol):
    """Samples completions from the current policy."""

    def publish(self, lm: DiffusionLM, version: int) -> None:
        """Make the given weights the ones that sample from now on."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        """One rollout per request, in order; the same requests and weights give the same rollouts."""
        ...


class Group(Protocol[W_co]):
    """Workers of one kind, one per rank."""

    def run(self, fn: Callable[[W_co], R]) -> list[R]:
        """Call the function with every worker and return the results in rank order."""
        ...


@runtime_checkable
class Runtime(Protocol):
    """Places workers and runs functions on them."""

    def spawn(self, factory: Callable[[int, int], W]) -> Group[W]:
        """Start the workers; `factory(rank, world)` builds each where it will run."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


@runtime_checkable
class Storage(Protocol):
    """The file operations that make a checkpoint; each call is one step that a crash may follow."""

    def write(self, path: Path, writer: Callable[[Path], object]) -> None:
        """Have `writer` create the file and flush it to the disk."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a finished folder its final name, atomically."""
        ...

    def remove(self, folder: Path) -> None:
        """Delete a folder and everything in it."""
        ...
