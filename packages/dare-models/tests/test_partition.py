"""What a partitioned model refuses; DeepSpeed itself is met in `nox -s zero3`."""

import pytest
import torch

from dare_models import load, partition, precision
from dare_models.testing import example


@pytest.fixture
def cut():
    """A model that looks as ZeRO-3 leaves it between forwards."""
    lm = example("sdar", dtype="float32")
    for parameter in lm.module.parameters():
        parameter.ds_numel = parameter.numel()
        parameter.data = torch.empty(0)
    return lm


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda lm: lm.fingerprint(),
            r"fingerprint, got 'model\.embed_tokens\.weight'",
        ),
        (lambda lm: lm.head_weight, "expected whole parameters for `head_weight`"),
        (lambda lm: lm.save("never"), "expected a model of its own"),
        (lambda lm: lm.new_cache(1, 4), "expected `lm.version` to be set"),
        (lambda lm: partition.expect_engine(lm.module), "expected an engine"),
    ],
)
def test_whole_parameters_are_wanted(cut, call, message):
    with pytest.raises(ValueError, match=message):
        call(cut)


def test_a_version_of_ones_own_makes_caches(cut):
    cut.version = 3
    assert cut.new_cache(1, 4).version == 3


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, "float32"),
        ({"bf16": {"enabled": False}}, "float32"),
        ({"bf16": {"enabled": True}}, "bfloat16"),
        ({"fp16": {"enabled": True}}, "float16"),
    ],
)
def test_the_config_decides_the_dtype(config, wanted, cut, monkeypatch, tmp_path):
    monkeypatch.setattr(partition, "is_deepspeed_zero3_enabled", lambda: True)
    monkeypatch.setattr(partition, "deepspeed_config", lambda: config)
    precision.place(cut.module, wanted, "cpu")
    for dtype in {"float64", "float32", "bfloat16"} - {wanted}:
        message = f"expected dtype='{wanted}', in which the DeepSpeed config partitions the parameters, got '{dtype}'"
        with pytest.raises(ValueError, match=message):
            load(tmp_path, dtype=dtype)
        with pytest.raises(ValueError, match=message):
            precision.place(cut.module, dtype, "cpu")
