"""Bad settings are refused in one line that says what to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dare_train import ConfigError, RlConfig, SftConfig, load_config

pytestmark = pytest.mark.wheel


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optim.learning_rat=1", r"unknown key `optim.learning_rat`; .*lr"),
        ("optim.warmpu=3", r"unknown key `optim.warmpu`; did you mean `warmup`"),
        ("bacth=3", r"unknown key `bacth`; did you mean `batch`"),
        ("data.tsak=sort", r"unknown key `data.tsak`; did you mean `task`"),
        ("validation.decode.gen_lenght=3", r"unknown key .*gen_lenght`; did you mean `gen_length`"),
        ("optim.lr=-1", r"`optim.lr`: .*greater than 0, got -1"),
        ("objective.name=masked_stf", r"masked_sft"),
        ("objective.name=coupled_grpo", r"learns from rewards; use `dare-train rl`"),
        ("validation.decode.gen_length=7", r"7.*"),
        ("validation.decode.steps=null", r"`validation.decode.steps`: .*got None"),
        ("update.minibatches=2", r"`update.minibatches` splits rollouts"),
        ("log.samples_every=1", r"`log.samples_every` writes rollouts"),
        ("optim.lr=.inf", r"`optim.lr`: .*finite"),
        ("optim.betas=[1.0,0.9]", r"`optim.betas.0`: .*less than 1, got 1.0"),
        ("run.name=a/../../x", r"`run.name`: "),
        ("data.kind=jsonl", r"unknown key `data.task`"),
    ],
)
def test_bad_sft_settings(sft_config: Callable[..., SftConfig], override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        sft_config(override)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rollout.n=1", r"`rollout.n`=1 leaves nothing to compare"),
        ("rollout.decode.gen_length=7", r"7"),
        ("update.minibatches=3", r"`update.minibatches`=3 does not divide `rollout.prompts`=2"),
        ("objective.name=masked_sft", r"takes no reward; use `dare-train sft`"),
        ("objective.options.clip_lo=0.1", r"clip_low"),
        ("objective={name: mdpo}", r"'mdpo' needs states, which rollouts do not record; .* old, ref, step_map"),
        ("rewards=[]", r"`rewards` is empty"),
        ("rewards=[{source: task, weight: .nan}]", r"`rewards.0.weight`: .*finite"),
    ],
)
def test_bad_rl_settings(rl_config: Callable[..., RlConfig], override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        rl_config(override)
    assert "\n" not in str(caught.value)


def test_pairs_are_prepared_for_each_step(rl_config: Callable[..., RlConfig]) -> None:
    with pytest.raises(ConfigError, match=r"`update.iterations`=1 and `update.minibatches`=1"):
        rl_config("objective={name: vrpo}", "update.iterations=2")


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'demo/sft'"):
        load_config("demo/stf")


def test_kind_must_match_the_verb() -> None:
    with pytest.raises(ConfigError, match=r"kind 'sft'; start it with `dare-train sft`"):
        load_config("demo/sft", kind="rl")


def test_malformed_yaml_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("run: [unclosed", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert "\n" not in str(caught.value)


def test_bfloat16_with_a_tiny_rate_is_refused(sft_config: Callable[..., SftConfig]) -> None:
    with pytest.raises(ConfigError, match=r"`optim.lr`=1e-06 is too small for bfloat16"):
        sft_config("model.dtype=bfloat16", "optim.lr=1e-6")


@pytest.mark.parametrize("content", [b"- a\n- b\n", b"\xff\xfe"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        load_config(file)


def test_validation_needs_a_task(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(
        "kind: sft\nrun: {name: x, steps: 1}\nmodel: {path: m}\ndata: {kind: jsonl, path: rows}\n"
        "optim: {lr: 0.1}\nbatch: 2\nvalidation: {every: 1}\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match=r"needs `data.kind: task`"):
        load_config(file)
