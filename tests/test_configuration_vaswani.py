"""The configuration refuses what cannot work, and speaks Hugging Face's names as well as the paper's."""

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from vaswani_transformer import VaswaniConfig


def test_defaults_are_the_papers_base_model():
    config = VaswaniConfig()
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.d_ff) == (6, 6, 512, 2048)
    assert (config.num_heads, config.d_k, config.d_v, config.dropout, config.label_smoothing) == (8, 64, 64, 0.1, 0.1)
    assert (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id) == (0, 0, 1)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("hidden_size", "d_model"), ("num_hidden_layers", "encoder_layers"), ("head_dim", "d_k")]
)
def test_hugging_face_names_are_aliases(theirs, ours):
    config = VaswaniConfig()
    assert getattr(config, theirs) == getattr(config, ours)
    setattr(config, theirs, 12)
    assert getattr(config, ours) == 12


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("d_model", 511),
        ("num_heads", 0),
        ("num_heads", 7),
        ("d_v", -3),
        ("dropout", 1.0),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(field, value):
    widths = {"d_k": 64, "d_v": 64} if field == "d_model" else {}
    with pytest.raises(ValueError, match=rf"^{field}:"):
        VaswaniConfig(**{**widths, field: value})


def test_hugging_face_names_build_the_same_model():
    theirs = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 1}
    ours = {"d_model": 64, "d_ff": 128, "num_heads": 2, "encoder_layers": 1}
    assert VaswaniConfig(**theirs).to_dict() == VaswaniConfig(**ours).to_dict()
    assert VaswaniConfig.from_variant("C-N2", hidden_size=64).d_k == 8
    with pytest.raises(ValueError, match="d_model: must be even"):
        VaswaniConfig(hidden_size=127, head_dim=16, d_v=16)
    with pytest.raises(ValueError, match="num_heads: 0 heads"):
        VaswaniConfig(num_attention_heads=0)


@pytest.mark.parametrize(("field", "value"), [("d_model", "wide"), ("position_encoding", "rotary")])
def test_values_of_another_type_are_refused_by_name(field, value):
    with pytest.raises((ValueError, StrictDataclassError), match=field):
        VaswaniConfig(**{field: value})


def test_learned_positions_need_a_table_but_no_even_width():
    assert VaswaniConfig(position_encoding="learned", d_model=9, num_heads=3).d_k == 3
    with pytest.raises(ValueError, match=r"^max_position_embeddings:"):
        VaswaniConfig(position_encoding="learned", max_position_embeddings=0)


def test_overrides_take_precedence_over_the_row():
    config = VaswaniConfig.from_variant("big", dropout=0.1, vocab_size=100)
    assert (config.d_model, config.d_k, config.dropout, config.vocab_size) == (1024, 64, 0.1, 100)


def test_saved_configuration_loads_unchanged(tmp_path):
    config = VaswaniConfig.from_variant("B-dk16", position_encoding="sinusoidal_halves")
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, VaswaniConfig)
    assert loaded.to_diff_dict() == config.to_diff_dict()
