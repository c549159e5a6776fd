"""Runtimes: where the workers live."""
