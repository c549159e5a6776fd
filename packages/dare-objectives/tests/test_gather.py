"""gather_logp against log_softmax and gather: value, gradient, memory."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dare_objectives as do

N, D, V = 13, 6, 29


def _numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    count = torch.Size(shape).numel()
    key = torch.tensor(do.make_key(seed))
    return (2 * do.uniform(key, "data", torch.arange(count), dtype=torch.float64) - 1).reshape(shape).to(dtype)


def _inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    labels = (torch.arange(N) * 7) % V
    hidden, weight = _numbers(N, D, dtype=dtype), 2 * _numbers(V, D, seed=1, dtype=dtype)
    return hidden.requires_grad_(), weight.requires_grad_(), labels


def _dense(hidden, weight, labels, *, bias=None, temperature=1.0, support=None):
    logits = (hidden @ weight.T + (0 if bias is None else bias)) / temperature
    if support is not None:
        logits = torch.where(support, logits, -torch.inf)
    logp = logits.log_softmax(-1)
    entropy = torch.distributions.Categorical(logits=logits, validate_args=False).entropy()
    columns = labels if labels.ndim == 2 else labels[:, None]
    return logp.gather(-1, columns).reshape(labels.shape), entropy


SUPPORT = (torch.arange(V) % 7 < 5) | (torch.arange(V) == (12 * 7) % V)


@pytest.mark.wheel
@pytest.mark.parametrize("chunk", [None, 1, 4, 13, 100])
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.6}, {"bias": _numbers(V, seed=2)}, {"support": SUPPORT, "temperature": 1.7}],
    ids=["plain", "temperature", "bias", "support"],
)
def test_value_and_gradient_equal_the_dense_formula(chunk, options):
    hidden, weight, labels = _inputs()
    labels = torch.where(options.get("support", torch.ones(V, dtype=torch.bool))[labels], labels, 0)
    found = do.gather_logp(hidden, weight, labels, chunk=chunk, want=("entropy",), **options)
    wanted = _dense(hidden, weight, labels, **options)
    assert found.entropy is not None
    factors = _numbers(N, seed=3), _numbers(N, seed=4)
    gradients = [
        torch.autograd.grad((factors[0] * logp).sum() + (factors[1] * entropy).sum(), (hidden, weight))
        for logp, entropy in ((found.logp, found.entropy), wanted)
    ]
    for one, other in zip((found.logp, found.entropy, *gradients[0]), (*wanted, *gradients[1]), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def test_several_labels_per_row():
    hidden, weight, labels = _inputs()
    several = torch.stack([labels, (labels + 1) % V, labels], 1)
    found = do.gather_logp(hidden, weight, several, chunk=5)
    assert found.entropy is None
    assert torch.allclose(found.logp, _dense(hidden, weight, several)[0], rtol=0, atol=1e-12)


def test_a_label_outside_the_support_has_probability_zero():
    hidden, weight, labels = _inputs()
    support = torch.arange(V) != labels[3]
    assert do.gather_logp(hidden, weight, labels, support=support).logp[3].item() == -torch.inf


@pytest.mark.wheel
def test_no_grad_pass_is_bitwise_the_training_pass():
    hidden, weight, labels = _inputs(torch.float32)
    train = do.gather_logp(hidden, weight, labels, chunk=5).logp
    with torch.no_grad():
        assert torch.equal(train, do.gather_logp(hidden, weight, labels, chunk=5).logp)


def test_autocast_is_that_of_the_models_own_head():
    hidden, weight, labels = _inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = do.gather_logp(hidden, weight, labels, chunk=5).logp
        wanted = torch.nn.functional.linear(hidden, weight).float().log_softmax(-1).gather(-1, labels[:, None])
    assert torch.allclose(found, wanted.squeeze(-1), rtol=0, atol=1e-6)
    for one, other in zip(
        torch.autograd.grad(found.sum(), (hidden, weight)),
        torch.autograd.grad(wanted.sum(), (hidden, weight)),
        strict=True,
    ):
        assert one.dtype == torch.float32
        assert torch.allclose(one, other, rtol=0.02, atol=0.02)


def test_autocast_leaves_float64_alone():
    hidden, weight, labels = _inputs()
    outside = do.gather_logp(hidden, weight, labels, bias=_numbers(V, seed=2), chunk=5).logp
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(do.gather_logp(hidden, weight, labels, bias=_numbers(V, seed=2), chunk=5).logp, outside)
        with pytest.raises(ValueError, match="`hidden`: expected the dtype of `weight`"):
            do.gather_logp(hidden.float(), weight, labels)


def test_backward_has_the_forwards_product_dtype_under_any_autocast():
    hidden, weight, labels = _inputs(torch.float32)
    total = do.gather_logp(hidden, weight, labels, chunk=5).logp.sum()
    wanted = torch.autograd.grad(total, (hidden, weight), retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(total, (hidden, weight))
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_normalised_in_float32(dtype):
    hidden, weight, labels = _inputs(dtype)
    found = do.gather_logp(hidden, weight, labels).logp
    assert found.dtype == torch.float32
    wanted = (hidden @ weight.T).float().log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-6)


def test_no_rows_and_frozen_factors():
    hidden, weight, labels = _inputs()
    assert do.gather_logp(hidden[:0], weight, labels[:0]).logp.shape == (0,)
    found = do.gather_logp(hidden.detach(), weight.detach(), labels)
    assert not found.logp.requires_grad
    (gradient,) = torch.autograd.grad(do.gather_logp(hidden, weight.detach(), labels).logp.sum(), hidden)
    assert bool(gradient.isfinite().all())


@pytest.mark.wheel
@pytest.mark.parametrize("chunk", [None, 1, 4])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": _numbers(V, seed=2), "temperature": 0.6}, {"support": SUPPORT}],
    ids=["plain", "bias", "support"],
)
def test_top_k_of_the_same_rows(chunk, options):
    hidden, weight, labels = _inputs()
    labels = torch.where(options.get("support", torch.ones(V, dtype=torch.bool))[labels], labels, 0)
    found = do.gather_logp(hidden, weight, labels, chunk=chunk, want=("topk:3", "entropy"), **options)
    logits = (hidden @ weight.T + options.get("bias", 0)) / options.get("temperature", 1.0)
    logits = logits.masked_fill(~options.get("support", torch.ones(V, dtype=torch.bool)), -torch.inf)
    top, ids = logits.log_softmax(-1).topk(3)
    assert found.topk is not None
    assert found.topk_ids is not None
    assert found.entropy is not None
    assert torch.equal(found.topk_ids, ids)
    assert torch.allclose(found.topk, top, rtol=0, atol=1e-12)
    logp, entropy = _dense(hidden, weight, labels, **options)
    on_logp, on_entropy, on_top = _numbers(N, seed=3), _numbers(N, seed=4), _numbers(N, 3, seed=5)
    gradients = [
        torch.autograd.grad((on_logp * one).sum() + (on_entropy * two).sum() + (on_top * three).sum(), (hidden, weight))
        for one, two, three in ((found.logp, found.entropy, found.topk), (logp, entropy, top))
    ]
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("want", [(), ("entropy",), ("topk:2",), ("entropy", "topk:4")])
def test_gradcheck(want):
    """Numerical derivatives, of hidden, weight and bias; the likeliest tokens are far enough apart not to swap."""
    hidden, weight, bias = _numbers(5, 3).requires_grad_(), _numbers(7, 3, seed=1).requires_grad_(), _numbers(7, seed=2)
    labels = torch.tensor([[0, 1], [1, 1], [6, 2], [3, 3], [4, 0]])

    def values(hidden, weight, bias):
        found = do.gather_logp(hidden, weight, labels, bias=bias, temperature=0.7, want=want, chunk=2)
        return tuple(x for x in found[:3] if x is not None)

    assert torch.autograd.gradcheck(values, (hidden, weight, bias.requires_grad_()))


def test_top_k_alone_has_a_gradient_and_few_allowed_tokens_leave_minus_infinity():
    hidden, weight, labels = _inputs()
    support = torch.arange(V) < 2
    found = do.gather_logp(hidden, weight, labels % 2, support=support, want=("topk:3",))
    assert found.topk is not None
    assert found.topk_ids is not None
    assert bool((found.topk[:, 2] == -torch.inf).all())
    assert bool((found.topk_ids[:, :2].sort(1).values == torch.arange(2)).all())
    (gradient,) = torch.autograd.grad(found.topk[:, 0].sum(), hidden)
    assert bool(gradient.isfinite().all())
    assert bool(gradient.any())


class _LargestAnywhere(TorchDispatchMode):
    """The largest tensor that any kernel returns, those inside other operations and of the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return result


@pytest.mark.wheel
@pytest.mark.parametrize("want", [(), ("entropy",), ("topk:3",), ("entropy", "topk:3")])
def test_no_kernel_makes_more_than_a_chunk_of_logits(want):
    rows, vocab, chunk = 64, 500, 4
    hidden, weight = _numbers(rows, 2).requires_grad_(), _numbers(vocab, 2).requires_grad_()
    with _LargestAnywhere() as seen:
        found = do.gather_logp(hidden, weight, torch.arange(rows), chunk=chunk, want=want)
        torch.stack([x.sum() for x in found[:3] if x is not None]).sum().backward()
    assert seen.numel == chunk * vocab
    assert weight.grad is not None
    with _LargestAnywhere() as dense:
        _dense(hidden, weight, torch.arange(rows))[0].sum().backward()
    assert dense.numel == rows * vocab


class _Largest(TorchFunctionMode):
    """The largest tensor that any operation produces, in the forward and in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return result


@pytest.mark.wheel
def test_no_more_than_a_chunk_of_logits_exists():
    rows, vocab, chunk = 64, 500, 4
    hidden, weight = _numbers(rows, 2).requires_grad_(), _numbers(vocab, 2).requires_grad_()
    labels = torch.arange(rows)
    with _Largest() as seen:
        do.gather_logp(hidden, weight, labels, chunk=chunk, want=("entropy",)).logp.sum().backward()
    assert seen.numel == chunk * vocab
    assert weight.grad is not None
    with _Largest() as dense:
        _dense(hidden, weight, labels)[0].sum().backward()
    assert dense.numel == rows * vocab


def test_default_chunk_bounds_the_logits():
    vocab = 1 << 20
    hidden, weight = torch.zeros(40, 1), torch.zeros(vocab, 1)
    with _Largest() as seen:
        do.gather_logp(hidden, weight, torch.zeros(40, dtype=torch.int64))
    assert seen.numel == 1 << 25


def test_global_generator_is_untouched():
    hidden, weight, labels = _inputs()
    before = torch.get_rng_state()
    do.gather_logp(hidden, weight, labels, chunk=3).logp.sum().backward()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "`temperature`: expected a number above 0, got 0.0"),
        ({"want": ("entropi",)}, "did you mean 'entropy'"),
        ({"want": ("topk",)}, "did you mean 'topk:K'"),
        ({"want": ("topk:0",)}, "expected a count of at least 1 after 'topk:', got '0'"),
        ({"want": ("topk:2", "topk:5")}, "expected one 'topk:K', got .'topk:2', 'topk:5'."),
        ({"want": ("topk:30",)}, "expected K of 'topk:K' up to V = 29, got 30"),
        ({"support": torch.ones(V)}, "`support`: expected torch.bool"),
        ({"bias": torch.ones(V + 1)}, "`bias`: expected shape"),
        ({"weight": torch.zeros(V, D)}, "`hidden`: expected the dtype of `weight`"),
        ({"chunk": 0}, "`chunk`: expected at least 1 row"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    hidden, weight, labels = _inputs()
    with pytest.raises(ValueError, match=message):
        do.gather_logp(**({"hidden": hidden, "weight": weight, "labels": labels} | change))
