"""The model: sections 3, 4, 5.1 and 6.1 of the paper, in files that go to the Hub with the weights.

transformers copies these files with the weights, so that the model loads without this package. It follows imports of
the form `from .name import ...` only. The files import only each other, torch, transformers and tokenizers. A
translation model has ten of them; a parser has `parsing_vaswani.py` and `parse_sequence_vaswani.py`, too.

Two are not copied: `tokenization_vaswani.py`, because a saved tokenizer loads as transformers' own fast tokenizer, and
`ensemble_vaswani.py`.
"""
