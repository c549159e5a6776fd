"""Estimators against exact expectations, by enumeration of every mask of the toy worlds (float64)."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_objectives.plans.count import spread_counts
from dare_objectives.testing import ToyWorld, all_masks, any_order_nll


@pytest.fixture(scope="module")
def answers(worlds, tensor):
    """(answer, masked log-probs [2^L, L], the golden entry) of both worlds."""
    return [
        (answer["answer"], tensor(answer["masked_logp"]).double(), answer)
        for world in worlds
        for answer in world["answers"]
    ]


def _draws(one_answer, answer: list[int], logp: Tensor, weight: Tensor) -> Tensor:
    """The bound of each mask [2^L], through a plan whose streams are all masks."""
    batch = one_answer(answer)
    plan = do.mask_plan(batch, all_masks(len(answer))[None], weight)
    return do.elbo_draws(torch.where(plan.target, logp, 7.0), plan)[0]


def _moments(value: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    mean = (probability * value).sum()
    return mean, (probability * (value - mean) ** 2).sum()


def _check_moments(check, found: tuple[Tensor, Tensor], wanted: dict) -> None:
    check(found[0], torch.tensor(wanted["mean"], dtype=torch.float64))
    check(found[1], torch.tensor(wanted["variance"], dtype=torch.float64))


def _legendre(nodes: int, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (low, high), by the eigenvalues of the Jacobi matrix."""
    k = torch.arange(1, nodes, dtype=torch.float64)
    beta = k / (4 * k**2 - 1).sqrt()
    value, vector = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
    return low + (high - low) * (value + 1) / 2, (high - low) * vector[0] ** 2


def _bernoulli(size: Tensor, length: int, rate: Tensor) -> Tensor:
    return rate**size * (1 - rate) ** (length - size)


@pytest.mark.wheel
def test_any_order_nll(answers, check):
    for _, logp, golden in answers:
        check(any_order_nll(logp), torch.tensor(golden["any_order_nll"], dtype=torch.float64))


def test_count_estimators(answers, one_answer, check):
    for answer, logp, golden in answers:
        length = len(answer)
        size = all_masks(length).sum(1)
        choose = torch.tensor([math.comb(length, k) for k in range(length + 1)], dtype=torch.float64)[size]
        single = _draws(one_answer, answer, logp, (length / size.clamp(min=1).double())[None, :, None])
        uniform = torch.where(size > 0, 1 / (length * choose), 0.0)
        _check_moments(check, _moments(single, uniform), golden["estimators"]["count_1_to_L"])
        check(-_moments(single, uniform)[0], any_order_nll(logp))
        both = _draws(one_answer, answer, logp, ((length + 1) / size.clamp(min=1).double())[None, :, None])
        complement = (both + both.flip(0)) / 2  # bit mask b and its complement 2^L - 1 - b
        uniform = 1 / ((length + 1) * choose)
        _check_moments(check, _moments(both, uniform), golden["estimators"]["count_0_to_L_single"])
        _check_moments(check, _moments(complement, uniform), golden["estimators"]["count_0_to_L_complement"])


def test_stratified_counts(answers, one_answer, check):
    for answer, logp, golden in answers:
        length = len(answer)
        size = all_masks(length).sum(1)
        value = _draws(one_answer, answer, logp, (length / size.clamp(min=1).double())[None, :, None])
        by_count = [value[size == k] for k in range(1, length + 1)]
        mean = torch.stack([part.mean() for part in by_count])
        variance = torch.stack([part.var(correction=0) for part in by_count])
        for name in [name for name in golden["estimators"] if name.startswith("count_stratified_n")]:
            draws = int(name.removeprefix("count_stratified_n"))
            counts = spread_counts(torch.arange(length)[:, None], torch.tensor([[length]]), draws)
            means = mean[counts].mean(1)
            spread = means.var(correction=0) + variance[counts].mean(1).mean() / draws
            _check_moments(check, (means.mean(), spread), golden["estimators"][name])


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("bernoulli_p_uniform_eps_1", 1e-3, 1.0), ("bernoulli_p_uniform_01_09", 0.1, 0.9)],
)
def test_bernoulli_with_a_random_rate(answers, one_answer, check, name, low, high):
    nodes, share = _legendre(60, math.log(low), math.log(high))  # p = exp(s), because the variance has a 1/p
    for answer, logp, golden in answers:
        length, size = len(answer), all_masks(len(answer)).sum(1)
        mean = second = torch.zeros((), dtype=torch.float64)
        for rate, part in zip(nodes.exp(), share / (high - low), strict=True):
            value = _draws(one_answer, answer, logp, (1 / rate)[None])
            probability = _bernoulli(size, length, rate) * part * rate
            mean, second = mean + (probability * value).sum(), second + (probability * value**2).sum()
        _check_moments(check, (mean, second - mean**2), golden["estimators"][name])


@pytest.mark.parametrize("rate", [0.3, 0.75])
def test_bernoulli_with_a_fixed_rate(answers, one_answer, check, rate):
    p = torch.tensor(rate, dtype=torch.float64)
    for answer, logp, golden in answers:
        value = _draws(one_answer, answer, logp, (1 / p)[None])
        probability = _bernoulli(all_masks(len(answer)).sum(1), len(answer), p)
        _check_moments(check, _moments(value, probability), golden["estimators"][f"bernoulli_fixed_p_{rate}"])


def _coupled_scores(one_answer, answer: list[int], logp: Tensor, gamma: Tensor) -> Tensor:
    """Token scores [2^L, L] of every mask, through the coupled plan (one row per mask)."""
    masks = all_masks(len(answer))
    plan = do.coupled_masks(one_answer(answer, len(masks)), masks, gamma.expand(len(masks)))
    everything = logp[-1].expand_as(logp)
    return do.weighted_token_logp(torch.stack([everything, logp, logp.flip(0)], 1), plan)


@pytest.mark.parametrize("gamma", [0.3, 0.5])
def test_coupled_with_a_fixed_rate(answers, one_answer, check, gamma):
    p = torch.tensor(gamma, dtype=torch.float64)
    for answer, logp, golden in answers:
        score = _coupled_scores(one_answer, answer, logp, p)
        probability = _bernoulli(all_masks(len(answer)).sum(1), len(answer), p)
        wanted = golden["estimators"][f"coupled_gamma_{gamma}"]
        check((probability[:, None] * score).sum(0), wanted["per_token"])
        _check_moments(check, _moments(score.sum(1), probability), wanted)


@pytest.mark.wheel
def test_coupled_with_a_random_rate_has_total_weight_three_halves(answers, one_answer, check):
    nodes, share = _legendre(30, 0.2, 0.8)
    for answer, logp, golden in answers:
        size = all_masks(len(answer)).sum(1)
        token = torch.zeros(len(answer), dtype=torch.float64)
        first = second = torch.zeros((), dtype=torch.float64)
        for gamma, part in zip(nodes, share / 0.6, strict=True):
            score = _coupled_scores(one_answer, answer, logp, gamma)
            probability = part * _bernoulli(size, len(answer), gamma)
            token = token + (probability[:, None] * score).sum(0)
            first = first + (probability * score.sum(1)).sum()
            second = second + (probability * score.sum(1) ** 2).sum()
        wanted = golden["estimators"]["coupled_gamma_uniform_02_08"]
        check(token, wanted["per_token"])
        _check_moments(check, (first, second - first**2), wanted)
        truncated = torch.tensor(golden["estimators"]["truncated_elbo_t_uniform_02_08_per_token"], dtype=torch.float64)
        check(token - logp[-1] / 2, truncated)  # half of the pair, whose expectation is twice the truncated bound
        constant = _coupled_scores(one_answer, answer, torch.ones_like(logp), torch.tensor(0.5, dtype=torch.float64))
        check(constant, torch.full_like(constant, 1.5))


def test_coupled_scores_every_token_once_full_and_once_in_the_pair(one_answer):
    masks = all_masks(4)
    plan = do.coupled_masks(one_answer([0, 1, 2, 3], len(masks)), masks, torch.full((len(masks),), 0.4))
    assert bool((plan.target[:, 1] ^ plan.target[:, 2]).all())
    assert bool(plan.target[:, 0].all())


def test_full_response_is_the_first_step_of_every_order(worlds, tensor, one_answer, check):
    world = ToyWorld(tensor(worlds[1]["model"]["U"]), tensor(worlds[1]["model"]["W"]))
    for golden in worlds[1]["answers"]:
        check(world.masked_logp(torch.tensor(golden["answer"])), tensor(golden["masked_logp"]))
        plan = do.full_response(one_answer(golden["answer"]))
        logp = do.evaluate(world.score, plan).logp
        check(do.token_logp(logp, plan)[0, 0], golden["full_mask_logp_per_token"])


def test_drawn_plans_have_the_exact_mean(worlds, tensor, one_answer):
    """Mean of 4096 keyed draws within 4 standard errors, by the exact variance."""
    rows = 4096
    world = ToyWorld(tensor(worlds[1]["model"]["U"]), tensor(worlds[1]["model"]["W"]))
    golden = worlds[1]["answers"][0]
    exact = golden["estimators"]
    batch = one_answer(golden["answer"], rows, seed=5)
    cases = [
        (do.bernoulli(batch, eps=1e-3), exact["bernoulli_p_uniform_eps_1"]),
        (do.bernoulli(batch, low=0.1, high=0.9), exact["bernoulli_p_uniform_01_09"]),
        (do.count_stratified(batch), exact["count_1_to_L"]),
        (do.count_stratified(batch, 3), exact["count_stratified_n3"]),
        (do.count_complementary(batch), exact["count_0_to_L_complement"]),
    ]
    for plan, wanted in cases:
        with torch.no_grad():
            estimate = do.elbo_seq(do.evaluate(world.score, plan).logp, plan)
        error = (float(estimate.mean()) - wanted["mean"]) / math.sqrt(wanted["variance"] / rows)
        assert abs(error) < 4
    plan, wanted = do.coupled(batch), exact["coupled_gamma_uniform_02_08"]
    with torch.no_grad():
        estimate = do.weighted_token_logp(do.evaluate(world.score, plan).logp, plan).sum(1)
    assert abs(float(estimate.mean()) - wanted["mean"]) < 4 * math.sqrt(wanted["variance"] / rows)


@pytest.mark.wheel
@pytest.mark.parametrize(("length", "draws"), [(40, 16), (510, 4), (512, 4), (7, 3), (5, 8), (1, 4)])
def test_stratified_counts_are_exactly_uniform(length, draws):
    counts = spread_counts(torch.arange(length)[:, None], torch.tensor([[length]]), draws)
    assert torch.equal(torch.bincount(counts.flatten(), minlength=length), torch.full((length,), draws))
    if draws <= length:
        assert all(len(set(row)) == draws for row in counts.tolist())


@pytest.mark.parametrize(("length", "draws"), [(40, 16), (510, 4)])
def test_published_stratification_is_not_uniform(length, draws):
    """Offsets i L / n rounded half to even, as in the evaluation code of LLaDA."""
    first = torch.arange(1, length + 1, dtype=torch.float64)[:, None]
    rounded = (first + torch.arange(draws) * (length / draws)).round().long()
    marginal = torch.bincount((rounded - 1).flatten() % length, minlength=length)
    assert int(marginal.max()) >= 3 * int(marginal.min())


@pytest.mark.wheel
def test_masked_sft_is_unbiased_and_the_published_normaliser_is_not(answers, one_answer, check):
    """E[loss] = any-order NLL / L; dividing by the masked count as well weights twice by 1/t."""
    nodes, share = _legendre(10, 0.0, 1.0)
    objective = do.masked_sft(eps=0.0)
    for answer, logp, golden in answers:
        length, masks = len(answer), all_masks(len(answer))
        size, batch = masks.sum(1), one_answer(answer, len(masks))
        right = wrong = torch.zeros((), dtype=torch.float64)
        for rate, part in zip(nodes, share, strict=True):
            plan = do.mask_plan(batch, masks[:, None], 1 / rate)
            coeff = objective.prepare(batch, plan)
            probability = part * _bernoulli(size, length, rate) * len(masks)  # one of the masks, not their mean
            expected = replace(coeff, row_weight=coeff.row_weight * probability)
            right = right + objective.loss(logp[:, None], plan, expected)[0]
            twice = replace(coeff, row_weight=expected.row_weight * length / size.clamp(min=1))
            wrong = wrong + objective.loss(logp[:, None], plan, twice)[0]
        check(right, torch.tensor(golden["any_order_nll"] / length, dtype=torch.float64))
        assert float(wrong) > 1.5 * float(right)


def test_a_least_rate_biases_masked_sft_by_its_own_order(answers):
    for _, _, golden in answers:
        exact, found = golden["any_order_nll"], -golden["estimators"]["bernoulli_p_uniform_eps_1"]["mean"]
        assert abs(found - exact) < 1e-3 * exact
