"""Section 6.3 of the paper: English constituency parsing.

The model and its pipeline are `model/parsing_vaswani.py` and `model/parse_sequence_vaswani.py`, which go to the Hub.
"""
