"""Protocols, records and comparisons, without a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from dare_eval import LladaSampler, NotComparable, Protocol, Record, RecordError, Row, ThresholdSampler, compare, wilson
from dare_eval.protocol import digest

pytestmark = pytest.mark.wheel

MIXED = [True] * 4 + [False] * 3 + [None] * 3


def test_identity_is_filled_in(protocol: Callable[..., Protocol]) -> None:
    made = protocol()
    assert (made.options, made.task_version, made.verifier) == ({"digits": 8}, "1", "digits/1")
    assert made == protocol(options={"digits": 8})
    assert made.hash() == protocol(options={"digits": 8}).hash()


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"digits": 7}},
        {"split": "validation"},
        {"n": 11},
        {"seed": 1},
        {"template": "sort {prompt}"},
        {"chat": True},
        {"steps": 8},
        {"temperature": 0.5},
        {"sampler": ThresholdSampler(gen_length=8, block_length=4)},
        {"eos": "suppress"},
        {"shots": 1},
        {"samples": 2},
        {"stop": [">"]},
        {"chat": True, "system": "Be brief."},
        {"likelihood": {"draws": 64}},
        {"task_version": "0", "dataset": "x", "verifier": "digits/1"},
    ],
    ids=str,
)
def test_hash_covers_every_field(protocol: Callable[..., Protocol], change: dict) -> None:
    assert protocol(**change).hash() != protocol().hash()


def test_hash_is_over_the_whole_protocol(protocol: Callable[..., Protocol]) -> None:
    assert protocol().hash() == digest(protocol().model_dump(mode="json"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "srot"}, "did you mean sort"),
        ({"split": "tset"}, "'train', 'validation' or 'test'"),
        ({"template": "sort it"}, "expected a template with {prompt}"),
        ({"n": 0}, "greater than or equal to 1"),
        ({"options": {"digits": 1}, "n": 50}, "too few test problems"),
        ({"shot": 3}, "Extra inputs"),
        ({"system": "Be brief."}, "`system`: expected it with `chat` only"),
        ({"mode": "likelihood"}, "no answers to choose from; use mode 'generate'"),
        ({"stop": [""]}, "`stop`: expected texts, got an empty one"),
        ({"data": "."}, "`data`: task 'sort' makes its problems itself"),
        ({"likelihood": {"draws": 100}}, "`draws`: expected a multiple of `replicates` = 16; take 96"),
    ],
    ids=str,
)
def test_protocol_refuses(protocol: Callable[..., Protocol], change: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        protocol(**change)


def test_items_refuse_another_version_of_the_task(protocol: Callable[..., Protocol]) -> None:
    made = protocol()
    with pytest.raises(ValueError, match="`task_version` '0' of task 'sort', installed is '1'"):
        made.model_copy(update={"task_version": "0"}).items()
    with pytest.raises(ValueError, match="if the task was changed, raise its `version`"):
        made.model_copy(update={"dataset": "0" * 64}).items()


def test_summary(protocol: Callable, record: Callable) -> None:
    made = record(protocol(), MIXED)
    assert (made.n, made.correct, made.unparsable, made.score, made.mean_score) == (10, 4, 3, 0.4, 0.4)
    assert made.interval == pytest.approx((0.1682, 0.6873), abs=1e-4)
    assert (made.tokens, made.tokens_per_second, made.chance) == (30, 60.0, 0.0004032)


def test_round_trip(protocol: Callable, record: Callable, tmp_path: Path) -> None:
    made = record(protocol(), MIXED)
    made.save(tmp_path / "r.json")
    assert Record.load(tmp_path / "r.json") == made
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_save_refuses_to_overwrite(protocol: Callable, record: Callable, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    record(protocol(), MIXED).save(path)
    other = record(protocol(), [True] * 10)
    with pytest.raises(RecordError, match="exists; choose another name or pass --force"):
        other.save(path)
    assert Record.load(path).correct == 4
    other.save(path, force=True)
    assert Record.load(path).correct == 10
    with pytest.raises(RecordError, match="does not exist"):
        other.save(tmp_path / "nowhere" / "r.json")


def test_a_failed_write_leaves_the_old_record(
    protocol: Callable, record: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    record(protocol(), MIXED).save(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        record(protocol(), [True] * 10).save(path, force=True)
    assert Record.load(path).correct == 4
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    "field", ["device", "dtype", "batch_size", "protocol_hash", "prompts", "checkpoint", "versions", "rows"]
)
def test_a_record_without_its_circumstances_is_refused(
    protocol: Callable, record: Callable, tmp_path: Path, field: str
) -> None:
    data = record(protocol(), MIXED).model_dump(mode="json")
    del data[field]
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(RecordError, match=f"`{field}`: Field required"):
        Record.load(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("score",), 0.9, "`score`: expected 0.4 from the rows, got 0.9"),
        (("correct",), 9, "`correct`: expected 4"),
        (("interval",), [0.3, 0.5], "`interval`: expected"),
        (("rows",), [], "expected 10 rows"),
        (("protocol", "seed"), 5, "the protocol was edited"),
        (("protocol", "sampler", "steps"), 8, "the protocol was edited"),
        (("protocol_hash",), "0" * 64, "`protocol_hash`: expected"),
        (("device",), "", "`device`"),
    ],
    ids=str,
)
def test_an_edited_record_is_refused(
    protocol: Callable, record: Callable, tmp_path: Path, path: tuple[str, ...], value: object, message: str
) -> None:
    data = record(protocol(), MIXED).model_dump(mode="json")
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(RecordError, match=message):
        Record.load(tmp_path / "r.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"protocol": 3}'])
def test_load_refuses_other_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(RecordError, match=r"no intact score record|no JSON file"):
        Record.load(tmp_path / "r.json")
    with pytest.raises(RecordError, match="cannot read"):
        Record.load(tmp_path / "nothing.json")


def test_a_record_of_a_future_task_version_can_be_read(protocol: Callable, record: Callable, tmp_path: Path) -> None:
    """Old numbers stay comparable with one another after the task has moved on."""
    data = record(protocol(), MIXED).model_dump(mode="json")
    data["protocol"] |= {"task": "retired", "task_version": "9"}
    data["protocol_hash"] = digest(data["protocol"])
    (tmp_path / "r.json").write_text(json.dumps(data))
    old = Record.load(tmp_path / "r.json")
    assert old.protocol.task_version == "9"
    assert compare(old, old).n == 10


def test_the_constructor_refuses_another_protocols_hash(protocol: Callable, record: Callable) -> None:
    made = record(protocol(), MIXED)
    with pytest.raises(ValidationError, match="`protocol_hash`: expected"):
        Record(**dict(made) | {"protocol_hash": protocol(seed=1).hash()})


def test_a_record_of_an_older_protocol_can_be_saved_again(protocol: Callable, record: Callable, tmp_path: Path) -> None:
    """A file from before `eos` was a field: its hash is over what it says, and becomes today's."""
    made = record(protocol(), MIXED)
    data = made.model_dump(mode="json")
    del data["protocol"]["eos"]
    data["protocol_hash"] = digest(data["protocol"])
    (tmp_path / "old.json").write_text(json.dumps(data))
    Record.load(tmp_path / "old.json").save(tmp_path / "new.json")
    assert Record.load(tmp_path / "new.json") == made


def test_a_problem_counts_once(protocol: Callable, record: Callable) -> None:
    made = record(protocol(), MIXED)
    with pytest.raises(ValidationError, match="expected 10 rows with different uids, 1 of each, got 10 with 9"):
        Record(**dict(made) | {"rows": (*made.rows[:-1], made.rows[-2])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correct": None, "reason": "why", "score": 0.0}, "None exactly where not ok"),
        ({"status": "unparsable"}, "None exactly where not ok"),
        ({"reason": "why"}, "a `reason` for all but correct rows"),
        ({"correct": False, "score": 0.1}, "a `reason` for all but correct rows"),
        ({"correct": False, "reason": "why"}, "a `score` below 1 unless correct"),
    ],
    ids=str,
)
def test_a_row_must_agree_with_itself(protocol: Callable, record: Callable, change: dict, message: str) -> None:
    right = dict(record(protocol(), MIXED).rows[0])
    with pytest.raises(ValidationError, match=message):
        Row(**right | change)
    assert Row(**right | {"correct": False, "reason": "why", "score": 0.1}).score == 0.1  # shaped


def test_half_a_surrogate_pair_survives(protocol: Callable, record: Callable, tmp_path: Path) -> None:
    made = record(protocol(), MIXED)
    row = made.rows[0].model_copy(update={"completion": "x\ud800"})
    made = made.model_copy(update={"rows": (row, *made.rows[1:])})
    made.save(tmp_path / "r.json")
    assert Record.load(tmp_path / "r.json") == made


def test_compare_by_hand(protocol: Callable, record: Callable) -> None:
    """Of ten, b alone solves five and a alone one: difference 0.4, McNemar 14/64."""
    a = record(protocol(), [True, True, True, True] + [False] * 6, checkpoint="a")
    b = record(protocol(), [True, True, True, None] + [True] * 5 + [False], checkpoint="b")
    result = compare(a, b)
    assert (result.n, result.only_a, result.only_b) == (10, 1, 5)
    assert (result.score_a, result.score_b, result.difference) == (0.4, 0.8, 0.4)
    assert result.p_value == 14 / 64
    assert result.interval[0] < 0.4 < result.interval[1]
    assert result.conclusion == "no difference shown"
    assert result.notes == ()


def test_conclusion_follows_the_interval(protocol: Callable, record: Callable) -> None:
    none, every = record(protocol(), [False] * 10), record(protocol(), [True] * 10, checkpoint="d")
    assert compare(none, every).conclusion == "b is better"
    assert compare(every, none).conclusion == "a is better"


def test_compare_pairs_by_problem_not_by_place(protocol: Callable, record: Callable) -> None:
    a = record(protocol(), MIXED)
    b = a.model_copy(update={"rows": a.rows[::-1], "checkpoint": "b"})
    assert (compare(a, b).only_a, compare(a, b).only_b) == (0, 0)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"steps": 8}, ("sampler.steps",)),
        ({"temperature": 1.0, "eos": "suppress"}, ("sampler.temperature", "eos")),
        ({"seed": 1}, ("seed", "dataset")),
        ({"options": {"digits": 7}}, ("options.digits", "dataset")),
        ({"template": "{prompt} "}, ("template",)),
        ({"sampler": LladaSampler(gen_length=16, block_length=4, steps=4)}, ("sampler.gen_length",)),
    ],
    ids=str,
)
def test_unlike_protocols_are_refused(
    protocol: Callable, record: Callable, change: dict, fields: tuple[str, ...]
) -> None:
    a, b = record(protocol(), MIXED), record(protocol(**change), MIXED)
    with pytest.raises(NotComparable) as caught:
        compare(a, b)
    assert caught.value.fields == fields
    assert all(field in str(caught.value) for field in fields)


def test_unlike_conditions_are_refused_unless_ignored(protocol: Callable, record: Callable) -> None:
    a, b = record(protocol(), MIXED), record(protocol(), MIXED, device="cuda X", dtype="bfloat16", checkpoint="b")
    with pytest.raises(NotComparable, match=r"device \(cpu ≠ cuda X\), dtype \(float32 ≠ bfloat16\)"):
        compare(a, b)
    assert compare(a, b, ignore=["device", "dtype"]).notes == ("device: cpu ≠ cuda X", "dtype: float32 ≠ bfloat16")
    other = record(protocol(), MIXED, prompts="q", checkpoint="b")
    with pytest.raises(NotComparable, match=r"prompts \(other token ids: tokenizer, chat template") as caught:
        compare(a, other)
    assert caught.value.fields == ("prompts",)
    assert compare(a, other, ignore=["prompts"]).notes[0].startswith("prompts: other token ids")
    with pytest.raises(ValueError, match="`ignore`: expected"):
        compare(a, b, ignore=["seed"])


def test_other_versions_are_noted(protocol: Callable, record: Callable) -> None:
    a = record(protocol(), MIXED)
    b = record(protocol(), MIXED, versions={"torch": "3"}, batch_size=8)
    assert compare(a, b).notes == ("batch_size: 4 ≠ 8", "torch: '2' ≠ '3'", "checkpoint: the same weights")


def _sampled(protocol: Callable, record: Callable, solved: list[int], samples: int = 4) -> Record:
    """A record in which problem i is solved by so many of its completions."""
    made = protocol(n=len(solved), samples=samples)
    one = record(protocol(n=len(solved)), [True] * len(solved))
    rows = [
        row.model_copy(
            update={
                "sample": s,
                "correct": s < k,
                "score": float(s < k),
                "reason": "" if s < k else "why",
                "pred": f"{s < k}",
            }
        )
        for row, k in zip(one.rows, solved, strict=True)
        for s in range(samples)
    ]
    facts = {
        name: getattr(one, name) for name in ("prompts", "checkpoint", "device", "dtype", "batch_size", "versions")
    }
    return Record.of(rows, protocol=made, forwards=4, seconds=0.5, **facts)


def test_several_completions_per_problem(protocol: Callable, record: Callable) -> None:
    made = _sampled(protocol, record, [0, 1, 2, 4])
    assert (made.n, made.correct, made.score) == (4, 7, 7 / 16)
    assert made.interval == wilson(7 / 4, 4)
    assert made.pass_at(1) == pytest.approx(7 / 16)
    assert made.pass_at(2) == pytest.approx((0 + 1 / 2 + (1 - 1 / 6) + 1) / 4)
    assert made.pass_at(4) == pytest.approx(3 / 4)
    assert made.majority() == pytest.approx((0 + 0 + 1 + 1) / 4), "of two and two the first counts"
    with pytest.raises(ValueError, match="`k`: expected 1 to 4 completions per problem, got 5"):
        made.pass_at(5)
    with pytest.raises(ValidationError, match="4 of each, got 15 with 4 uids, 15 of them different"):
        Record(**dict(made) | {"rows": made.rows[:-1]})


def test_records_with_several_completions_are_compared_by_problem(protocol: Callable, record: Callable) -> None:
    a, b = _sampled(protocol, record, [0, 1, 2, 4] * 5), _sampled(protocol, record, [1, 2, 2, 3] * 5)
    found = compare(a, b)
    assert (found.only_a, found.only_b) == (5, 10)
    assert found.difference == pytest.approx(b.score - a.score)
    assert found.interval == found.bootstrap
    assert found.test == "sign test over problems"
    assert found.interval[0] < found.difference < found.interval[1]


def test_both_intervals_are_given(protocol: Callable, record: Callable) -> None:
    a, b = record(protocol(), [True] * 4 + [False] * 6), record(protocol(), [True] * 8 + [False] * 2)
    found = compare(a, b)
    assert found.bootstrap[0] <= found.difference <= found.bootstrap[1]
    assert found.interval != found.bootstrap
    assert compare(a, b) == found


def test_where_the_data_lies_is_no_difference(protocol: Callable, record: Callable, tmp_path: Path) -> None:
    made = record(protocol(), MIXED)
    made.save(tmp_path / "r.json")
    assert "data" not in json.loads((tmp_path / "r.json").read_text())["protocol"]
    assert compare(made, Record.load(tmp_path / "r.json")).difference == 0
