"""DARE in OpenCompass: a model class for every family, and this package's tasks as datasets.

Nothing of OpenCompass is changed: a configuration names these classes by their dotted paths.

    models = [dict(type="dare_eval.bridges.opencompass.DareModel", abbr="best", path="runs/first/checkpoints/best",
                   max_out_len=512, batch_size=64, run_cfg=dict(num_gpus=0))]

`DareModel` works with OpenCompass's own datasets and inferencers: generation, perplexity, log-likelihood. For the tasks
of this package, `dare-eval opencompass TASK … --model PATH --save-config FILE` writes the whole configuration.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from opencompass.datasets.base import BaseDataset
from opencompass.models import BaseModel
from opencompass.models.base_api import APITemplateParser
from opencompass.openicl.icl_evaluator import BaseEvaluator

from dare_eval.bridges.session import Session
from dare_eval.engine import Answer, Request, split_pair
from dare_eval.prompting import text
from dare_eval.tasks import Item, get_task

__all__ = ["DareDataset", "DareEvaluator", "DareModel", "LabelEvaluator"]

_ROLES = {"HUMAN": "user", "BOT": "assistant", "SYSTEM": "system"}
_CHAT = {"round": [{"role": "HUMAN", "api_role": "HUMAN"}, {"role": "BOT", "api_role": "BOT", "generate": True}],
         "reserved_roles": [{"role": "SYSTEM", "api_role": "SYSTEM"}]}  # fmt: skip


class DareModel(BaseModel):
    """Any family of dare-models.

    Args:
        path: of the checkpoint or adapter, or a hub id.
        max_seq_len: to which OpenCompass shortens few-shot prompts; None takes the model's positions.
        tokenizer_only: only count tokens.
        meta_template: OpenCompass's; None renders the checkpoint's chat template with `chat`, plain text without.
        generation_kwargs: of these, `num_return_sequences` counts: completions per prompt, each with other noise.
        sync_rank: has no meaning here, where every process decodes alone.
        chat: put prompts as chats.
        device: where the model lives.
        dtype: of its weights.
        sampler: fields of a sampler of `dare_eval.sampling`. Without `gen_length` the dataset's `max_out_len` holds.
        likelihood: fields of `dare_eval.LikelihoodSettings`.
        eos: `suppress` never proposes an end token.
        seed: of noise and draws.
        rows: computed together at most.

    Raises:
        ValueError: for settings that do not exist or do not fit.
    """

    def __init__(
        self,
        path: str,
        max_seq_len: int | None = None,
        tokenizer_only: bool = False,
        meta_template: dict[str, Any] | None = None,
        generation_kwargs: dict[str, Any] | None = None,
        sync_rank: bool = False,
        *,
        chat: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
        sampler: Mapping[str, Any] | None = None,
        likelihood: Mapping[str, Any] | None = None,
        eos: str = "allow",
        seed: int = 0,
        rows: int = 64,
    ) -> None:
        self.session = Session(
            path,
            device=device,
            dtype=dtype,
            sampler=sampler,
            likelihood=likelihood,
            eos=eos,
            seed=seed,
            batch_size=rows,
        )
        limit = self.session.model.spec.max_positions if max_seq_len is None else max_seq_len
        super().__init__(path, limit, tokenizer_only, meta_template, dict(generation_kwargs or {}), sync_rank)
        self.chat = chat
        if chat:
            self.template_parser = APITemplateParser(meta_template or _CHAT)

    def generate(
        self,
        inputs: Sequence[Any],
        max_out_len: int,
        min_out_len: int | None = None,
        stopping_criteria: Sequence[str] = (),
    ) -> list[str]:
        """Complete prompts: texts, or lists of turns with `chat`.

        Args:
            inputs: what OpenCompass's template parser makes.
            max_out_len: of the dataset; the sampler's `gen_length` goes before it.
            min_out_len: a canvas has one length; end tokens are the sampler's business.
            stopping_criteria: texts before which a completion ends.

        Returns:
            The completions of every prompt, one after the other.
        """
        number = int(self.generation_kwargs.get("num_return_sequences", 1))
        requests = [Request(ids, sample) for ids in map(self._ids, inputs) for sample in range(number)]
        return [one.text for one in self.session.write(requests, max_out_len, list(stopping_criteria))]

    def get_ppl(self, inputs: Sequence[str], mask_length: Sequence[int] | None = None) -> np.ndarray:
        """Mean negative log-likelihood per token, lower is better.

        Args:
            inputs: texts.
            mask_length: leading tokens of each that are given, not scored.
        """
        rows = [self._ids(one) for one in inputs]
        given = [0] * len(rows) if mask_length is None else list(mask_length)
        answers = [Answer(row[:start], row[start:]) for row, start in zip(rows, given, strict=True)]
        found = self.session.weigh(answers)
        return np.array([-one.value / one.length for one in found])

    def get_loglikelihood(self, inputs: Sequence[str], conts: Sequence[str]) -> np.ndarray:
        """Log-likelihoods of continuations, which the inputs end with.

        Raises:
            ValueError: for an input that does not end with its continuation.
        """
        answers: list[Answer] = []
        for whole, own in zip(inputs, conts, strict=True):
            if not whole.endswith(own):
                raise ValueError(f"expected an input that ends with {own!r}, got {whole[-80:]!r}")
            answers.append(split_pair(self.session.model, whole[: len(whole) - len(own)], own))
        return np.array([one.value for one in self.session.weigh(answers)])

    def get_token_len(self, prompt: Any) -> int:
        """Tokens of a prompt, the chat template's included."""
        return len(self._ids(prompt))

    def _ids(self, prompt: Any) -> list[int]:
        if not self.chat:
            return self.session.model.encode(str(prompt))
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [
            {"role": _ROLES[turn["role"]], "content": turn["prompt"]} for turn in prompt if turn["prompt"]
        ]  # fmt: skip
        return self.session.model.chat([turns])[0]


class DareDataset(BaseDataset):
    """A task of this package: the same problems and prompts as `dare-eval run` has."""

    @staticmethod
    def load(
        task: str,
        options: Mapping[str, Any] | None = None,
        split: str = "test",
        n: int | None = None,
        seed: int = 0,
        shots: int = 0,
        template: str = "{prompt}",
        likelihood: bool = False,
        data: str | None = None,
    ) -> Dataset:
        """The rows: `prompt`, `item` as JSON, and in likelihood mode `label` and the texts `choice_0`, ….

        Args:
            task: of `dare_eval.tasks.names()`.
            options: of the task.
            split: of the task.
            n: problems.
            seed: decides which.
            shots: demonstrations, as plain text before the question.
            template: goes around every question.
            likelihood: put as answers to weigh.
            data: a folder with the rows.
        """
        chosen = get_task(task, dict(options or {}), data=None if data is None else Path(data))
        rows: list[dict[str, Any]] = []
        items = chosen.problems(split, n, seed, likelihood=likelihood)
        most = max(len(item.choices) for item in items)
        for item in items:
            prompt = text(item.prompt, chosen.demonstrations(item, shots, seed), template, chosen.joint)
            row: dict[str, Any] = {"prompt": prompt, "item": json.dumps(asdict(item))}
            if likelihood:
                row["label"] = item.choices.index(item.answer)
                # the first again, where others have more: of equals OpenCompass takes the first
                filled = (*item.choices, *item.choices[:1] * (most - len(item.choices)))
                row |= {f"choice_{i}": f"{prompt}{choice}" for i, choice in enumerate(filled)}
            rows.append(row)
        return Dataset.from_list(rows)


class DareEvaluator(BaseEvaluator):
    """The task's verifier.

    Args:
        task: of `dare_eval.tasks.names()`.
        options: of the task.
        data: a folder with the rows.
    """

    def __init__(self, task: str, options: Mapping[str, Any] | None = None, data: str | None = None) -> None:
        super().__init__()
        self._task = get_task(task, dict(options or {}), data=None if data is None else Path(data))

    def score(self, predictions: Sequence[Any], references: Sequence[str]) -> dict[str, Any]:
        """Accuracy in percent, the share of unreadable answers, and every verdict."""
        details: list[dict[str, Any]] = []
        for prediction, reference in zip(predictions, references, strict=True):
            fields = json.loads(reference)
            item = Item(**{**fields, "choices": tuple(fields["choices"])})
            for one in prediction if isinstance(prediction, list) else [prediction]:
                verdict = self._task.verify(item, one)
                details.append(
                    {
                        "pred": verdict.pred,
                        "answer": item.answer,
                        "correct": verdict.correct is True,
                        "status": verdict.status,
                        "reason": verdict.reason,
                    }
                )
        count = max(len(details), 1)
        return {
            "accuracy": 100 * sum(one["correct"] for one in details) / count,
            "unparsable": 100 * sum(one["status"] != "ok" for one in details) / count,
            "details": details,
        }


class LabelEvaluator(BaseEvaluator):
    """How often the chosen label is the right one."""

    def score(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, Any]:
        """Accuracy in percent."""
        hits = [int(one) == int(right) for one, right in zip(predictions, references, strict=True)]
        return {"accuracy": 100 * sum(hits) / max(len(hits), 1), "details": [{"correct": hit} for hit in hits]}
