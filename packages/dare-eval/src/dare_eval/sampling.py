"""How a protocol decodes: one frozen settings class per strategy of dare-samplers."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from dare_samplers import SamplerConfig

__all__ = ["LladaSampler", "SamplerSettings", "ThresholdSampler"]

# dare_samplers is imported where it is called, so that protocols and records can be read without torch


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    gen_length: int
    """Positions to generate."""
    block_length: int
    """Positions denoised together, left to right; equal to `gen_length` for one block."""
    temperature: float = Field(default=0.0, ge=0)
    """Of the proposed tokens; 0 is greedy."""


class LladaSampler(_Settings):
    """LLaDA's low-confidence remasking (arXiv:2502.09992): a fixed number of steps."""

    kind: Literal["llada"] = "llada"
    steps: int
    """Denoising forwards over all blocks."""
    remasking: Literal["low_confidence", "random", "left_to_right"] = "low_confidence"
    """Which proposals are committed first."""

    def config(self) -> "SamplerConfig":
        """The sampler.

        Raises:
            ValueError: for lengths and steps that do not divide, with the fix.
        """
        from dare_samplers import presets  # noqa: PLC0415 - see above

        return presets.llada(
            self.gen_length, self.block_length, self.steps, temperature=self.temperature, remasking=self.remasking
        )


class ThresholdSampler(_Settings):
    """Commit everything above a confidence (Fast-dLLM, arXiv:2505.22618): as many steps as it takes."""

    kind: Literal["threshold"] = "threshold"
    tau: float = Field(default=0.9, gt=0, le=1)
    """The confidence to reach."""

    def config(self) -> "SamplerConfig":
        """The sampler.

        Raises:
            ValueError: for lengths that do not divide, with the fix.
        """
        from dare_samplers import presets  # noqa: PLC0415 - see above

        return presets.threshold(self.gen_length, self.block_length, self.tau, temperature=self.temperature)


SamplerSettings = Annotated[LladaSampler | ThresholdSampler, Field(discriminator="kind")]
