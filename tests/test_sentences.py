import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig, pipeline
from transformers.utils.logging import warning_once

from vaswani_transformer.model import sentences_vaswani
from vaswani_transformer.model.languages_vaswani import Directions
from vaswani_transformer.model.sentences_vaswani import Paragraph, split_sentences
from vaswani_transformer.model.translation_vaswani import in_order, translate_in_batches


SHORT = {"max_new_tokens": 8}
EN_DE = PreTrainedConfig(source_language="en", target_language="de")
PIECES = [" ", "\n", "\n\n", "\u00a0", "\u3000", "Dr.", "Z", ".", "?", "!", "\u3002", '"', "\u201c", "A dog", "3", "-"]

PARAGRAPHS = {
    "  Dogs!  A man sleeps.\n\nThe end\nof it. ": ["Dogs!", "A man sleeps.", "The end", "of it."],
    "Dr. Smith paid $3.50. He left at 5 p.m. on Friday.": ["Dr. Smith paid $3.50.", "He left at 5 p.m. on Friday."],
    '"Where are you?" she asked. "Here." He nodded.': ['"Where are you?" she asked.', '"Here."', "He nodded."],
    "Is it ? Yes !": ["Is it ?", "Yes !"],
}


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
    assert not any("\n" in sentence for sentence in pieces[1::2])
    for target in ("en", "zh"):
        config = PreTrainedConfig(source_language=language, target_language=target)
        paragraph = Paragraph.split(Directions(config), text)
        assert "".join(paragraph.join(paragraph.sentences).split()) == "".join(text.split())


@pytest.mark.parametrize(("text", "sentences"), PARAGRAPHS.items())
def test_english_texts_are_split_into_sentences(text, sentences):
    assert Paragraph.split(Directions(EN_DE), text).sentences == sentences


def test_texts_are_split_by_the_rules_of_the_source_language():
    german = "Am 3. Oktober kam Dr. M\u00fcller z. B. nach Berlin. Das war's."
    reverse = PreTrainedConfig(source_language="de", target_language="en")
    assert Paragraph.split(Directions(reverse), german).sentences == [german[:-11], "Das war's."]
    two_way = PreTrainedConfig(language_tags={"en": 8, "de": 9})
    assert Paragraph.split(Directions(two_way), f"<2en> {german}").sentences == [
        f"<2en> {german[:-11]}",
        "<2en> Das war's.",
    ]


# With "|" where a sentence ends.
SCRIPTS = [
    ("hi", "मैं घर जाता हूँ।|वह आता है॥|हाँ।"),
    ("hi", "वह आया।|1965 में।|१९६५ में।|शिवः ॥11॥"),
    ("hi", "डॉ. शर्मा और प्रो. सिंह 5 कि. मी. दूर हैं. |(श्री. वर्मा) आए. |वह गया।"),
    ("bn", "ড. ইউনূস ও মো. রহিম এসেছেন।|কি. মি. ৫।"),
    ("ar", "د. أحمد جاء. |ثم ذهب."),
    ("my", "မင်္ဂလာပါ။|နေကောင်းလား။"),
    ("khm", "ខ្ញុំទៅផ្ទះ។|គាត់មក៕| ឆ្មា ឆ្កែ ។ល។"),
    ("th", "ฉันกลับบ้าน เขามา พ.ศ. 2567 ไปไหม?| ดี"),
    ("bo", "བཀྲ་ཤིས་བདེ་ལེགས། །|ཁྱེད་རང་། |སྐུ་གཟུགས།"),
    ("jpn", "｢今日は｡｣|元気ですか｡|はい!|No.1です．"),
    ("ja", "「行く。帰る。」と言った。|とても暑い。|『何?』と彼。"),
    ("ja", "学生です。|25人が来た。"),
    ("yue", "「唔好。」|佢話。|3個人。"),
    ("cmn_Hans", "你好?|我叫小明!!|我用Yahoo!上网.|价格3.5元.|“再见。”|他说:“走吧!”|等等...好。"),
    ("am", "ሰላም።|እንዴት ነህ።"),
    ("ur", "یہ ہے۔|وہ آیا؟|ہاں۔"),
]


@pytest.mark.parametrize(("language", "text"), SCRIPTS)
def test_sentences_of_other_scripts_end_at_their_marks(language, text):
    config = PreTrainedConfig(source_language=language)
    sentences = [sentence.strip() for sentence in text.split("|")]
    assert Paragraph.split(Directions(config), text.replace("|", "")).sentences == sentences


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (None, "A. B.  C.\n D."),
        ("en", "A. B.  C.\n D."),
        ("th", "A. B.  C.\n D."),
        *((code, "A.B.C.\n D.") for code in ("ja", "jpn", "yue", "yue_Hant", "cmn", "zho_Hant", "wuu")),
    ],
)
def test_sentences_are_separated_as_the_target_language_writes_them(target, expected):
    config = PreTrainedConfig(source_language="zh", target_language=target)
    text = "\u4f60\u597d\u3002\u6211\u53eb\u5c0f\u660e\u3002  OK.\n OK."
    assert Paragraph.split(Directions(config), text).join(["A.", "B.", "C.", "D."]) == expected


@pytest.fixture
def translator(lively_model):
    return pipeline("translation", model=str(lively_model))


def test_each_sentence_of_a_text_is_translated_and_white_space_between_kept(translator):
    texts, expected = list(PARAGRAPHS), []
    for text, sentences in PARAGRAPHS.items():
        translated = iter([translator(sentence, **SHORT)[0]["translation_text"] for sentence in sentences])
        pattern = "|".join(map(re.escape, sentences))
        expected.append({"translation_text": re.sub(pattern, lambda match: next(translated), text.strip())})  # noqa: B023
    assert len({each["translation_text"] for each in expected}) == len(texts)
    assert translator(texts, **SHORT) == expected
    assert translator(texts[0], **SHORT) == expected[:1]
    assert translator(["", texts[1]], **SHORT) == [{"translation_text": ""}, expected[1]]
    assert list(translator((text for text in texts), batch_size=3, **SHORT)) == [[each] for each in expected]


@pytest.mark.parametrize("tokens_per_batch", [1, 4096])
def test_texts_in_batches_are_complete_when_all_their_sentences_are(translator, tokens_per_batch):
    model, tokenizer, texts = translator.model, translator.tokenizer, [*PARAGRAPHS, "", "Dogs!", " \n"]
    expected = [[each["translation_text"]] for each in translator(texts, **SHORT)]
    options = {"tokens_per_batch": tokens_per_batch, "split_sentences": True, **SHORT}
    batches = list(translate_in_batches(model, tokenizer, texts, **options))
    assert len(batches) == (1 if tokens_per_batch == 4096 else sum(map(len, PARAGRAPHS.values())) + 1) + 1
    assert sum(len(indices) for indices, _ in batches) == len(texts)
    assert [[each.text for each in ranked] for ranked in in_order(batches)] == expected


def whole(translator, text: str, **options) -> list[str]:
    """The translations of a text as one sentence, by `generate`."""
    inputs = translator.tokenizer(text, return_tensors="pt")
    ids = translator.model.generate(**inputs, **options, **SHORT)
    return translator.tokenizer.batch_decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("option", "given", "of_generate"),
    [
        ("return_scores", True, {}),
        ("return_alignment", True, {}),
        ("num_return_sequences", 3, {"num_return_sequences": 3}),
        ("decoder_input_ids", torch.tensor([[0, 7]]), {"decoder_input_ids": torch.tensor([[0, 7]])}),
        ("streamer", SimpleNamespace(put=str, end=str), {"num_beams": 1}),
    ],
)
def test_what_is_of_one_sentence_leaves_texts_whole_and_warns_of_several(
    translator, caplog, option, given, of_generate
):
    options = {option: given, **of_generate, **SHORT}
    warning_once.cache_clear()
    for text, count in (("Dogs!", 0), ("Dogs! A man sleeps.", 1)):
        found = translator(text, return_text=True, **options)
        assert [each["translation_text"] for each in found] == whole(translator, text, **of_generate)
        start = f"{option}: applies to a single sentence; a text of several"
        assert [record.getMessage().startswith(start) for record in caplog.records].count(True) == count


def test_texts_stay_whole_on_request_and_samples_do_not(translator, caplog):
    assert (
        translator("Dogs! A man sleeps.", split_sentences=False, **SHORT)[0]["translation_text"]
        == whole(translator, "Dogs! A man sleeps.")[0]
    )
    sampled = {"do_sample": True, "top_k": 1, "num_beams": 1, "num_return_sequences": 2}
    (one, two) = translator("Dogs! A man sleeps.", **sampled, **SHORT)
    assert one["translation_text"] == two["translation_text"]
    assert one == translator("Dogs! A man sleeps.", num_beams=1, **SHORT)[0]
    assert not any("single sentence" in record.getMessage() for record in caplog.records)


def test_without_the_library_texts_stay_whole_and_one_line_says_so(translator, monkeypatch, caplog):
    monkeypatch.setattr(sentences_vaswani, "sentencex", None)
    warning_once.cache_clear()
    for text in ("Dogs!", "Dogs! A man sleeps."):
        assert [each["translation_text"] for each in translator(text, **SHORT)] == whole(translator, text)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "`pip install sentencex`" in message


@pytest.fixture
def trained_on_short(lively_model):
    """A pipeline of a model that was trained on sentences of at most 12 tokens."""
    model = AutoModelForSeq2SeqLM.from_pretrained(lively_model)
    model.config.longest_source = 12
    return pipeline("translation", model=model, tokenizer=AutoTokenizer.from_pretrained(lively_model))


def test_one_warning_of_sentences_longer_than_anything_trained_on(trained_on_short, caplog):
    long = " ".join(["The old man reads a book because"] * 4)
    warning_once.cache_clear()
    trained_on_short(["Dogs!", "A cat.", "Dogs! Cats! " * 9], **SHORT)
    assert not caplog.records
    trained_on_short(["Dogs!", long, long], **SHORT)
    trained_on_short(long, **SHORT)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("a sentence is longer than any training sentence (12 tokens), ")


def test_what_truncation_cuts_off_counts_for_the_warning(trained_on_short, caplog):
    trained_on_short.tokenizer.model_max_length = 12
    warning_once.cache_clear()
    trained_on_short("dog " * 20, truncation=True, **SHORT)
    assert len(caplog.records) == 1
