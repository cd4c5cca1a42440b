"""The model: sections 3, 4, 5.1 and 6.1 of the paper.

transformers copies the files named `*_vaswani.py` to the Hub with the weights, so that the model loads without this
package. It follows imports of the form `from .name import ...` only. These files import each other, libraries that come
with transformers, and, if they are installed, sentencex and nltk. A translation model has ten of them; a parser has
`parsing_vaswani.py` and `parse_sequence_vaswani.py`, too.

Four files are not copied: `tokenization_vaswani.py`, because a saved tokenizer loads as transformers' plain fast
tokenizer, `ensemble_vaswani.py`, `registration.py` and `saved_model.py`. The last is the only one that imports from
another directory of the package.
"""
