"""Small models, settings and rewards for tests of the trainer and of what plugs into it."""

from collections.abc import Sequence
from pathlib import Path

from dare_eval.tasks import generated_task
from dare_models import tiny, tiny_tokenizer

__all__ = ["digit_reward", "make_base_model", "small_rl", "small_sft"]


def make_base_model(folder: Path, *, seed: int = 0, layers: int = 1) -> Path:
    """Save a tiny LLaDA with random weights that knows the characters of the sorting task."""
    tokenizer = tiny_tokenizer(generated_task("sort", {"digits": 4}).alphabet)
    tiny("llada", tokenizer=tokenizer, seed=seed, hidden_size=64, layers=layers).save(folder)
    return folder


def digit_reward(completions: Sequence[str]) -> list[float]:
    """Mean digit of each completion, in [0, 1]: varies even under random weights.

    >>> digit_reward(["99", "0", ""])
    [1.0, 0.0, 0.0]
    """
    digits = [[int(c) for c in text if c.isdecimal()] for text in completions]
    return [sum(values) / (9 * len(values)) if values else 0.0 for values in digits]


def small_sft(model: Path, runs: Path) -> tuple[str, ...]:
    """Overrides that shrink the recipe `demo/sft` to four quick steps."""
    return (
        f"run.dir={runs}",
        "run.steps=4",
        f"model.path={model}",
        "data.options.digits=4",
        "data.size=6",
        "batch=4",
        "validation.n=8",
        "validation.decode.gen_length=4",
        "validation.decode.steps=2",
    )


def small_rl(model: Path, runs: Path) -> tuple[str, ...]:
    """Overrides that shrink the recipe `demo/rl` to four quick steps with a reward that random weights can earn."""
    return (
        f"run.dir={runs}",
        "run.steps=4",
        f"model.path={model}",
        "data.options.digits=4",
        "data.size=6",
        "rollout.prompts=2",
        "rollout.n=4",
        "rollout.decode.gen_length=4",
        "rollout.decode.steps=2",
        "rewards=[{source: 'dare_train.testing:digit_reward'}]",
        "checkpoint.every=1",
        "log.samples_every=2",
        "validation.n=8",
    )
