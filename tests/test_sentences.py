import logging
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig, pipeline

from vaswani_transformer.model import languages_vaswani
from vaswani_transformer.model.languages_vaswani import Paragraph, split_sentences
from vaswani_transformer.model.pipeline_vaswani import translate_in_batches


PROPERTY = settings(deadline=None, database=None)
SHORT = {"max_new_tokens": 8}
EN_DE = PreTrainedConfig(source_language="en", target_language="de")
PIECES = [" ", "\n", "\n\n", "\u00a0", "\u3000", "Dr.", "Z", ".", "?", "!", "\u3002", '"', "\u201c", "A dog", "3", "-"]

PARAGRAPHS = {
    "  Dogs!  A man sleeps.\n\nThe end\nof it. ": ["Dogs!", "A man sleeps.", "The end", "of it."],
    "Dr. Smith paid $3.50. He left at 5 p.m. on Friday.": ["Dr. Smith paid $3.50.", "He left at 5 p.m. on Friday."],
    '"Where are you?" she asked. "Here." He nodded.': ['"Where are you?" she asked.', '"Here."', "He nodded."],
    "Is it ? Yes !": ["Is it ?", "Yes !"],
}


@PROPERTY
@given(
    st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join),
    st.sampled_from(["en", "de_AT", "fr", "zh", "hi", "xx", None]),
)
@example("Z\u00a0. A", "fr")  # sentencex steps over a space of two bytes as over one
@example("\r\n a.\x1c\x85b.", "en")
def test_nothing_is_lost_between_sentences(text, language):
    pieces = split_sentences(text, language)
    assert "".join(pieces) == text
    assert not any(space.strip() for space in pieces[::2])
    assert all(sentence and sentence == sentence.strip() for sentence in pieces[1::2])
    assert not any(len(sentence.splitlines()) > 1 for sentence in pieces[1::2])
    config = PreTrainedConfig(source_language=language, target_language="zh")  # writes no spaces
    paragraph = Paragraph.of(config, text)
    assert paragraph.join(paragraph.sentences) == text


@pytest.mark.parametrize(("text", "sentences"), PARAGRAPHS.items())
def test_english_sentences(text, sentences):
    assert Paragraph.of(EN_DE, text).sentences == sentences


def test_rules_of_the_source_language():
    german = "Am 3. Oktober kam Dr. M\u00fcller z. B. nach Berlin. Das war's."
    reverse = PreTrainedConfig(source_language="de", target_language="en")
    assert Paragraph.of(reverse, german).sentences == [german[:-11], "Das war's."]
    two_way = PreTrainedConfig(language_tags={"en": 8, "de": 9})
    assert Paragraph.of(two_way, f"<2en> {german}").sentences == [f"<2en> {german[:-11]}", "<2en> Das war's."]


def test_sentences_are_separated_as_the_target_language_writes_them():
    text = "\u4f60\u597d\u3002\u6211\u53eb\u5c0f\u660e\u3002"
    assert (
        Paragraph.of(PreTrainedConfig(source_language="zh", target_language="en"), text).join(["A.", "B."]) == "A. B."
    )
    assert Paragraph.of(PreTrainedConfig(source_language="zh", target_language="ja"), text).join(["A.", "B."]) == "A.B."


class Texts(Dataset):
    def __len__(self) -> int:
        return len(PARAGRAPHS)

    def __getitem__(self, index: int) -> str:
        return list(PARAGRAPHS)[index]


@pytest.fixture
def translator(lively_model):
    return pipeline("translation", model=str(lively_model))


def test_each_sentence_of_a_text_is_translated_and_white_space_kept(translator):
    texts, expected = list(PARAGRAPHS), []
    for text, sentences in PARAGRAPHS.items():
        translated = iter([translator(sentence, **SHORT)[0]["translation_text"] for sentence in sentences])
        pattern = "|".join(map(re.escape, sentences))
        expected.append({"translation_text": re.sub(pattern, lambda match: next(translated), text)})  # noqa: B023
    assert len({each["translation_text"] for each in expected}) == len(texts)
    assert translator(texts, split_sentences=True, **SHORT) == expected
    assert translator(texts[0], split_sentences=True, **SHORT) == expected[:1]
    assert translator([], split_sentences=True) == []
    assert translator(" \n\n ", split_sentences=True) == [{"translation_text": " \n\n "}]
    assert translator(["", texts[1]], split_sentences=True, **SHORT) == [{"translation_text": ""}, expected[1]]
    for stream in (Texts(), (text for text in texts)):
        streamed = translator(stream, split_sentences=True, batch_size=3, **SHORT)
        assert not isinstance(streamed, list)
        assert list(streamed) == [[each] for each in expected]


@pytest.mark.parametrize("tokens_per_batch", [1, 4096])
def test_texts_in_batches_are_complete_when_all_their_sentences_are(translator, tokens_per_batch):
    model, tokenizer, texts = translator.model, translator.tokenizer, [*PARAGRAPHS, "", "Dogs!", " \n"]
    expected = [[each["translation_text"]] for each in translator(texts, split_sentences=True, **SHORT)]
    options = {"tokens_per_batch": tokens_per_batch, "split_sentences": True, **SHORT}
    batches = list(translate_in_batches(model, tokenizer, texts, **options))
    assert len(batches) == (1 if tokens_per_batch == 4096 else sum(map(len, PARAGRAPHS.values())) + 1) + 1
    found = {
        index: translations for indices, each in batches for index, translations in zip(indices, each, strict=True)
    }
    assert sum(len(indices) for indices, _ in batches) == len(texts)
    assert [found[index] for index in range(len(texts))] == expected


def test_hypotheses_of_a_text_are_those_of_its_sentences_by_rank(translator):
    options = {"num_return_sequences": 2, **SHORT}
    first, second = (translator(sentence, **options) for sentence in ("Dogs!", "A man sleeps."))
    joined = [f"{a['translation_text']} {b['translation_text']}" for a, b in zip(first, second, strict=True)]
    found = translator("Dogs! A man sleeps.", split_sentences=True, **options)
    assert [each["translation_text"] for each in found] == joined
    assert len(set(joined)) == 2


def test_splitting_needs_a_library(translator, monkeypatch):
    monkeypatch.setattr(languages_vaswani, "sentencex", None)
    with pytest.raises(ImportError, match="run `pip install sentencex`"):
        translator("Dogs! Cats!", split_sentences=True)


@pytest.fixture
def trained_on_short(lively_model):
    """A pipeline of a model that was trained on sentences of at most 12 tokens."""
    model = AutoModelForSeq2SeqLM.from_pretrained(lively_model)
    model.config.longest_source = 12
    return pipeline("translation", model=model, tokenizer=AutoTokenizer.from_pretrained(lively_model))


def test_one_warning_a_call_of_inputs_longer_than_anything_trained_on(trained_on_short, caplog):
    long = "The old man reads a book. " * 4
    tokens = len(trained_on_short.tokenizer(long).input_ids)
    calls = {
        "whole": lambda: trained_on_short(["Dogs!", long, long], **SHORT),
        "single": lambda: trained_on_short(long, **SHORT),
        "stream": lambda: list(trained_on_short((text for text in ("Dogs!", long, long)), **SHORT)),
    }
    with caplog.at_level(logging.WARNING):
        for name, call in calls.items():
            caplog.clear()
            call()
            (warning,) = [record.getMessage() for record in caplog.records]
            number = 0 if name == "single" else 1
            assert warning.startswith(f"text {number} has {tokens} tokens, and the longest sentence trained on 12; ")
            assert warning.endswith("split_sentences=True")
        caplog.clear()
        trained_on_short(["Dogs!", "A cat."], **SHORT)
        trained_on_short("Dogs! Cats! " * 9, split_sentences=True, **SHORT)
        assert not caplog.records
        trained_on_short(["Dogs! " + "dog " * 20], split_sentences=True, **SHORT)
        assert "a sentence of text 0 has" in caplog.records[0].getMessage()


def test_without_a_record_of_the_training_there_is_no_warning(translator, caplog):
    assert AutoConfig.from_pretrained(translator.model.config._name_or_path).longest_source is None
    with caplog.at_level(logging.WARNING):
        translator(["dog " * 200], **SHORT)
    assert not caplog.records
