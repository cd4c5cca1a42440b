"""Exported models that replace the model: CTranslate2, ONNX and Marian, each with its export and its search.

Import each engine's module by its full name, because each needs other packages.
"""
