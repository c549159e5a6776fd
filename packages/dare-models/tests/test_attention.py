"""Plans become masks, or are refused."""

import pytest
import torch

from dare_models import Full
from dare_models.attention import materialise

VALID = torch.tensor([[True, True, False], [False, False, False]])


@pytest.mark.parametrize("backend", ["sdpa", "eager", "flex_attention", "flash_attention_2"])
def test_no_padding_needs_no_mask(backend):
    assert materialise(Full(), backend=backend, dtype=torch.float32) is None


def test_a_row_of_padding_sees_itself():
    mask = materialise(Full(VALID), backend="sdpa", dtype=torch.float32)
    assert mask.tolist() == [[[[True, True, False]]], [[[True, True, True]]]]


def test_eager_gets_an_additive_mask_never_a_bool_one():
    mask = materialise(Full(VALID), backend="eager", dtype=torch.float64)
    assert mask.dtype == torch.float64
    assert mask[0, 0, 0].tolist() == [0.0, 0.0, torch.finfo(torch.float64).min]


@pytest.mark.parametrize("backend", ["flex_attention", "flash_attention_2"])
def test_what_a_backend_cannot_express_is_refused(backend):
    with pytest.raises(ValueError, match=f"{backend}.*backend='sdpa'"):
        materialise(Full(VALID), backend=backend, dtype=torch.float32)
