"""What a run is: typed configuration, read from YAML and dotted overrides.

Unknown keys are errors, and every rule that spans fields says what to use instead. The libraries never see these
classes: the pipelines call them with plain arguments.
"""

import difflib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

import dare_objectives
from dare_eval.sampling import LladaSampler, ThresholdSampler

from .errors import ConfigError

__all__ = [
    "CheckpointConfig",
    "Decode",
    "JsonlData",
    "LogConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "RewardConfig",
    "RlConfig",
    "RolloutConfig",
    "RunConfig",
    "RunSettings",
    "SftConfig",
    "TaskData",
    "UpdateConfig",
    "ValidationConfig",
    "load_config",
]


class Base(BaseModel):
    """Frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class RunSettings(Base):
    """Where the run lives and what makes it repeatable."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")
    """Name of the run; its folder is `dir/name`."""
    dir: Path = Path("runs")
    """Folder that holds the runs."""
    seed: int = Field(default=0, ge=0)
    """Seed of every keyed draw: data order, masks, sampling."""
    steps: int = Field(ge=1)
    """Training steps; in RL a step is one rollout and its updates."""


class ModelConfig(Base):
    """Which model to start from."""

    path: str
    """Folder of the checkpoint in its original or native layout."""
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    """Precision of weights and training."""
    device: str = "cpu"
    """Torch device."""
    mask_token_id: int | None = None
    """Mask id, for checkpoints whose configuration does not hold one."""


class TaskData(Base):
    """Problems of a dare-eval task or benchmark: its training split, judged by its verifier."""

    kind: Literal["task"] = "task"
    task: str
    """Name of the task, e.g. `sort` or `gsm8k`."""
    options: dict[str, int | str | bool] = {}
    """Options of the task, e.g. `{digits: 8}`."""
    size: int | None = Field(default=None, ge=1)
    """How many distinct problems of the training split; None takes all of a benchmark, 1,000 of a generated task."""
    seed: int = 0
    """Seed of the draw."""
    folder: Path | None = None
    """A benchmark's rows, in place of the hub."""
    chat: bool = False
    """Put the prompts as user messages, by the checkpoint's chat template."""


class JsonlData(Base):
    """Rows from a JSON-lines file: `prompt` and `completion` for SFT, `prompt` and what the reward reads for RL."""

    kind: Literal["jsonl"] = "jsonl"
    path: Path
    """The file."""


DataConfig = Annotated[TaskData | JsonlData, Field(discriminator="kind")]


class ObjectiveConfig(Base):
    """Which objective of dare-objectives to train, by its registered name."""

    name: str
    """Registered name, e.g. `coupled_grpo`."""
    options: dict[str, Any] = {}
    """Keywords of the objective's factory, e.g. `{clip_low: 0.2}`."""

    def build(self) -> dare_objectives.Objective:
        """The objective record.

        Raises:
            ValueError: for an unknown name or option, or a factory that cannot be imported or called with the options.
        """
        try:
            return dare_objectives.get(self.name, self.options)
        except (ImportError, AttributeError, TypeError) as error:
            raise ValueError(f"objective {self.name!r} with options {self.options}: {error}") from error


class OptimConfig(Base):
    """AdamW and its learning-rate schedule."""

    lr: float = Field(gt=0)
    """Peak learning rate."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """AdamW's moment decay rates."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's denominator offset."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm; larger gradients are scaled down to it."""
    warmup: int = Field(default=0, ge=0)
    """Updates of linear warm-up."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Shape after the warm-up."""
    final_ratio: float = Field(default=0.1, ge=0, le=1)
    """Where the cosine ends, as a share of `lr`."""


def _buildable(settings: LladaSampler | ThresholdSampler) -> LladaSampler | ThresholdSampler:
    settings.config()
    return settings


Decode = Annotated[LladaSampler | ThresholdSampler, Field(discriminator="kind"), AfterValidator(_buildable)]
"""How completions are sampled: `kind: llada` or `threshold`, with lengths and steps that fit together."""


class RolloutConfig(Base):
    """What is sampled in one RL step."""

    prompts: int = Field(ge=1)
    """Prompts per step."""
    n: int = Field(ge=1)
    """Completions per prompt: the group."""
    decode: Decode
    """How they are sampled."""
    batch: int = Field(default=256, ge=1)
    """Completions decoded together."""


class RewardConfig(Base):
    """One term of the reward."""

    source: str = "task"
    """`task` (the verifier of the data's own task) or `module:function`."""
    weight: float = 1.0
    """Its weight in the sum."""


class UpdateConfig(Base):
    """How a batch becomes optimiser steps."""

    micro_batch: int = Field(default=256, ge=1)
    """Rows per forward and backward; changes memory, not the gradient."""
    iterations: int = Field(default=1, ge=1)
    """Passes over the rollouts, each with fresh masks."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser steps per pass; groups stay whole."""
    old: Literal["auto", "pass"] = "auto"
    """Old log-probs: `auto` skips the separate pass where one update per rollout makes it redundant."""


class CheckpointConfig(Base):
    """When checkpoints are written and which are kept."""

    every: int = Field(default=0, ge=0)
    """Steps between checkpoints; 0 writes only the last."""
    keep_last: int = Field(default=2, ge=1)
    """How many of the newest are kept."""


class LogConfig(Base):
    """What is written beside the metrics."""

    samples_every: int = Field(default=0, ge=0)
    """Steps between files of completions; 0 writes none."""
    samples: int = Field(default=16, ge=1)
    """Completions per file."""


class ValidationConfig(Base):
    """Accuracy on problems that are not trained on, while training."""

    every: int = Field(default=0, ge=0)
    """Steps between validations; 0 for none."""
    n: int = Field(default=256, ge=1)
    """Problems."""
    split: Literal["train", "validation", "test"] = "validation"
    """Which split; some benchmarks have no validation split."""
    seed: int = 0
    """Seed of the draw from the split."""
    decode: Decode | None = None
    """How completions are sampled; in RL the rollout's settings at temperature 0 by default."""


class Common(Base):
    """Fields that all kinds of run share."""

    run: RunSettings
    model: ModelConfig
    data: DataConfig
    optim: OptimConfig
    update: UpdateConfig = UpdateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    validation: ValidationConfig = ValidationConfig()

    @model_validator(mode="after")
    def _updates_are_not_lost(self) -> Self:
        if self.model.dtype == "bfloat16" and self.optim.lr < 1e-5:
            raise ValueError(
                f"`optim.lr`={self.optim.lr:g} is too small for bfloat16 weights (8 bits) to take up; "
                "use `model.dtype: float32`"
            )
        return self

    @model_validator(mode="after")
    def _validation_has_a_task(self) -> Self:
        if self.validation.every and not isinstance(self.data, TaskData):
            raise ValueError("`validation.every` needs `data.kind: task`; set it to 0 for a JSON-lines file")
        return self


class SftConfig(Common):
    """Supervised fine-tuning."""

    kind: Literal["sft"] = "sft"
    objective: ObjectiveConfig = ObjectiveConfig(name="masked_sft")
    batch: int = Field(ge=1)
    """Sequences per optimiser step."""
    eos: Literal["append", "none"] = "append"
    """Whether the end token closes each completion; `none` for answers of one fixed length."""
    eos_fill: int | None = Field(default=None, ge=1)
    """Fill completions with end tokens up to this response length (LLaDA's recipe); the filler is data."""

    @model_validator(mode="after")
    def _sft_rules(self) -> Self:
        objective = self.objective.build()
        if self.update.minibatches > 1:
            raise ValueError("`update.minibatches` splits rollouts; in SFT set `batch` instead")
        if self.log.samples_every:
            raise ValueError("`log.samples_every` writes rollouts; SFT has none, set it to 0")
        if objective.advantage is not None:
            raise ValueError(f"objective {self.objective.name!r} learns from rewards; use `dare-train rl`")
        if self.validation.every and self.validation.decode is None:
            raise ValueError("`validation.decode` is missing; say how to sample, e.g. gen_length, block_length, steps")
        return self


RECORDED = frozenset({"old", "ref", "step_map"})
"""What a rollout of this trainer can give an objective beyond tokens and rewards."""


class RlConfig(Common):
    """Reinforcement learning with verifiable rewards."""

    kind: Literal["rl"] = "rl"
    objective: ObjectiveConfig
    rollout: RolloutConfig
    rewards: tuple[RewardConfig, ...] = (RewardConfig(),)

    @model_validator(mode="after")
    def _rl_rules(self) -> Self:
        objective = self.objective.build()
        if objective.advantage is None:
            raise ValueError(f"objective {self.objective.name!r} takes no reward; use `dare-train sft`")
        if missing := sorted(objective.needs - RECORDED):
            raise ValueError(
                f"objective {self.objective.name!r} needs {', '.join(missing)}, which rollouts do not record; choose "
                f"one that needs no more than {', '.join(sorted(RECORDED))}"
            )
        if objective.detached and self.update.iterations * self.update.minibatches > 1:
            raise ValueError(
                f"objective {self.objective.name!r} prepares anew for each optimiser step; use "
                "`update.iterations`=1 and `update.minibatches`=1"
            )
        if self.rollout.n < 2:
            raise ValueError(f"`rollout.n`={self.rollout.n} leaves nothing to compare with in a group; use 2 or more")
        if self.rollout.prompts % self.update.minibatches:
            raise ValueError(
                f"`update.minibatches`={self.update.minibatches} does not divide "
                f"`rollout.prompts`={self.rollout.prompts}; groups stay whole"
            )
        if not self.rewards:
            raise ValueError("`rewards` is empty; name at least one, e.g. [{source: task}]")
        if not isinstance(self.data, TaskData) and any(r.source == "task" for r in self.rewards):
            raise ValueError("reward `task` needs `data.kind: task`; use a `module:function` for a JSON-lines file")
        return self


RunConfig = Annotated[SftConfig | RlConfig, Field(discriminator="kind")]
_UNIONS = ("data", "decode")  # fields whose variant is picked by `kind`
_ADAPTER: TypeAdapter[SftConfig | RlConfig] = TypeAdapter(RunConfig)


def load_config(source: str | Path, overrides: Sequence[str] = (), *, kind: str | None = None) -> SftConfig | RlConfig:
    """Read a configuration file or a shipped recipe, apply dotted overrides and validate.

    Args:
        source: path of a YAML file, or the name of a recipe such as `demo/sft`.
        overrides: `a.b=value` settings, YAML-typed.
        kind: the kind of run that the caller can start (`sft` or `rl`), if only one.

    Raises:
        ConfigError: with one line that names the field, what came and what to do.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.create(_read(source)), OmegaConf.from_dotlist(list(overrides)))
        raw = OmegaConf.to_container(merged, resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError, TypeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: expected a mapping of settings, got {type(raw).__name__}")
    try:
        config = _ADAPTER.validate_python(raw)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(e, raw) for e in error.errors()[:3])) from error
    if kind is not None and config.kind != kind:
        raise ConfigError(f"{source} describes a run of kind {config.kind!r}; start it with `dare-train {config.kind}`")
    return config


def _read(source: str | Path) -> str:
    path = Path(source)
    if path.is_file():
        return path.read_text(encoding="utf-8")
    root = resources.files("dare_train") / "recipes"
    recipe = root / f"{source}.yaml"
    if recipe.is_file():
        return recipe.read_text(encoding="utf-8")
    known = sorted(
        f"{d.name}/{f.name.removesuffix('.yaml')}" for d in root.iterdir() if d.is_dir() for f in d.iterdir()
    )
    near = difflib.get_close_matches(str(source), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"recipes: {', '.join(known)}"
    raise ConfigError(f"no file and no recipe {str(source)!r}; {hint}")


def _explain(error: Any, raw: dict[Any, Any]) -> str:
    """One validation error as one line; unknown keys get the nearest known one."""
    loc = error["loc"]
    tags = {i for i in range(len(loc)) if i == 0 or loc[i - 1] in _UNIONS}  # which variant of a union was tried
    location = [str(part) for i, part in enumerate(loc) if i not in tags]
    where = ".".join(location) or "configuration"
    if error["type"] == "extra_forbidden":
        known = _fields_at(raw.get("kind"), location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1)
        return f"unknown key `{where}`; " + (f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}")
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] in ("value_error", "missing"):
        return f"`{where}`: {message}" if location else message
    return f"`{where}`: {message}, got {error['input']!r}"


def _fields_at(kind: Any, path: Sequence[str]) -> list[str]:
    """Names of the fields below a dotted path of the schema."""
    models: list[Any] = [RlConfig if kind == "rl" else SftConfig]
    for name in path:
        found: list[Any] = []
        for model in models:
            field = model.model_fields.get(name)
            found += _models_in(field.annotation) if field is not None else []
        models = found
    return sorted({name for model in models for name in model.model_fields})


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for arg in getattr(annotation, "__args__", ()) for model in _models_in(arg)]
