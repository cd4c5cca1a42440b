"""The paper's numbers: every row of Table 3 has scores, and the settings are those of its rows."""

import pytest

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.experiments.numbers import PAPER_SCORES
from vaswani_transformer.model.configuration_vaswani import PAPER_VARIANTS
from vaswani_transformer.runs.model_card import PAPER_SETTINGS


def test_every_row_of_table_3_has_its_scores():
    assert list(PAPER_SCORES) == list(PAPER_VARIANTS)
    # What 6.2 says of them: a single head is 0.9 BLEU worse, and the big model the best of all.
    assert PAPER_SCORES["base"][1] - PAPER_SCORES["A-h1"][1] == pytest.approx(0.9)
    assert max(PAPER_SCORES, key=lambda row: PAPER_SCORES[row][1]) == "big"
    assert min(PAPER_SCORES, key=lambda row: PAPER_SCORES[row][0]) == "big"


def test_settings_are_those_of_table_3():
    base, big = (VaswaniConfig.from_variant(name) for name in ("base", "big"))
    for field in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout"):
        ours, larger = getattr(base, field), getattr(big, field)
        assert PAPER_SETTINGS[field] == (f"{ours}" if ours == larger else f"{ours} (big: {larger})")
