"""The `torch` rollout backend: dare-samplers on the policy's own module."""

from collections.abc import Sequence

import torch

from dare_models import DiffusionLM
from dare_samplers import SamplerConfig, generate

from .protocols import Request, Rollout

__all__ = ["TorchRollout"]


class TorchRollout:
    """Samples with the weights that are being trained; nothing is copied.

    Args:
        config: how to sample.
        batch: completions decoded together.
    """

    def __init__(self, config: SamplerConfig, batch: int) -> None:
        self._config = config
        self._batch = batch
        self._lm: DiffusionLM | None = None
        self._version = -1

    def publish(self, lm: DiffusionLM, version: int) -> None:
        """Sample from these weights from now on."""
        self._lm, self._version = lm, version

    @torch.no_grad()
    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        """One rollout per request, in order."""
        rollouts: list[Rollout] = []
        for start in range(0, len(requests), self._batch):
            rollouts += self._decode(requests[start : start + self._batch])
        return rollouts

    def _decode(self, requests: Sequence[Request]) -> list[Rollout]:
        if self._lm is None:
            raise RuntimeError("no weights were published; call publish() before generate()")
        lm = self._lm
        keys = torch.tensor([r.key for r in requests], dtype=torch.int64, device=lm.device)
        out = generate(lm, [r.prompt for r in requests], self._config, keys=keys)
        lengths = out.completion_mask.sum(-1).tolist()
        columns = zip(
            out.completions.tolist(),
            out.step_map.tolist(),
            out.logprobs.tolist(),
            out.row_nfe.tolist(),
            lengths,
            strict=True,
        )
        return [
            Rollout(
                uid=request.uid,
                prompt=request.prompt,
                response=ids[:length],
                step_map=steps[:length],
                logprobs=logprobs[:length],
                finished=length > 0 and ids[length - 1] in lm.eos_ids,
                nfe=nfe,
                version=self._version,
            )
            for request, (ids, steps, logprobs, nfe, length) in zip(requests, columns, strict=True)
        ]
