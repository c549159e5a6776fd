"""DARE in lm-evaluation-harness: the model `dare`.

The harness knows models that were imported before it runs, so either import this module first, or start it as

    dare-eval lm-eval --model dare --model_args path=runs/first/checkpoints/best --tasks gsm8k

which is `lm_eval` with this model added.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import yaml
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from dare_eval.bridges.session import Session
from dare_eval.engine import Answer, Request, greedy, split_pair
from dare_models.chat import render
from dare_objectives import make_key, rolling

__all__ = ["DareLM"]


@register_model("dare")
class DareLM(LM):
    """Any family of dare-models.

    Args:
        path: of the checkpoint or adapter, or a hub id.
        pretrained: another name of `path`, as other models of the harness have it.
        device: where the model lives.
        dtype: of its weights.
        batch_size: rows computed together at most; `auto` takes 64.
        max_batch_size: has no meaning here.
        sampler: fields of a sampler of `dare_eval.sampling`, or as text: `kind:family;gen_length:512`. Without
            `gen_length` the task's `max_gen_toks` holds.
        likelihood: fields of `dare_eval.LikelihoodSettings`, or as text: `draws:64;replicates:8`.
        eos: `suppress` never proposes an end token.
        seed: of noise and draws.

    Raises:
        ValueError: for settings that do not exist or do not fit.
    """

    def __init__(
        self,
        path: str | None = None,
        pretrained: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        batch_size: int | str = 64,
        max_batch_size: int | None = None,
        sampler: str | Mapping[str, Any] | None = None,
        likelihood: str | Mapping[str, Any] | None = None,
        eos: str = "allow",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if (path is None) == (pretrained is None):
            raise ValueError("expected `path` of the checkpoint in model_args (or `pretrained`, not both)")
        self.session = Session(
            str(path or pretrained),
            device=_device(device),
            dtype=dtype,
            sampler=_fields(sampler),
            likelihood=_fields(likelihood),
            eos=eos,
            seed=int(seed),
            batch_size=int(batch_size) if str(batch_size).isdecimal() else 64,
        )

    @property
    def tokenizer_name(self) -> str:
        """Names the chat template in the harness's cache."""
        return str(self.session.model.source or "dare")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The checkpoint's template, for the harness's record."""
        tokenizer = self.session.model.tokenizer
        return "" if tokenizer is None else str(tokenizer.chat_template or "")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as the checkpoint's template renders it."""
        assert self.session.model.tokenizer is not None, "the harness works on text"
        return render(self.session.model.tokenizer, chat_history, answer=add_generation_prompt)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Complete contexts; a request that comes several times gets other noise each time."""
        groups: dict[tuple[int | None, tuple[str, ...], float | None], list[int]] = defaultdict(list)
        seen: Counter[int] = Counter()
        made: list[Request] = []
        for number, request in enumerate(requests):
            context, settings = request.args
            until = settings.get("until") or ()
            stop = (until,) if isinstance(until, str) else tuple(until)
            warm = float(settings.get("temperature", 0.0)) if settings.get("do_sample") else None
            groups[settings.get("max_gen_toks"), tuple(one for one in stop if one), warm].append(number)
            made.append(Request(self.session.model.encode(context), seen[id(request)]))
            seen[id(request)] += 1
        found: dict[int, str] = {}
        for (length, stop, temperature), numbers in groups.items():
            written = self.session.write([made[i] for i in numbers], length, stop, temperature)
            for number, one in zip(numbers, written, strict=True):
                found[number] = one.text
                self.cache_hook.add_partial("generate_until", requests[number].args, one.text)
        return [found[number] for number in range(len(requests))]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations, and whether greedy decoding would write them."""
        answers = [split_pair(self.session.model, *request.args) for request in requests]
        sure = greedy(self.session.model, answers, seed=self.session.seed)
        return [(one.value, flag) for one, flag in zip(self.session.weigh(answers), sure, strict=True)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Bounds on the log-likelihoods of whole texts, window by window with half a window of context."""
        return [self._rolling(request.args[0]) for request in requests]

    def _rolling(self, text: str) -> float:
        model = self.session.model
        ids = model.encode(text)
        if not ids:
            return 0.0
        block = model.block_length if model.attention == "block_causal" else None
        window = min(model.spec.max_positions, 2048) // (2 * (block or 1)) * 2 * (block or 1)
        rows = rolling(
            torch.tensor(ids), window, window // 2, mask_id=model.mask_id, key=make_key(0), block_length=block
        )
        answers = [
            Answer(tokens[prompt].tolist(), tokens[own].tolist())
            for tokens, prompt, own in zip(rows.tokens, rows.prompt, rows.maskable, strict=True)
        ]
        return sum(one.value for one in self.session.weigh(answers))


def _device(asked: str | None) -> str:
    """The harness asks for `cuda:0` where nobody said anything."""
    if asked is not None and asked.startswith("cuda") and not torch.cuda.is_available():
        warnings.warn(f"{asked} is not available here, the model runs on the CPU", stacklevel=3)
        return "cpu"
    return asked or "cpu"


def _fields(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings as the command line can give them: key:value, divided by semicolons."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    pairs: Sequence[tuple[str, str, str]] = [one.partition(":") for one in given.split(";") if one]
    if any(not colon for _, colon, _ in pairs):
        raise ValueError(f"expected key:value pairs divided by semicolons, got {given!r}")
    return {key.strip(): yaml.safe_load(value) for key, _, value in pairs}
