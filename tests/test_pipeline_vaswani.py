"""`pipeline("translation")` on what training leaves behind."""

import copy
import time
from functools import partial

import pytest
import torch
from helpers import call_in_threads
from models import translate_alone
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    TextIteratorStreamer,
    pipeline,
)
from transformers.pipelines.pt_utils import KeyDataset

from vaswani_transformer import (
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniTokenizer,
    VaswaniTranslationPipeline,
)
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.model.languages_vaswani import change_case, is_in_capitals
from vaswani_transformer.model.translation_vaswani import in_order, translate_in_batches


SENTENCES = ["The old man buys a book today.", "Dogs!", "", "The child sleeps because it is tired.", "   "]
SHORT = {"max_new_tokens": 8}


@pytest.fixture
def translator(saved_model):
    return pipeline("translation", model=str(saved_model))


def translate_all(translator, sentences, **options):
    """The translations of each sentence, in order, by `translate_in_batches`."""
    batches = translate_in_batches(translator.model, translator.tokenizer, sentences, **options, **SHORT)
    return [[each.text for each in ranked] for ranked in in_order(batches)]


@pytest.fixture
def shapes(translator, monkeypatch):
    """The shapes of what `generate` is given."""
    shapes = []
    generate = translator.model.generate
    monkeypatch.setattr(
        translator.model, "generate", lambda **inputs: shapes.append(inputs["input_ids"].shape) or generate(**inputs)
    )
    return shapes


@pytest.mark.parametrize("tokens", [1, 30, 70, 4096])
def test_batches_stay_within_the_token_budget_longest_first(translator, shapes, tokens):
    sentences = ["dog " * count for count in (3, 50, 1, 8, 21, 2, 9, 9, 30, 8)] + [" "]
    batches = translate_in_batches(translator.model, translator.tokenizer, sentences, tokens, max_new_tokens=2)
    assert sorted(index for indices, _ in batches for index in indices) == list(range(len(sentences)))
    widths = [width for _, width in shapes]
    assert widths == sorted(widths, reverse=True)
    lengths = sorted((len(translator.tokenizer(s).input_ids) for s in sentences[:-1]), reverse=True)
    for count, width in shapes:
        assert width == lengths[0]  # no padding beyond the longest
        assert count == 1 or count * width <= tokens
        if lengths := lengths[count:]:
            assert (count + 1) * width > tokens  # one more would not have fitted


def test_translations_do_not_depend_on_batches(lively_model, loaded_model, tokenizer):
    translator = pipeline("translation", model=str(lively_model))
    sentences = [*SENTENCES, "one\u2028line", "a dog", "The old man sleeps.", "two pictures", "a"]
    expected = [translate_alone(loaded_model, tokenizer, sentence, **SHORT) for sentence in sentences]
    assert len(set(expected)) >= len(expected) - 2
    for options in ({}, {"batch_size": 1}, {"batch_size": 3}, {"batch_size": 3, "num_workers": 0}):
        assert [row["translation_text"] for row in translator(sentences, **options, **SHORT)] == expected
    for tokens in (1, 20, 4096):
        assert translate_all(translator, sentences, tokens_per_batch=tokens) == [[text] for text in expected]


def check_threads(translator, options):
    """Threads that share a pipeline do not change each other's results."""
    calls = [partial(translator, SENTENCES[:2], **each) for each in options]
    expected = [call() for call in calls]
    assert expected[0] != expected[1]
    for value, found in zip(expected, call_in_threads(calls, rounds=3), strict=True):
        assert all(each == value for each in found)


class Interrupted(PreTrainedTokenizerFast):
    """Lets other threads run between a change of its state and the encoding."""

    def set_truncation_and_padding(self, *args, **kwargs):
        super().set_truncation_and_padding(*args, **kwargs)
        time.sleep(0.001)


def test_threads_share_a_tokenizer_of_transformers(lively_model, monkeypatch):
    tokenizer = Interrupted.from_pretrained(lively_model, model_max_length=4)
    translator = pipeline("translation", model=str(lively_model), tokenizer=tokenizer)
    monkeypatch.setattr(translator.model, "generate", lambda input_ids, **_: input_ids)
    check_threads(translator, [{}, {"truncation": True}])


def test_threads_share_a_model_whose_attention_is_read(lively_model):
    translator = pipeline("translation", model=str(lively_model), num_beams=1, max_new_tokens=3)
    model, seen = translator.model, set()
    model.get_decoder().register_forward_hook(lambda *_: seen.add(model.config._attn_implementation))
    check_threads(translator, [{}, {"return_alignment": True}])
    assert seen == {"sdpa"}  # "eager", which returns attention, is slow


def test_what_the_pipeline_was_made_with_counts_for_lists_too(lively_model):
    translator = pipeline("translation", model=str(lively_model), max_new_tokens=2, num_return_sequences=2)
    assert translator([SENTENCES[0]]) == [translator(SENTENCES[0])]
    assert translator(SENTENCES[0], max_new_tokens=5) != translator(SENTENCES[0])


def test_generators_and_datasets_are_streamed(translator):
    expected = [[result] for result in translator(SENTENCES, **SHORT)]
    read = []

    def sentences():
        for sentence in SENTENCES:
            read.append(sentence)
            yield sentence

    stream = translator(sentences(), batch_size=2, **SHORT)
    assert next(iter(stream)) == expected[0]
    assert len(read) < len(SENTENCES)
    assert list(translator(sentences(), batch_size=2, **SHORT)) == expected

    rows = [{"text": sentence} for sentence in SENTENCES]
    assert list(translator(KeyDataset(rows, "text"), batch_size=3, **SHORT)) == expected


def test_tuples_columns_and_dicts_are_read_like_lists(translator):
    from datasets import Dataset

    expected, rows = translator(SENTENCES, **SHORT), Dataset.from_dict({"text": SENTENCES, "id": range(len(SENTENCES))})
    for texts in (tuple(SENTENCES), rows["text"], [*rows], [{"text": SENTENCES[0]}, *SENTENCES[1:]]):
        assert translator(texts, batch_size=2, **SHORT) == expected
    assert translator({"text": SENTENCES[0]}, **SHORT) == expected[:1]
    assert list(translator(({"text": sentence} for sentence in SENTENCES), **SHORT)) == [[row] for row in expected]
    assert translator([]) == []


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (None, TypeError, "^text 1: must be a string, is NoneType: None"),
        (
            {"inputs": "Dogs!", "id": 3},
            TypeError,
            r"text 1: must be a string, or a dict with \"text\", and has only \['inputs', 'id'\]",
        ),
        ("a\ud800", ValueError, r"^text 1: 'a\\ud800' has a lone surrogate at position 1"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(translator, wrong, error, message):
    with pytest.raises(error, match=message):
        translator([SENTENCES[0], wrong], **SHORT)


def test_several_hypotheses_are_returned_on_request(translator):
    hypotheses = translator("Dogs!", num_return_sequences=3, **SHORT)
    assert len(hypotheses) == 3
    nested = translator(["Dogs!", "Cats!"], num_return_sequences=3, batch_size=2, **SHORT)
    assert nested[0] == hypotheses
    assert [len(row) for row in nested] == [3, 3]
    assert translator(["", "Dogs!"], num_return_sequences=3, **SHORT) == [[{"translation_text": ""}] * 3, hypotheses]
    translator.model.generation_config.num_return_sequences = 2
    assert translate_all(translator, [" ", "Dogs!"]) == [["", ""], [row["translation_text"] for row in hypotheses[:2]]]


def test_the_configuration_of_a_call_replaces_the_search_of_the_constructor(lively_model):
    config = GenerationConfig(num_beams=2, max_new_tokens=12)
    plain = pipeline("translation", model=str(lively_model))
    short = pipeline("translation", model=str(lively_model), max_new_tokens_over_source=0)
    assert short(SENTENCES) != plain(SENTENCES)
    assert short(SENTENCES, generation_config=config) == plain(SENTENCES, generation_config=config)
    assert short(SENTENCES, generation_config=None) == short(SENTENCES)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_all_translations_begin_with_given_tokens(lively_model, loaded_model, tokenizer, num_beams):
    translator = pipeline("translation", model=str(lively_model))
    prefix = translator.tokenizer(text_target="Der alte", add_special_tokens=False, return_tensors="pt").input_ids
    options = {**SHORT, "num_beams": num_beams, "decoder_input_ids": prefix}
    found = [each["translation_text"] for each in translator(SENTENCES, batch_size=2, **options)]
    assert found == [translate_alone(loaded_model, tokenizer, sentence, **options) for sentence in SENTENCES]
    assert [text.startswith("Der alte") for text in found] == [bool(sentence.strip()) for sentence in SENTENCES]
    with pytest.raises(ValueError, match=r"^decoder_input_ids: must be one row without EOS"):
        translator(SENTENCES, **{**options, "decoder_input_ids": prefix.expand(2, -1)})


def test_input_beyond_a_learned_table_is_cut(tokenizer):
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    learned = {"position_encoding": "learned", "max_position_embeddings": 10}
    config = VaswaniConfig(vocab_size=len(tokenizer), **sizes, **learned)
    translator = pipeline("translation", model=VaswaniForConditionalGeneration(config).eval(), tokenizer=tokenizer)
    assert translator("dog " * 200)[0].keys() == {"translation_text"}
    assert translator(["dog " * 200, "dog " * 9]) == translator("dog " * 200) + translator("dog " * 9)
    shorter = copy.deepcopy(tokenizer)
    shorter.model_max_length = 4
    cut = pipeline("translation", model=translator.model, tokenizer=shorter)
    assert cut("dog " * 9, truncation=True) == translator("dog " * 3)


@pytest.fixture
def english_to_german(saved_model, tmp_path):
    """A directory with a model that knows which languages it translates."""
    model = AutoModelForSeq2SeqLM.from_pretrained(saved_model)
    model.config.source_language, model.config.target_language = "en", "de"
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(saved_model).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("task", "languages", "message"),
    [
        ("translation_en_to_fr", {}, "translates into de, not fr"),
        ("translation_de_to_en", {}, "translates from en, not de"),
        ("translation", {"tgt_lang": "fr"}, "translates into de, not fr"),
    ],
)
def test_another_language_pair_than_the_models_is_refused(english_to_german, task, languages, message):
    with pytest.raises(ValueError, match=message):
        pipeline(task, model=english_to_german, **languages)
    translator = pipeline("translation", model=english_to_german)
    for inputs in ("Dogs!", ["Dogs!", {"text": "Dogs!", "tgt_lang": "fr"}]):
        with pytest.raises(ValueError, match="translates into de, not fr"):
            translator(inputs, tgt_lang="fr", **SHORT)


@pytest.mark.parametrize(
    "task", ["translation", "translation_en_to_de", "translation_en_US_to_DE", "translation_en_to_de-AT"]
)
def test_the_models_own_language_pair_is_translated(english_to_german, task):
    translator = pipeline(task, model=english_to_german)
    assert isinstance(translator, VaswaniTranslationPipeline)
    expected = [{"translation_text": translate_alone(translator.model, translator.tokenizer, "Dogs!", **SHORT)}]
    assert translator("Dogs!", **SHORT) == translator("Dogs!", src_lang="en", tgt_lang="de-AT", **SHORT) == expected


def test_token_ids_are_returned_on_request(lively_model):
    translator = pipeline("translation", model=str(lively_model), return_tensors=True)
    for sentence in ("Dogs!", "The child sleeps because it is tired."):
        (row,) = translator(sentence, **SHORT)
        inputs = translator.tokenizer(sentence, return_tensors="pt")
        assert row.keys() == {"translation_token_ids"}
        assert row["translation_token_ids"].tolist() == translator.model.generate(**inputs, **SHORT)[0].tolist()


@pytest.mark.parametrize(
    ("options", "limit"),
    [({}, 53), ({"num_beams": 8}, 53), ({"max_new_tokens": 500}, 500), ({"max_new_tokens_over_source": 9}, 12)],
)
def test_short_sentences_do_not_fill_memory(translator, monkeypatch, options, limit):
    """The tokens that the beams of a batch may generate are bounded, too: here each sentence has three tokens."""
    batches = []

    def generate(input_ids, **_):
        batches.append(len(input_ids))
        return torch.ones(len(input_ids), 2, dtype=torch.long)

    monkeypatch.setattr(translator.model, "generate", generate)
    sentences = ["a b"] * 2048
    assert len(translator.tokenizer("a b").input_ids) == 3
    list(translate_in_batches(translator.model, translator.tokenizer, sentences, **options))
    beams = options.get("num_beams", 4)
    assert sum(batches) == 2048
    assert max(batches) * beams * limit <= 16 * 4096
    assert len(batches) <= -(-2048 * beams * limit // (16 * 4096)) * 1.25 + 1  # and no smaller than that needs


@pytest.mark.parametrize(
    "text",
    [
        "-",
        "\N{HORIZONTAL ELLIPSIS}",
        "\N{GRINNING FACE}",
        "\u200b",
        "%s",
        "%.2f",
        "{user.name}",
        "{0:.2f}",
        "1.000,5",
        "www.x.org/a?b=1",
        "a.b@x.org",
        "14:35",
    ],
)
def test_text_without_words_is_its_own_translation(translator, monkeypatch, text):
    monkeypatch.setattr(translator.model, "generate", None)  # is not needed
    assert translator([text, f"{text}\n\n{text}"]) == [
        {"translation_text": text},
        {"translation_text": f"{text}\n\n{text}"},
    ]
    (record,) = translator(text, return_tensors=True, return_text=True, return_scores=True)
    assert translator.tokenizer.decode(record["translation_token_ids"], skip_special_tokens=True) == text.strip(
        "\u200b"
    )
    assert record["translation_text"] == text
    assert record["word_log_probabilities"] == [0.0]


def test_text_without_words_is_searched_after_a_prefix(translator):
    prefix = torch.tensor([translator.tokenizer("Der", add_special_tokens=False).input_ids])
    (row,) = translator("14:35", decoder_input_ids=prefix, return_tensors=True, **SHORT)
    assert row["translation_token_ids"].tolist()[1 : 1 + prefix.shape[1]] == prefix[0].tolist()


def test_text_without_words_is_copied_without_its_tag(two_way):
    translator = pipeline("translation", model=str(two_way))
    for text in ("<2de> 14:35", "<2de>", "<2de> -\n- 5"):
        assert translator(text) == [{"translation_text": text.removeprefix("<2de>").strip()}]


def test_a_sentence_in_capitals_is_translated_in_lower_case(translator):
    lower, capitals = translator(["the old man reads www.x.org", "THE OLD MAN READS www.x.org"], return_scores=True)
    assert capitals == {
        **lower,
        "translation_text": lower["translation_text"].upper(),
        "words": [word.upper() for word in lower["words"]],
    }
    text = "THE OLD MAN\n\nREADS THE BOOK"
    assert translator(text) == [{"translation_text": translator(text.lower())[0]["translation_text"].upper()}]


def test_the_case_of_addresses_and_placeholders_stays():
    assert change_case("SIEHE HTTPS://X.ORG/Ab UND %S", str.lower) == "siehe HTTPS://X.ORG/Ab und %S"


def test_a_stream_and_a_prefix_have_the_case_of_the_search(translator):
    text = "THE OLD MAN READS"
    streamer = TextIteratorStreamer(translator.tokenizer, timeout=9, skip_special_tokens=True)
    (record,) = translator(text, streamer=streamer, num_beams=1)
    assert "".join(streamer).strip() == record["translation_text"]
    prefix = translator.tokenizer("Der", add_special_tokens=False, return_tensors="pt").input_ids
    assert translator(text, decoder_input_ids=prefix)[0]["translation_text"].startswith("Der")


def test_turkish_capitals_stay(translator):
    text = "THE OLD MAN READS"
    in_lower_case = translator(text)
    translator.model.config.update({"source_language": "tr", "target_language": "de"})
    assert translator(text) != in_lower_case


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PLEASE GO AWAY!", True),
        ("ÜBER {n} ÖL HINAUS HTTPS://X.ORG", True),
        ("BBC NEWS 24 👍", False),  # two words
        ("BBC NEWS www.x.org", False),
        ("PLEASE GO Away!", False),
        ("我 在 IBM 工作", False),
        ("我 知道", False),
        ("1 2", False),
    ],
)
def test_a_text_of_three_words_may_be_in_capitals(text, expected):
    assert is_in_capitals(text) == expected


def test_a_sentence_in_capitals_stays_for_a_tokenizer_of_capitals(translator, monkeypatch):
    corpus = [sentence.upper() for pair in phrasebook("validation") for sentence in pair]
    tokenizer = VaswaniTokenizer.train(corpus, 400, show_progress=False)
    searched = []

    def generate(input_ids, **_):
        searched.extend(tokenizer.batch_decode(input_ids, skip_special_tokens=True))
        return input_ids

    monkeypatch.setattr(translator.model, "generate", generate)
    pipeline("translation", model=translator.model, tokenizer=tokenizer)("THE OLD MAN")
    assert searched == ["THE OLD MAN"]


@pytest.mark.parametrize("text", ["14:35", "-", ""])
def test_a_stream_of_text_without_words_ends(translator, text):
    for skip_prompt in (False, True):
        streamer = TextIteratorStreamer(translator.tokenizer, skip_prompt, timeout=1, skip_special_tokens=True)
        translator(text, streamer=streamer, num_beams=1)
        assert "".join(streamer) == text
