"""Reinforcement learning: sample groups, judge them, and take one or more updates on what came back."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dare_models import DiffusionLM
from dare_objectives import Batch, active_streams
from dare_objectives.keyed import fold, row_keys

from ..batching import collate
from ..config import RlConfig
from ..data import Row, encode_prompts, rows_of_step
from ..errors import DataError
from ..protocols import Engine, Request, Rollout, RolloutBackend
from ..rewards import Outcome, RewardFn
from .common import Optimiser, StepReport, Update

__all__ = ["RlPipeline"]


class RlPipeline:
    """One RL worker.

    Args:
        config: the run.
        engine: holds the policy.
        rollout: samples from it.
        rows: the prompts.
        rewards: judges completions.
        validate: gives validation metrics of the current policy.
    """

    def __init__(
        self,
        config: RlConfig,
        engine: Engine,
        rollout: RolloutBackend,
        rows: list[Row],
        rewards: RewardFn,
        validate: Callable[[DiffusionLM], dict[str, float]],
    ) -> None:
        self.engine = engine
        self._config = config
        self._rollout = rollout
        self._rows = rows
        self._prompts = _encode_prompts(rows, engine.lm, config.rollout.decode.gen_length)
        self._rewards = rewards
        self._validate = validate
        self._objective = config.objective.build()
        self.optimiser = Optimiser(
            engine,
            self._objective,
            config.optim,
            total=config.run.steps * config.update.iterations * config.update.minibatches,
            micro_batch=config.update.micro_batch,
        )

    def step(self, step: int) -> StepReport:
        """Do the 0-based training step."""
        times = {"generate": time.perf_counter()}
        picked = rows_of_step(len(self._rows), self._config.rollout.prompts, step, self._config.run.seed)
        picked = [pair for pair in picked for _ in range(self._config.rollout.n)]
        keys = self._keys(picked)
        self._rollout.publish(self.engine.lm, step)
        rollouts = self._rollout.generate(
            [
                Request(uid=self._rows[i].uid, prompt=self._prompts[i], key=key)
                for (i, _), key in zip(picked, keys.tolist(), strict=True)
            ]
        )
        times["reward"] = time.perf_counter()
        rows = [self._rows[i] for i, _ in picked]
        texts = [self._text(r) for r in rollouts]
        outcomes = self._rewards(rows, texts)
        times["score"] = time.perf_counter()
        batch = self._batch(rollouts, keys)
        scores = torch.tensor([o.score for o in outcomes], dtype=torch.float64, device=batch.tokens.device)
        updates = self._updates(batch, keys, scores)
        times["update"] = time.perf_counter()
        metrics = self.optimiser.apply(updates)
        times["end"] = time.perf_counter()
        metrics |= _rollout_metrics(rollouts, outcomes, self._config.rollout.n, judged=rows[0].item is not None)
        metrics |= _phases(times)
        metrics["rollout/tokens_per_s"] = sum(len(r.response) for r in rollouts) / metrics["time/generate"]
        every = self._config.validation.every
        if every and (step + 1) % every == 0:
            metrics |= self._validate(self.engine.lm)
        log = self._config.log
        due = log.samples_every and ((step + 1) % log.samples_every == 0 or step + 1 == self._config.run.steps)
        kept = slice(log.samples if due else 0)
        return StepReport(metrics, _samples(rows[kept], texts[kept], rollouts[kept], outcomes[kept], updates))

    def _keys(self, picked: Sequence[tuple[int, int]]) -> Tensor:
        """One key per completion from (seed, prompt, epoch, place in the group)."""
        uids = torch.tensor([self._rows[i].uid for i, _ in picked])
        epochs = torch.tensor([epoch for _, epoch in picked])
        place = torch.arange(len(picked)) % self._config.rollout.n
        return fold(row_keys(self._config.run.seed, uids), epochs, place).to(self.engine.lm.device)

    def _text(self, rollout: Rollout) -> str:
        ids = rollout.response[:-1] if rollout.finished else rollout.response
        return self.engine.lm.decode(ids, specials=True)  # what was generated is what is judged

    def _batch(self, rollouts: Sequence[Rollout], keys: Tensor) -> Batch:
        spec = self.engine.lm.spec
        causal = spec.attention == "block_causal"
        return collate(
            [r.prompt for r in rollouts],
            [r.response for r in rollouts],
            keys=keys,
            group=[i // self._config.rollout.n for i in range(len(rollouts))],
            block_length=(causal and spec.block_length) or self._config.rollout.decode.block_length,
            grid="zero" if causal else "prompt",
            pad_id=spec.pad_token_id,
            mask_id=spec.mask_token_id,
            step_maps=[r.step_map for r in rollouts] if "step_map" in self._objective.needs else None,
        )

    def _updates(self, batch: Batch, keys: Tensor, scores: Tensor) -> list[Update]:
        """The updates of all passes, with old and reference log-probs taken before the first of them."""
        settings = self._config.update
        prompts = torch.arange(self._config.rollout.prompts, device=keys.device)
        per_prompt = torch.arange(len(keys), device=keys.device).view(-1, self._config.rollout.n)
        share = self._config.rollout.prompts // settings.minibatches
        needs_old = settings.old == "pass" or settings.iterations * settings.minibatches > 1
        updates: list[Update] = []
        for iteration in range(settings.iterations):
            for chosen in prompts.split(share):
                rows = per_prompt[chosen].flatten()
                part = replace(batch[rows], keys=fold(keys[rows], iteration))
                updates.append(self._update(part, scores[rows], needs_old))
        return updates

    def _update(self, batch: Batch, scores: Tensor, needs_old: bool) -> Update:
        plan = self._objective.plan(batch)
        needs_ref = "ref" in self._objective.needs
        ref, detached = None, None
        if self._objective.detached:
            every = torch.arange(len(batch), device=scores.device)
            ref = self.optimiser.score_reference(plan, every) if needs_ref else None
            detached = self.optimiser.score(plan, every)
        coefficients = self._objective.prepare(replace(batch, ref=ref), plan, scores, detached)
        plan = active_streams(plan, coefficients)
        rows = coefficients.row_weight.nonzero().flatten()
        old = self.optimiser.score(plan, rows) if needs_old and "old" in self._objective.needs else None
        if needs_ref and ref is None:
            ref = self.optimiser.score_reference(plan, rows)
        return Update(plan, coefficients, rows, old, ref)


def _encode_prompts(rows: Sequence[Row], lm: DiffusionLM, gen_length: int) -> list[list[int]]:
    prompts = encode_prompts(rows, lm)
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) + gen_length > lm.spec.max_positions:
            raise DataError(
                f"prompt {number} has {len(prompt)} tokens; with `gen_length`={gen_length} it exceeds the model's "
                f"{lm.spec.max_positions} positions; shorten it"
            )
    return prompts


def _rollout_metrics(
    rollouts: Sequence[Rollout], outcomes: Sequence[Outcome], n: int, *, judged: bool
) -> dict[str, float]:
    scores = torch.tensor([o.score for o in outcomes], dtype=torch.float64).view(-1, n)
    lengths = [len(r.response) for r in rollouts]
    count = len(rollouts)
    metrics = {
        "reward/mean": scores.mean().item(),
        "reward/std": scores.std(correction=0).item(),
        "group/zero_std_frac": (scores.std(dim=1, correction=0) == 0).double().mean().item(),
        "rollout/len_mean": sum(lengths) / count,
        "rollout/truncated_frac": sum(not r.finished for r in rollouts) / count,
        "rollout/empty_frac": sum(len(r.response) <= r.finished for r in rollouts) / count,
        "rollout/nfe": max(r.nfe for r in rollouts),
        "rollout/tokens_per_forward": sum(lengths) / max(1, sum(r.nfe for r in rollouts)),
    }
    for name in outcomes[0].parts:
        metrics[f"reward/{name}"] = sum(o.parts[name] for o in outcomes) / count
    if judged:
        metrics["reward/accuracy"] = sum(o.correct is True for o in outcomes) / count
    return metrics


def _phases(times: dict[str, float]) -> dict[str, float]:
    names = list(times)
    return {f"time/{a}": times[b] - times[a] for a, b in pairwise(names)}


def _samples(
    rows: Sequence[Row],
    texts: Sequence[str],
    rollouts: Sequence[Rollout],
    outcomes: Sequence[Outcome],
    updates: Sequence[Update],
) -> list[dict[str, Any]]:
    advantage = torch.cat([u.coefficients.advantage for u in updates])[: len(rows)].tolist()
    return [
        {
            "uid": row.uid,
            "prompt": row.prompt,
            "completion": text,
            "reward": outcome.score,
            "parts": outcome.parts,
            "correct": outcome.correct,
            "reason": outcome.reason,
            "advantage": a,
            "finished": rollout.finished,
            "step_map": rollout.step_map,
            "policy_version": rollout.version,
        }
        for row, text, rollout, outcome, a in zip(rows, texts, rollouts, outcomes, advantage, strict=True)
    ]
