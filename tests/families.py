"""Every family as root tests want it: those with blocks in blocks of four, and a converted one in both ways."""

import dare_models as dm
from dare_models.testing import example

FAMILIES = [*dm.family_names(), "qwen3 in blocks"]


def lively(name: str, alphabet: str) -> dm.DiffusionLM:
    """A tiny float64 model whose choices depend on everything it sees.

    Args:
        name: of `FAMILIES`.
        alphabet: characters of its tokenizer.
    """
    family, _, blocks = name.partition(" ")
    model = example(family, alphabet=alphabet)
    return example(family, alphabet=alphabet, block_length=4) if blocks or model.block_length else model
