"""Pipelines: what one training step is, for each kind of run."""
