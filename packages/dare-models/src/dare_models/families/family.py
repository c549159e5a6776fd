"""What a family is: a config class, a stock model class, a reversible key mapping and its facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn, cast

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
    """

    name: str
    config_class: type[PreTrainedConfig]
    model_class: type[PreTrainedModel]
    renamings: tuple[tuple[str, str], ...]
    describe: Callable[[PreTrainedConfig, PreTrainedTokenizerBase | None], ModelSpec]
    tiny_fields: Callable[[TinySize, PreTrainedTokenizerBase], Mapping[str, Any]]

    @property
    def architecture(self) -> str:
        """Class name that config.json carries."""
        return self.model_class.__name__

    def config(self, fields: Mapping[str, Any]) -> PreTrainedConfig:
        """Return the config that an original config.json describes.

        Args:
            fields: its content.
        """
        build: Callable[..., PreTrainedConfig] = self.config_class
        return build(**fields)

    def weight_renamings(self) -> list[WeightConverter | WeightRenaming]:
        """Return the key mapping in transformers' terms (fresh objects: they hold state while loading)."""
        return [WeightRenaming(original, native) for original, native in self.renamings]

    def native_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return the name that each checkpoint tensor has inside the module.

        Args:
            names: names in the original files; native ones stay as they are.
        """
        renamings = self.weight_renamings()

        def rename(name: str) -> str:
            return reduce(lambda current, renaming: renaming.rename_source_key(current)[0], renamings, name)

        return {name: rename(name) for name in names}
