"""Running the stock network: the only place where a module is called, with a plan and perhaps a cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dare_models.attention import BlockCausal, Documents, Full, Plan, Varlen, materialise
from dare_models.cache import Feed, PositionCache
from dare_models.partition import expect_countable

__all__ = [
    "backend_of",
    "cache_argument",
    "new_cache",
    "plan_of",
    "run",
    "run_cached",
    "sources",
    "through",
    "weights_version",
]


def backend_of(module: PreTrainedModel) -> str:
    """Return transformers' name of the attention implementation in use."""
    return str(module.config._attn_implementation)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def cache_argument(module: PreTrainedModel) -> str:
    """Return the name under which the network takes a cache; transformers 5 changed it on the way.

    Raises:
        TypeError: it takes none.
    """
    known = inspect.signature(module.get_decoder().forward).parameters
    for name in ("cache", "past_key_values"):
        if name in known:
            return name
    raise TypeError(f"expected a network that takes `cache` or `past_key_values`, got one that takes {list(known)}")


def weights_version(module: PreTrainedModel) -> int:
    """Return a number that changes whenever a weight is replaced or changed in place by torch.

    Stacked experts under an adapter count as they lie in memory: peft rewrites them, unchanged, at every forward.

    Raises:
        ValueError: the parameters are partitioned, so that torch does not see their changes.
    """
    parameters = list(module.named_parameters())
    expect_countable(parameter for _, parameter in parameters)

    def count(name: str, parameter: nn.Parameter) -> int:
        uncounted = parameter.is_inference() or (parameter.ndim == 3 and ".base_layer." in name)
        return 0 if uncounted else parameter._version  # noqa: SLF001

    return hash(tuple((parameter.data_ptr(), count(name, parameter)) for name, parameter in parameters))


def new_cache(module: PreTrainedModel, batch: int, capacity: int, version: int) -> PositionCache:
    """Return an empty cache for this network.

    Args:
        module: the model.
        batch: rows.
        capacity: positions per row.
        version: of the weights.
    """
    layers = int(module.config.num_hidden_layers)
    argument = cache_argument(module)
    return PositionCache.empty(layers, batch, capacity, version=version, argument=argument, device=module.device)


def run(module: PreTrainedModel, ids: Tensor, positions: Tensor, plan: Plan, added: Tensor | None = None) -> Tensor:
    """Return the last hidden states, not aligned.

    Args:
        module: the model.
        ids: [B, Q] int64.
        positions: [B, Q] int64, -1 on padding.
        plan: who sees whom.
        added: [B, Q, d], added to the embeddings.

    Returns:
        [B, Q, d].
    """
    return _forward(module, ids, positions, plan, added, ids.shape[1], {"use_cache": False})


@torch.no_grad()
def run_cached(
    module: PreTrainedModel, ids: Tensor, positions: Tensor, feed: Feed, cache: PositionCache, added: Tensor | None
) -> Tensor:
    """Return the last hidden states, not aligned and without a gradient, and store what the feed says.

    Args:
        module: the model.
        ids: [B, Q] int64.
        positions: [B, Q] int64, -1 on padding.
        feed: from `cache.begin`.
        cache: the cache.
        added: [B, Q, d], added to the embeddings.

    Returns:
        [B, Q, d].

    Raises:
        ValueError: the module recomputes activations, which leaves the cache out; or flash attention with padding.
    """
    if module.training and any(getattr(part, "gradient_checkpointing", False) for part in module.modules()):
        raise ValueError("expected a module in eval mode, got one that recomputes activations; call module.eval()")
    if backend_of(module).startswith("flash") and isinstance(feed.plan, Full) and feed.plan.key_valid is not None:
        raise ValueError(
            "expected a cache of which every query sees all under flash attention; load with backend='sdpa'"
        )
    options = {cache.argument: cache, "use_cache": True}
    hidden = _forward(module, ids, positions, feed.plan, added, feed.keys(cache.batch), options)
    cache.finish(feed)
    return hidden


def _forward(
    module: PreTrainedModel,
    ids: Tensor,
    positions: Tensor,
    plan: Plan,
    added: Tensor | None,
    keys: int,
    options: dict[str, Any],
) -> Tensor:
    backend, queries = backend_of(module), ids.shape[1]
    mask = materialise(plan, backend=backend, dtype=module.dtype, queries=queries, keys=keys, device=ids.device)
    extra: dict[str, Any] = mask._asdict() if isinstance(mask, Varlen) else {"attention_mask": mask}
    if added is None:
        extra["input_ids"] = ids
    else:
        embedded = module.get_input_embeddings()(ids)
        extra["inputs_embeds"] = embedded + added.to(embedded.dtype)
    network = module.get_decoder()
    return network(position_ids=positions.clamp(min=0), **extra, **options).last_hidden_state


def through(layer: nn.Module, compute: Callable[[Tensor, Tensor], Any], inputs: Tensor) -> Any:
    """Return `compute(inputs, layer.weight)`, computed as the layer's forward.

    So hooks run that bring the weight before and take it away after, such as those of ZeRO-3.

    Args:
        layer: the head or the embedding.
        compute: (inputs, weight [V, d]) -> tensors.
        inputs: what `compute` takes.
    """
    known = vars(layer).get("forward")
    layer.forward = lambda given: compute(given, layer.get_parameter("weight"))
    try:
        return layer(inputs)
    finally:
        del layer.forward
        if known is not None:
            layer.forward = known


def sources(positions: Tensor, documents: Tensor | None = None) -> Tensor:
    """Return the columns whose state scores each token under a shift by one.

    That is the column to the left, if it holds the position before of the same row, else the token's own.

    Args:
        positions: [B, Q] int64, -1 on padding.
        documents: [1, Q] document of each token, or None.

    Returns:
        [B, Q] int64.

    >>> sources(torch.tensor([[-1, 0, 1, 2, 5]])).tolist()
    [[0, 1, 1, 2, 4]]
    """
    columns = torch.arange(positions.shape[1], device=positions.device)
    left = (columns - 1).clamp(min=0)
    follows = (positions > 0) & (positions.index_select(1, left) == positions - 1)
    if documents is not None:
        follows = follows & (documents.index_select(1, left) == documents)
    return torch.where(follows, left, columns)


def plan_of(positions: Tensor, blocks: Tensor | None, documents: Tensor | None) -> Plan:
    """Return who sees whom where nothing is cached.

    Args:
        positions: [B, Q] int64, -1 on padding.
        blocks: [B, Q] block ids, or None under full attention.
        documents: [1, Q] document of each token, or None where rows are rows.
    """
    real = positions >= 0
    inner = Full() if blocks is None else BlockCausal(blocks.masked_fill(~real, -1))
    if documents is not None:
        return Documents(documents.masked_fill(~real, -1), inner)
    if blocks is not None or bool(real.all()):
        return inner
    return Full(real)
