"""Word alignment: links to the source word with the largest attention, by the heads that a configuration names."""

import json
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import call_recipe
from transformers import AutoTokenizer, pipeline

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.model.scores_vaswani import TranslationScorer, alignment_heads, token_words, word_links
from vaswani_transformer.visualization.attention import read_attention


PAIRS = phrasebook("test")[:7]
LAST = [[2, 0], [2, 1]]  # of three layers
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))


@pytest.fixture
def model(tokenizer):
    """A model of several layers and heads, with attention that is not even."""
    config = VaswaniConfig(
        vocab_size=len(tokenizer), d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=3
    )
    model = VaswaniForConditionalGeneration(config).eval()
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data *= 3
    return model


def links_of_pairs(model, tokenizer, heads, tag=""):
    """The links of all pairs in one padded batch, each source after the `tag`."""
    inputs = tokenizer([tag + source for source in SOURCES], padding=True, return_tensors="pt")
    targets = tokenizer(text_target=TARGETS, padding=True, return_tensors="pt").input_ids
    output_ids = torch.cat((targets.new_full((len(targets), 1), model.config.decoder_start_token_id), targets), 1)
    scorer = TranslationScorer(model, tokenizer, 1.0, "gnmt", heads)
    return [score.alignment for score in scorer.score(inputs, output_ids)]


def by_hand(model, tokenizer, source, target, heads):
    """The links by what the explorer shows, whose rows are the steps."""
    weights = read_attention(model, tokenizer, source, target)
    attention = np.mean([weights.cross[layer, head] for layer, head in heads], axis=0)  # [target, source]

    def words(text, side):
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
        found = np.cumsum([token.startswith("\u0120") for token in tokens[:-1]] + [True]) - 1
        assert found[-1] == len(text.split()), side  # the last is the EOS
        return list(found[:-1])

    sources, targets = words(source, "source"), words(target, "target")
    sums = np.zeros((targets[-1] + 1, sources[-1] + 1))
    for place, of_target in enumerate(targets):
        for column, of_source in enumerate(sources):
            sums[of_target, of_source] += attention[place, column]
    return [(int(column), word) for word, column in enumerate(sums.argmax(1))]


@pytest.mark.parametrize("heads", [LAST, [[0, 1]], [[2, 0], [0, 0]]])
def test_links_are_those_of_the_explorers_attention(heads, model, tokenizer):
    found = links_of_pairs(model, tokenizer, heads)
    assert found == [by_hand(model, tokenizer, *pair, heads) for pair in PAIRS]
    assert len({tuple(links) for links in found}) > 1
    assert model.config._attn_implementation == "sdpa"


def test_the_tag_of_a_language_is_no_word(model, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<2de>"]})
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)  # which knows less of its special tokens
    model.resize_token_embeddings(len(tokenizer))
    ids = tokenizer("<2de> The old man").input_ids
    assert ids[0] == len(tokenizer) - 1
    places, words = token_words(tokenizer, ids, is_whole=True)
    assert (places[0], places[1], words) == (None, 0, ["The", "old", "man"])
    found = links_of_pairs(model, tokenizer, LAST, "<2de> ")
    for source, links in zip(SOURCES, found, strict=True):
        assert {place for place, _ in links} <= {*range(len(source.split()))}
    assert min(place for links in found for place, _ in links) == 0


def test_attention_is_summed_over_the_tokens_of_both_words():
    attention = torch.tensor([[0.3, 0.4, 0.3, 0.0], [0.1, 0.2, 0.0, 0.7], [0.9, 0.0, 0.1, 0.0]])
    # Source words: tokens 0 and 2, token 1; token 3 is the end.
    for targets, expected in (([0, 1, 1], [(0, 0), (0, 1)]), ([0, 1, None], [(0, 0), (1, 1)])):
        assert word_links(attention, [0, 1, 0, None], 2, targets, 2) == expected


@pytest.mark.parametrize("named", [None, [[0, 1]], [[1, 0], [2, 1]]])
def test_translations_are_aligned_by_the_heads_of_the_configuration(named, model, tokenizer, tmp_path, monkeypatch):
    """All heads of the last layer align if it names none; the pipeline and translate.py write the same links."""
    monkeypatch.chdir(tmp_path)
    model.generation_config.max_new_tokens = 8
    if named is not None:
        model.config.alignment_heads = named
    for saved in (model, tokenizer):
        saved.save_pretrained("model")
    translator = pipeline("translation", model="model")
    found = translator([*SOURCES, " "], return_alignment=True, return_tensors=True, return_text=True)
    scorer = TranslationScorer(model, tokenizer, 1.0, "gnmt", named or LAST)
    for source, record in zip(SOURCES, found, strict=False):
        (expected,) = scorer.score(tokenizer(source, return_tensors="pt"), record["translation_token_ids"][None])
        assert record["alignment"] == expected.alignment
        assert [target for _, target in record["alignment"]] == [*range(len(record["translation_text"].split()))]
    assert len({str(record["alignment"]) for record in found}) > 2
    assert found[-1]["alignment"] == []
    (tmp_path / "text").write_text("\n".join(SOURCES), encoding="utf-8")
    call_recipe("translate.py", "--model", "model", "--input", "text", "--output", "o.jsonl", "--return_alignment")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["alignment"] for row in rows] == [
        " ".join(f"{source}-{target}" for source, target in record["alignment"]) for record in found[:-1]
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"target_vocab_size": 50}, "alignment: the model has two vocabularies"),
        ({"model_type": "t5"}, "alignment: models of the type t5 are not supported"),
        ({"decoder_layers": 3, "alignment_heads": [[2, 1], [3, 0]]}, "alignment_heads: must be .* of 3 layers with 2 "),
        ({"decoder_layers": 3, "alignment_heads": []}, "alignment_heads: must be "),
    ],
)
def test_models_that_cannot_align_are_refused(config, message):
    config = SimpleNamespace(**{"model_type": "vaswani", "decoder_attention_heads": 2, **config})
    with pytest.raises(ValueError, match=message):
        alignment_heads(SimpleNamespace(config=config))


def test_words_that_the_tokenizer_does_not_know_have_places():
    corpus = [sentence for pair in PAIRS for sentence in pair]
    tokenizer = VaswaniTokenizer.train(corpus, 120, "wordpiece", show_progress=False)
    ids = tokenizer("old ☃ man").input_ids
    assert tokenizer.unk_token_id in ids
    places, words = token_words(tokenizer, ids, is_whole=True)
    assert (words, places[0], places[-2], places[-1]) == (["old", "<unk>", "man"], 0, 2, None)
    places, words = token_words(tokenizer, ids)
    assert (words, places[0], places[-2], places[-1]) == (["old", "man"], 0, 1, None)


def test_tokens_of_scripts_without_spaces_are_words(model, tokenizer):
    """A character of several tokens is one word; numbers and Latin text are apart, and divided by white space alone."""
    text = "\u6211\u7528iPhone's, \u4f6030\u597d\u3002\u0e09\u0e31\u0e19\u0e53\u0e53"
    ids = tokenizer(text).input_ids
    places, words = token_words(tokenizer, ids)
    expected = ["我", "用", "iPhone's,", "你", "30", "好。", "ฉั", "น", "๓๓"]
    assert words == expected
    assert [word for word, _ in groupby(places)] == [*range(len(words)), None]
    inputs = tokenizer(text, return_tensors="pt")
    (score,) = TranslationScorer(model, tokenizer, 1.0, "gnmt", LAST).score(inputs, torch.tensor([[0, *ids]]))
    assert (score.words, score.source_words) == (expected, expected)
    assert [target for _, target in score.alignment] == [*range(len(expected))]
