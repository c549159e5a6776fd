"""Reading an original config.json into a stock config class, and writing it back field by field."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, cast

from dare_models.dtypes import as_dtype, dtype_name
from dare_models.families.bounds import find_fault

# What transformers adds to the fields while it reads a file.
HOW_IT_WAS_READ = (
    *("name_or_path", "_name_or_path", "_commit_hash", "attn_implementation", "_attn_implementation"),
    *("experts_implementation", "_experts_implementation"),
)
DTYPE_FIELDS = ("torch_dtype", "dtype")
# Fields that exist in transformers only; in a config.json they tell that somebody else rewrote it.
FOREIGN = ("is_causal", "rope_parameters")


def refuse(name: str, expected: str, got: object, *, fix: str = "take config.json from the original") -> NoReturn:
    """Refuse one config field.

    Raises:
        ValueError: always, naming it.
    """
    raise ValueError(f"config field `{name}`: expected {expected}, got {'none' if got is None else repr(got)}; {fix}")


def nothing_more(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Derive no further field."""
    del fields
    return {}


@dataclass(frozen=True)
class Layout:
    """How an original config.json relates to the fields of a stock config class.

    Args:
        family: for messages.
        release: config.json of a release as far as it matters, for when no fields are given.
        essential: fields without which the original's own defaults, another architecture, would apply.
        required: values that the stock class computes with; a field that says otherwise is refused.
        names: original -> stock names, where they differ.
        derive: original fields -> stock fields that override them: what the original leaves open, ignores or fixes.
    """

    family: str
    release: Mapping[str, Any]
    essential: tuple[str, ...]
    required: Mapping[str, tuple[Any, ...]]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    derive: Callable[[Mapping[str, Any]], Mapping[str, Any]] = nothing_more

    def check(self, fields: Mapping[str, Any]) -> None:
        """Refuse a config whose architecture is not the one implemented, naming the field.

        Args:
            fields: config.json of the original.

        Raises:
            ValueError: a field is missing, out of any range, or asks for something that the stock class does not
                compute.
        """
        if fault := find_fault(fields, self.names):
            refuse(*fault)
        for name in self.essential:
            if fields.get(name) is None:
                refuse(name, "a value", None)
        for name, allowed in self.required.items():
            if name in fields and fields[name] not in allowed:
                unknown = f"the {self.family} family does not implement it"
                refuse(name, " or ".join(map(repr, allowed)), fields[name], fix=unknown)
        for name in (*self.names.values(), *FOREIGN):
            if name in fields and name not in self.names:
                refuse(name, "the original's fields alone", fields[name])

    def explain(self, fields: Mapping[str, Any], error: Exception) -> ValueError:
        """Return an error that says by the original's name which field transformers does not accept.

        Args:
            fields: config.json of the original.
            error: what transformers says.
        """
        reason = " ".join(str(error).split())
        if (found := re.search(r"field '(\w+)'", reason)) is None:
            return ValueError(f"config.json: expected fields that transformers accepts, got {reason}")
        name = {native: original for original, native in self.names.items()}.get(found[1], found[1])
        expected = f"what transformers accepts ({reason})"
        return ValueError(f"config field `{name}`: expected {expected}, got {fields.get(name)!r}")

    def native(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Translate original config fields into those of the stock class.

        Args:
            fields: config.json of the original.

        Raises:
            ValueError: fields that contradict one another.
        """
        ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "mask_token_id": None}
        renamed = {self.names.get(name, name): value for name, value in fields.items() if name != "model_type"}
        return {**ids, **renamed, **self.derive(fields)}


class OriginalConfig:
    """A config that reads original fields and writes them back; to be named before the stock class among the bases.

    A subclass names its `layout` and passes its fields on in an `__init__` of its own, as transformers generates one
    otherwise.
    """

    layout: ClassVar[Layout]
    is_causal = False
    original: dict[str, Any]
    as_read: dict[str, Any]

    def __init__(self, **fields: Any) -> None:
        read = {**(fields or self.layout.release)}
        self.layout.check(read)
        try:
            super().__init__(**copy.deepcopy(self.layout.native(read)))
        except ValueError:
            raise
        except Exception as error:  # transformers' validators raise kinds of their own
            raise self.layout.explain(read, error) from error
        self.original = {name: value for name, value in copy.deepcopy(read).items() if name not in HOW_IT_WAS_READ}
        self.as_read = copy.deepcopy(self.in_force())

    def in_force(self) -> dict[str, Any]:
        """Return what the stock config holds now under the original's names (dtype fields apart)."""
        values = cast("Any", self).__dict__
        names = {name: self.layout.names.get(name, name) for name in self.original if name not in DTYPE_FIELDS}
        held = {name: values[native] for name, native in names.items() if native in values}
        rope: dict[str, Any] = dict(cast("Any", self).rope_parameters or {})
        held["rope_theta"] = rope.pop("rope_theta", None)
        held["partial_rotary_factor"] = rope.pop("partial_rotary_factor", None)
        held["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
        return held

    def to_dict(self) -> dict[str, Any]:
        """Return the original's fields: as they were read, except where the value in force has changed since."""
        config = cast("Any", self)
        changed = {name: value for name, value in self.in_force().items() if value != self.as_read.get(name)}
        written = {"model_type": config.model_type, **copy.deepcopy({**self.original, **changed})}
        written["architectures"] = config.architectures
        if config.dtype is not None:
            for name in [name for name in DTYPE_FIELDS if name in written] or DTYPE_FIELDS[:1]:
                written[name] = dtype_name(as_dtype(config.dtype))
        return written

    def to_diff_dict(self) -> dict[str, Any]:
        """Return `to_dict`: the original files list every field."""
        return self.to_dict()
