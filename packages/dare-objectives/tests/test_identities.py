"""Identities between likelihoods, by enumeration of every mask of the toy worlds (float64)."""

import math
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_objectives.plans.per_block_count import LEVELS, block_counts
from dare_objectives.testing import BlockWorld, ToyWorld, all_masks, any_order_nll, block_causal

MASK = 5


@pytest.fixture(scope="module")
def answers(worlds, tensor):
    """(batch of one answer, its score function, masked log-probs, the golden entry)."""
    return [
        (_batch(answer["answer"]), _table(table := tensor(answer["masked_logp"]).double()), table, answer)
        for world in worlds
        for answer in world["answers"]
    ]


def _batch(answer: list[int], rows: int = 1) -> do.Batch:
    tokens = torch.tensor(answer).expand(rows, -1).contiguous()
    yes, zero = torch.ones_like(tokens, dtype=torch.bool), torch.zeros(rows, dtype=torch.int64)
    blocks = torch.zeros_like(tokens, dtype=torch.int32)
    return do.Batch(tokens, yes, yes, blocks, do.row_keys(1, range(rows)), zero, mask_id=MASK)


def _table(masked_logp: Tensor) -> do.Score:
    """The score of the true tokens, looked up by the set of masked positions."""
    bit = 1 << torch.arange(masked_logp.shape[1])

    def score(inputs, clean, target, labels, valid, blocks, **_):
        return masked_logp[((inputs == MASK) * bit).sum(-1)]

    return score


def _in_blocks(batch: do.Batch, size: int) -> do.Batch:
    return replace(batch, blocks=(batch.columns // size).to(torch.int32).expand(len(batch), -1).contiguous())


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _moments(value: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    mean = (probability * value).sum()
    return mean, (probability * (value - mean) ** 2).sum()


def _check_moments(check, found: tuple[Tensor, Tensor], wanted: dict) -> None:
    check(found[0], _number(wanted["mean"]))
    check(found[1], _number(wanted["variance"]))


def _choose(size: Tensor, length: int) -> Tensor:
    return torch.tensor([math.comb(length, k) for k in range(length + 1)], dtype=torch.float64)[size]


def _legendre(nodes: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    k = torch.arange(1, nodes, dtype=torch.float64)
    beta = k / (4 * k**2 - 1).sqrt()
    value, vector = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
    return (value + 1) / 2, vector[0] ** 2


@pytest.mark.wheel
def test_four_laws_of_masks_have_the_same_mean(answers, check):
    """1: counts 1..L with L/k; Bernoulli(t) with 1/t; counts 0..L with (L+1)/k; half the sum with the complement."""
    nodes, share = _legendre(12)
    for batch, score, table, golden in answers:
        masks = all_masks(batch.tokens.shape[1])
        length, size = masks.shape[1], masks.sum(1)
        plan = do.mask_plan(batch, masks[None], torch.ones((), dtype=torch.float64))
        total = do.elbo_draws(do.evaluate(score, plan).logp, plan)[0]
        exact = -any_order_nll(table)
        check(exact, _number(-golden["any_order_nll"]))
        count = torch.where(size > 0, 1 / (length * _choose(size, length)), 0.0)
        check((count * total * length / size.clamp(min=1)).sum(), exact)
        count = 1 / ((length + 1) * _choose(size, length))
        single = total * (length + 1) / size.clamp(min=1)
        check((count * single).sum(), exact)
        check((count * (single + single.flip(0)) / 2).sum(), exact)
        check(sum((w * t**size * (1 - t) ** (length - size) * total / t).sum() for t, w in _pairs(nodes, share)), exact)
        both = sum(
            (w * t**size * (1 - t) ** (length - size) * (total / t + total.flip(0) / (1 - t)) / 2).sum()
            for t, w in _pairs(nodes, share)
        )
        check(both, exact)


def _pairs(nodes: Tensor, share: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(nodes, share, strict=True))


def test_two_independent_draws_have_half_the_variance(answers, check):
    for batch, score, _, golden in answers:
        masks = all_masks(batch.tokens.shape[1])
        length, number = masks.shape[1], len(masks)
        pair = torch.stack([masks.repeat_interleave(number, 0), masks.repeat(number, 1)], 1)
        weight = (length + 1) / pair.sum(2, keepdim=True).clamp(min=1).double()
        plan = do.mask_plan(_batch(golden["answer"], number**2), pair, weight)
        value = do.elbo_seq(do.evaluate(score, plan).logp, plan)
        chance = (1 / ((length + 1) * _choose(pair.sum(2), length))).prod(1)
        _check_moments(check, _moments(value, chance), golden["estimators"]["count_0_to_L_two_independent"])


@pytest.mark.wheel
def test_complementary_pairs_of_constant_scores():
    """3: value (L+1)c for 0 < k < L, half of it for k = 0 and k = L, mean L c."""
    batch, c = _batch([0, 1, 2, 3, 4], 3000), 1.7
    plan = do.count_complementary(batch)
    value = -do.elbo_seq(torch.full(plan.target.shape, -c, dtype=torch.float64), plan)
    count = plan.target[:, 0].sum(1)
    wanted = torch.where((count > 0) & (count < 5), 6 * c, 3 * c)
    assert torch.allclose(value, wanted.double(), atol=1e-6)
    laws = torch.tensor([3.0] + [6.0] * 4 + [3.0], dtype=torch.float64) * c
    assert float(laws.mean()) == pytest.approx(5 * c)


def test_a_complement_helps_where_scores_are_close_to_constant():
    """3, on a fixed seed: less than half the variance of one draw. Not so on every table; see the golden variances."""
    world = ToyWorld.random(4, 3, seed=1)
    small = ToyWorld(world.own / 4, world.pair / 4)
    masks = all_masks(4)
    total = small.masked_logp(torch.tensor([0, 2, 1, 0])).detach().sum(1)
    size = masks.sum(1)
    chance = 1 / (5 * _choose(size, 4))
    single = total * 5 / size.clamp(min=1)
    one, pair = _moments(single, chance), _moments((single + single.flip(0)) / 2, chance)
    assert float(pair[0]) == pytest.approx(float(one[0]))
    assert float(pair[1]) < float(one[1]) / 2


@pytest.mark.wheel
def test_block_nll_by_two_estimators(answers, check):
    """5: one count for each block, or one for the whole sequence, through the block-causal model."""
    for batch, score, _, golden in answers:
        for name, wanted in golden["block"].items():
            blocked = _in_blocks(batch, int(name))
            masks = all_masks(batch.tokens.shape[1])
            length = masks.shape[1]
            size = masks.sum(1)
            causal = block_causal(score, MASK)
            plan = do.mask_plan(blocked, masks[None], (length / size.clamp(min=1).double())[None, :, None])
            value = do.elbo_draws(do.evaluate(causal, plan).logp, plan)[0]
            chance = torch.where(size > 0, 1 / (length * _choose(size, length)), 0.0)
            _check_moments(check, _moments(value, chance), wanted["sequence_count_estimator"])
            plan, chance = _per_block(blocked, masks)
            logp = do.evaluate(causal, plan).logp
            value = do.elbo_draws(logp, plan)[0]
            _check_moments(check, _moments(value, chance), wanted["per_block_count_estimator"])
            token = (chance[:, None] * plan.weight[0] * logp[0]).sum(0)
            check(-token, wanted["nll_per_token"])
            check(-token.sum(), _number(wanted["nll"]))
            assert wanted["per_block_count_estimator"]["variance"] <= wanted["sequence_count_estimator"]["variance"]


def _block_sizes(batch: do.Batch, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per mask and column: L_b and k_b; and the start of each block."""
    same = batch.blocks[0] == batch.blocks[0, :, None]
    start = (same.long().cumsum(1) * same == 1).nonzero()[:, 1].unique()
    return same.sum(1).expand(len(masks), -1), masks.long() @ same.long(), start


def _per_block(batch: do.Batch, masks: Tensor) -> tuple[do.Plan, Tensor]:
    """All masks as streams with weights L_b/k_b, and their chance if the k_b are independent."""
    size, count, start = _block_sizes(batch, masks)
    chance = torch.ones(len(masks), dtype=torch.float64)
    for column in start.tolist():
        length, k = int(size[0, column]), count[:, column]
        chance = chance * torch.where(k > 0, 1 / (length * _choose(k, length)), 0.0)
    return do.mask_plan(batch, masks[None], (size / count.clamp(min=1).double())[None]), chance


def _stratified_chance(batch: do.Batch, masks: Tensor) -> Tensor:
    """The exact law of `per_block_count`: counts are constant between multiples of 1/lcm of the sizes and J."""
    size, count, start = _block_sizes(batch, masks)
    sizes = size[0, start]
    cells = math.lcm(*sizes.tolist(), len(sizes))
    level = (torch.arange(cells) * LEVELS + LEVELS // 2) // cells
    counts = block_counts(level[None], sizes[None])[0]
    chance = torch.zeros(len(masks), dtype=torch.float64)
    for wanted in counts:
        hit = (count[:, start] == wanted).all(1)
        ways = math.prod(math.comb(int(n), int(k)) for n, k in zip(sizes, wanted, strict=True))
        chance = chance + hit.double() / (cells * ways)
    return chance


@pytest.mark.wheel
def test_stratified_block_counts_have_the_exact_mean(answers, check):
    for batch, score, _, golden in answers:
        for name, wanted in golden["block"].items():
            blocked, masks = _in_blocks(batch, int(name)), all_masks(batch.tokens.shape[1])
            plan, _ = _per_block(blocked, masks)
            chance = _stratified_chance(blocked, masks)
            value = do.elbo_draws(do.evaluate(block_causal(score, MASK), plan).logp, plan)[0]
            check(chance.sum(), _number(1.0))
            check(_moments(value, chance)[0], _number(-wanted["nll"]))


def test_drawn_block_counts_follow_that_law(answers):
    """Means of 4096 drawn plans within 4 standard errors, by the exact variance; the same for SDAR's second draw."""
    batch, score, _, golden = answers[-1]
    blocked, masks, rows = _in_blocks(batch, 4), all_masks(6), 4096
    plan, _ = _per_block(blocked, masks)
    causal = block_causal(score, MASK)
    exact = _moments(do.elbo_draws(do.evaluate(causal, plan).logp, plan)[0], _stratified_chance(blocked, masks))
    many = _batch(golden["answer"], rows)
    plan = do.per_block_count(_in_blocks(many, 4))
    found = do.elbo_seq(do.evaluate(causal, plan).logp, plan)
    assert abs(float(found.mean() - exact[0])) < 4 * math.sqrt(float(exact[1]) / rows)
    plan = do.bernoulli_nonempty(many, low=0.1, high=0.9, eps=0.0)
    found = do.elbo_seq(do.evaluate(score, plan).logp, plan)
    law = golden["estimators"]["bernoulli_p_uniform_01_09"]
    something = 1 - (0.9**7 - 0.1**7) / 7 / 0.8  # the bias of drawing again: a factor 1/P(something is masked)
    error = math.sqrt((law["variance"] + law["mean"] ** 2) / something / rows)
    assert abs(float(found.mean()) - law["mean"] / something) < 4 * error
    assert abs(float(found.mean()) - law["mean"]) > 4 * error


@pytest.mark.wheel
def test_block_size_one_is_left_to_right_and_one_block_is_any_order(answers, check):
    """6."""
    for batch, score, table, golden in answers:
        causal = block_causal(score, MASK)
        single = _in_blocks(batch, 1)
        for one, model in ((do.left_to_right(batch), score), (do.left_to_right(single), causal)):
            logp = do.evaluate(model, one).logp
            check(do.seq_sum(logp, one)[0], _number(-golden["ar_nll"]))
            check(do.weighted_token_logp(logp, one)[0], golden["ar_logp_per_token"])
        plan = do.per_block_count(single, 3)
        check(do.elbo_draws(do.evaluate(causal, plan).logp, plan)[0], _number(-golden["ar_nll"]).expand(3))
        assert golden["block"]["1"]["nll"] == pytest.approx(golden["ar_nll"], abs=1e-9)
        whole = _in_blocks(batch, len(golden["answer"]) + 1)
        plan = do.mask_plan(whole, all_masks(len(golden["answer"]))[None], torch.ones((), dtype=torch.float64))
        assert torch.equal(do.evaluate(causal, plan).logp, do.evaluate(score, plan).logp)
        check(_number(golden["block"][str(len(golden["answer"]))]["nll"]), any_order_nll(table))


def _visible(world: BlockWorld, noisy: Tensor, clean: Tensor, blocks: Tensor) -> Tensor:
    """Whether column k of [noisy; clean] moves the log-probs at noisy column q, `[S, 2 S]`."""

    def logp(noisy: Tensor, clean: Tensor) -> Tensor:
        yes = torch.ones_like(clean, dtype=torch.bool)
        labels = torch.zeros_like(noisy)  # of a fixed token, not of the clean one
        return world.score(noisy, clean, yes[:, None], labels, yes, blocks).logp[0, 0].detach()

    before, seen = logp(noisy, clean), []
    for k in range(2 * clean.shape[1]):
        both = torch.cat([noisy[:, 0], clean], 1)
        both[0, k] = (both[0, k] + 1) % world.vocab
        part = both.split(clean.shape[1], 1)
        seen.append(logp(part[0][:, None], part[1]) != before)
    return torch.stack(seen, 1)


@pytest.mark.golden("plans", "plans/dual_stream/")
def test_published_visibility_of_the_noisy_stream(case, tensor):
    """7: a noisy token sees its own noisy block and clean blocks before it."""
    length, size = case["inputs"]["length"], case["inputs"]["block_size"]
    clean = torch.arange(length)[None] % 3
    blocks = (torch.arange(length) // size).to(torch.int32)[None]
    found = _visible(BlockWorld.random(length, 3, seed=2), clean[:, None], clean, blocks)
    wanted = tensor(case["expected"]["visible"])[:length].bool()
    itself = torch.cat([torch.eye(length), torch.zeros(length, length)], 1).bool()  # no token moves its own logits here
    assert torch.equal(found | itself, wanted)


@pytest.mark.wheel
def test_scores_of_a_block_are_those_of_decoding_after_a_clean_prefix():
    """7: prefix of clean tokens, the open block, nothing after it."""
    world = BlockWorld.random(7, 4, seed=3)
    batch = replace(_batch([0, 3, 1, 2, 2, 0, 1]), mask_id=world.mask_id)
    batch = _in_blocks(batch, 3)
    plan = do.per_block_count(batch, 4)
    logp = do.evaluate(world.score, plan).logp
    for stream in range(4):
        for start, end in pairwise((0, 3, 6, 7)):
            ids = batch.tokens.clone()
            ids[:, start:end] = plan.inputs[:, stream, start:end]
            ids[:, end:] = world.mask_id
            wanted = world.logits(ids).log_softmax(-1).gather(-1, batch.tokens[..., None]).squeeze(-1)[0, start:end]
            on = plan.target[0, stream, start:end]
            assert torch.allclose(logp[0, stream, start:end][on], wanted[on], atol=1e-14)


@pytest.mark.wheel
def test_trajectories(answers, check):
    """8."""
    for batch, score, _, golden in answers:
        for case in golden["trajectories"]:
            step_map = torch.tensor([case["step_map"]], dtype=torch.int32)
            plan = do.trajectory(replace(batch, step_map=step_map), shrink=case["shrink"])
            logp = do.evaluate(score, plan).logp
            check(do.weighted_token_logp(logp, plan)[0], case["logp_per_token"])
            check(do.seq_sum(logp, plan)[0], _number(sum(case["logp_per_token"])))
        full = do.full_response(batch)
        check(do.weighted_token_logp(do.evaluate(score, full).logp, full)[0], golden["full_mask_logp_per_token"])


@pytest.mark.wheel
def test_mean_over_orders_is_the_any_order_likelihood(answers, check):
    """All 24 or 720 orders, as trajectories of one token per step."""
    for batch, score, table, golden in answers[:3]:
        length = len(golden["answer"])
        orders = torch.tensor([order for order in product(range(length), repeat=length) if len(set(order)) == length])
        rows = replace(_batch(golden["answer"], len(orders)), step_map=orders.to(torch.int32))
        plan = do.trajectory(rows)
        value = do.seq_sum(do.evaluate(score, plan).logp, plan)
        check(-value.mean(), any_order_nll(table))
        check(value.amin(), _number(golden["order_logp_min"]))
        check(value.amax(), _number(golden["order_logp_max"]))
        check(value.logsumexp(0) - math.log(len(orders)), _number(golden["log_mean_exp_over_orders"]))
        assert len(batch) == 1


@pytest.mark.wheel
def test_sandwich_of_bounds(answers, check):
    for batch, score, _, golden in answers:
        length = len(golden["answer"])
        for case in golden["spg_bounds"]:
            masks = torch.zeros(1, len(case["masks"]), length, dtype=torch.bool)
            for stream, positions in enumerate(case["masks"]):
                masks[0, stream, positions] = True
            plan = do.mask_plan(batch, masks, length / masks.sum(2, keepdim=True).double())
            logp = do.evaluate(score, plan).logp
            check(do.elbo_mean(logp, plan), [case["elbo_mean"]])
            check(do.eubo_mean(logp, plan, case["beta"]), [case["eubo_mean"]])
        masks = all_masks(length)[1:]
        size = masks.sum(1)
        chance = 1 / (length * _choose(size, length))
        plan = do.mask_plan(batch, masks[None], (len(masks) * chance * length / size)[None, :, None])
        logp = do.evaluate(score, plan).logp
        lower = do.weighted_token_logp(logp, plan)[0] / len(masks)
        check(lower, golden["sandwich"]["lower_per_token"])
        for beta, upper in golden["sandwich"]["upper_per_token_by_beta"].items():
            found = do.eubo_token(logp, plan, float(beta))[0]
            check(found, upper)
            assert bool((found >= lower).all())
