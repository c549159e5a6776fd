"""A loaded model that answers texts as `dare_eval.evaluate` does."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import TypeAdapter

from dare_eval.engine import Answer, Completion, Request, Weight, complete, decoding, evaluating, in_batches, weigh
from dare_eval.protocol import LikelihoodSettings
from dare_eval.sampling import SamplerSettings
from dare_models import DiffusionLM, load
from dare_samplers import SamplerConfig

__all__ = ["Session"]

_SAMPLERS: TypeAdapter[SamplerSettings] = TypeAdapter(SamplerSettings)


class Session:
    """What both bridges need of a model.

    Args:
        path: of the checkpoint or adapter, or a hub id.
        device: where the model lives.
        dtype: of its weights.
        sampler: fields of a sampler of `dare_eval.sampling`, such as `{"kind": "family"}`; the core strategy by
            default. Without `gen_length` the harness says how long completions may be.
        likelihood: fields of `LikelihoodSettings`.
        eos: `suppress` never proposes an end token.
        seed: of noise and draws.
        batch_size: rows computed together at most.

    Raises:
        ValueError: for settings that do not exist or do not fit, before the checkpoint is read.
    """

    def __init__(
        self,
        path: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        sampler: Mapping[str, Any] | None = None,
        likelihood: Mapping[str, Any] | None = None,
        eos: Literal["allow", "suppress"] = "allow",
        seed: int = 0,
        batch_size: int = 256,
    ) -> None:
        self._sampler = {"kind": "core"} | dict(sampler or {})
        _SAMPLERS.validate_python({"gen_length": 32} | self._sampler)
        if eos not in ("allow", "suppress"):
            raise ValueError(f"`eos`: expected 'allow' or 'suppress', got {eos!r}")
        self.likelihood = LikelihoodSettings.model_validate(dict(likelihood or {}))
        self._eos: Literal["allow", "suppress"] = eos
        self.seed, self.batch_size = seed, batch_size
        self.model: DiffusionLM = load(path, device=device, dtype=dtype)

    def gen_length(self, asked: int | None, *, default: int = 256) -> int:
        """Positions to generate: the sampler's own number, else what was asked for."""
        return int(self._sampler.get("gen_length", default if asked is None else asked))

    def config(self, asked: int | None, temperature: float | None = None) -> SamplerConfig:
        """The sampler for completions of some length."""
        fields = self._sampler | {"gen_length": self.gen_length(asked)}
        if temperature is not None and fields["kind"] != "preset":
            fields.setdefault("temperature", temperature)
        return decoding(self.model, _SAMPLERS.validate_python(fields), self._eos)

    def write(
        self, requests: Sequence[Request], asked: int | None, stop: Sequence[str], temperature: float | None = None
    ) -> list[Completion]:
        """Complete prompts; those that leave no room lose their first tokens.

        Args:
            requests: the prompts.
            asked: how long completions may be, where the sampler does not say.
            stop: texts before which a completion ends.
            temperature: where the sampler does not say.
        """
        config = self.config(asked, temperature)
        room = self.model.spec.max_positions - config.gen_length
        if room < 1:
            raise ValueError(
                f"expected completions shorter than the model's {self.model.spec.max_positions} positions, got"
                f" {config.gen_length}; set `gen_length` of the sampler"
            )
        cut = [Request(ids[-room:], sample) for ids, sample in requests]

        def written(some: list[Request]) -> list[Completion]:
            return complete(self.model, some, config, seed=self.seed, stop=stop)[0]

        with evaluating(self.model):
            return in_batches(cut, [len(ids) for ids, _ in cut], self.batch_size, written)

    def weigh(self, answers: Sequence[Answer]) -> list[Weight]:
        """Log-likelihoods of answers; contexts that leave no room lose their first tokens."""
        limit = self.model.spec.max_positions
        cut = [Answer(context[max(0, len(context) + len(own) - limit) :], own) for context, own in answers]
        with evaluating(self.model):
            return weigh(self.model, cut, self.likelihood, seed=self.seed, batch_size=self.batch_size)
