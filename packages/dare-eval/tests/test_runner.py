"""`evaluate` end to end with a tiny random model."""

import copy
import re
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import dare_models
from dare_eval import LladaSampler, NotComparable, Progress, Protocol, Record, ThresholdSampler, compare, evaluate
from dare_eval.engine import batches

pytestmark = pytest.mark.wheel


def _facts(record: Record) -> dict[str, Any]:
    return record.model_dump(exclude={"seconds", "batch_size", "forwards"})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_runs_agree_and_the_batch_size_does_not_matter(
    model: Any, protocol: Callable[..., Protocol], temperature: float
) -> None:
    made = protocol(n=12, temperature=temperature)
    first, second = evaluate(model, made), evaluate(model, made)
    assert second == first.model_copy(update={"seconds": second.seconds})
    for batch_size in (1, 5):
        assert _facts(evaluate(model, made, batch_size=batch_size)) == _facts(first)


def test_record_of_a_run(model: Any, protocol: Callable[..., Protocol]) -> None:
    made = protocol(n=9)
    record = evaluate(model, made, batch_size=4)
    assert [row.uid for row in record.rows] == [item.uid for item in made.items()]
    assert record.checkpoint == model.fingerprint()
    assert (record.device, record.dtype, record.batch_size) == ("cpu", "float32", 4)
    assert record.versions["torch"] == torch.__version__
    assert record.forwards <= 3 * 4
    assert all(1 <= row.nfe <= 4 for row in record.rows)
    task = made.load_task()
    for row, item in zip(record.rows, made.items(), strict=True):
        verdict = task.verify(item, row.completion)
        judged = (verdict.correct, verdict.score, verdict.status, verdict.reason, verdict.pred)
        assert (row.correct, row.score, row.status, row.reason, row.pred) == judged


def test_prompts_of_unequal_length_do_not_matter_either() -> None:
    sampler = ThresholdSampler(gen_length=8, block_length=4, tau=0.1)
    made = Protocol(task="countdown", n=8, options={"max_number": 99}, sampler=sampler)
    lm = dare_models.tiny(tokenizer=dare_models.tiny_tokenizer(made.load_task().alphabet), seed=3)
    assert len({len(item.prompt) for item in made.items()}) > 1
    assert _facts(evaluate(lm, made, batch_size=1)) == _facts(evaluate(lm, made, batch_size=8))


def test_end_tokens_cut_the_completion(model: Any, protocol: Callable[..., Protocol]) -> None:
    record = evaluate(model, protocol(n=20, temperature=1.0))
    ended = [row for row in record.rows if not row.truncated]
    assert ended, "a random model ends some completions"
    assert all(len(re.findall(r"<\|\w+\|>|.", row.completion)) == row.tokens < 8 for row in ended)
    suppressed = evaluate(model, protocol(n=20, temperature=1.0, eos="suppress"))
    assert suppressed.truncated == 20
    assert suppressed.tokens == 20 * 8


class _Scripted:
    """Answers each prompt with a given number of ones and then end tokens, 10 ms per forward."""

    level, mask_id, eos_ids, pad_id, vocab_size = 2, 12, (11,), 11, 13
    attention, block_length, left_context = "full", None, 0
    device, dtype = torch.device("cpu"), torch.float32
    spec = SimpleNamespace(max_positions=64, attention="full", block_length=None)

    def __init__(self, lengths: dict[tuple[int, ...], int]) -> None:
        self.module = torch.nn.Identity()
        self.lengths = lengths

    def __call__(
        self, ids: Any, *, positions: Any, rows: Any, blocks: Any = None, write: Any = None, cache: Any = None
    ) -> Any:
        time.sleep(0.01)
        useful = torch.tensor([self.lengths[tuple(row[:9])] for row in ids.tolist()]).unsqueeze(-1)
        return 20.0 * torch.nn.functional.one_hot(torch.where(rows - 9 < useful, 1, 11), 13)

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        return ["0123456789>".index(character) for character in text]

    def decode(self, ids: list[int], *, specials: bool = False) -> str:
        return "".join("0123456789>$_"[i] for i in ids)

    def fingerprint(self) -> str:
        return "scripted"


def test_speed_counts_useful_tokens_and_true_forwards() -> None:
    """User case P12: answers of 3, 10 and 0 tokens in a canvas of 16, blocks of 4, one token per forward.

    The end token lies in block 0, 2 and 0, and a row leaves at the end of that block: 4, 12 and 4 forwards.
    """
    made = Protocol(task="sort", n=3, sampler=LladaSampler(gen_length=16, block_length=4, steps=16))
    model = _Scripted({})
    useful = [3, 10, 0]
    model.lengths = {tuple(model.encode(i.prompt)): k for i, k in zip(made.items(), useful, strict=True)}
    record = evaluate(cast(Any, model), made, batch_size=3)
    assert [row.tokens for row in record.rows] == useful
    assert [row.nfe for row in record.rows] == [4, 12, 4]
    assert [row.committed for row in record.rows] == [4, 12, 4]
    assert record.tokens_per_forward == 1
    assert [row.correct for row in record.rows] == [False, False, None]
    assert (record.tokens, record.forwards, record.truncated) == (13, 12, 0)
    assert record.seconds >= 12 * 0.01
    assert record.tokens_per_second == 13 / record.seconds


def test_progress_reaches_the_end_and_counts(model: Any, protocol: Callable[..., Protocol]) -> None:
    seen: list[Progress] = []
    record = evaluate(model, protocol(n=10, temperature=1.0), batch_size=4, on_progress=seen.append)
    assert [one.done for one in seen] == [3, 6, 10]
    counts = {"correct": record.correct, "unparsable": record.unparsable, "tokens": record.tokens}
    assert seen[-1] == Progress(done=10, total=10, **counts, seconds=record.seconds)


def test_special_tokens_are_judged(model: Any, protocol: Callable[..., Protocol], monkeypatch: Any) -> None:
    """An answer with `<|user|>` in its midst is none, though its digits be right."""
    made = protocol(n=1)
    answer = made.items()[0].answer
    ids = [*model.encode(answer[:4]), model.tokenizer.convert_tokens_to_ids("<|user|>"), *model.encode(answer[4:])]
    output = SimpleNamespace(
        completions=torch.tensor([ids]),
        completion_mask=torch.ones(1, 9, dtype=torch.bool),
        step_map=torch.zeros(1, 9, dtype=torch.int32),
        row_nfe=[1],
        nfe=1,
    )
    monkeypatch.setattr("dare_eval.engine.generate", lambda *_, **__: output)
    row = evaluate(model, made).rows[0]
    assert (row.completion, row.correct) == (f"{answer[:4]}<|user|>{answer[4:]}", False)


def test_prompts_digest_covers_what_the_model_reads(model: Any, protocol: Callable[..., Protocol]) -> None:
    """Another chat template or end token is another test, though weights and protocol are the same."""
    made = protocol(n=3, chat=True)
    record = evaluate(model, made)
    assert evaluate(model, made, batch_size=2).prompts == record.prompts
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    reworded = dare_models.DiffusionLM(model.module, model.spec, tokenizer)
    digests = {record.prompts, evaluate(reworded, made).prompts}
    for spec in (replace(model.spec, pad_token_id=1), replace(model.spec, turn_end_ids=())):
        digests.add(evaluate(dare_models.DiffusionLM(model.module, spec, model.tokenizer), made).prompts)
    assert len(digests) == 4
    with pytest.raises(NotComparable, match="prompts"):
        compare(record, evaluate(reworded, made))


def test_nothing_global_is_touched(model: Any, protocol: Callable[..., Protocol]) -> None:
    state = torch.get_rng_state()
    model.module.train()
    frozen = next(model.module.children()).eval()
    modes = [module.training for module in model.module.modules()]
    try:
        evaluate(model, protocol(n=4, temperature=1.0))
        assert [module.training for module in model.module.modules()] == modes
        assert model.module.training
        assert not frozen.training
    finally:
        model.module.eval()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.module.parameters())


@pytest.mark.parametrize(
    ("change", "batch_size", "message"),
    [
        ({}, 0, "`batch_size`: expected at least 1, got 0"),
        ({"steps": 3}, 4, "`steps`=3 is no multiple of the 2 blocks"),
        ({"template": "Sort: {prompt}"}, 4, "alphabet"),
        ({"template": "1" * 1100 + "{prompt}"}, 4, "expected a question of at most 1016 tokens, .* got 1109"),
    ],
    ids=str,
)
def test_misfits_are_refused(
    model: Any, protocol: Callable[..., Protocol], change: dict, batch_size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(model, protocol(**change), batch_size=batch_size)


def test_chat_template(model: Any, protocol: Callable[..., Protocol]) -> None:
    assert evaluate(model, protocol(n=3, chat=True)).n == 3


@pytest.mark.parametrize(("n", "size", "expected"), [(10, 4, [3, 3, 4]), (8, 4, [4, 4]), (3, 256, [3]), (1, 1, [1])])
def test_batches_are_equal_and_longest_first(n: int, size: int, expected: list[int]) -> None:
    prompts = [[0] * (1 + i % 3) for i in range(n)]
    made = list(batches([len(prompt) for prompt in prompts], size))
    assert [len(batch) for batch in made] == expected
    flat = [i for batch in made for i in batch]
    assert sorted(flat) == list(range(n))
    lengths = [len(prompts[i]) for i in flat]
    assert lengths == sorted(lengths, reverse=True)
