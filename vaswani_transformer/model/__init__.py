"""The model: sections 3, 4, 5.1 and 6.1 of the paper, and the parser of 6.3.

transformers copies files of this folder to the Hub with the weights, so that the model loads without this package. It
follows imports of the form `from .name import ...` from the file of the model's class. A translation model has 13 of
these files, `*_vaswani.py`; a parser has `parsing_vaswani.py` and `parse_sequence_vaswani.py`, too. They import each
other, libraries that come with transformers, and, if they are installed, sentencex, langcodes and nltk.

Not copied is `tokenization_vaswani.py`, because a saved tokenizer loads as transformers' plain fast tokenizer.
"""
