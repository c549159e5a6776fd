"""The benchmarks run, and their lines hold what they promise; no word about times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dare_objectives import names as objective_names

ROOT = Path(__file__).parents[1]
COSTS = {
    "seconds",
    "forwards",
    "token_forwards",
    "padded_token_forwards",
    "scored_positions",
    "row_forwards",
    "useful_tokens",
    "useful_tokens_per_second",
    "sampling_share",
    "peak_memory_mb",
}
STRATEGIES = {
    "threshold": "straightforward_threshold",
    "prefix": "straightforward_prefix",
    "dual": "straightforward_dual",
    "llada": "straightforward_llada",
    "dream_entropy": "straightforward_dream",
    "sdar_static": "straightforward_block_kv",
    "sdar_dynamic": "straightforward_block_kv",
    "llada21_editing": "straightforward_llada21",
}


@pytest.fixture(scope="module")
def lines():
    command = [sys.executable, str(ROOT / "benchmarks" / "decode.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def having(lines, key):
    return [line for line in lines if key in line]


def test_the_machine_comes_first_and_the_verdict_last(lines):
    assert {"machine", "cores", "threads", "torch"} <= lines[0].keys()
    assert {"equal_tokens", "ideal_forwards", "never_slower"} <= lines[-1]["requirements"].keys()


def test_one_line_per_strategy(lines):
    heavy = {
        line["strategy"]: line["baseline"]["name"]
        for line in having(lines, "strategy")
        if line["shape"] == "head-heavy"
    }
    assert heavy == STRATEGIES
    light = [line["strategy"] for line in having(lines, "strategy") if line["shape"] == "head-light"]
    assert light == ["threshold", "dual"]


def test_lines_are_complete_and_sane(lines):
    for line in having(lines, "strategy"):
        for costs in (line, line["baseline"]):
            assert costs.keys() >= COSTS
            assert 0 < costs["useful_tokens"] <= costs["token_forwards"] <= costs["padded_token_forwards"]
            assert 0 < costs["sampling_share"] < 1
        assert line["ratio"] > 0


def test_tokens_are_equal_and_no_forward_is_wasted(lines):
    for line in having(lines, "strategy"):
        assert line["equal_tokens"], line["strategy"]
        assert line["forwards"] <= line["ideal_forwards"], line["strategy"]
        assert line["token_forwards"] <= line["ideal_token_forwards"], line["strategy"]


def test_sampling_and_savings(lines):
    assert [line["temperature"] for line in having(lines, "sampling")] == [1.0, 0.0]
    assert all(line["ratio_per_row"] > 0 for line in having(lines, "sampling"))
    share = {line["shape"]: line["head_share_of_flops"] for line in having(lines, "savings")}
    assert share.keys() == {"head-heavy", "head-light"}
    assert share["head-light"] <= 0.07 < share["head-heavy"]
    for line in having(lines, "savings"):
        first = line["first forward of a group"]
        assert first["apart"]["token_forwards"] > first["shared"]["token_forwards"]


@pytest.fixture(scope="module")
def updates():
    command = [sys.executable, str(ROOT / "benchmarks" / "objectives.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_objectives_have_lines(updates):
    found = {line["objective"] for line in having(updates, "objective")}
    assert {"vrpo", "espo", "ebpo", "bgpo"} <= found <= set(objective_names())
    assert {"machine", "shape", "head_share_of_flops"} <= updates[0].keys()


def test_updates_agree_with_full_logits(updates):
    for line in having(updates, "objective"):
        assert line["difference"]["gradient"] < 1e-5 and line["difference"]["loss"] < 1e-3, line
    found = updates[-1]["requirements"]
    assert found["none_aborted"] and found["equal_losses"] and found["equal_gradients"]


def test_forwards_are_those_of_the_way(updates):
    for line in having(updates, "objective"):
        twice = line["way"] == "replay" or line["objective"] == "vrpo"
        assert line["baseline"]["forwards"] == line["streams"]
        assert line["forwards"] == line["streams"] * (2 if twice else 1), line["objective"]
        assert line["analytic"]["baseline_gb"] > line["analytic"]["ours_gb"]
