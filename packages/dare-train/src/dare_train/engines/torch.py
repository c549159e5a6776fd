"""The `torch` engine: one process, torch AdamW. The oracle for every other engine."""

import copy
import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from dare_models import DiffusionLM
from dare_objectives import Plan, evaluate, gather_logp
from dare_objectives.metrics import Metrics

from ..config import OptimConfig
from ..errors import CheckpointError
from ..protocols import LossFn, StepStats

__all__ = ["TorchEngine"]

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class TorchEngine:
    """A policy with torch's AdamW in one process.

    Args:
        lm: the policy; trained in place.
        config: optimiser settings.
        reference: keep a frozen copy of the initial policy.
    """

    def __init__(self, lm: DiffusionLM, config: OptimConfig, *, reference: bool = False) -> None:
        self._lm = lm
        self._config = config
        self._reference = copy.deepcopy(lm) if reference else None
        lm.module.eval()  # no dropout: old and new log-probs must come from the same function
        self._names = [name for name, p in lm.module.named_parameters() if p.requires_grad]
        self._params = [p for p in lm.module.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._params, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
        )

    @property
    def lm(self) -> DiffusionLM:
        """The policy."""
        return self._lm

    @torch.no_grad()
    def score(self, plan: Plan) -> Tensor:
        """Log-probs `[B,K,S]` under the policy, without gradient."""
        return evaluate(partial(self._lm.score, gather=gather_logp), plan).logp

    @torch.no_grad()
    def score_reference(self, plan: Plan) -> Tensor:
        """Log-probs `[B,K,S]` under the frozen reference, without gradient."""
        if self._reference is None:
            raise RuntimeError("no reference policy is held; build the engine with reference=True")
        return evaluate(partial(self._reference.score, gather=gather_logp), plan).logp

    def accumulate(self, plan: Plan, loss_fn: LossFn) -> Metrics:
        """Forward and backward of one micro-batch; gradients add up until `step`."""
        loss, metrics = loss_fn(evaluate(partial(self._lm.score, gather=gather_logp), plan))
        loss.backward()
        return metrics

    def step(self, lr: float) -> StepStats:
        """Clip, apply and clear the accumulated gradients; a non-finite gradient is dropped."""
        norm = torch.nn.utils.clip_grad_norm_(self._params, self._config.clip).item()
        applied = math.isfinite(norm)
        if applied:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return StepStats(grad_norm=norm, applied=applied)

    def state(self) -> dict[str, Tensor]:
        """AdamW's step counts and moments, named after the parameters; and the reference, if one is held."""
        held = self._optimizer.state
        tensors = {
            f"{moment}/{name}": held[param][moment].detach().clone()
            for name, param in zip(self._names, self._params, strict=True)
            if param in held
            for moment in _MOMENTS
        }
        if self._reference is not None:
            tensors |= {f"reference/{k}": v.detach().clone() for k, v in self._reference.module.state_dict().items()}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` gave.

        Raises:
            CheckpointError: for tensors that do not belong to this policy.
        """
        reference = {k.removeprefix("reference/"): v for k, v in tensors.items() if k.startswith("reference/")}
        expected = {f"{moment}/{name}" for name in self._names for moment in _MOMENTS}
        moments = {k: v for k, v in tensors.items() if not k.startswith("reference/")}
        if moments and set(moments) != expected:
            odd = sorted(set(moments) ^ expected)[:3]
            raise CheckpointError(f"the optimiser state does not fit the model; it differs in {', '.join(odd)}")
        if moments:
            for name, param in zip(self._names, self._params, strict=True):
                self._optimizer.state[param] = {m: moments[f"{m}/{name}"].clone() for m in _MOMENTS}
        if self._reference is not None:
            self._reference.module.load_state_dict(reference)
