"""Protocols by name: how a publisher, or this project, scores a task."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from dare_eval.hints import did_you_mean

__all__ = ["PresetSheet", "preset_names", "preset_sheet", "settings_of"]


class PresetSheet(BaseModel):
    """A named protocol: settings for all tasks, and what a task changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    about: str
    """Whose it is, and for which models."""
    every: Mapping[str, Any] = Field(default_factory=dict)
    """Fields of `Protocol` for every task; of the sampler, what a task does not say."""
    tasks: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Fields of `Protocol` by task."""
    others: bool = False
    """Whether other tasks may be scored too, at their own length."""


def preset_names() -> list[str]:
    """The presets, in alphabetical order."""
    folder = resources.files("dare_eval") / "protocols"
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))


@cache
def preset_sheet(name: str) -> PresetSheet:
    """What a preset says.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in preset_names():
        raise ValueError(f"unknown protocol {name!r}{did_you_mean(name, preset_names())}")
    text = (resources.files("dare_eval") / "protocols" / f"{name}.yaml").read_text(encoding="utf-8")
    return PresetSheet.model_validate(yaml.safe_load(text))


def settings_of(name: str, task: str, gen_length: int) -> dict[str, Any]:
    """The fields of the protocol of a task under a preset.

    Args:
        name: of the preset.
        task: of the task.
        gen_length: where the preset gives none.

    Raises:
        ValueError: for a preset without that task.
    """
    known = preset_sheet(name)
    if task not in known.tasks and not known.others:
        raise ValueError(f"protocol {name!r} says nothing of task {task!r}{did_you_mean(task, known.tasks)}")
    own = dict(known.tasks.get(task, {}))
    sampler = {"gen_length": gen_length, **known.every.get("sampler", {}), **own.pop("sampler", {})}
    return {**known.every, **own, "sampler": sampler}
