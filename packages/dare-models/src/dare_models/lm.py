"""One object for samplers and objectives alike: a stock transformers module plus its spec."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dare_models import checkpoint
from dare_models.attention import Plan
from dare_models.cache import PositionCache
from dare_models.chat import Dialogue, Message, encode_dialogue, encode_dialogues, encode_text, render
from dare_models.families import get_family
from dare_models.network import backend_of, new_cache, plan_of, run, run_cached, sources, through, weights_version
from dare_models.noisy_clean import check_blocks, noisy_clean_layout
from dare_models.partition import expect_engine, expect_whole, is_partitioned
from dare_models.probe import check_probe, take_probe
from dare_models.scoring import Gather, Gathered, Scores, check_shapes, full_layout, positions_of, score_streams
from dare_models.spec import ModelSpec


class DiffusionLM:
    """A diffusion language model: denoise with a call, train with `score`, talk with `encode`, `chat` and `decode`.

    It wraps the module and does not own it: give `lm.module` to the optimiser, to peft, to an engine.

    Args:
        module: a transformers model with a language-model head, and `config.is_causal` False.
        spec: its facts.
        tokenizer: needed for text only.

    Attributes:
        version: number of the weights, which a cache remembers; None counts the changes torch can see. Set one where
            something else decides what the module computes, such as which adapter is on, or the step of an engine
            that partitions the parameters.
        probe: logits that were recorded when the model was saved, or None.
        source: where it was loaded from, or None.
        adapter: what `dare_models.lora` attached, or None.
        base: hash and dtype of the weights that the adapter is for, or None.

    Raises:
        ValueError: the module would attend causally.
    """

    level = 2

    def __init__(
        self, module: PreTrainedModel, spec: ModelSpec, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        if getattr(module.config, "is_causal", True):
            raise ValueError("expected a module with `config.is_causal` False, got a causal one; set it in the config")
        self.module = module
        self.spec = spec
        self.tokenizer = tokenizer
        self.version: int | None = None
        self.probe: Mapping[str, object] | None = None
        self.source: str | None = None
        self.adapter: object = None
        self.base: Mapping[str, str] | None = None

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
    def hidden_size(self) -> int:
        """Width of the states."""
        return int(self.module.config.hidden_size)

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

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What the family can do, by name; `generate` refuses a strategy that needs more."""
        return self.spec.capabilities

    @property
    def attention_backend(self) -> str:
        """Transformers' name of the attention implementation in use."""
        return backend_of(self.module)

    @property
    def packs(self) -> bool:
        """Whether several documents may share a row."""
        return self.attention_backend in ("sdpa", "eager", "flex_attention")

    @property
    def leaf_modules(self) -> tuple[type[nn.Module], ...]:
        """Classes of modules that visit their parts depending on the data: the mixtures of experts.

        Give them to `deepspeed.utils.set_z3_leaf_modules` before ZeRO-3 wraps the module; else ranks may hang.
        """
        mixtures = (part for part in self.module.modules() if hasattr(part, "experts") and hasattr(part, "gate"))
        return tuple(dict.fromkeys(type(part) for part in mixtures))

    @property
    def head_weight(self) -> Tensor:
        """Weight [V, d] of the language-model head, for losses that fuse it.

        Raises:
            TypeError: the head is more than that.
            ValueError: it is partitioned.
        """
        expect_whole(self._head().named_parameters(), "for `head_weight`")
        return self._plain_head().weight

    def __call__(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        blocks: Tensor | None = None,
        write: Tensor | None = None,
        cache: object = None,
        rows: Tensor | None = None,
        documents: Tensor | None = None,
        added: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        """Return aligned logits: row n scores the token at column `rows[b, n]`.

        With a cache, a fed token takes the place of the stored one at its position, `write` stores it, and the logits
        have no gradient.

        Args:
            ids: [B, Q] int64.
            positions: [B, Q] int64, counted from the row's first real token, -1 on padding; None counts columns.
            blocks: [B, Q] block ids, without effect under full attention; None cuts positions into `block_length`.
            write: [B, Q] bool, what to store in the cache; None stores nothing.
            cache: from `new_cache`.
            rows: [B, N] columns to score, repeats allowed; None scores all.
            documents: [1, Q] document of each token of a packed row, which is its row of the cache; -1 on padding.
            added: [B, Q, d], added to the embeddings.
            plan: who sees whom, in place of what `positions`, `blocks` and `documents` say; not with a cache.

        Returns:
            [B, N, V] logits in the module's dtype.

        Raises:
            ValueError: shapes that do not fit, or a cache of other weights.
            TypeError: a cache of another kind.
        """
        hidden = self.hidden(
            ids,
            positions=positions,
            blocks=blocks,
            write=write,
            cache=cache,
            rows=rows,
            documents=documents,
            added=added,
            plan=plan,
        )
        logits = self._head()(hidden)
        return logits if cache is None else logits.detach()

    def hidden(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        blocks: Tensor | None = None,
        write: Tensor | None = None,
        cache: object = None,
        rows: Tensor | None = None,
        documents: Tensor | None = None,
        added: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        """Return the states [B, N, d] from which the head makes the logits of a call; arguments as there."""
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        for name, given in (("positions", positions), ("blocks", blocks), ("write", write), ("documents", documents)):
            if given is not None and given.shape != ids.shape:
                raise ValueError(f"expected `{name}` of shape {tuple(ids.shape)}, got {tuple(given.shape)}")
        if rows is not None and rows.shape[:1] != ids.shape[:1]:
            raise ValueError(f"expected `rows` [{ids.shape[0]}, N], got {list(rows.shape)}")
        if documents is not None and len(ids) != 1:
            raise ValueError(f"expected one row of packed documents, got {len(ids)}")
        grid = self._grid(positions, blocks)
        store = self._store(cache, write, plan)
        if store is None:
            seen = plan_of(positions, grid, documents) if plan is None else plan
            states = run(self.module, ids, positions, seen, added)
        else:
            feed = store.begin(positions, grid, write, documents)
            states = run_cached(self.module, ids, positions, feed, store, added)
        if self.spec.logit_offset:
            at = sources(positions, documents)
            rows = at if rows is None else at.gather(1, rows)
        return states if rows is None else states.gather(1, rows[..., None].expand(-1, -1, states.shape[-1]))

    def verify(self) -> bool:
        """Compare the logits of a probe with those recorded when the model was saved.

        `load` does it, except where DeepSpeed has partitioned the parameters: there call it once the engine is made.

        Returns:
            Whether there is a record.

        Raises:
            ProbeError: the model computes something else.
            ValueError: the parameters are partitioned and there is no engine yet.
        """
        if self.probe is None:
            return False
        expect_engine(self.module)
        check_probe(self, self.probe, chosen=("block_length", "mask_token_id"))
        return True

    def weights_version(self) -> int:
        """Return the number of the weights as they are now, which a cache remembers."""
        return weights_version(self.module) if self.version is None else self.version

    def new_cache(self, batch: int, capacity: int) -> PositionCache:
        """Return an empty cache for the weights as they are now.

        Args:
            batch: rows.
            capacity: positions per row.
        """
        return new_cache(self.module, batch, capacity, self.weights_version())

    def mix(self, probabilities: Tensor) -> Tensor:
        """Return expected embeddings [B, N, d], for `added`.

        Args:
            probabilities: [B, N, V] laws over the vocabulary.
        """

        def expect(laws: Tensor, weight: Tensor) -> Tensor:
            return laws.to(weight.dtype) @ weight[: self.vocab_size]

        return through(self.module.get_input_embeddings(), expect, probabilities)

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
            blocks: [B, S] block ids, without effect under full attention; None cuts positions into `block_length`.
            gather: (hidden [N, d], weight [V, d], labels [N] or [N, C]) -> log-probabilities, chunked;
                `dare_objectives.gather_logp`, or another of that shape.
            want: what else `gather` returns for the same rows, by name ("entropy", "topk:8").
            temperature: divides the logits.
            support: [V] bool, ids that take part in the softmax; None means all.
            streams: at most this many streams in one forward; it does not change the result. None means all of them
                under full attention, and one under block-causal attention, where each is fed beside its clean row.
                Several share that row with the flex backend only.

        Returns:
            Scores of shape [B, K, S] (or [B, K, S, C]), zero off target.

        Raises:
            ValueError: shapes that do not fit, or targets on padding.
        """
        check_shapes(inputs, target, labels, valid, streams)
        self._plain_head()

        def score_rows(hidden: Tensor, ids: Tensor) -> Gathered:
            knobs = partial(gather, temperature=temperature, support=support, want=want)
            return through(self._head(), lambda rows, weight: knobs(rows, weight, ids), hidden)

        def states(ids: Tensor, positions: Tensor, plan: Plan | None) -> Tensor:
            return run(self.module, ids, positions, plan_of(positions, None, None) if plan is None else plan)

        grid = self._grid(positions_of(valid), blocks)
        if grid is None:
            layout, together = full_layout(valid, self.spec.logit_offset), streams or inputs.shape[1]
        else:
            check_blocks(valid, grid)
            shared, together = self.attention_backend == "flex_attention", streams or 1
            layout = noisy_clean_layout(clean, valid, grid, offset=self.spec.logit_offset, shared=shared)
        return score_streams(layout, states, score_rows, inputs, target, labels, together)

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
        return self.chat([text])[0] if chat else encode_text(self._tokenizer(), text)

    def chat(
        self, conversations: Sequence[str | Sequence[Message]], *, options: Mapping[str, object] | None = None
    ) -> list[list[int]]:
        """Return the ids of chats, each ending where the assistant's answer begins.

        Args:
            conversations: each one a user message, or a list of {"role": …, "content": …}.
            options: what else the chat template reads, such as {"enable_thinking": False}.

        Raises:
            ValueError: no tokenizer or chat template.
        """
        tokenizer = self._tokenizer()
        chats = ([{"role": "user", "content": chat}] if isinstance(chat, str) else chat for chat in conversations)
        return [encode_text(tokenizer, render(tokenizer, chat, answer=True, options=options)) for chat in chats]

    def dialogue(
        self,
        messages: Sequence[Message],
        *,
        turns: Literal["all", "last"] = "all",
        options: Mapping[str, object] | None = None,
    ) -> Dialogue:
        """Return the ids of a chat with its answers, and which of them are to be learnt.

        Args:
            messages: {"role": …, "content": …}, the last one the assistant's.
            turns: learn "all" answers or the "last" one.
            options: what else the chat template reads.

        Raises:
            ValueError: no tokenizer or chat template, no answer at the end, or a template that changes earlier turns.
        """
        ends, masks = self._texts(self.spec.stop_ids), self._texts([self.mask_id])
        return encode_dialogue(self._tokenizer(), messages, ends, masks=masks, turns=turns, options=options)

    def dialogues(self, messages: Sequence[Message], *, options: Mapping[str, object] | None = None) -> list[Dialogue]:
        """Return a chat as dialogues in which each answer is learnt once.

        It is one dialogue, or one of each answer where the template changes earlier turns when later ones are added.

        Args:
            messages: {"role": …, "content": …}, the last one the assistant's.
            options: what else the chat template reads.

        Raises:
            ValueError: no tokenizer or chat template, or no answer at the end.
        """
        ends, masks = self._texts(self.spec.stop_ids), self._texts([self.mask_id])
        return encode_dialogues(self._tokenizer(), messages, ends, masks=masks, options=options)

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
        """Return a sha256 over names, dtypes, shapes and values of all weights.

        Raises:
            ValueError: they are partitioned.
        """
        expect_whole(self.module.named_parameters(), "for a fingerprint")
        digest = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        layout: Literal["original", "native"] = "original",
        max_shard_size: str | int = "5GB",
    ) -> None:
        """Write config, weights, tokenizer and a probe of the logits, in the dtype of the parameters.

        They are written to a temporary sibling, which is renamed when complete.

        Args:
            path: a folder that does not exist yet.
            layout: "original" as the original repository lays them out; "native" under the names of the stock
                transformers class, which then reads them too (and attends in both directions: `is_causal` is false).
            max_shard_size: bytes per weight file, or a text like "5GB"; more go into shards with an index.

        Raises:
            CheckpointError: `path` exists.
            ValueError: an unknown layout, an adapter that is neither merged nor unloaded, or partitioned parameters.
            ProbeError: the model computes NaN or infinity.
        """
        if layout not in ("original", "native"):
            raise ValueError(f"expected layout 'original' or 'native', got {layout!r}")
        if self.adapter is not None:
            raise ValueError(
                "expected a model without an adapter, got one; write the adapter with `lora.save`, or `lora.merge` it"
            )
        if is_partitioned(self.module):
            raise ValueError(
                "expected a model of its own, got one whose parameters DeepSpeed partitions; load the checkpoint "
                "without it, copy the gathered parameters there and save that"
            )
        family = get_family(self.spec.family)
        checkpoint.write(
            path,
            family,
            self.module,
            self.tokenizer,
            layout=layout,
            max_shard_size=max_shard_size,
            probe=take_probe(self),
        )

    def _grid(self, positions: Tensor, blocks: Tensor | None) -> Tensor | None:
        """Block ids under block-causal attention, else None."""
        if self.spec.attention == "full":
            return None
        assert self.spec.block_length is not None, "a block-causal spec has one"
        return positions.div(self.spec.block_length, rounding_mode="floor") if blocks is None else blocks

    def _store(self, cache: object, write: Tensor | None, plan: Plan | None) -> PositionCache | None:
        """The cache, if it may be used in this call."""
        if cache is None:
            if write is not None:
                raise ValueError("expected a `cache` beside `write`, got none; make one with `new_cache`")
            return None
        if not isinstance(cache, PositionCache):
            raise TypeError(f"expected a cache from `new_cache`, got {type(cache).__name__}")
        if plan is not None:
            raise ValueError(f"expected plan=None with a cache, got {type(plan).__name__}; the cache makes its own")
        if cache.version != self.weights_version():
            raise ValueError(
                f"expected a cache of the weights as they are now (version {self.weights_version()}), got one of "
                f"version {cache.version}; make a new one with `new_cache`"
            )
        return cache

    def _plain_head(self) -> nn.Linear:
        head = self._head()
        if type(head) is not nn.Linear or head.bias is not None:
            raise TypeError(f"expected a plain linear head without bias, got {head}; `score` reads its weight directly")
        return head

    def _head(self) -> nn.Module:
        head = self.module.get_output_embeddings()
        assert head is not None, "every family has a language-model head"
        return head

    def _texts(self, ids: Iterable[int]) -> list[str]:
        """The texts of those tokens that the tokenizer has."""
        tokenizer = self._tokenizer()
        return [text for text in (tokenizer.convert_ids_to_tokens(token) for token in ids) if isinstance(text, str)]

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise ValueError(
                "expected a tokenizer beside the checkpoint, got none; pass ids, or DiffusionLM(…, tokenizer)"
            )
        return self.tokenizer
