"""Converted models against the models that they come from: logits, hypotheses, scores, texts; refusals; the recipe."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from foreign_models import (
    TEXTS,
    batch,
    fsmt_tokenizer,
    marian_tokenizer,
    require_sound_generate,
    same_logits,
    same_search,
    teach,
    trained_weights,
    untrained,
)
from helpers import call_recipe, save_model
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    FSMTForConditionalGeneration,
    FSMTTokenizer,
    GenerationConfig,
    MarianMTModel,
    MarianTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    pipeline,
)

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.convert.from_transformers import from_fsmt, from_marian


CONVERT: dict[str, Callable] = {"marian": from_marian, "fsmt": from_fsmt}
# Each with its changes, and what its matrices share: target and softmax one, all three one.
MODELS = {
    "marian as OPUS-MT": ("marian", {"activation_function": "swish"}, (True, True)),
    "marian with own vocabularies": (
        "marian",
        {"activation_function": "relu", "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 61},
        (True, False),
    ),
    "marian with an own softmax": (
        "marian",
        {"tie_word_embeddings": False, "d_model": 20, "decoder_ffn_dim": 36},
        (False, False),
    ),
    "fsmt with own matrices": ("fsmt", {"encoder_layers": 1, "langs": ["de", "ru"]}, (False, False)),
    "fsmt as WMT19": (
        "fsmt",
        {"tgt_vocab_size": 57, "encoder_attention_heads": 3, "decoder_attention_heads": 3, "decoder_ffn_dim": 36},
        (True, False),
    ),
    "fsmt, one vocabulary": (
        "fsmt",
        {"tgt_vocab_size": 57, "tie_word_embeddings": True, "d_model": 20},
        (True, True),
    ),
}
RATES = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.15}
SEARCHES = {
    "greedy": {"num_beams": 1},
    "as FSMT": {"num_beams": 5, "length_penalty": 1.0, "early_stopping": False},
    "first endings": {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True},
    "several": {"num_beams": 4, "num_return_sequences": 3, "renormalize_logits": True, "bad_words_ids": [[1], [9, 8]]},
}


@pytest.fixture(scope="module", params=MODELS)
def taught(request) -> tuple[PreTrainedModel, VaswaniForConditionalGeneration, torch.Tensor]:
    """A source model, the converted one, and sentences."""
    torch.manual_seed(0)
    kind, changes, _ = MODELS[request.param]
    model = untrained(kind, **RATES, **changes)
    if request.param == "fsmt as WMT19":  # whose configurations say nothing of it
        model.model.decoder.output_projection.weight = model.model.decoder.embed_tokens.weight
    sources = batch(model)
    teach(model, sources)
    return model, CONVERT[kind](model), sources


def test_logits_are_the_same_also_after_saving(taught, tmp_path):
    source, converted, sources = taught
    same_logits(source, converted, sources)
    converted.save_pretrained(tmp_path)
    same_logits(source, AutoModelForSeq2SeqLM.from_pretrained(tmp_path), sources)


@pytest.mark.parametrize("settings", SEARCHES.values(), ids=SEARCHES)
def test_hypotheses_and_scores_are_the_same(taught, settings):
    source, converted, sources = taught
    lengths = same_search(source, converted, sources, max_length=16, **settings)
    assert len(set(lengths)) > 3


@pytest.mark.parametrize(
    ("kind", "changes", "settings"),
    [
        ("marian", {}, {}),
        ("marian", {}, {"num_beams": 3, "length_penalty": 0.7, "max_length": 9, "bad_words_ids": [[56], [8]]}),
        ("fsmt", {"max_length": 12}, {}),
    ],
    ids=["by default", "by its file", "by its configuration"],
)
def test_a_converted_model_decodes_by_default_as_its_source_does(kind, changes, settings, tmp_path):
    source = untrained(kind, **changes)
    if settings:
        own = {"forced_eos_token_id": 0, "eos_token_id": 0, "pad_token_id": 56, "decoder_start_token_id": 56}
        source.generation_config = GenerationConfig(**own, renormalize_logits=True, **settings)
    converted = CONVERT[kind](source)
    converted.save_pretrained(tmp_path)
    for model in (converted, AutoModelForSeq2SeqLM.from_pretrained(tmp_path)):
        assert model.generation_config.length_penalty_type == "transformers"  # so that `generate` takes another
        lengths = same_search(source, model, batch(source), output_scores=False)
        assert max(lengths) == {**changes, **settings}.get("max_length", 21) - 1  # 21 is transformers' default


def test_what_sources_share_is_shared(taught, request):
    source, converted, _ = taught
    _, _, (tied, all_tied) = MODELS[request.node.callspec.params["taught"]]
    embeddings = [stack.embed_tokens.weight for stack in (converted.model.encoder, converted.model.decoder)]
    assert (converted.lm_head.weight is embeddings[1]) == tied
    assert (embeddings[0] is embeddings[1]) == all_tied
    assert converted.num_parameters() == sum(weight.numel() for weight in trained_weights(source))


def test_dropout_rates_and_languages_are_kept(taught):
    source, converted, _ = taught
    assert {name: getattr(converted.config, name) for name in RATES} == RATES
    if source.config.model_type == "fsmt":
        assert [converted.config.source_language, converted.config.target_language] == [*source.config.langs]


def test_marians_bias_is_trained_only_as_a_parameter(tmp_path):
    from_marian(untrained("marian")).save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    asked = copy.deepcopy(loaded)
    asked.lm_head.bias = torch.nn.Parameter(asked.lm_head.bias)
    for model in (loaded, asked):
        before = model.lm_head.bias.clone()
        model(input_ids=batch(model), labels=batch(model)).loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        assert torch.equal(model.lm_head.bias, before) == (model is loaded)


def test_a_bias_of_zeros_is_none_and_the_source_is_left_alone():
    source = untrained("marian")
    source.final_logits_bias.zero_()
    before = copy.deepcopy(source.state_dict())
    converted = from_marian(source.half())
    assert not converted.config.logits_bias
    assert converted.dtype == torch.float16
    with torch.no_grad():
        for weight in converted.parameters():
            weight.fill_(5.0)
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, before[name].half()), name


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("marian", {"decoder_attention_heads": 2}, "^encoder_attention_heads: 4 of the encoder and 2 of the decoder"),
        ("fsmt", {"scale_embedding": False}, "^scale_embedding: is false"),
    ],
)
def test_what_cannot_be_expressed_is_refused(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        CONVERT[kind](untrained(kind, **changes))


@pytest.fixture(scope="module", params=["marian", "marian with own vocabularies", "fsmt"])
def saved_source(request, tmp_path_factory) -> Path:
    """A directory with a source model that has learned some sentences, and its tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("source")
    kind, separate = request.param.split()[0], request.param != "marian"
    make = {"marian": marian_tokenizer, "fsmt": fsmt_tokenizer}[kind]
    tokenizer = make(folder / "vocabulary", separate)
    sizes = (tokenizer.vocab_size, len(tokenizer.decoder))
    names = {"marian": ("vocab_size", "decoder_vocab_size"), "fsmt": ("src_vocab_size", "tgt_vocab_size")}
    changes = dict(zip(names[kind], sizes, strict=True))
    if kind == "marian":
        changes |= {"pad_token_id": 2, "decoder_start_token_id": 2, "share_encoder_decoder_embeddings": not separate}
    model = untrained(kind, **changes)
    model.generation_config.update(num_beams=3, max_length=30)
    teach(model, tokenizer(TEXTS, return_tensors="pt", padding=True)["input_ids"])
    return save_model(folder / "model", model, tokenizer)


def translations(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    return tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)


def test_the_recipe_makes_a_directory_that_translates_as_the_source_does(saved_source, tmp_path, capsys):
    kind = json.loads((saved_source / "config.json").read_text(encoding="utf-8"))["model_type"]
    output = tmp_path / "new" / "out"
    call_recipe("convert.py", "--toolkit", kind, "--model", saved_source, "--output", output)
    assert [path.name for path in output.parent.iterdir()] == ["out"]
    source_class, tokenizer_class = {
        "marian": (MarianMTModel, MarianTokenizer),
        "fsmt": (FSMTForConditionalGeneration, FSMTTokenizer),
    }[kind]
    source = source_class.from_pretrained(saved_source)
    require_sound_generate(source)
    expected = translations(source, tokenizer_class.from_pretrained(saved_source))
    assert len(set(expected)) > 3
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert type(tokenizer) is tokenizer_class
    assert translations(AutoModelForSeq2SeqLM.from_pretrained(output), tokenizer) == expected
    translator = pipeline("translation", model=str(output))
    assert [translation["translation_text"] for translation in translator(TEXTS)] == expected
    assert translator(TEXTS[1])[0]["translation_text"] == expected[1]
    shown = capsys.readouterr().out
    assert tokenizer_class.__name__ in shown
    assert "3 beams" in shown
