"""Engines: who holds the weights and steps the optimiser."""
