"""Shared pieces: a tiny base model and small runs on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dare_train import RlConfig, SftConfig, load_config
from dare_train.testing import make_base_model, small_rl, small_sft


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaDA that knows the characters of the sorting task."""
    return make_base_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture
def sft_config(base_model: Path, tmp_path: Path) -> Callable[..., SftConfig]:
    """Makes small SFT configurations; overrides win."""

    def make(*overrides: str) -> SftConfig:
        config = load_config("demo/sft", (*small_sft(base_model, tmp_path), *overrides))
        assert isinstance(config, SftConfig)
        return config

    return make


@pytest.fixture
def rl_config(base_model: Path, tmp_path: Path) -> Callable[..., RlConfig]:
    """Makes small RL configurations; overrides win."""

    def make(*overrides: str) -> RlConfig:
        config = load_config("demo/rl", (*small_rl(base_model, tmp_path), *overrides))
        assert isinstance(config, RlConfig)
        return config

    return make
