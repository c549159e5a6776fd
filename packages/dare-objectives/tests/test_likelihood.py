"""Likelihoods: exact by enumeration, drawn within their standard errors, golden numbers."""

import math
from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_objectives.enumeration import enumerate_masks
from dare_objectives.testing import BlockWorld, ToyWorld, block_causal, toy_batch

NAMES = ["count", "complementary", "bernoulli"]
MASK = 5


def _row(prompt: list[int], answer: list[int], mask_id: int, *, rows: int = 1, block: int = 99, seed: int = 0):
    tokens = torch.tensor([prompt + answer]).repeat(rows, 1)
    column, yes = torch.arange(tokens.shape[1]), torch.ones_like(tokens, dtype=torch.bool)
    blocks = (column // block).to(torch.int32).repeat(rows, 1)
    keys = do.row_keys(seed, range(rows))
    return do.Batch(tokens, yes, yes & (column >= len(prompt)), blocks, keys, keys * 0, mask_id)


def _golden_row(case: dict) -> do.Batch:
    return _row(case["inputs"]["prompt"], case["inputs"]["answer"], case["mask_id"])


def _table(masked_logp: Tensor) -> do.Score:
    """The score of the true tokens of a whole-row answer, looked up by the set of masked positions."""
    bit = 1 << torch.arange(masked_logp.shape[1])

    def score(inputs, clean, target, labels, valid, blocks, **_):
        return masked_logp[((inputs == MASK) * bit).sum(-1)]

    return score


@pytest.fixture(scope="module")
def answers(worlds, tensor):
    """(answer, score, the golden entry) of both worlds."""
    return [
        (entry["answer"], _table(tensor(entry["masked_logp"]).double()), entry)
        for world in worlds
        for entry in world["answers"]
    ]


# ------------------------------------------------------------------------------------------------ golden cases


@pytest.mark.wheel
@pytest.mark.golden("likelihood", "likelihood/")
def test_enumeration_gives_the_exact_value(case, golden_toy, tensor):
    wanted, batch = case["expected"], _golden_row(case)
    plan = enumerate_masks(batch)
    logp = do.evaluate(do.from_logits(golden_toy), plan).logp[0, :, len(case["inputs"]["prompt"]) :]
    code = (tensor(wanted["subsets"]) << torch.arange(logp.shape[1])).sum(1)
    assert float((logp[code - 1] - tensor(wanted["subset_token_logprobs"]).double()).abs().max()) < 1e-4
    found = do.log_likelihood(do.from_logits(golden_toy), batch)
    assert float(found.value) == pytest.approx(wanted["exact_uniform_count"], abs=1e-4)
    assert found.value.dtype == torch.float64
    assert found.exact.tolist() == [True]
    assert found.standard_error.tolist() == [0.0]
    assert found.draws.tolist() == [2 ** len(case["inputs"]["answer"]) - 1]


@pytest.mark.golden("likelihood", "likelihood/")
def test_draws_agree_with_the_exact_and_the_published_value(case, golden_toy):
    """The published mean has the mean of its own law, which for 6 tokens in batches of 16 is another one."""
    wanted, size = case["expected"], case["hyper"]["batch_size"]
    number = case["hyper"]["mc_num"] // size
    found = do.log_likelihood(
        do.from_logits(golden_toy), _golden_row(case), draws=number * size, replicates=number, exact_up_to=0
    )
    error = float(found.standard_error)
    assert not found.exact.any()
    assert abs(float(found.value) - wanted["exact_uniform_count"]) <= 4 * error + 1e-12
    both = math.hypot(error, wanted["reference_standard_error"])
    bias = wanted["exact_reference_count_law"] - wanted["exact_uniform_count"]
    assert abs(wanted["reference_mean"] - bias - float(found.value)) <= 4 * both + 1e-12


def _law(planner, length: int, draws: int) -> Tensor:
    """The exact law of one stream's count: everything but the positions follows from the first count."""
    counts = planner(_row([], [0] * length, MASK, rows=60 * length), draws).target.sum(2)
    firsts = [counts[counts[:, 0] == first][0] for first in range(1, length + 1)]
    return torch.bincount(torch.stack(firsts).flatten() - 1, minlength=length) / (length * draws)


@pytest.mark.wheel
@pytest.mark.parametrize("length", [1, 5, 6, 9, 40])
@pytest.mark.parametrize("draws", [2, 3, 16])
def test_counts_are_exactly_uniform(length, draws):
    assert torch.allclose(_law(do.count_stratified, length, draws), torch.tensor(1 / length), rtol=0, atol=1e-7)


@pytest.mark.golden("likelihood", "likelihood/")
def test_published_counts_only_in_the_compat_planner(case, tensor):
    wanted, length, size = case["expected"], len(case["inputs"]["answer"]), case["hyper"]["batch_size"]
    law = _law(do.count_stratified_llada_compat, length, size)
    assert torch.allclose(law, tensor(wanted["count_law_of_reference"]).float(), atol=1e-6)
    by_count = tensor(wanted["exact_by_count"]).double()
    assert float((law * by_count).sum()) == pytest.approx(wanted["exact_reference_count_law"], abs=1e-4)
    uniform = _law(do.count_stratified, length, size)
    assert float((uniform * by_count).sum()) == pytest.approx(wanted["exact_uniform_count"], abs=1e-4)
    if (length, size) == (6, 16):
        assert float((law - uniform).abs().max()) > 0.02
        assert abs(float((law * by_count).sum()) - wanted["exact_uniform_count"]) > 0.2


def test_a_planner_of_ones_own_is_drawn():
    world, batch = ToyWorld.random(7, 5), toy_batch()
    compat = do.log_likelihood(world.score, batch, estimator=do.count_stratified_llada_compat, draws=64)
    assert not compat.exact[batch.lengths > 0].any()
    same = do.log_likelihood(world.score, batch, estimator=do.count_stratified, draws=64)
    named = do.log_likelihood(world.score, batch, draws=64, exact_up_to=0)
    assert torch.equal(same.value, named.value)


# ------------------------------------------------------------------------------------- P4: estimates and errors


@pytest.mark.wheel
@pytest.mark.parametrize("name", [*NAMES, "block_count"])
def test_twenty_thousand_draws_meet_the_enumeration(name):
    """P4. The prompt holds the mask token, which a model that looks for it would take for a fifth open position."""
    world = (BlockWorld if name == "block_count" else ToyWorld).random(6, 5, seed=3)
    batch = _row([1, 5], [4, 0, 2, 2], 5, block=3)
    exact = do.log_likelihood(world.score, batch, estimator=name)
    found = do.log_likelihood(world.score, batch, estimator=name, draws=20_000, replicates=2500, exact_up_to=0)
    assert bool(exact.exact)
    assert not bool(found.exact)
    assert abs(float(found.value - exact.value)) < 3 * float(found.standard_error)
    assert float(found.standard_error) < 0.1
    error = found.replicates.std(1) / 50
    assert torch.equal(found.standard_error, error)
    if name != "block_count":
        _, by_hand = _by_hand(world, [1, 5], [4, 0, 2, 2])
        assert float(exact.value) == pytest.approx(by_hand, abs=1e-12)
    spread = (found.token - exact.token).abs().max()
    assert float(spread) < 0.1
    assert torch.equal(found.token[0, :2], torch.zeros(2, dtype=torch.float64))


def _by_hand(world: ToyWorld, prompt: list[int], answer: list[int]) -> tuple[list[float], float]:
    """log p of every order, and their mean."""
    start, length, orders = len(prompt), len(answer), []
    for order in permutations(range(length)):
        total, ids = 0.0, torch.tensor([prompt + [world.mask_id] * length])
        for i in order:
            total += float(world.logits(ids)[0, start + i].log_softmax(-1)[answer[i]].detach())
            ids[0, start + i] = answer[i]
        orders.append(total)
    return orders, sum(orders) / len(orders)


@pytest.mark.wheel
@pytest.mark.parametrize("name", NAMES)
def test_enumeration_is_the_mean_over_orders_and_no_order_is_special(name):
    world, batch = ToyWorld.random(6, 5, seed=7), _row([1, 3], [4, 0, 2, 2], 5)
    orders, mean = _by_hand(world, [1, 3], [4, 0, 2, 2])
    found = do.log_likelihood(world.score, batch, estimator=name)
    assert float(found.value) == pytest.approx(mean, abs=1e-12)
    assert float(found.token.sum()) == pytest.approx(mean, abs=1e-12)
    exact = do.random_order_log_likelihood(world.score, batch)
    assert float(exact) == pytest.approx(math.log(sum(map(math.exp, orders)) / 24), abs=1e-12)
    assert float(exact) > mean


@pytest.mark.wheel
def test_golden_worlds(answers, check):
    for answer, score, golden in answers:
        batch = _row([], answer, MASK)
        found = do.log_likelihood(score, batch)
        check(-found.value, torch.tensor([golden["any_order_nll"]], dtype=torch.float64))
        check(-found.token[0], golden["any_order_nll_per_token"])
        exact = do.random_order_log_likelihood(score, batch)
        check(exact, torch.tensor([golden["log_mean_exp_over_orders"]], dtype=torch.float64))
        along = do.log_likelihood(score, batch, estimator="left_to_right", exact_up_to=0)
        check(along.token[0], golden["ar_logp_per_token"])
        assert along.exact.tolist() == [True]
        assert along.draws.tolist() == [len(answer)]


@pytest.mark.wheel
def test_block_models_are_enumerated_block_by_block(answers, check):
    for answer, score, golden in answers:
        for size, wanted in golden["block"].items():
            batch = _row([], answer, MASK, block=int(size))
            causal = block_causal(score, MASK)
            found = do.log_likelihood(causal, batch, estimator="block_count")
            check(-found.value, torch.tensor([wanted["nll"]], dtype=torch.float64))
            check(-found.token[0], wanted["nll_per_token"])
            assert found.draws.tolist() == [2 ** min(int(size), len(answer)) - 1]
            whole = do.log_likelihood(causal, batch)
            check(whole.value, found.value)
            assert whole.draws.tolist() == [2 ** len(answer) - 1]


@pytest.mark.parametrize(
    ("name", "draws", "law"),
    [
        ("count", 1, "count_1_to_L"),
        ("count", 2, "count_stratified_n2"),
        ("count", 3, "count_stratified_n3"),
        ("complementary", 2, "count_0_to_L_complement"),
    ],
)
def test_spread_of_the_replicates_is_the_exact_one(answers, name, draws, law):
    """Variances of stratified and paired draws within 4 standard errors of theirs (normal approximation)."""
    answer, score, golden = answers[-1]
    found = do.log_likelihood(
        score, _row([], answer, MASK), estimator=name, draws=6000 * draws, replicates=6000, exact_up_to=0
    )
    values, wanted = found.replicates[0], golden["estimators"][law]
    deviation = (values - wanted["mean"]).square()
    assert abs(float(values.mean()) - wanted["mean"]) < 4 * float(found.standard_error)
    assert abs(float(deviation.mean()) - wanted["variance"]) < 4 * float(deviation.std()) / math.sqrt(6000)


@pytest.mark.parametrize("name", ["count", "complementary"])
def test_standard_error_falls_with_the_root_of_the_draws(name):
    world, batch = ToyWorld.random(11, 5), _row([1, 3], [4, 0, 2, 2, 1, 3, 3, 0, 1], 5)
    ask = partial(do.log_likelihood, world.score, batch, estimator=name, exact_up_to=0)
    errors = [float(ask(draws=8 * number, replicates=number).standard_error) for number in (200, 800, 3200)]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.2)


def test_standard_errors_are_honest_and_those_of_spread_draws_taken_for_independent_are_not(answers):
    """The squared deviation is the squared error in the mean; a plain std / sqrt(n) is far too large."""
    answer, score, golden = answers[0]
    batch, exact = _row([], answer, MASK, rows=2000), -golden["any_order_nll"]
    found = do.log_likelihood(score, batch, draws=16, replicates=4, exact_up_to=0)
    assert 0.9 < float((found.value - exact).square().mean() / found.standard_error.square().mean()) < 1.1
    plan = do.count_stratified(batch, 16)
    draws = do.elbo_draws(do.evaluate(score, plan).logp, plan)
    assert float((draws.mean(1) - exact).square().mean() / draws.var(1).mean() * 16) < 0.5


# ------------------------------------------------------------------------------------- what does not matter


@pytest.mark.wheel
@pytest.mark.parametrize("name", [*NAMES, "block_count", "left_to_right"])
def test_a_row_has_the_value_it_has_alone(name):
    world = BlockWorld.random(7, 5) if name == "block_count" else ToyWorld.random(7, 5)
    batch = toy_batch()
    ask = partial(do.log_likelihood, world.score, estimator=name, draws=12, replicates=3)
    whole = ask(batch)
    assert torch.allclose(whole.value, whole.replicates.mean(1), rtol=0, atol=1e-12)
    assert torch.allclose(whole.value, whole.token.sum(1), rtol=0, atol=1e-12)
    wide = replace(
        batch,
        tokens=torch.nn.functional.pad(batch.tokens, (0, 3), value=5),
        **{n: torch.nn.functional.pad(getattr(batch, n), (0, 3)) for n in ("valid", "maskable")},
        blocks=torch.nn.functional.pad(batch.blocks, (0, 3), value=-1),
    )
    others = (ask(batch, streams=1), ask(wide), ask(batch[torch.arange(6).flip(0)])[torch.arange(6).flip(0)])
    alone = [ask(batch[[row]]) for row in range(6)]
    for field in ("value", "standard_error", "replicates", "exact", "draws", "length"):
        wanted = getattr(whole, field)
        for other in others:
            assert torch.allclose(getattr(other, field).double(), wanted.double(), rtol=0, atol=1e-12)
        joined = torch.cat([getattr(one, field) for one in alone])
        assert torch.allclose(joined.double(), wanted.double(), rtol=0, atol=1e-12)
    assert len(whole) == 6
    assert whole[[2, 4]].length.tolist() == batch.lengths[[2, 4]].tolist()


def test_equal_keys_mean_equal_masks():
    """Common random numbers: the same model twice differs by nothing, another one by less than it would by chance."""
    batch = _row([1], [4, 0, 2, 2, 1, 3], 5, rows=200)
    one = ToyWorld.random(7, 5)
    other = ToyWorld(one.own + 0.05, one.pair * 1.02)
    ask = partial(do.log_likelihood, draws=8, replicates=4, exact_up_to=0)
    first, again, second = ask(one.score, batch), ask(one.score, batch), ask(other.score, batch)
    assert torch.equal(first.replicates, again.replicates)
    paired = (second.replicates - first.replicates).var()
    assert float(paired) < float(first.replicates.var()) / 10


def test_short_answers_are_enumerated_where_it_is_no_dearer():
    world = ToyWorld.random(7, 5)
    batch = toy_batch()
    for draws, limit in ((1, 1), (2, 1), (3, 2), (14, 3), (15, 4), (30, 4), (31, 5)):
        found = do.log_likelihood(world.score, batch, draws=draws, replicates=1)
        assert found.exact.tolist() == (batch.lengths <= limit).tolist()
        assert found.standard_error.isnan().tolist() == (batch.lengths > limit).tolist()
    forced = do.log_likelihood(world.score, batch, draws=1, replicates=1, exact_up_to=5)
    assert bool(forced.exact.all())


def test_rows_without_an_answer_cost_nothing_and_have_probability_one():
    calls = []

    def score(inputs, *rest, **options):
        calls.append(inputs.shape)
        return ToyWorld.random(7, 5).score(inputs, *rest, **options)

    batch = toy_batch()
    empty = replace(batch, maskable=batch.maskable & (torch.arange(6) > 2)[:, None])
    found = do.log_likelihood(score, empty, draws=4, replicates=2)
    assert found.value[:3].tolist() == [0, 0, 0]
    assert found.exact[:3].all()
    assert found.draws[:3].tolist() == [0, 0, 0]
    assert sum(shape[0] * shape[1] for shape in calls) == int(found.draws.sum())
    assert do.random_order_log_likelihood(score, empty)[:3].tolist() == [0, 0, 0]
    calls.clear()
    nothing = do.log_likelihood(score, replace(batch, maskable=batch.maskable & False))
    assert not nothing.value.any()
    assert float(nothing.perplexity) == 1
    assert not calls


def test_sums_over_rows():
    world, batch = ToyWorld.random(7, 5), toy_batch()
    found = do.log_likelihood(world.score, batch, draws=12, replicates=4, exact_up_to=3)
    assert float(found.total) == pytest.approx(float(found.value.sum()))
    assert float(found.total_error) == pytest.approx(math.sqrt(sum(x * x for x in found.standard_error.tolist())))
    assert torch.equal(found.per_token, found.value / batch.lengths)
    assert float(found.perplexity) == pytest.approx(math.exp(-float(found.value.sum()) / int(batch.lengths.sum())))
    assert not found.value.requires_grad


def test_global_generator_is_untouched():
    before = torch.get_rng_state()
    for name in [*NAMES, "left_to_right"]:
        do.log_likelihood(ToyWorld.random(7, 5).score, toy_batch(), estimator=name, draws=4, replicates=2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "counts"}, "unknown estimator 'counts'; did you mean 'count'"),
        ({"draws": 0}, "`draws`: expected a count of at least 1"),
        ({"draws": 100}, "expected a multiple of `replicates` = 16, got 100; take 96"),
        ({"replicates": 0}, "`replicates`: expected a count of at least 1"),
        ({"exact_up_to": 17}, r"`exact_up_to`: expected a number in \[0, 16\], got 17"),
        ({"estimator": do.count_stratified, "exact_up_to": 3}, r"`exact_up_to`: expected a number in \[0, 0\], got 3"),
        ({"estimator": "complementary", "draws": 16, "exact_up_to": 0}, "expected an even number per replicate"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        do.log_likelihood(ToyWorld.random(7, 5).score, toy_batch(), **options)


def test_long_answers_are_not_enumerated():
    world, batch = ToyWorld.random(20, 3), _row([], [0] * 20, 3)
    with pytest.raises(ValueError, match=r"expected a number in \[0, 16\], got 20"):
        do.random_order_log_likelihood(world.score, batch)
    assert not do.log_likelihood(world.score, batch, draws=16).exact.any()


# ------------------------------------------------------------------------------------------------- guidance


@pytest.mark.wheel
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_guidance_by_its_formula(scale, golden_toy):
    """l = l_u + (1 + w)(l_c - l_u), the prompt masked in l_u; by enumeration of every mask."""
    prompt, answer, mask = [54, 121, 157, 100], [116, 18, 21], 157
    batch = _row(prompt, answer, mask)
    found = do.log_likelihood(do.guided(golden_toy, scale), batch)
    plan = enumerate_masks(batch)
    ids, yes = plan.inputs[0], torch.ones_like(plan.inputs[0], dtype=torch.bool)
    hidden = torch.cat([torch.full_like(ids[:, :4], mask), ids[:, 4:]], 1)
    conditional, unconditional = golden_toy(ids, yes), golden_toy(hidden, yes)
    logp = (unconditional + (1 + scale) * (conditional - unconditional)).log_softmax(-1)
    logp = logp.gather(-1, plan.labels[0][..., None]).squeeze(-1)
    assert float(found.value) == pytest.approx(float((plan.weight[0] * logp * plan.target[0]).sum()), abs=1e-9)
    plain = do.log_likelihood(do.from_logits(golden_toy), batch)
    assert abs(float(found.value - plain.value)) > 0.1
    assert torch.equal(do.log_likelihood(do.guided(golden_toy, 0.0), batch).value, plain.value)


def test_guidance_finds_the_prompts_of_some_rows():
    """Rows of several prompt lengths, some enumerated and some drawn, in several forwards."""
    world, batch = ToyWorld.random(7, 5), toy_batch()
    later = replace(batch, maskable=batch.maskable & (batch.columns >= 2 + torch.arange(6)[:, None] % 2))
    ask = partial(do.log_likelihood, do.guided(world.logits, 1.5), draws=8, replicates=2)
    whole = ask(later, streams=3)
    alone = torch.cat([ask(later[[row]]).value for row in range(6)])
    assert 0 < int(whole.exact.sum()) < 6
    assert torch.allclose(whole.value, alone, rtol=0, atol=1e-12)
    empty = replace(batch, maskable=batch.valid)  # no prompt: nothing to guide by
    plain = do.log_likelihood(world.score, empty, draws=8, replicates=2)
    found = ask(empty)
    assert torch.allclose(found.value, plain.value, rtol=0, atol=1e-12)


def test_guidance_leaves_infinite_logits_alone():
    def net(ids: Tensor, valid: Tensor) -> Tensor:
        logits = ToyWorld.random(7, 5).logits(ids, valid)
        return logits.masked_fill(torch.arange(5) == 4, -torch.inf)

    batch = toy_batch()
    batch = replace(batch, tokens=batch.tokens.clamp(max=3))
    found = do.log_likelihood(do.guided(net, 2.0), batch, draws=8, replicates=2)
    assert bool(found.value.isfinite().all())
    with pytest.raises(ValueError, match="`scale`: expected a number in"):
        do.guided(net, -1.0)
