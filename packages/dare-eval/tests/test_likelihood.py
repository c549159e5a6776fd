"""Likelihood mode: exact values, error bars that cover, common draws, choices, normalisation."""

from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import Any, cast

import pytest
import torch

import dare_models
from dare_eval import LikelihoodSettings, Protocol, evaluate
from dare_eval.engine import Answer, greedy, split_pair, weigh
from dare_eval.tasks import miniature

PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


@pytest.fixture(scope="module")
def lm() -> Any:
    """A model over printable characters in float64, with an output law that is far from flat."""
    torch.set_num_threads(1)
    model = dare_models.tiny(tokenizer=dare_models.tiny_tokenizer(PRINTABLE), dtype="float64", seed=1)
    with torch.no_grad():
        model.module.get_output_embeddings().weight.mul_(6)
    return model


def _enumerated(lm: Any, context: list[int], continuation: list[int]) -> float:
    """E_k L/k sum of log p over a random k-subset, k uniform on 1..L: every subset once."""
    size, total = len(continuation), 0.0
    for k in range(1, size + 1):
        for hidden in combinations(range(size), k):
            ids = torch.tensor([[*context, *(lm.mask_id if i in hidden else t for i, t in enumerate(continuation))]])
            logp = lm(ids).detach()[0, len(context) :].log_softmax(-1)
            total += sum(float(logp[i, continuation[i]]) for i in hidden) / k / comb(size, k)
    return total


@pytest.mark.wheel
@pytest.mark.parametrize("length", [1, 2, 4])
def test_short_answers_are_enumerated(lm: Any, length: int) -> None:
    """User case P4: the exact bound, by summing over all masks with their weights."""
    context, continuation = lm.encode("Q: ab?"), lm.encode("abcd")[:length]
    (found,) = weigh(lm, [Answer(context, continuation)], LikelihoodSettings(), seed=0)
    assert found.exact
    assert found.error == 0
    assert found.forwards == 2**length - 1
    assert found.value == pytest.approx(_enumerated(lm, context, continuation), abs=1e-9)


@pytest.mark.parametrize("estimator", ["count", "complementary", "bernoulli"])
def test_draws_agree_with_enumeration(lm: Any, estimator: str) -> None:
    context, continuation = lm.encode("Q: ab?"), lm.encode("abcde")
    exact = _enumerated(lm, context, continuation)
    settings = LikelihoodSettings(estimator=cast(Any, estimator), draws=16, replicates=8)
    found = [weigh(lm, [Answer(context, continuation)], settings, seed=seed)[0] for seed in range(120)]
    assert not any(one.exact for one in found)
    values = torch.tensor([one.value for one in found])
    assert abs(float(values.mean()) - exact) < 4 * float(values.std()) / len(values) ** 0.5


@pytest.mark.parametrize(("draws", "replicates"), [(30, 30), (64, 16)])
def test_the_interval_covers_the_exact_value(lm: Any, draws: int, replicates: int) -> None:
    """Over 400 keyed repeats the 95 % interval covers the exact value in 92 to 98 %."""
    context, continuation = lm.encode("Q: ab?"), lm.encode("abcdefg")
    exact = _enumerated(lm, context, continuation)
    settings = LikelihoodSettings(draws=draws, replicates=replicates)
    covered = 0
    for seed in range(400):
        (found,) = weigh(lm, [Answer(context, continuation)], settings, seed=seed)
        assert not found.exact
        low, high = found.interval()
        covered += low <= exact <= high
    assert 368 <= covered <= 392, covered


@pytest.mark.wheel
def test_equal_lengths_share_their_draws_and_batches_do_not_matter(lm: Any) -> None:
    context = lm.encode("Which one?")
    answers = [Answer(context, lm.encode(text)) for text in (" alpha", " gamma", " be", " epsilon")]
    answers.append(Answer(lm.encode("Something longer in front?"), lm.encode(" alpha")))
    settings = LikelihoodSettings(draws=8, replicates=4)
    whole = weigh(lm, answers, settings, seed=3)
    for batch_size in (1, 2, 64):
        for one, other in zip(whole, weigh(lm, answers, settings, seed=3, batch_size=batch_size), strict=True):
            assert one.value == pytest.approx(other.value, abs=1e-9)
    same = weigh(lm, [answers[0], answers[0]], settings, seed=3)
    assert same[0].minus(same[1]).error == 0
    paired = whole[0].minus(whole[1]).error
    apart = (whole[0].error ** 2 + whole[1].error ** 2) ** 0.5
    assert paired != pytest.approx(apart)
    assert weigh(lm, answers, settings, seed=4)[0].value != whole[0].value


@pytest.mark.wheel
@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2", "fast_dllm_v2"])
def test_every_kind_of_attention(family: str) -> None:
    model = dare_models.tiny(family, tokenizer=dare_models.tiny_tokenizer(PRINTABLE), dtype="float64")
    answers = [Answer(model.encode("Why?"), model.encode(text)) for text in (" a", " bcd", " efghijk")]
    found = weigh(model, answers, LikelihoodSettings(draws=16, replicates=4), seed=0)
    assert [one.exact for one in found] == [True, True, False]
    assert all(one.value < 0 for one in found)
    if model.attention == "block_causal":
        with pytest.raises(ValueError, match="`guidance`: expected 0 with block-causal attention"):
            weigh(model, answers, LikelihoodSettings(guidance=1.0), seed=0)
        left = weigh(model, answers, LikelihoodSettings(estimator="left_to_right"), seed=0)
        assert all(one.exact for one in left)


@pytest.mark.wheel
def test_pairs_are_split_where_the_tokens_split(lm: Any) -> None:
    made = split_pair(lm, "Answer: ", "yes")
    assert made == Answer(lm.encode("Answer:"), lm.encode(" yes"))
    assert split_pair(lm, "", "yes") == Answer([], lm.encode("yes"))
    with pytest.raises(ValueError, match="expected answers of at least one token, got none in number 1"):
        weigh(lm, [made, Answer([1], [])], LikelihoodSettings(), seed=0)


@pytest.mark.wheel
def test_greedy_is_what_decoding_writes(lm: Any) -> None:
    from dare_eval.engine import Request, complete
    from dare_eval.sampling import CoreSampler

    context = lm.encode("Say:")
    (written,), _ = complete(lm, [Request(context)], CoreSampler(gen_length=4).config(lm.spec), seed=0)
    other = [*written.ids[:-1], (written.ids[-1] + 1) % 90]
    assert greedy(lm, [Answer(context, written.ids), Answer(context, other)], seed=0) == [True, False]


@pytest.mark.wheel
@pytest.mark.parametrize("normalisation", ["sum", "token", "byte", "unconditional", "text"])
def test_a_choice_task(lm: Any, normalisation: str) -> None:
    made = Protocol.preset(
        "llada-base",
        "arc_challenge",
        data=miniature("arc_challenge"),
        likelihood={"draws": 8, "replicates": 4, "normalisation": normalisation, "guidance": 0.0},
    )
    record = evaluate(lm, made)
    assert record == evaluate(lm, made, batch_size=3).model_copy(
        update={"seconds": record.seconds, "batch_size": record.batch_size, "rows": record.rows}
    )
    settings = made.likelihood
    for row, item in zip(record.rows, made.items(), strict=True):
        answers = [split_pair(lm, item.prompt, choice) for choice in item.choices]
        values = [one.value for one in weigh(lm, answers, settings, seed=0)]
        if normalisation == "token":
            values = [value / len(answer.continuation) for value, answer in zip(values, answers, strict=True)]
        if normalisation == "byte":
            values = [value / len(choice.strip()) for value, choice in zip(values, item.choices, strict=True)]
        if normalisation == "text":
            whole = [Answer((), [*context, *own]) for context, own in answers]
            values = [one.value / one.length for one in weigh(lm, whole, settings, seed=0)]
        if normalisation == "unconditional":
            alone = weigh(lm, [Answer((), answer.continuation) for answer in answers], settings, seed=0)
            values = [value - blank.value for value, blank in zip(values, alone, strict=True)]
        assert [one.value for one in row.options] == pytest.approx(values, abs=1e-9)
        best = max(range(len(values)), key=values.__getitem__)
        assert row.correct is (item.choices[best] == item.answer)
        assert row.pred == item.choices[best].strip()
        assert row.nfe >= len(values)
    assert record.chance == 0.25


@pytest.mark.wheel
def test_letters_are_exact_in_one_forward(lm: Any) -> None:
    sampler = cast(Any, {"kind": "core", "gen_length": 1})
    made = Protocol(task="mmlu", mode="likelihood", shots=1, data=miniature("mmlu"), sampler=sampler)
    record = evaluate(lm, made)
    assert all(option.error == 0 for row in record.rows for option in row.options)
    assert all(row.margin is None for row in record.rows)
    assert evaluate(lm, made.model_copy(update={"chat": True})).n == 2


@pytest.mark.wheel
def test_the_noise_of_a_choice_is_told(lm: Any, record: Callable[..., Any]) -> None:
    made = Protocol.preset(
        "llada-base", "hellaswag", data=miniature("hellaswag"), likelihood={"draws": 8, "replicates": 8}
    )
    assert all(row.margin is not None and row.margin >= 0 for row in evaluate(lm, made).rows)
