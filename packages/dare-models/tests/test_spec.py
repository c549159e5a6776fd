"""ModelSpec: JSON, ids, limits."""

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_models import ModelSpec

SPEC = ModelSpec("llada", vocab_size=10, mask_token_id=9, pad_token_id=0, max_positions=8, eos_token_ids=(0,))
ids = st.integers(0, 8)


@pytest.mark.wheel
@given(
    eos=st.lists(ids, unique=True).map(tuple),
    turns=st.lists(ids, unique=True).map(tuple),
    bos=st.none() | ids,
    generation=st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.floats(allow_nan=False)),
)
def test_json_round_trip(eos, turns, bos, generation):
    spec = dataclasses.replace(SPEC, eos_token_ids=eos, turn_end_ids=turns, bos_token_id=bos, generation=generation)
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)
    assert set(spec.stop_ids) == {*eos, *turns}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask_token_id": 10}, "`mask_token_id`"),
        ({"pad_token_id": -1}, "`pad_token_id`"),
        ({"bos_token_id": 10}, "`bos_token_id`"),
        ({"turn_end_ids": (3, 12)}, "`turn_end_ids`"),
        ({"eos_token_ids": (9,)}, "apart from the stop ids"),
        ({"logit_offset": 2}, "`logit_offset`"),
        ({"attention": "causal"}, "`attention`"),
        ({"attention": "block_causal"}, "`block_length`"),
    ],
)
def test_impossible_specs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SPEC, **change)


def test_unknown_field_is_refused():
    with pytest.raises(ValueError, match=r"\['colour'\]"):
        ModelSpec.from_json(SPEC.to_json().replace("{", '{"colour": "red", ', 1))


def test_capabilities_have_known_names_and_are_required_by_them():
    with pytest.raises(ValueError, match=r"`capabilities` among \['full_attention', .*, got \['telepathy'\]"):
        dataclasses.replace(SPEC, capabilities=("moe", "telepathy"))
    able = dataclasses.replace(SPEC, capabilities=("full_attention", "prefix_cache"))
    able.require((), "nothing")
    able.require(("prefix_cache", "full_attention"), "a prefix cache")
    message = (
        r"with \['block_cache', 'moe'\] for the cache \(block_cache: finished blocks .*; moe: a mixture of experts\), "
        r"got llada with \['full_attention', 'prefix_cache'\]"
    )
    with pytest.raises(ValueError, match=message):
        able.require(("full_attention", "block_cache", "moe"), "the cache")
