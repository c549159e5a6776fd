"""Training on benchmarks: their rows, chat templates, verifiers."""

from pathlib import Path
from typing import Any

import pytest

from dare_eval.tasks import miniature
from dare_models import DiffusionLM, load, tiny, tiny_tokenizer
from dare_train.config import SftConfig, TaskData, load_config
from dare_train.data import encode_pairs, load_rows, load_task
from dare_train.errors import ConfigError, DataError
from dare_train.pipelines.sft import encode_rows
from dare_train.rewards import build_rewards
from dare_train.run import run, validation_protocol

PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"
pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny("llada", tokenizer=tiny_tokenizer(PRINTABLE), hidden_size=64, layers=1).save(folder)
    return folder


@pytest.fixture(scope="module")
def lm(model: Path) -> DiffusionLM:
    return load(model)


def _data(task: str = "gsm8k", **changes: Any) -> TaskData:
    return TaskData(**{"task": task, "folder": miniature(task), "chat": True} | changes)


COMMON = """
run: {name: first, dir: RUNS, steps: 2}
model: {path: MODEL}
data: {kind: task, task: gsm8k, folder: ROWS, chat: true}
optim: {lr: 1.0e-3}
validation: {every: 2, n: 2, split: test, decode: {kind: llada, gen_length: 4, block_length: 4, steps: 2}}
"""
SFT = "kind: sft\nobjective: {name: masked_sft}\nbatch: 2\n"
RL = """kind: rl
objective: {name: coupled_grpo}
rollout: {prompts: 2, n: 2, decode: {kind: llada, gen_length: 8, block_length: 8, steps: 2, temperature: 1.0}}
"""


def _settings(model: Path, runs: Path, kind: str, *more: str) -> Any:
    file = runs / "config.yaml"
    text = (kind + COMMON).replace("RUNS", str(runs)).replace("MODEL", str(model))
    file.write_text(text.replace("ROWS", str(miniature("gsm8k"))))
    return load_config(file, more)


def test_rows_are_the_training_split(lm: DiffusionLM) -> None:
    rows = load_rows(_data(), completions=True)
    assert len(rows) == 3
    assert {row.uid for row in rows}.isdisjoint(item.uid for item in load_task(_data()).problems("test", None, 0))
    for row, (prompt, response) in zip(rows, encode_pairs(rows, lm, [lm.spec.eos_token_ids[0]]), strict=True):
        assert prompt == lm.encode(row.prompt, chat=True)
        assert lm.decode(response, specials=False).strip() == (row.completion or "").strip()
        assert response[-1] in lm.eos_ids


def test_verifiers_are_rewards() -> None:
    rows = load_rows(_data(), completions=False)
    judge = build_rewards([_reward()], load_task(_data()), rows)
    found = judge(rows, [rows[0].completion or "", r"\boxed{-1}", "no box"])
    assert [outcome.correct for outcome in found] == [True, False, None]
    assert [outcome.score for outcome in found] == [1.0, 0.0, 0.0]


def _reward() -> Any:
    from dare_train.config import RewardConfig

    return RewardConfig()


def test_sft_and_rl_run_on_a_benchmark(model: Path, tmp_path: Path) -> None:
    assert run(_settings(model, tmp_path, SFT, "run.name=sft")).checkpoint.exists()
    rl = _settings(model, tmp_path, RL, "run.name=rl")
    assert run(rl).checkpoint.exists()
    assert (validation_protocol(rl).chat, validation_protocol(rl).split) == (True, "test")


def test_misfits_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="task 'ifeval' has no split 'train'"):
        load_rows(_data("ifeval"), completions=False)
    with pytest.raises(DataError, match=r"expected train\.jsonl"):
        load_rows(_data(folder=tmp_path), completions=False)
    config = _settings(model, tmp_path, SFT, "run.name=none", "validation.split=validation")
    with pytest.raises(ConfigError, match="has no split 'validation'; expected one of: train, test"):
        run(config)
    assert not (tmp_path / "none").exists()
    assert isinstance(config, SftConfig)
    with pytest.raises(DataError, match=r"row 1 answers in .* tokens, `eos_fill` is 4"):
        encode_rows(load_rows(_data(), completions=True), load(model), config.model_copy(update={"eos_fill": 4}))
