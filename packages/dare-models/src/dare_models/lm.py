"""One object for samplers and objectives alike: a stock transformers module plus its spec."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dare_models import checkpoint
from dare_models.attention import Full, materialise
from dare_models.families import get_family
from dare_models.scoring import Gather, Gathered, Scores, score_streams
from dare_models.spec import ModelSpec

Message = Mapping[str, str]


class DiffusionLM:
    """A diffusion language model: denoise with a call, train with `score`, talk with `encode`, `chat` and `decode`.

    It wraps the module and does not own it: give `lm.module` to the optimiser, to peft, to an engine.

    Args:
        module: a transformers model with a language-model head.
        spec: its facts.
        tokenizer: needed for text only.
    """

    level = 2

    def __init__(
        self, module: PreTrainedModel, spec: ModelSpec, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        self.module = module
        self.spec = spec
        self.tokenizer = tokenizer

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.module.parameters())
        return f"DiffusionLM({self.spec.family}, {size} parameters, {self.dtype}, {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        return self.module.dtype

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return self.spec.vocab_size

    @property
    def mask_id(self) -> int:
        """Id of the mask."""
        return self.spec.mask_token_id

    @property
    def pad_id(self) -> int:
        """Id of the padding."""
        return self.spec.pad_token_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids at which decoding stops."""
        return self.spec.stop_ids

    @property
    def attention(self) -> str:
        """Who sees whom: "full" or "block_causal"."""
        return self.spec.attention

    @property
    def block_length(self) -> int | None:
        """Positions per block; None where any is legal."""
        return self.spec.block_length

    @property
    def left_context(self) -> int:
        """Columns that a window needs on its left for aligned logits."""
        return self.spec.logit_offset

    def __call__(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        blocks: Tensor | None = None,
        write: Tensor | None = None,
        cache: object = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return aligned logits: row n scores the token at column `rows[b, n]`.

        Args:
            ids: [B, Q] int64.
            positions: [B, Q] int64, counted from the row's first real token, -1 on padding; None counts columns.
            blocks: [B, Q] block ids; without effect under full attention.
            write: [B, Q] bool, what to store in the cache; no cache here yet.
            cache: must be None.
            rows: [B, N] columns to score, repeats allowed; None scores all.

        Returns:
            [B, N, V] logits in the module's dtype.

        Raises:
            ValueError: shapes that do not fit, or a cache.
        """
        if cache is not None or write is not None:
            raise ValueError(
                f"expected cache=None and write=None, got {cache!r} and {write!r}; this family offers no cache yet"
            )
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        elif positions.shape != ids.shape:
            raise ValueError(f"expected `positions` of shape {tuple(ids.shape)}, got {tuple(positions.shape)}")
        if rows is not None and rows.shape[:1] != ids.shape[:1]:
            raise ValueError(f"expected `rows` [{ids.shape[0]}, N], got {list(rows.shape)}")
        hidden = self._hidden(ids, positions)
        if rows is not None:
            hidden = hidden.gather(1, rows[..., None].expand(-1, -1, hidden.shape[-1]))
        return self._head()(hidden)

    def score(
        self,
        inputs: Tensor,
        clean: Tensor,
        target: Tensor,
        labels: Tensor,
        valid: Tensor,
        blocks: Tensor | None,
        *,
        gather: Gather,
        want: tuple[str, ...] = (),
        temperature: float = 1.0,
        support: Tensor | None = None,
        streams: int | None = None,
    ) -> Scores:
        """Return log-probabilities of `labels` at the target positions of K corrupted copies of each row.

        `logp[b, k, s] = log softmax(logits(inputs[b, k])[s] / temperature)[labels[b, k, s]]` where `target`, else 0.

        Args:
            inputs: [B, K, S] int64, what the model sees.
            clean: [B, S] int64, the uncorrupted rows; without effect under full attention.
            target: [B, K, S] bool, positions to score; a subset of `valid`.
            labels: [B, K, S] or [B, K, S, C] int64, ids to score there.
            valid: [B, S] bool, False on padding.
            blocks: [B, S] block ids; without effect under full attention.
            gather: (hidden [N, d], weight [V, d], labels [N] or [N, C]) -> log-probabilities, chunked;
                `dare_objectives.gather_logp`, or another of that shape.
            want: what else `gather` returns for the same rows, by name ("entropy").
            temperature: divides the logits.
            support: [V] bool, ids that take part in the softmax; None means all.
            streams: at most this many streams in one forward; None means all. It does not change the result.

        Returns:
            Scores of shape [B, K, S] (or [B, K, S, C]), zero off target.

        Raises:
            ValueError: shapes that do not fit, or targets on padding.
        """
        del clean, blocks
        weight = self._head_weight()

        def score_rows(hidden: Tensor, ids: Tensor) -> Gathered:
            return gather(hidden, weight, ids, temperature=temperature, support=support, want=want)

        return score_streams(self._hidden, score_rows, inputs, target, labels, valid, streams)

    def recompute_activations(self) -> None:
        """Trade time for memory: the backward pass computes the activations inside layers again.

        It acts while the module is in train mode.
        """
        enable = getattr(self.module, "activation_checkpointing_enable", None)  # its newer name
        (enable or self.module.gradient_checkpointing_enable)()

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Return the ids of a text, without any special token added.

        Args:
            text: plain text, or one user message.
            chat: render it as the first turn of a chat, ready for the answer.

        Raises:
            ValueError: no tokenizer, or a character it cannot represent.
        """
        return self.chat([text])[0] if chat else self._encode(text)

    def chat(self, conversations: Sequence[str | Sequence[Message]]) -> list[list[int]]:
        """Return the ids of chats, each ending where the assistant's answer begins.

        Args:
            conversations: each one a user message, or a list of {"role": …, "content": …}.
        """
        return [self._encode(self._render(conversation)) for conversation in conversations]

    def decode(self, ids: Sequence[int] | Tensor, *, specials: bool = False) -> str:
        """Return the text of some ids.

        Args:
            ids: [L].
            specials: keep special tokens (mask, end of text) in the text.
        """
        tokens = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        return str(
            self._tokenizer().decode(tokens, skip_special_tokens=not specials, clean_up_tokenization_spaces=False)
        )

    def fingerprint(self) -> str:
        """Return a sha256 over names, dtypes, shapes and values of all weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str], *, layout: Literal["original"] = "original") -> None:
        """Write config, weights and tokenizer as the original repository lays them out.

        They are written to a temporary sibling, which is renamed when complete.

        Args:
            path: a folder that does not exist yet.
            layout: "original".

        Raises:
            CheckpointError: `path` exists.
        """
        if layout != "original":
            raise ValueError(f"expected layout 'original', got {layout!r}")
        checkpoint.write(path, get_family(self.spec.family), self.module, self.tokenizer)

    def _hidden(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the last hidden states [B, Q, d]; the only place where the network runs."""
        real = positions >= 0
        plan = Full(None if bool(real.all()) else real)
        mask = materialise(plan, backend=self._backend(), dtype=self.dtype)
        network = self.module.get_decoder()
        return network(ids, attention_mask=mask, position_ids=positions.clamp(min=0), use_cache=False).last_hidden_state

    def _backend(self) -> str:
        return str(self.module.config._attn_implementation)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def _head(self) -> nn.Module:
        head = self.module.get_output_embeddings()
        assert head is not None, "every family has a language-model head"
        return head

    def _head_weight(self) -> Tensor:
        head = self._head()
        if type(head) is not nn.Linear or head.bias is not None:
            raise TypeError(f"expected a plain linear head without bias, got {head}; `score` reads its weight directly")
        return head.weight

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise ValueError(
                "expected a tokenizer beside the checkpoint, got none; pass ids, or DiffusionLM(…, tokenizer)"
            )
        return self.tokenizer

    def _render(self, conversation: str | Sequence[Message]) -> str:
        turns = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else conversation
        messages = [dict(turn) for turn in turns]
        return str(self._tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def _encode(self, text: str) -> list[int]:
        try:
            return list(self._tokenizer().encode(text, add_special_tokens=False))
        except Exception as error:
            if "UNK" not in str(error):
                raise
            raise ValueError(f"expected characters of the tokenizer's alphabet, got {text!r}") from error
