"""Conformance of a family, on tiny random models: what every adapter must guarantee.

import pytest
from dare_models.testing import CHECKS

@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_my_family(check):
    check("my_family")
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from dare_models import invariants
from dare_models.families import get_family
from dare_models.lm import DiffusionLM
from dare_models.loading import load
from dare_models.scoring import Gathered, Scores
from dare_models.spec import ModelSpec
from dare_models.tiny import tiny
from dare_models.tokenizer import tiny_tokenizer

__all__ = ["CHECKS", "dense_gather", "example", "family_conformance"]


def family_conformance(family: str) -> tuple[str, ...]:
    """Run every check on one family.

    Args:
        family: its name.

    Returns:
        Names of the checks that passed.

    Raises:
        AssertionError: saying what does not hold.
    """
    for check in CHECKS:
        check(family)
    return tuple(check.__name__ for check in CHECKS)


def example(
    family: str,
    *,
    alphabet: str = "0123456789+=>",
    block_length: int | None = None,
    dtype: str = "float64",
    backend: str = "sdpa",
    seed: int = 0,
) -> DiffusionLM:
    """Return a tiny model whose weights are large enough for every path to matter (logits of order one).

    Args:
        family: its name.
        alphabet: characters of its tokenizer.
        block_length: positions per block; None takes the releases'.
        dtype: floating-point type.
        backend: attention implementation.
        seed: of the weights.
    """
    tokenizer = tiny_tokenizer(alphabet)
    lm = tiny(family, tokenizer=tokenizer, block_length=block_length, seed=seed, dtype=dtype, backend=backend)
    with torch.no_grad():
        for parameter in lm.module.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return lm


def dense_gather(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    /,
    *,
    temperature: float = 1.0,
    support: Tensor | None = None,
    want: tuple[str, ...] = (),
) -> Gathered:
    """Return log-probabilities by a plain log-softmax over all logits; the reference for chunked ones.

    Args:
        hidden: [N, d].
        weight: [V, d].
        labels: [N] or [N, C].
        temperature: divides the logits.
        support: [V] bool.
        want: "entropy" adds the entropies, "topk:N" the N largest log-probabilities and their ids.
    """
    logits = hidden @ weight.T / temperature
    if support is not None:
        logits = logits.masked_fill(~support, -torch.inf)
    logp = logits.log_softmax(-1)
    picked = logp.gather(1, labels if labels.ndim == 2 else labels[:, None]).reshape(labels.shape)
    finite = logp.masked_fill(logp == -torch.inf, 0.0)
    entropy = -(logp.exp() * finite).sum(-1) if "entropy" in want else None
    counts = [int(word.removeprefix("topk:")) for word in want if word.startswith("topk:")]
    return Scores(picked, entropy, *(logp.topk(counts[0]) if counts else ()))


def check_spec(family: str) -> None:
    """The spec survives JSON, and the model shows what a sampler reads."""
    lm = example(family)
    _same(ModelSpec.from_json(lm.spec.to_json()), lm.spec, "spec after JSON")
    _same(lm.level, 2, "level")
    _same(lm.mask_id, lm.spec.mask_token_id, "mask id")
    _same(lm(_ids(lm)).shape[-1], lm.vocab_size, "number of logits")


def check_bidirectional(family: str) -> None:
    """Inside a block, the first position's logits depend on the last token, and the last one's on the first."""
    lm = example(family)
    ids = _ids(lm, rows=1)
    last = min(lm.block_length or ids.shape[1], ids.shape[1]) - 1
    for changed, seen in ((last, 0), (0, last)):
        other = ids.clone()
        other[0, changed] = (other[0, changed] + 1) % lm.vocab_size
        _true(float((lm(ids) - lm(other))[0, seen].detach().abs().max()) > 1e-6, f"column {seen} sees column {changed}")


def check_blocks(family: str) -> None:
    """Under block-causal attention no block depends on a later one, and the training forward keeps to it."""
    lm = example(family)
    if lm.attention == "block_causal":
        invariants.blocks_in_order(lm)
        invariants.halves_agree(lm)


def check_cache(family: str) -> None:
    """Cached forwards equal uncached ones where they must: append, view, window, select, truncate."""
    invariants.cached_equals_uncached(example(family))


def check_packed(family: str) -> None:
    """Packed documents score as they do alone."""
    invariants.packed_equals_separate(example(family))


def check_padding(family: str) -> None:
    """Padding on either side changes nothing (1e-10 in float64), and its content neither."""
    lm = example(family)
    ids = _ids(lm, rows=1)
    alone = lm(ids)
    for left, right in ((5, 0), (0, 5), (2, 3)):
        for filler in (lm.pad_id, lm.mask_id):
            padded = torch.nn.functional.pad(ids, (left, right), value=filler).repeat(2, 1)
            positions = torch.nn.functional.pad(torch.arange(ids.shape[1])[None], (left, right), value=-1)
            filled = torch.arange(padded.shape[1])[None]
            logits = lm(padded, positions=torch.cat([positions, filled]))
            _true(bool(logits.isfinite().all()), "padded rows are finite")
            _close(logits[:1, left : left + ids.shape[1]], alone, 1e-10, f"pads {left} left, {right} right")


def check_backends(family: str) -> None:
    """Eager and sdpa attention agree, padded or not (eager takes its softmax in float32)."""
    sdpa, eager = example(family), example(family, backend="eager")
    ids = _ids(sdpa)
    positions = torch.arange(ids.shape[1]).expand_as(ids).clone()
    positions[0, -3:] = -1
    _close(eager(ids), sdpa(ids), 1e-5, "sdpa = eager")
    _close(eager(ids, positions=positions), sdpa(ids, positions=positions), 1e-5, "sdpa = eager with padding")


def check_rows(family: str) -> None:
    """Logits at requested columns are those columns of all logits, in the order asked for."""
    lm = example(family)
    ids, rows = _ids(lm), torch.tensor([[4, 0, 4], [1, 2, 7]])
    full = lm(ids)
    picked = full.gather(1, rows[..., None].expand(-1, -1, full.shape[-1]))
    _close(lm(ids, rows=rows), picked, 1e-12, "requested rows")


def check_score(family: str) -> None:
    """Scores and their gradients equal a log-softmax over all logits; chunks of streams change nothing."""
    lm = example(family)
    inputs, target, labels, valid = _plan(lm)
    expected = _naive_score(lm, inputs, target, labels, valid)
    grads = _grads(lm, expected)
    for streams in (None, 1, 2):
        got = _score(lm, inputs, target, labels, valid, streams=streams)
        _close(got.logp, expected, 1e-10, f"scores, streams={streams}")
        for one, other in zip(_grads(lm, got.logp), grads, strict=True):
            _close(one, other, 1e-9, f"gradients, streams={streams}")


def check_recomputed_activations(family: str) -> None:
    """Recomputing activations leaves the gradients as they are."""
    lm = example(family)
    plan = _plan(lm)
    plain = _grads(lm, _score(lm, *plan, streams=None).logp)
    lm.recompute_activations()
    lm.module.train()
    for one, other in zip(_grads(lm, _score(lm, *plan, streams=None).logp), plain, strict=True):
        _close(one, other, 1e-12, "gradients with checkpointing")


def check_every_id_learns(family: str) -> None:
    """The embedding of every id gets a gradient, the one that also pads (often the end of text) included."""
    lm = example(family)
    ids = torch.arange(lm.vocab_size)[None]
    lm(ids).square().sum().backward()
    gradient = lm.module.get_input_embeddings().get_parameter("weight").grad
    assert gradient is not None
    _same(gradient.abs().amax(dim=1).gt(0).tolist(), [True] * lm.vocab_size, "ids whose embedding learns")


def check_score_options(family: str) -> None:
    """Several labels per row, temperature, support and entropy reach the rows they belong to."""
    lm = example(family)
    inputs, target, labels, valid = _plan(lm)
    support = torch.ones(lm.vocab_size, dtype=torch.bool)
    support[lm.mask_id] = False
    several = torch.stack([labels, (labels + 5) % lm.vocab_size], dim=-1)

    def score(ids: Tensor, *, want: tuple[str, ...] = ()) -> Scores:
        knobs = partial(lm.score, gather=dense_gather, want=want, temperature=0.7, support=support)
        return knobs(inputs, inputs[:, 0], target, ids, valid, None)

    got, one = score(several, want=("entropy",)), score(labels)
    _close(got.logp[..., 0], one.logp, 1e-12, "first of several labels")
    _true(got.entropy is not None and bool((got.entropy > 0).eq(target).all()), "entropy at the targets only")
    _true(bool((got.logp == 0).all(-1).eq(~target).all()), "zero off target")


def check_round_trip(family: str) -> None:
    """Save, load, save: equal files, equal weights, equal logits, equal spec; and no file left over."""
    lm = example(family, dtype="float32")
    with tempfile.TemporaryDirectory() as parent:
        first, second = Path(parent, "first"), Path(parent, "second")
        lm.save(first)
        again = load(first)
        again.save(second)
        _same(again.spec, lm.spec, "spec after loading")
        _same(again.fingerprint(), lm.fingerprint(), "weights after loading")
        _same(sorted(p.name for p in Path(parent).iterdir()), ["first", "second"], "folders")
        for file in sorted(first.iterdir()):
            _same((second / file.name).read_bytes() == file.read_bytes(), True, f"bytes of {file.name}")
        names = load_file(first / "model.safetensors").keys()
        _same(json.loads((first / "config.json").read_text())["architectures"], [type(lm.module).__name__], "class")
        filled = {native for natives in get_family(family).native_names(names).values() for native in natives}
        _same(filled, set(lm.module.state_dict()), "parameters that the files fill")


def check_determinism(family: str) -> None:
    """A seed gives one model, another seed another, and the global generator is left alone."""
    before = torch.get_rng_state()
    one, same, other = example(family), example(family), example(family, seed=1)
    _true(bool(torch.get_rng_state().eq(before).all()), "global generator untouched")
    _same(one.fingerprint(), same.fingerprint(), "weights of one seed")
    _true(one.fingerprint() != other.fingerprint(), "weights of two seeds differ")


def check_dtypes(family: str) -> None:
    """A cast touches parameters only: rotary frequencies and other buffers are the same in every dtype."""
    single, half = example(family, dtype="float32"), example(family, dtype="bfloat16")
    _same(half.dtype, torch.bfloat16, "dtype of the parameters")
    for (name, one), other in zip(single.module.named_buffers(), half.module.buffers(), strict=True):
        _same((other.dtype, bool(torch.equal(one, other))), (one.dtype, True), f"buffer {name}")


def check_no_generate(family: str) -> None:
    """The inherited left-to-right loop refuses."""
    try:
        example(family).module.generate()  # pyright: ignore[reportCallIssue]
    except NotImplementedError as error:
        _true("dare_samplers" in str(error), "generate() points to dare_samplers")
    else:
        raise AssertionError("expected generate() to refuse")


CHECKS: tuple[Callable[[str], None], ...] = (
    check_spec,
    check_bidirectional,
    check_blocks,
    check_cache,
    check_packed,
    check_padding,
    check_backends,
    check_rows,
    check_score,
    check_recomputed_activations,
    check_every_id_learns,
    check_score_options,
    check_round_trip,
    check_determinism,
    check_dtypes,
    check_no_generate,
)


def _ids(lm: DiffusionLM, rows: int = 2, columns: int = 8) -> Tensor:
    """Fixed ids [rows, columns], some of them masks."""
    ids = (torch.arange(rows * columns).reshape(rows, columns) * 7 + 3) % lm.vocab_size
    ids[:, 2::3] = lm.mask_id
    return ids


def _plan(lm: DiffusionLM) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, target, labels [2, 3, 10] and valid [2, 10] with padding of both kinds: in one row, and in both."""
    valid = torch.tensor([[True] * 8 + [False] * 2, [True] * 6 + [False] * 4])
    labels = ((torch.arange(60).reshape(2, 3, 10) * 5 + 1) % lm.vocab_size).masked_fill(~valid[:, None], lm.pad_id)
    target = (torch.arange(60).reshape(2, 3, 10) % 3 == 1) & valid[:, None]
    return labels.masked_fill(target, lm.mask_id), target, labels, valid


def _score(
    lm: DiffusionLM, inputs: Tensor, target: Tensor, labels: Tensor, valid: Tensor, *, streams: int | None
) -> Scores:
    return lm.score(inputs, inputs[:, 0], target, labels, valid, None, gather=dense_gather, streams=streams)


def _naive_score(lm: DiffusionLM, inputs: Tensor, target: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """One row, stream and block at a time, without its padding, all logits."""
    out = torch.zeros(inputs.shape, dtype=lm.dtype)
    for b, k in torch.cartesian_prod(torch.arange(inputs.shape[0]), torch.arange(inputs.shape[1])).tolist():
        logp = invariants.conditionals(lm, inputs[b, k, valid[b]], inputs[b, 0, valid[b]])
        picked = logp.gather(1, labels[b, k, valid[b]][:, None])[:, 0]
        out[b, k, valid[b]] = picked * target[b, k, valid[b]]
    return out


def _grads(lm: DiffusionLM, logp: Tensor) -> tuple[Tensor, ...]:
    weights = torch.arange(logp.numel(), dtype=logp.dtype).reshape(logp.shape)
    return torch.autograd.grad((logp * weights).sum(), list(lm.module.parameters()))


def _close(got: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    error = float((got - expected).detach().abs().max())
    _true(error <= tolerance, f"{what}: expected within {tolerance}, got {error}")


def _same(got: object, expected: object, what: str) -> None:
    _true(got == expected, f"{what}: expected {expected!r}, got {got!r}")


def _true(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)
