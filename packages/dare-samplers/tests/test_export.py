"""Trajectories on disk."""

import json

import pytest
import torch
from arbitrary import scenes
from hypothesis import given, settings

from dare_samplers import SamplerConfig, generate, write_trajectories
from dare_samplers.scorers import EosLast, Probability
from dare_samplers.testing import ToyDenoiser

TOY = ToyDenoiser.random(eos_bias=2.0)
CONFIG = SamplerConfig(gen_length=8, block_length=4)
KEYS = ["row", "prompt", "slots", "completion", "finish", "nfe", "events", "config"]


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def replayed(record) -> dict[int, int]:
    """Token of every response position, from the record alone."""
    tokens: dict[int, int] = {}
    steps = [event[0] for event in record["events"]]
    assert steps == sorted(steps)
    for _, position, old, new, logp, score, kind in record["events"]:
        assert logp <= 0
        assert score is None or isinstance(score, float)  # JSON knows no -inf
        assert tokens.get(position, old) == old
        if kind == 6:
            del tokens[position]
        else:
            tokens[position] = new
    return tokens


@settings(max_examples=15)
@given(scenes(["table", "toy", "tiny", "toy_causal", "tiny_causal"]))
def test_a_row_is_replayed_from_its_record(tmp_path_factory, scene):
    """Canvas, completion and counts, with any strategy; strict JSON, so scores of -inf are no bare words."""
    out = scene.run()
    path = tmp_path_factory.mktemp("trajectories") / "rows.jsonl"
    write_trajectories(out, path)
    records = read(path)
    assert [record["row"] for record in records] == list(range(len(scene.prompts)))
    for row, record in enumerate(records):
        assert list(record) == KEYS
        tokens = replayed(record)
        canvas = dict(zip(record["slots"], range(len(record["slots"])), strict=True))
        length = len(record["prompt"]) + len(record["slots"])
        given_tokens = iter(record["prompt"])
        rebuilt = [
            tokens.get(canvas[column], scene.model.pad_id) if column in canvas else next(given_tokens)
            for column in range(length)
        ]
        assert rebuilt == out.state.tokens[row][out.state.positions[row] >= 0].tolist()
        assert record["completion"] == [tokens[i] for i in range(len(record["completion"]))]
        assert record["finish"] == out.finish_reason[row]
        assert record["nfe"] == int(out.row_nfe[row])
        assert record["config"] == repr(scene.config)


def test_text_is_decoded_if_asked(tmp_path):
    path = tmp_path / "rows.jsonl"
    out = generate(TOY, [[1, 2], [3]], CONFIG)
    write_trajectories(out, path, decode=lambda ids: "·".join(map(str, ids)))
    for record in read(path):
        assert record["text"] == "·".join(map(str, record["completion"]))


def test_an_older_file_is_replaced(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("old")
    write_trajectories(generate(TOY, [[1]], CONFIG), str(path))
    assert len(read(path)) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("old", [None, "old"])
def test_nothing_is_left_behind_by_a_failure(tmp_path, old):
    path = tmp_path / "rows.jsonl"
    if old is not None:
        path.write_text(old)
    rows = []

    def decode(ids):
        rows.append(ids)
        if len(rows) == 2:
            raise RuntimeError("no such id")
        return ""

    with pytest.raises(RuntimeError, match="no such id"):
        write_trajectories(generate(TOY, [[1], [2]], CONFIG), path, decode=decode)
    assert [one.read_text() for one in tmp_path.iterdir()] == ([] if old is None else [old])


def test_an_unfinished_decode_can_be_written(tmp_path):
    path = tmp_path / "rows.jsonl"
    out = generate(TOY, [[1], [2]], CONFIG, until_step=2)
    write_trajectories(out, path)
    for record in read(path):
        assert record["finish"] == "steps"
        assert len(replayed(record)) == 2 == record["nfe"]


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_trajectories(generate(TOY, [[1]], CONFIG), tmp_path / "no" / "rows.jsonl")


def test_scores_of_minus_infinity_are_json(tmp_path):
    """RFC 8259 knows no Infinity."""
    path = tmp_path / "rows.jsonl"
    model = ToyDenoiser.random(eos_bias=9.0)
    out = generate(model, [[1]], CONFIG.replace(scorer=EosLast(Probability())))
    assert bool(torch.isinf(out.scores).any())
    write_trajectories(out, path)

    def refuse(word):
        raise AssertionError(word)

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)
