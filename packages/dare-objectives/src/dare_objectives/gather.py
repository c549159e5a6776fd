"""Log-probs of chosen tokens from hidden states, without a full table of logits."""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from dare_objectives._errors import expect, suggest

__all__ = ["WANTS", "Gathered", "at_least_float32", "check_wants", "gather_logp", "pick_logp", "topk_wanted"]

WANTS: Final = ("entropy", "topk:K")
"""What a score can be asked for besides log-probs; K is a number, as in `"topk:8"`."""

_CHUNK_ELEMENTS: Final = 1 << 25


class Gathered(NamedTuple):
    """Values at N rows.

    Args:
        logp: log-probs, with the shape of `labels`.
        entropy: `[N]` if wanted.
        topk: `[N, K]` the K largest log-probs, in falling order, if wanted.
        topk_ids: int64 `[N, K]`, their tokens; equal log-probs stand in any order.
    """

    logp: Tensor
    entropy: Tensor | None = None
    topk: Tensor | None = None
    topk_ids: Tensor | None = None


def check_wants(want: tuple[str, ...]) -> None:
    """Refuse an unknown word in `want`."""
    for word in want:
        name, colon, count = word.partition(":")
        if word != "entropy" and not (name == "topk" and count.isdecimal() and int(count) > 0):
            hint = f"; expected a count of at least 1 after 'topk:', got {count!r}" if name == "topk" and colon else ""
            raise ValueError(suggest("`want`", word, WANTS) + hint)
    if len(many := [word for word in want if word != "entropy"]) > 1:
        raise ValueError(f"`want`: expected one 'topk:K', got {many}; take the largest")


def topk_wanted(want: tuple[str, ...]) -> int:
    """K of `"topk:K"`; 0 where `want` has none.

    >>> topk_wanted(("entropy", "topk:8")), topk_wanted(())
    (8, 0)
    """
    return max((int(word.removeprefix("topk:")) for word in want if word != "entropy"), default=0)


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or unchanged where it is float32 or float64 already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def pick_logp(
    logits: Tensor, labels: Tensor, temperature: float, support: Tensor | None, want: tuple[str, ...]
) -> Gathered:
    """Log-probs of `labels [N, C]` from `logits [N, V]`, and what else is wanted of the same rows."""
    logp = _log_softmax(logits, temperature, support)
    count = topk_wanted(want)
    top, ids = logp.topk(count) if count else (None, None)
    return Gathered(logp.gather(-1, labels), _entropy(logp, support) if "entropy" in want else None, top, ids)


def _log_softmax(logits: Tensor, temperature: float, support: Tensor | None) -> Tensor:
    logits = at_least_float32(logits)
    logits = logits if temperature == 1 else logits / temperature
    return (logits if support is None else logits.masked_fill(~support, -torch.inf)).log_softmax(-1)


def _entropy(logp: Tensor, support: Tensor | None) -> Tensor:
    # outside the support 0 * -inf would be nan: those tokens count as log-prob 0 with probability 0
    return -(logp.exp() * (logp if support is None else logp.masked_fill(~support, 0.0))).sum(-1)


def gather_logp(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    support: Tensor | None = None,
    want: tuple[str, ...] = (),
    chunk: int | None = None,
) -> Gathered:
    """Log-softmax of (hidden @ weight.T + bias) / temperature at `labels`, a chunk of rows at a time.

    No more than `chunk` rows of logits exist at once, in the backward pass neither (they are computed again there).
    The product is taken in the dtype of its factors (under autocast: in autocast's, unless they are float64), as the
    model's own head does, and in the backward pass too, wherever that runs; all that follows in float32 or better.

    Args:
        hidden: `[N, d]` last hidden states of the scored rows.
        weight: `[V, d]` output embedding.
        labels: int64 `[N]`, or `[N, C]` for several labels per row.
        bias: `[V]` or None.
        temperature: divides the logits, > 0.
        support: bool `[V]`, allowed tokens; all others have probability 0. None = all allowed.
        want: `"entropy"` for the entropies, `"topk:K"` for the K largest log-probs of each row and their tokens.
        chunk: rows at once; default: as many as give 2**25 logits.

    Returns:
        `Gathered(logp, entropy, topk, topk_ids)`; all but the ids have gradients.

    Raises:
        ValueError: for other shapes or dtypes, a temperature of 0 or less, an unknown word in `want`, or K > V.

    >>> gather_logp(torch.eye(2), torch.eye(2), torch.tensor([0, 0])).logp
    tensor([-0.3133, -1.3133])
    """
    _check(hidden, weight, labels, bias, support)
    check_wants(want)
    if topk_wanted(want) > weight.shape[0]:
        raise ValueError(f"`want`: expected K of 'topk:K' up to V = {weight.shape[0]}, got {topk_wanted(want)}")
    if not temperature > 0:
        raise ValueError(f"`temperature`: expected a number above 0, got {temperature!r}")
    rows = max(1, _CHUNK_ELEMENTS // weight.shape[0]) if chunk is None else chunk
    if rows < 1:
        raise ValueError(f"`chunk`: expected at least 1 row, got {chunk}")
    kind = _product_dtype(hidden, weight)
    factors = (hidden.to(kind), weight.to(kind), None if bias is None else bias.to(kind))
    columns = labels if labels.ndim == 2 else labels[:, None]
    with torch.autocast(hidden.device.type, enabled=False):
        logp, *others = _Chunked.apply(*factors, columns, temperature, support, want, rows)
    return Gathered(logp.reshape(labels.shape), *others)


def _product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and torch.float64 not in (hidden.dtype, weight.dtype):
        return torch.get_autocast_dtype(device)
    if hidden.dtype != weight.dtype:
        raise ValueError(f"`hidden`: expected the dtype of `weight`, {weight.dtype}, got {hidden.dtype}; convert it")
    return weight.dtype


def _check(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, support: Tensor | None) -> None:
    sizes: dict[str, int] = {}
    expect("hidden", hidden, "N d", sizes)
    expect("weight", weight, "V d", sizes)
    expect("labels", labels, "N" if labels.ndim == 1 else "N C", sizes, dtype=torch.int64)
    if bias is not None:
        expect("bias", bias, "V", sizes)
    if support is not None:
        expect("support", support, "V", sizes, dtype=torch.bool)


class _Chunked(Function):
    """Keeps the factors, not the logits: the backward pass computes each chunk again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        temperature: float,
        support: Tensor | None,
        want: tuple[str, ...],
        rows: int,
    ) -> tuple[Tensor | None, ...]:
        """The fields of `Gathered`, with log-probs `[N, C]`."""
        parts = [
            pick_logp(functional.linear(states, weight, bias), wanted, temperature, support, want)
            for states, wanted in zip(hidden.split(rows), labels.split(rows), strict=True)
        ]
        logp, entropy, top, ids = (None if part[0] is None else torch.cat(part) for part in zip(*parts, strict=True))
        if ids is not None:
            ctx.mark_non_differentiable(ids)
        ctx.save_for_backward(hidden, weight, bias, labels if ids is None else torch.cat([labels, ids], 1), support)
        ctx.options = (temperature, rows)
        return logp, entropy, top, ids

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        """Gradients of hidden, weight and bias, those of weight and bias summed in float32 or better.

        The tokens of the top K are labels like others here.
        """
        on_logp, on_entropy, on_top, _ = grad_outputs
        on_logp = on_logp if on_top is None else torch.cat([on_logp, on_top], 1)
        hidden, weight, bias, labels, support = ctx.saved_tensors
        temperature, rows = ctx.options
        exact = torch.promote_types(weight.dtype, torch.float32)
        on_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        on_weight = torch.zeros_like(weight, dtype=exact) if ctx.needs_input_grad[1] else None
        on_bias = torch.zeros_like(bias, dtype=exact) if ctx.needs_input_grad[2] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                logp = _log_softmax(functional.linear(hidden[part], weight, bias), temperature, support)
                on_part = None if on_entropy is None else on_entropy[part]
                slope = _slope(logp, labels[part], on_logp[part], on_part, support)
                slope = slope.div_(temperature).to(weight.dtype)
                del logp
                if on_hidden is not None:
                    on_hidden[part] = slope @ weight
                if on_weight is not None:
                    on_weight += slope.T @ hidden[part]
                if on_bias is not None:
                    on_bias += slope.sum(0)
        on_weight = None if on_weight is None else on_weight.to(weight.dtype)
        on_bias = None if on_bias is None else on_bias.to(bias.dtype)
        return on_hidden, on_weight, on_bias, None, None, None, None, None


def _slope(logp: Tensor, labels: Tensor, on_logp: Tensor, on_entropy: Tensor | None, support: Tensor | None) -> Tensor:
    """Gradient on the logits: sum_c g_c (1[v = label_c] - p_v) - g_H p_v (log p_v + H). Overwrites `logp`."""
    factor = -on_logp.sum(1, keepdim=True)
    if on_entropy is not None:
        finite = logp if support is None else logp.masked_fill(~support, 0.0)
        factor = factor - on_entropy[:, None] * (finite + _entropy(logp, support)[:, None])
    slope = logp.exp_().mul_(factor).scatter_add_(1, labels, on_logp)
    return slope if support is None else slope.masked_fill_(~support, 0.0)
