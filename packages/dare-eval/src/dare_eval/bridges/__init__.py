"""The same models in other harnesses, unmodified: OpenCompass and lm-evaluation-harness.

Both put text to the model through `bridges.session`, which answers as `evaluate` does.
"""
