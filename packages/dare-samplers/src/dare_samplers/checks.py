"""What `generate` refuses before any forward, and after a model that returned nothing usable."""

from collections.abc import Sequence

from dare_samplers.caches import BlockKV
from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Caches, Declares, Denoises, Mixes, Packs
from dare_samplers.forward import Row
from dare_samplers.layout import Keys
from dare_samplers.revisers import Levenshtein
from dare_samplers.rules import Suppress
from dare_samplers.state import State

__all__ = ["check", "check_broken", "check_resume"]


def check(model: object, config: object) -> SamplerConfig:
    """The config, if the model can run it."""
    if not isinstance(model, Denoises):
        raise TypeError(f"`model`: expected a Denoises, got {type(model).__name__}; wrap it: Denoiser(net, mask_id=…)")
    if not isinstance(config, SamplerConfig):
        raise TypeError(f"`config`: expected a SamplerConfig, got {config!r}; see dare_samplers.presets")
    if model.attention == "block_causal":
        _check_grid(config, model.block_length)
    elif isinstance(config.cache, BlockKV):
        raise ValueError(
            "`cache`: BlockKV needs a block-causal model, and this one has full attention, where no block is ever "
            "final; use Prefix, Dual or Vicinity"
        )
    _check_abilities(model, config)
    _check_ids(model, config)
    return config


def _check_grid(config: SamplerConfig, length: int | None) -> None:
    """A decoding block must lie inside one of the model's attention blocks, which begin at the row's first token."""
    block = config.block_length
    if isinstance(block, tuple) or config.grid != "zero" or (length or block) % block:
        raise ValueError(
            f'`grid`, `block_length`: expected "zero" and a divisor of {length} for this block-causal model, got '
            f'{config.grid!r} and {block}; use config.replace(grid="zero", block_length={length})'
        )


def _check_abilities(model: Denoises, config: SamplerConfig) -> None:
    name = type(model).__name__
    if config.cache.stores and not isinstance(model, Caches):
        raise ValueError(
            f"`cache`: {config.cache!r} needs a model with `new_cache` (level 2), got {name}; use cache=NoCache()"
        )
    if config.layout == "packed" and not (isinstance(model, Packs) and model.packs):
        raise ValueError(f'`layout`: "packed" needs a model that declares `packs`, got {name}; use "left" or "right"')
    if config.smoothing is not None and not isinstance(model, Mixes):
        raise ValueError(f"`smoothing`: expected a model with `mix`, got {name}; leave it None")
    declared = model.capabilities if isinstance(model, Declares) else ()
    if declared and (missing := [need for need in config.needs if need not in declared]):
        raise ValueError(
            f"`config`: expected a model with {missing}, got {name} with {list(declared)}; choose other parts, or "
            "presets.for_spec"
        )


def _check_ids(model: Denoises, config: SamplerConfig) -> None:
    if model.mask_id in model.eos_ids:
        raise ValueError(f"`eos_ids`: expected ids other than the mask's, got {model.mask_id}; it is never sampled")
    named = [one for rule in config.rules if isinstance(rule, Suppress) for one in rule.ids]
    if isinstance(config.reviser, Levenshtein):
        named += [config.reviser.delete_id, config.reviser.insert_id]
    if outside := [one for one in named if model.vocab_size is not None and one >= model.vocab_size]:
        raise ValueError(
            f"`ids`: expected token ids in [0, {model.vocab_size}), got {outside[0]}; the model has no such logit"
        )


def check_resume(state: State, config: SamplerConfig, keys: Keys | None) -> None:
    """Refuse a config that the state was not begun with."""
    if keys is not None:
        raise ValueError("`keys`: a state carries its own; leave None, or pass them to state.fork")
    begun = (state.gen_length, *state.shape, state.branches)
    wanted = (
        config.gen_length,
        config.block_length,
        config.grid,
        2 if config.guidance and config.guidance.scale else 1,
    )
    if begun != wanted:
        raise ValueError(
            f"`state`: expected gen_length, block_length, grid and branches {wanted} as in `config`, got {begun}; "
            "resume with the layout it was begun with"
        )
    if state.parts[1:] != config.lasting[1:]:
        raise ValueError(
            f"`reviser`, `rules`: expected {state.parts[1:]}, with which the state was begun, got "
            f"{config.lasting[1:]}; what they remember is part of it"
        )


def check_broken(table: Sequence[Row]) -> None:
    """Refuse to go on after a commit that was not possible."""
    broken = [row for row, one in enumerate(table) if one.broken]
    if broken:
        raise ValueError(
            f"expected a finite logit for every committed token, got NaN or -inf in rows {broken} at step "
            f"{table[broken[0]].step - 1}; the model returned NaN, or the rules forbid every token"
        )
