"""Importing does nothing but import."""

import subprocess
import sys

PROBE = """
import sys
import dare_models
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
foreign = {name.partition(".")[0] for name in sys.modules} & {
    "dare_samplers", "dare_objectives", "dare_eval", "dare_train", "vllm", "peft", "ray", "deepspeed"}
assert not foreign, foreign
assert "llada" not in CONFIG_MAPPING
dare_models.register()
assert "llada" in CONFIG_MAPPING
"""


def test_import_is_free_of_side_effects():
    subprocess.run([sys.executable, "-c", PROBE], check=True)
