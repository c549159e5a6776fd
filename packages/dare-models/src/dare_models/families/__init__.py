"""The families this package reads and writes, one file each; other distributions may announce more."""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig
from transformers.conversion_mapping import register_checkpoint_conversion_mapping

from dare_models.families.autoregressive import AUTOREGRESSIVE
from dare_models.families.dream import DREAM
from dare_models.families.family import Family
from dare_models.families.fast_dllm_v2 import FAST_DLLM_V2
from dare_models.families.llada import LLADA
from dare_models.families.llada2 import LLADA2
from dare_models.families.llada_moe import LLADA_MOE
from dare_models.families.sdar import SDAR
from dare_models.families.sdar_moe import SDAR_MOE
from dare_models.tokenizer import DreamTokenizer

__all__ = ["FAMILIES", "GROUP", "Family", "all_families", "family_for", "family_names", "get_family", "register"]

GROUP = "dare_models"
FAMILIES: tuple[Family, ...] = (LLADA, LLADA_MOE, DREAM, SDAR, SDAR_MOE, LLADA2, FAST_DLLM_V2, *AUTOREGRESSIVE)


def family_names() -> tuple[str, ...]:
    """Return the names of all families: those of this package, then those that other distributions announce.

    >>> family_names()
    ('llada', 'llada_moe', 'dream', 'sdar', 'sdar_moe', 'llada2', 'fast_dllm_v2', 'llama', 'qwen2', 'qwen3')
    """
    return tuple(family.name for family in all_families())


def all_families() -> tuple[Family, ...]:
    """Return all families; what other distributions announce by an entry point of the group `dare_models` is imported.

    Raises:
        ValueError: two families of one name.
        TypeError: what an entry point names is no family.
    """
    announced = [_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]
    families = (*FAMILIES, *announced)
    names = [family.name for family in families]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"expected one family of each name, got several called {twice}; uninstall all but one")
    return families


def _load(point: EntryPoint) -> Family:
    family = point.load()
    if not isinstance(family, Family):
        raise TypeError(
            f"entry point {point.name!r} of {GROUP!r}: expected a Family, got {family!r} from {point.value}"
        )
    return family


def get_family(name: str) -> Family:
    """Return one family by name.

    Raises:
        ValueError: no family has this name.
    """
    families = all_families()
    for family in families:
        if family.name == name:
            return family
    known = [family.name for family in families]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "choose one of these."
    raise ValueError(f"expected a family of {known}, got {name!r}; {hint}")


def family_for(fields: dict[str, object]) -> Family:
    """Return the family whose architecture a config.json names.

    Raises:
        ValueError: no family reads this architecture.
    """
    names = fields.get("architectures")
    wanted = names if isinstance(names, list) else []
    families = all_families()
    for family in families:
        if family.architecture in wanted:
            return family
    known = [family.architecture for family in families]
    causal = any(family.stock_class.__name__ in wanted for family in AUTOREGRESSIVE)
    hint = "; make it one with `from_autoregressive`" if causal else ""
    raise ValueError(f"expected `architectures` in config.json to name one of {known}, got {names!r}{hint}")


def register() -> None:
    """Make transformers' Auto classes and its key conversion know the families.

    `load` and `tiny` call it; call it yourself only before using `AutoModel` on such a checkpoint, in every process
    that does. Calling it again changes nothing.
    """
    types: dict[str, type[PreTrainedConfig]] = {}
    for family in all_families():
        # Where families share a model type, the first one's config class tells them apart.
        AutoConfig.register(
            family.config_class.model_type,
            types.setdefault(family.config_class.model_type, family.config_class),
            exist_ok=True,
        )
        AutoModel.register(family.config_class, family.model_class, exist_ok=True)
        AutoModelForCausalLM.register(family.config_class, family.model_class, exist_ok=True)
        register_checkpoint_conversion_mapping(family.architecture, family.weight_conversions(), overwrite=True)
    AutoTokenizer.register(DREAM.config_class, fast_tokenizer_class=DreamTokenizer, exist_ok=True)
