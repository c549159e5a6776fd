"""How a protocol decodes: one frozen settings class per kind of strategy of dare-samplers."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from dare_eval.hints import did_you_mean

if TYPE_CHECKING:
    from dare_samplers import SamplerConfig

__all__ = [
    "CoreSampler",
    "Described",
    "FamilySampler",
    "LladaSampler",
    "PresetSampler",
    "SamplerSettings",
    "ThresholdSampler",
]

# dare_samplers is imported where it is called, so that protocols and records can be read without torch


class Described(Protocol):
    """What the settings ask of a model's description, such as `dare_models.ModelSpec`."""

    @property
    def attention(self) -> str:
        """`full` or `block_causal`."""
        ...

    @property
    def block_length(self) -> int | None:
        """Positions per block; None where any is legal."""
        ...

    @property
    def generation(self) -> Mapping[str, Any]:
        """The publisher's preset and its arguments."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids at which decoding stops."""
        ...


class _Description(NamedTuple):
    attention: str
    block_length: int | None
    generation: Mapping[str, Any]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    gen_length: int = Field(ge=1)
    """Positions to generate."""


class LladaSampler(_Settings):
    """LLaDA's low-confidence remasking (arXiv:2502.09992): a fixed number of steps."""

    kind: Literal["llada"] = "llada"
    block_length: int
    """Positions denoised together, left to right; equal to `gen_length` for one block."""
    temperature: float = Field(default=0.0, ge=0)
    """Of the proposed tokens; 0 is greedy."""
    steps: int
    """Denoising forwards over all blocks."""
    remasking: Literal["low_confidence", "random", "left_to_right"] = "low_confidence"
    """Which proposals are committed first."""

    def config(self, spec: Described | None = None) -> "SamplerConfig":
        """The sampler.

        Args:
            spec: of the model; block-causal ones count blocks from the row's first token.

        Raises:
            ValueError: for lengths and steps that do not divide, with the fix.
        """
        from dare_samplers import presets  # noqa: PLC0415 - see above

        return _on_grid(
            presets.llada(
                self.gen_length, self.block_length, self.steps, temperature=self.temperature, remasking=self.remasking
            ),
            spec,
        )


class ThresholdSampler(_Settings):
    """Commit everything above a confidence (Fast-dLLM, arXiv:2505.22618): as many steps as it takes."""

    kind: Literal["threshold"] = "threshold"
    block_length: int
    """Positions denoised together, left to right; equal to `gen_length` for one block."""
    temperature: float = Field(default=0.0, ge=0)
    """Of the proposed tokens; 0 is greedy."""
    tau: float = Field(default=0.9, gt=0, le=1)
    """The confidence to reach."""

    def config(self, spec: Described | None = None) -> "SamplerConfig":
        """The sampler.

        Args:
            spec: of the model; block-causal ones count blocks from the row's first token.

        Raises:
            ValueError: for lengths that do not divide, with the fix.
        """
        from dare_samplers import presets  # noqa: PLC0415 - see above

        config = presets.threshold(self.gen_length, self.block_length, self.tau, temperature=self.temperature)
        return _on_grid(config, spec)


class CoreSampler(_Settings):
    """One strategy for every model: the most confident token of the block, one per forward, block after block.

    It spends as many forwards as there are tokens, and is the same for all: a score under it shows the model, not the
    luck of a threshold or a cache. Block-causal models take blocks of their own, as trained.
    """

    kind: Literal["core"] = "core"
    block_length: int = Field(default=32, ge=1)
    """Of models with full attention; the last block is shorter where it does not divide `gen_length`."""
    temperature: float = Field(default=0.0, ge=0)
    """Of the proposed tokens; 0 is greedy."""

    def config(self, spec: Described | None = None) -> "SamplerConfig":
        """The sampler for a model.

        Args:
            spec: of the model; None stands for full attention.

        Raises:
            ValueError: for lengths that do not divide, with the fix.
        """
        from dare_samplers import presets  # noqa: PLC0415 - see above

        if spec is not None and spec.attention == "block_causal" and spec.block_length is not None:
            return presets.sdar(self.gen_length, spec.block_length, strategy="static", temperature=self.temperature)
        whole, rest = divmod(self.gen_length, self.block_length)
        blocks = (self.block_length,) * whole + (rest,) * (rest > 0)
        config = presets.llada(self.gen_length, temperature=self.temperature)
        return config.replace(block_length=blocks if len(set(blocks)) > 1 else blocks[0], steps=None)


class FamilySampler(_Settings):
    """What the model's publisher decodes with, at this length."""

    kind: Literal["family"] = "family"
    temperature: float | None = Field(default=None, ge=0)
    """Of the proposed tokens; None keeps the publisher's."""

    def config(self, spec: Described | None = None) -> "SamplerConfig":
        """The sampler for a model.

        Args:
            spec: of the model; None stands for full attention and no published strategy.

        Raises:
            ValueError: for sizes that do not fit together, with the fix.
        """
        from dare_samplers import presets  # noqa: PLC0415 - see above

        published = dict(spec.generation) if spec is not None else {}
        published = {key: value for key, value in published.items() if key != "steps"} | {"gen_length": self.gen_length}
        if self.temperature is not None:
            published["temperature"] = self.temperature
        if isinstance(block := published.get("block_length"), int):
            published["block_length"] = min(block, self.gen_length)
        attention, block = ("full", None) if spec is None else (spec.attention, spec.block_length)
        return presets.for_spec(_Description(attention, block, published))


class PresetSampler(_Settings):
    """Any preset of `dare_samplers.presets`, by name."""

    kind: Literal["preset"] = "preset"
    name: str
    """Such as `dream`, `fast_dllm` or `sdar`."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """The preset's arguments beside `gen_length`. End tokens that it asks for are the model's."""

    def config(self, spec: Described | None = None) -> "SamplerConfig":
        """The sampler for a model.

        Args:
            spec: of the model: its end tokens, and its block length where the settings give none.

        Raises:
            ValueError: for an unknown preset or argument (with the nearest known one), or values that do not fit.
        """
        from dare_samplers import presets  # noqa: PLC0415 - see above

        if self.name not in presets.NAMES:
            raise ValueError(f"unknown preset {self.name!r}{did_you_mean(self.name, presets.NAMES)}")
        factory = getattr(presets, self.name)
        known = inspect.signature(factory).parameters
        for key in self.settings:
            if key not in known or key == "gen_length":
                others = [name for name in known if name != "gen_length"]
                raise ValueError(f"preset {self.name!r} has no argument {key!r}{did_you_mean(key, others)}")
        settings = dict(self.settings)
        if spec is not None and "eos_ids" in known and settings.get("eos", "off") != "off":
            settings.setdefault("eos_ids", spec.stop_ids)
        if spec is not None and spec.attention == "block_causal" and "block_length" in known:
            settings.setdefault("block_length", spec.block_length)
        try:
            return _on_grid(factory(gen_length=self.gen_length, **settings), spec)
        except TypeError as error:
            raise ValueError(f"preset {self.name!r}: {error}") from error


SamplerSettings = Annotated[
    LladaSampler | ThresholdSampler | CoreSampler | FamilySampler | PresetSampler, Field(discriminator="kind")
]


def _on_grid(config: "SamplerConfig", spec: Described | None) -> "SamplerConfig":
    """Block-causal models are trained on blocks that are counted from the row's first token."""
    block_causal = spec is not None and spec.attention == "block_causal"
    return config.replace(grid="zero") if block_causal and config.grid != "zero" else config
