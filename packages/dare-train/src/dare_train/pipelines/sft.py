"""Supervised fine-tuning: one keyed mask plan per batch, one optimiser step."""

import time
from collections.abc import Callable

import torch

from dare_models import DiffusionLM
from dare_objectives.keyed import fold, row_keys

from ..batching import collate
from ..config import SftConfig
from ..data import Row, encode_pairs, rows_of_step
from ..errors import DataError
from ..protocols import Engine
from .common import Optimiser, StepReport, Update

__all__ = ["SftPipeline", "encode_rows"]


def encode_rows(rows: list[Row], lm: DiffusionLM, config: SftConfig) -> list[tuple[list[int], list[int]]]:
    """Prompt and response ids of every row.

    Raises:
        DataError: for a row that does not fit the model's positions.
    """
    encoded: list[tuple[list[int], list[int]]] = []
    end = lm.spec.eos_token_ids[0]
    pairs = encode_pairs(rows, lm, [end] if config.eos == "append" else [])
    for number, (prompt, closed) in enumerate(pairs, 1):
        if config.eos_fill is not None and len(closed) > config.eos_fill:
            raise DataError(f"row {number} answers in {len(closed)} tokens, `eos_fill` is {config.eos_fill}; raise it")
        response = closed + [end] * ((config.eos_fill or 0) - len(closed))
        if not response:
            raise DataError(
                f"row {number} has an empty completion and `eos` is 'none'; nothing could be learnt from it"
            )
        limit = lm.spec.max_positions
        if len(prompt) + len(response) > limit:
            raise DataError(
                f"row {number} has {len(prompt) + len(response)} tokens, the model takes {limit}; shorten it"
            )
        encoded.append((prompt, response))
    return encoded


class SftPipeline:
    """One SFT worker.

    Args:
        config: the run.
        engine: holds the policy.
        rows: the demonstrations.
        validate: gives validation metrics of the current policy.
    """

    def __init__(
        self, config: SftConfig, engine: Engine, rows: list[Row], validate: Callable[[DiffusionLM], dict[str, float]]
    ) -> None:
        self.engine = engine
        self._config = config
        self._rows = rows
        self._encoded = encode_rows(rows, engine.lm, config)
        self._validate = validate
        self._objective = config.objective.build()
        self.optimiser = Optimiser(
            engine,
            self._objective,
            config.optim,
            total=config.run.steps * config.update.iterations,
            micro_batch=config.update.micro_batch,
        )

    def step(self, step: int) -> StepReport:
        """Do the 0-based training step."""
        started = time.perf_counter()
        picked = rows_of_step(len(self._rows), self._config.batch, step, self._config.run.seed)
        updates = [self._update(picked, iteration) for iteration in range(self._config.update.iterations)]
        metrics = self.optimiser.apply(updates)
        tokens = int(updates[0].plan.valid.sum()) * len(updates)
        metrics["time/update"] = time.perf_counter() - started
        metrics["train/tokens_per_s"] = tokens / metrics["time/update"]
        metrics["data/epoch"] = picked[-1][1]
        every = self._config.validation.every
        if every and (step + 1) % every == 0:
            metrics |= self._validate(self.engine.lm)
        return StepReport(metrics)

    def _update(self, picked: list[tuple[int, int]], iteration: int) -> Update:
        lm = self.engine.lm
        uids = torch.tensor([self._rows[i].uid for i, _ in picked])
        epochs = torch.tensor([epoch for _, epoch in picked])
        keys = fold(row_keys(self._config.run.seed, uids), epochs, iteration).to(lm.device)
        batch = collate(
            [self._encoded[i][0] for i, _ in picked],
            [self._encoded[i][1] for i, _ in picked],
            keys=keys,
            group=list(range(len(picked))),
            block_length=lm.spec.block_length or lm.spec.max_positions,
            grid="zero" if lm.spec.attention == "block_causal" else "prompt",
            pad_id=lm.spec.pad_token_id,
            mask_id=lm.spec.mask_token_id,
        )
        plan = self._objective.plan(batch)
        coefficients = self._objective.prepare(batch, plan, None)
        return Update(plan, coefficients, torch.arange(len(picked), device=lm.device))
