"""What a family is: a config class, a stock model class, a reversible key mapping and its facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, NoReturn, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import WeightConverter, WeightRenaming

from dare_models.spec import ModelSpec


class Denoising:
    """What a stock causal class has to give up to denoise; to be named before it among the bases."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)  # pyright: ignore[reportCallIssue]
        # Padding is masked, and its id is often the end of text, whose embedding has to learn.
        for module in cast("PreTrainedModel", self).modules():
            if isinstance(module, nn.Embedding):
                module.padding_idx = None
        # A router may ask for float32 by name, and be read from a file as such: too little for float64.
        if torch.get_default_dtype() is torch.float64:
            for parameter in cast("PreTrainedModel", self).parameters():
                parameter.data = parameter.data.to(torch.float64)

    @classmethod
    def can_generate(cls) -> bool:
        """Return False: transformers' decoding loops are left to right."""
        return False

    def generate(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "expected a denoising loop, got transformers' left-to-right generate(); "
            "use dare_samplers.generate(lm, prompts, config)"
        )


@dataclass(frozen=True)
class TinySize:
    """Size of a random model for tests and demonstrations."""

    hidden_size: int = 64
    layers: int = 2
    heads: int = 2
    intermediate_size: int = 128
    max_positions: int = 1024


def no_converters() -> list[WeightConverter]:
    """Merge and split no tensor."""
    return []


@dataclass(frozen=True)
class Family:
    """A model architecture: how its checkpoints are named, read, described and written.

    Args:
        name: short name, as in `ModelSpec.family`.
        config_class: reads the original config fields and writes them back.
        model_class: `Denoising` and a stock transformers class, under the original's class name.
        renamings: (original, native) patterns of parameter names, applied in order and reversible.
        describe: (config, tokenizer or None) -> spec.
        tiny_fields: (size, tokenizer) -> original config fields of a tiny model.
        converters: () -> fresh transforms that merge or split tensors after the renamings, reversible.
        block_field: config field that records the block length, in block families.
        float32_tensors: endings of names whose tensors may be float32 in a file of another dtype.
    """

    name: str
    config_class: type[PreTrainedConfig]
    model_class: type[PreTrainedModel]
    renamings: tuple[tuple[str, str], ...]
    describe: Callable[[PreTrainedConfig, PreTrainedTokenizerBase | None], ModelSpec]
    tiny_fields: Callable[[TinySize, PreTrainedTokenizerBase], Mapping[str, Any]]
    converters: Callable[[], list[WeightConverter]] = no_converters
    block_field: str | None = None
    float32_tensors: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """Class name that config.json carries."""
        return self.model_class.__name__

    @property
    def stock_class(self) -> type[PreTrainedModel]:
        """Transformers' class that computes the network."""
        return next(base for base in self.model_class.__bases__ if issubclass(base, PreTrainedModel))

    def config(self, fields: Mapping[str, Any]) -> PreTrainedConfig:
        """Return the config that an original config.json describes.

        Args:
            fields: its content.
        """
        build: Callable[..., PreTrainedConfig] = self.config_class
        return build(**fields)

    def with_block_length(self, fields: Mapping[str, Any], block_length: int | None) -> dict[str, Any]:
        """Return config fields with another block length.

        Args:
            fields: content of config.json.
            block_length: positions per block; None keeps what is there.

        Raises:
            ValueError: the family has no blocks.
        """
        if block_length is None:
            return dict(fields)
        if self.block_field is None:
            raise ValueError(
                f"expected block_length=None, got {block_length}; the {self.name} family attends to everything, "
                "so the length of a block is the sampler's choice alone"
            )
        return {**fields, self.block_field: block_length}

    def stock(self, module: PreTrainedModel) -> PreTrainedModel:
        """Return an empty model of the stock class that computes the same, with the stock class's config.

        The config says `is_causal: false`, by which transformers attends in both directions.

        Args:
            module: a model of this family.
        """
        stock_class: Any = self.stock_class
        config_class: Any = stock_class.config_class
        names = [field.name for field in fields(config_class) if field.init]
        known = {name: getattr(module.config, name) for name in names if hasattr(module.config, name)}
        config = config_class(**known, mask_token_id=self.describe(module.config, None).mask_token_id)
        config.is_causal = False
        with torch.device("meta"):
            return stock_class(config).to(module.dtype)

    def weight_conversions(self) -> list[WeightConverter | WeightRenaming]:
        """Return the key mapping in transformers' terms (fresh objects: they hold state while loading)."""
        return [*(WeightRenaming(original, native) for original, native in self.renamings), *self.converters()]

    def native_names(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the parameters that each checkpoint tensor fills inside the module, wholly or in part.

        Args:
            names: names in the original files; native ones stay as they are.
        """
        renamings = [WeightRenaming(original, native) for original, native in self.renamings]
        converters = self.converters()
        return {name: _targets(_rename(name, renamings), converters) for name in names}


def _rename(name: str, renamings: list[WeightRenaming]) -> str:
    return reduce(lambda current, renaming: renaming.rename_source_key(current)[0], renamings, name)


def _targets(name: str, converters: list[WeightConverter]) -> tuple[str, ...]:
    for converter in converters:
        first, matched = converter.rename_source_key(name)
        if matched is not None:
            targets = converter.target_patterns
            return tuple(first.replace(targets[0], target) for target in targets)
    return (name,)
