"""Checkpoints that were trained elsewhere, as models of this package."""
