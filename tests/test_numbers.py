"""The paper's numbers: every row of Table 3 has scores, and options state the values of its first and last rows."""

import pytest

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.experiments.numbers import PAPER_SCORES
from vaswani_transformer.model.configuration_vaswani import PAPER_VARIANTS
from vaswani_transformer.runs.model_card import PAPER_VALUES


def test_every_row_of_table_3_has_its_scores():
    assert list(PAPER_SCORES) == list(PAPER_VARIANTS)
    # What 6.2 says of them: a single head is 0.9 BLEU worse, and the big model the best of all.
    assert PAPER_SCORES["base"][1] - PAPER_SCORES["A-h1"][1] == pytest.approx(0.9)
    assert max(PAPER_SCORES, key=lambda row: PAPER_SCORES[row][1]) == "big"
    assert min(PAPER_SCORES, key=lambda row: PAPER_SCORES[row][0]) == "big"


def test_options_state_the_values_of_table_3_for_base_and_big():
    base, big = (VaswaniConfig.from_variant(name) for name in ("base", "big"))
    for field in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout"):
        assert PAPER_VALUES[field] == tuple(dict.fromkeys((getattr(base, field), getattr(big, field))))
