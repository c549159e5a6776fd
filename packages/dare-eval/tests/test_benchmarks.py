"""Benchmarks: every sheet with its miniature, readers, prompts, few-shot rendering, presets."""

import base64
import json
import pickle
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dare_eval import Protocol
from dare_eval.presets import preset_names, preset_sheet
from dare_eval.prompting import fit, messages, text
from dare_eval.sandbox import reached_level
from dare_eval.tasks import DataError, Item, get_task, miniature
from dare_eval.tasks.benchmark import Benchmark, sheet, sheet_names
from dare_eval.tasks.judges import JUDGES
from dare_eval.tasks.rows import READERS, BadRow
from dare_eval.testing import check_verdict, hostile_texts

pytestmark = pytest.mark.wheel


def _benchmark(name: str, **options: str) -> Benchmark:
    return cast(Benchmark, get_task(name, options, data=miniature(name)))


def _need_namespaces() -> None:
    if sys.platform != "linux" or reached_level() != "namespaces":
        pytest.skip("this system allows no namespaces")


@pytest.mark.parametrize("name", sheet_names())
def test_a_sheet_reads_its_rows_and_judges_its_answers(name: str) -> None:
    task = _benchmark(name)
    if task.sheet.judge == "code":
        _need_namespaces()
    for split in task.sheet.splits:
        items = task.problems(split, None, 0)
        assert len({item.uid for item in items}) == len(items)
        for item in items:
            assert "{question}" not in item.prompt
            copy = Item(**json.loads(json.dumps({**item.__dict__, "choices": list(item.choices)})))
            check_verdict(task.verify(copy, "nothing of the kind"))
            if item.answer:
                verdict = task.verify(copy, item.answer)
                assert verdict.correct is True, verdict
                assert task.lenient(copy, item.answer) in (None, True)
    assert task.sheet.read in READERS
    assert task.sheet.judge in JUDGES
    assert task.options == {"prompt": next(iter(task.sheet.prompts)), "only": ""}


@pytest.mark.parametrize("name", [name for name in sheet_names() if sheet(name).likelihood])
def test_choices_to_weigh(name: str) -> None:
    task = _benchmark(name)
    weighed = task.problems("test", None, 0, likelihood=True)
    assert [item.uid for item in weighed] == [item.uid for item in task.problems("test", None, 0)]
    for item in weighed:
        assert item.answer in item.choices
        assert all(choice.startswith(" ") and choice.strip() for choice in item.choices)
        assert not item.prompt.endswith(" ")


@pytest.mark.parametrize("name", [name for name in sheet_names() if sheet(name).shots])
def test_demonstrations_are_of_the_same_group_and_no_test_problems(name: str) -> None:
    task = _benchmark(name)
    for item in task.problems("test", None, 0):
        (shown,) = task.demonstrations(item, 1, seed=0)
        assert shown.group == item.group
        assert shown.uid not in {one.uid for one in task.problems("test", None, 0)}
        assert shown.answer
    with pytest.raises(ValueError, match="`shots`: expected at most"):
        task.demonstrations(task.problems("test", 1, 0)[0], 50, seed=0)


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "livecodebench"])
def test_programs_are_judged_in_the_sandbox(name: str) -> None:
    _need_namespaces()
    right = {
        "humaneval": ["    return 2 * x", "```python\ndef join(words):\n    return ' '.join(words)\n```"],
        "mbpp": ["```\ndef add(a, b):\n    return a + b\n```", "def largest(xs):\n    return max(xs)"],
        "livecodebench": [
            "print(2 * int(input()))",
            "class Solution:\n    def total(self, xs):\n        return sum(xs)",
        ],
    }
    task = _benchmark(name)
    for item, program in zip(task.problems("test", None, 0), right[name], strict=True):
        assert task.verify(item, program).correct is True
        assert task.verify(item, program.replace("return", "return not").replace("print(2", "print(3")).correct is False


def test_private_cases_are_read_without_running_anything() -> None:
    cases = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()
    row = {"question_content": "Add one.", "public_test_cases": "[]", "private_test_cases": packed, "metadata": "{}"}
    assert READERS["livecodebench"](row).data["cases"] == [["1\n", "2\n"]]

    class Evil:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
            return print, ("ran",)

    row["private_test_cases"] = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(BadRow, match=r"expected plain data, got builtins\.print"):
        READERS["livecodebench"](row)


@pytest.mark.parametrize(
    ("reader", "row", "message"),
    [
        ("gsm8k", {"question": "q", "answer": None}, "no text in column answer"),
        ("gsm8k", {"question": "q", "answer": "#### many"}, "a label that is a number"),
        ("mathematics", {"problem": "p", "solution": "none"}, "no closed box"),
        ("olympiad", {"question": "q", "final_answer": ["1"], "modality": "Multimodal"}, "picture"),
        ("mmlu", {"question": "q", "choices": ["a", "b"], "answer": 2}, "expected an answer of AB, got 2"),
        ("mmlu", {"question": "q", "choices": ["a", ""], "answer": 0}, "options with text"),
        ("arc", {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"}, "got 'C'"),
        ("arc", {"question": "q", "choices": ["a"], "answerKey": "A"}, "no mapping in column choices"),
        ("hellaswag", {"ctx": "c", "endings": ["a", "b"], "label": ""}, "expected an answer of AB"),
        ("ifeval", {"prompt": "p", "instruction_id_list": ["a"], "kwargs": [{}, {}]}, "arguments for 1 instructions"),
        ("livecodebench", {"question_content": "q", "public_test_cases": "x"}, "unreadable test cases"),
        ("bbh", {"input": "i", "target": " "}, "no text in column target"),
    ],
)
def test_bad_rows_say_why(reader: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRow, match=message):
        READERS[reader](row)


def test_rows_that_are_left_out_are_counted() -> None:
    items, dropped = _benchmark("olympiadbench").read("test")
    assert (len(items), sum(dropped.values())) == (1, 2)


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_data_in_other_formats_is_the_same(ending: str, tmp_path: Path) -> None:
    import csv

    rows = [json.loads(line) for line in (miniature("gsm8k") / "test.jsonl").read_text().splitlines()]
    path = tmp_path / f"test.{ending}"
    if ending == "json":
        path.write_text(json.dumps(rows))
    elif ending == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        from datasets import Dataset

        Dataset.from_list(rows).to_parquet(path)
    assert get_task("gsm8k", data=tmp_path).problems("test", None, 0) == _benchmark("gsm8k").problems("test", None, 0)


def test_data_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"expected test\.jsonl .* of task 'gsm8k'"):
        get_task("gsm8k", data=tmp_path).problems("test", None, 0)
    (tmp_path / "test.jsonl").write_text('{"question": "q"}\n')
    with pytest.raises(DataError, match=r"got none \(1 rows: no text in column answer\)"):
        get_task("gsm8k", data=tmp_path).problems("test", None, 0)
    (tmp_path / "train.jsonl").write_text("[1]\n")
    with pytest.raises(DataError, match="rows with named columns"):
        get_task("gsm8k", data=tmp_path).problems("train", None, 0)
    with pytest.raises(ValueError, match="has no split 'validation'; expected one of: train, test"):
        _benchmark("gsm8k").problems("validation", None, 0)

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(DataError, match=r"cannot read split 'test' of 'openai/gsm8k'.*: no route; go online, or"):
        get_task("gsm8k").problems("test", None, 0)


def test_a_part_of_the_problems_is_a_hash_of_the_seed() -> None:
    task = _benchmark("gsm8k")
    whole = [item.uid for item in task.problems("test", None, 0)]
    parts = {tuple(item.uid for item in task.problems("test", 2, seed)) for seed in range(20)}
    assert len(parts) > 3
    assert all(list(part) == [uid for uid in whole if uid in part] for part in parts)
    assert {len(_benchmark("mmlu", only="astronomy").problems("test", None, 0))} == {1}
    with pytest.raises(ValueError, match="expected at most 4 problems"):
        task.problems("test", 5, 0)


def test_the_identity_is_in_the_rows_not_in_where_they_lie(tmp_path: Path) -> None:
    sampler = {"kind": "core", "gen_length": 8}
    made = Protocol(task="gsm8k", data=miniature("gsm8k"), sampler=cast(Any, sampler))
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text((miniature("gsm8k") / f"{name}.jsonl").read_text())
    again = Protocol(task="gsm8k", data=tmp_path, sampler=cast(Any, sampler))
    assert made.hash() == again.hash()
    assert (made.n, "data" in made.model_dump()) == (4, False)
    assert made.hash() != Protocol(task="gsm8k", data=tmp_path, shots=1, sampler=cast(Any, sampler)).hash()
    (tmp_path / "train.jsonl").write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    with pytest.raises(ValueError, match="another than the protocol was made with"):
        Protocol(task="gsm8k", data=miniature("gsm8k"), shots=1, sampler=cast(Any, sampler)).model_copy(
            update={"data": tmp_path}
        ).items()


def test_hostile_texts_are_judged_by_every_kind() -> None:
    for name in ("gsm8k", "mmlu", "ifeval", "bbh"):
        task = _benchmark(name)
        item = task.problems("test", None, 0)[0]
        for given in hostile_texts(60, seed=3):
            check_verdict(task.verify(item, given))


def test_a_benchmark_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sheet; a reader and a judge of your own by address."""
    sampler = cast(Any, {"kind": "core", "gen_length": 4})
    (tmp_path / "capitals.yaml").write_text(
        "title: Capitals\nversion: '1'\nhub: me/capitals\nsplits: {test: test}\nread: my_rows:read\n"
        "judge: my_rows:JUDGE\ngen_length: 16\nprompts: {plain: 'What is the capital of {country}?'}\n"
    )
    (tmp_path / "my_rows.py").write_text(
        "from dare_eval.tasks.judges import Judge\nfrom dare_eval.tasks.rows import Fields\n"
        "from dare_eval.verify import phrase\n"
        "def read(row):\n    return Fields({'country': row['country']}, row['city'], {'city': row['city']})\n"
        "JUDGE = Judge('capitals/1', lambda data, text: phrase(text, data['city']))\n"
    )
    (tmp_path / "test.jsonl").write_text('{"country": "France", "city": "Paris"}\n')
    monkeypatch.syspath_prepend(tmp_path)
    task = get_task(str(tmp_path / "capitals.yaml"), data=tmp_path)
    (item,) = task.problems("test", None, 0)
    assert (item.prompt, task.name, task.verifier) == ("What is the capital of France?", "capitals", "capitals/1")
    assert task.verify(item, "The answer is Paris.").correct is True
    made = Protocol(task=str(tmp_path / "capitals.yaml"), data=tmp_path, sampler=sampler)
    assert made.n == 1
    sheet_text = (tmp_path / "capitals.yaml").read_text()
    for change, message in (
        (("read: my_rows:read", "read: gsm9k"), "unknown reader 'gsm9k'; did you mean gsm8k"),
        (("judge: my_rows:JUDGE", "judge: my_rows:NONE"), "cannot import judge 'my_rows:NONE'"),
        (("version: '1'", "vresion: '1'"), "vresion"),
    ):
        (tmp_path / "bad.yaml").write_text(sheet_text.replace(*change))
        sheet.cache_clear()
        with pytest.raises(ValueError, match=message):
            Protocol(task=str(tmp_path / "bad.yaml"), data=tmp_path, sampler=sampler)
    with pytest.raises(ValueError, match=r"cannot read the sheet .*none\.yaml"):
        get_task(str(tmp_path / "none.yaml"))


# ------------------------------------------------------------------------------------------------------ prompts

SHOTS = [Item(1, "1+1=", "2"), Item(2, "2+1=", "3"), Item(3, "3+1=", "4")]


def test_plain_and_chat_prompts() -> None:
    assert text("4+1=", SHOTS[:2], "Q {prompt}", (" ", "\n")) == "Q 1+1= 2\nQ 2+1= 3\nQ 4+1="
    turns = messages("4+1=", SHOTS[:1], "{prompt}", "Add.")
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert [turn["content"] for turn in turns] == ["Add.", "1+1=", "2", "4+1="]
    assert text("x", [Item(1, "Q:", " B")], "{prompt}", ("\n", "\n\n")) == "Q: B\n\nx"


@pytest.mark.parametrize("room", range(4, 30))
def test_demonstrations_are_lost_before_the_question(room: int) -> None:
    """User case P10: the question is always whole, the last demonstrations go first, and their number is told."""
    item = Item(9, "4+1=", "5")

    def encode(shots: Any) -> list[int]:
        return [ord(character) for character in text(item.prompt, shots, "{prompt}", ("", ";"))]

    made = fit(item, SHOTS, encode, room)
    kept = len(SHOTS) - made.dropped
    assert made.ids == encode(SHOTS[:kept])
    assert len(made.ids) <= room
    assert kept == len(SHOTS) or len(encode(SHOTS[: kept + 1])) > room
    assert "".join(map(chr, made.ids)).endswith("4+1=")


def test_an_overlong_question_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a question of at most 3 tokens"):
        fit(Item(9, "4+1=", "5"), SHOTS, lambda shots: [0] * 4, 3)


# ------------------------------------------------------------------------------------------------------ presets

MADE = [(name, task) for name in preset_names() for task in preset_sheet(name).tasks]


@pytest.mark.parametrize(("name", "task"), MADE, ids=map("-".join, MADE))
def test_a_preset_makes_protocols(name: str, task: str) -> None:
    """Its sampler can be built for the attention it is meant for, and its shots are there at full size."""
    wanted = preset_sheet(name).tasks[task].get("shots", 0)
    changes: dict[str, Any] = {} if task not in sheet_names() else {"data": miniature(task), "shots": min(wanted, 1)}
    made = Protocol.preset(name, task, **(changes or {"n": 2}))
    config = made.sampler.config(cast(Any, Spec("block_causal" if name in ("sdar-4096", "llada2-mini") else "full")))
    assert config.gen_length == made.sampler.gen_length
    if task in sheet_names():
        assert not wanted or sheet(task).shots is not None
    again = Protocol.model_validate({**made.model_dump(), "data": changes.get("data")})
    assert again.hash() == made.hash()


class Spec:
    def __init__(self, attention: str) -> None:
        self.attention = attention
        self.block_length = 4 if attention == "block_causal" else None
        self.generation: dict[str, Any] = {}
        self.stop_ids = (1, 2)


def test_presets_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="unknown protocol 'dare-cor'; did you mean dare-core"):
        Protocol.preset("dare-cor", "sort")
    with pytest.raises(ValueError, match="protocol 'sdar-4096' says nothing of task 'sort'"):
        Protocol.preset("sdar-4096", "sort")
    changed = Protocol.preset("llada-base", "arc_challenge", data=miniature("arc_challenge"), likelihood={"draws": 16})
    assert (changed.likelihood.draws, changed.likelihood.guidance, changed.mode) == (16, 0.5, "likelihood")


@pytest.mark.parametrize("attention", ["full", "block_causal"])
def test_the_core_protocol_is_one_for_all(attention: str) -> None:
    config = Protocol.preset("dare-core", "sort", n=2).sampler.config(cast(Any, Spec(attention)))
    assert (config.block_length, config.grid) == ((4, "zero") if attention == "block_causal" else (8, "prompt"))
    assert config.gen_length == 8
    if attention == "full":
        longer = Protocol.preset("dare-core", "sudoku9", n=1).sampler.config()
        assert longer.block_length == (32, 32, 17)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ({"kind": "preset", "name": "lada"}, "unknown preset 'lada'; did you mean llada"),
        (
            {"kind": "preset", "name": "sdar", "settings": {"tua": 1}},
            "preset 'sdar' has no argument 'tua'; did you mean tau",
        ),
        ({"kind": "preset", "name": "sdar", "settings": {"gen_length": 1}}, "no argument 'gen_length'"),
        ({"kind": "preset", "name": "llada22"}, "preset 'llada22': .*missing"),
    ],
)
def test_presets_of_samplers_are_checked(sampler: dict[str, Any], message: str) -> None:
    made = Protocol(task="sort", n=2, sampler=cast(Any, {"gen_length": 8, **sampler}))
    with pytest.raises(ValueError, match=message):
        made.sampler.config()


def test_end_tokens_of_a_preset_are_the_models() -> None:
    made = Protocol(
        task="sort",
        n=2,
        sampler=cast(Any, {"kind": "preset", "name": "llada", "gen_length": 8, "settings": {"eos": "never"}}),
    )
    assert made.sampler.config(cast(Any, Spec("full"))).rules[0].ids == (1, 2)
