"""Rows, ids and order."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_train.config import JsonlData, TaskData
from dare_train.data import load_rows, rows_of_step
from dare_train.errors import DataError


@given(count=st.integers(1, 12), batch=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_each_epoch_sees_every_row_once(count: int, batch: int, seed: int) -> None:
    seen = [pair for step in range(3 * count) for pair in rows_of_step(count, batch, step, seed)]
    full = seen[: len(seen) // count * count]
    for epoch in range(len(full) // count):
        chunk = full[epoch * count : (epoch + 1) * count]
        assert sorted(index for index, _ in chunk) == list(range(count))
        assert {e for _, e in chunk} == {epoch}


def test_order_depends_on_seed_and_epoch() -> None:
    orders = {tuple(i for i, _ in rows_of_step(50, 50, step, seed)) for step in range(3) for seed in range(3)}
    assert len(orders) == 9


def test_task_rows_are_distinct_and_repeatable() -> None:
    config = TaskData(task="sort", options={"digits": 4}, size=200)
    rows = load_rows(config, completions=True)
    assert len({row.uid for row in rows}) == 200
    assert rows == load_rows(config, completions=True)
    assert all(row.completion == "".join(sorted(row.prompt[:4])) for row in rows)


def test_uid_follows_content_not_place(tmp_path: Path) -> None:
    one, two = '{"prompt": "a", "x": 1}', '{"x": 2, "prompt": "b"}'
    (tmp_path / "1").write_text(f"{one}\n{two}\n", encoding="utf-8")
    (tmp_path / "2").write_text(f'\n{two}\n{{"x": 1, "prompt": "a"}}\n', encoding="utf-8")
    first = load_rows(JsonlData(path=tmp_path / "1"), completions=False)
    second = load_rows(JsonlData(path=tmp_path / "2"), completions=False)
    assert [r.uid for r in first] == [r.uid for r in reversed(second)]
    assert first[0].columns == {"x": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "holds no rows"),
        ("{nope\n", ":1: not JSON"),
        ("[1]\n", ":1: expected an object, got list"),
        ('{"prompt": 3}\n', ":1: the row needs a text field 'prompt'; 'prompt' is 3"),
        ('{"text": "a"}\n', ":1: the row needs a text field 'prompt'; its fields are"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=expected):
        load_rows(JsonlData(path=file), completions=False)


def test_unusual_line_separators_stay_inside_strings(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a\u2028b\u0085c"}\n', encoding="utf-8")
    assert load_rows(JsonlData(path=file), completions=False)[0].prompt == "a\u2028b\u0085c"


def test_other_encodings_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match=r"cannot read `data.path`"):
        load_rows(JsonlData(path=file), completions=False)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read `data.path`"):
        load_rows(JsonlData(path=tmp_path / "none.jsonl"), completions=True)
