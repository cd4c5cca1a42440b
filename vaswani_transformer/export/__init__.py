"""Models for other engines, a module for each, which is imported by its own name since it needs that engine."""
