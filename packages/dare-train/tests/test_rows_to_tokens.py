"""From rows to tokens: end tokens, fillers, files of one's own, and what does not fit."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dare_models import load
from dare_objectives import row_keys
from dare_train import DataError, RewardError, RlConfig, SftConfig, load_config, run
from dare_train.batching import collate
from dare_train.data import Row
from dare_train.pipelines.sft import encode_rows

RECIPE = """
kind: {kind}
run: {{name: own, dir: {runs}, steps: 2}}
model: {{path: {model}}}
data: {{kind: jsonl, path: {rows}}}
optim: {{lr: 0.01}}
"""


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("eos=none", [11, 12]),
        ("eos=append", [11, 12, "eos"]),
        ("eos_fill=5", [11, 12, "eos", "eos", "eos"]),
    ],
)
def test_end_tokens(
    sft_config: Callable[..., SftConfig], base_model: Path, override: str, expected: list[int | str]
) -> None:
    lm = load(base_model)
    config = sft_config("eos=append", override)
    [(prompt, response)] = encode_rows([Row(uid=1, prompt="7>", completion=lm.decode([11, 12]))], lm, config)
    assert lm.decode(prompt) == "7>"
    assert response == [lm.spec.eos_token_ids[0] if token == "eos" else token for token in expected]


def test_rows_that_do_not_fit_are_named(sft_config: Callable[..., SftConfig], base_model: Path) -> None:
    lm, config = load(base_model), sft_config("eos=none")
    with pytest.raises(DataError, match=r"row 2 has 1500 tokens, the model takes 1024"):
        encode_rows([Row(1, "1>", "1"), Row(2, "1" * 750, "1" * 750)], lm, config)
    with pytest.raises(DataError, match=r"row 1, `prompt`: expected characters"):
        encode_rows([Row(1, "ü>", "1")], lm, config)
    with pytest.raises(DataError, match=r"row 1 answers in 3 tokens, `eos_fill` is 2"):
        encode_rows([Row(1, "1>", "12")], lm, sft_config("eos=append", "eos_fill=2"))
    with pytest.raises(DataError, match=r"row 1 has an empty completion and `eos` is 'none'"):
        encode_rows([Row(1, "1>", "")], lm, config)


def test_collate_lays_rows_out() -> None:
    batch = collate(
        [[5, 6], [7]], [[8], [9, 9, 9]], keys=row_keys(0, [1, 2]), group=[0, 0], block_length=2, pad_id=0, mask_id=1
    )
    assert batch.tokens.tolist() == [[5, 6, 8, 0], [7, 9, 9, 9]]
    assert batch.maskable.int().tolist() == [[0, 0, 1, 0], [0, 1, 1, 1]]
    assert batch.blocks.tolist() == [[0, 0, 1, -1], [0, 1, 1, 2]]


def test_sft_on_a_file(base_model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}>", "completion": str(i)} for i in range(5)]
    result = run(own_config("sft", base_model, tmp_path, rows, "batch=3"))
    assert result.metrics["opt/updates"] == 2


def test_rl_on_a_file_with_a_reward_of_ones_own(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[str], list[str]]] = []

    def overlap(completions: list[str], answer: list[str], prompt: list[str]) -> list[float]:
        seen.append((prompt, answer))
        return [len(set(text) & set(wanted)) / 10 for text, wanted in zip(completions, answer, strict=True)]

    monkeypatch.setitem(sys.modules, "own_rewards", SimpleNamespace(overlap=overlap))
    rows = [{"prompt": f"{i}>", "answer": "0123456789"[i:], "unused": None} for i in range(4)]
    settings = (
        "objective={name: diffu_grpo}",
        "rollout={prompts: 2, n: 4, decode: {kind: llada, gen_length: 4, block_length: 4, steps: 2, temperature: 1.0}}",
        "rewards=[{source: 'own_rewards:overlap', weight: 2.0}]",
    )
    result = run(own_config("rl", base_model, tmp_path, rows, *settings))
    assert all(answer == "0123456789"[int(prompt[0]) :] for p, a in seen for prompt, answer in zip(p, a, strict=True))
    assert result.metrics["reward/mean"] == pytest.approx(2 * result.metrics["reward/own_rewards:overlap"])
    assert "reward/accuracy" not in result.metrics, "nothing verified these answers"
    assert torch.isfinite(torch.tensor(result.metrics["opt/grad_norm"]))


@pytest.mark.parametrize(
    "reward", [lambda completions: [None] * len(completions), lambda completions: 1 / 0, lambda c: []]
)
def test_a_failing_reward_ends_in_one_line(
    rl_config: Callable[..., RlConfig], monkeypatch: pytest.MonkeyPatch, reward: Callable[[list[str]], list[float]]
) -> None:
    monkeypatch.setitem(sys.modules, "bad_rewards", SimpleNamespace(bad=reward))
    with pytest.raises(RewardError, match=r"reward 'bad_rewards:bad' (failed|gave)"):
        run(rl_config("rewards=[{source: 'bad_rewards:bad'}]"))


def own_config(
    kind: str, model: Path, folder: Path, rows: list[dict[str, object]], *overrides: str
) -> SftConfig | RlConfig:
    data, recipe = folder / "rows.jsonl", folder / "own.yaml"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe.write_text(RECIPE.format(kind=kind, runs=folder, model=model, rows=data), encoding="utf-8")
    return load_config(recipe, overrides)
