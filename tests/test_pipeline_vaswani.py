"""`pipeline("translation")` on what training leaves behind."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, pipeline
from transformers import pipelines as transformers_pipelines
from transformers.pipelines.pt_utils import KeyDataset

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer import VaswaniTranslationPipeline as TranslationPipeline
from vaswani_transformer.model.ensemble_vaswani import Ensemble
from vaswani_transformer.model.pipeline_vaswani import install_translation_task, translate_in_batches


SENTENCES = ["The old man buys a book today.", "Dogs!", "", "The child sleeps because it is tired.", "   "]
SHORT = {"max_new_tokens": 8}


@pytest.fixture
def translator(saved_model):
    return pipeline("translation", model=str(saved_model))


@torch.no_grad()
def translate_by_hand(directory, sentence, **options):
    """One sentence, through the model and tokenizer themselves."""
    if not sentence.strip():
        return ""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    output = model.generate(**tokenizer(sentence, return_tensors="pt"), **options)
    return tokenizer.decode(output[0], skip_special_tokens=True)


def translate_all(translator, sentences, **options):
    """The translations of each sentence, in order, by `translate_in_batches`."""
    batches = translate_in_batches(translator.model, translator.tokenizer, sentences, **options, **SHORT)
    return [texts for _, texts in sorted(pair for batch in batches for pair in zip(*batch, strict=True))]


@pytest.mark.parametrize("task", ["translation", "translation_en_to_de"])
def test_both_names_of_the_task_are_known(saved_model, task):
    translator = pipeline(task, model=str(saved_model))
    assert isinstance(translator, TranslationPipeline)
    expected = translate_by_hand(saved_model, SENTENCES[0])
    assert translator(SENTENCES[0]) == [{"translation_text": expected}]


def test_models_translate_together(translator, saved_model, lively_model):
    other = AutoModelForSeq2SeqLM.from_pretrained(lively_model).eval()
    options = {"custom_generate": Ensemble([other]), **SHORT}
    found = translator(SENTENCES, **options)
    expected = [translate_by_hand(saved_model, sentence, **options) for sentence in SENTENCES]
    assert [each["translation_text"] for each in found] == expected
    with pytest.raises(ValueError, match=r"^return_scores, return_alignment: .*; leave them out with custom_generate"):
        translator(SENTENCES, **options, return_scores=True)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_lists_come_back_in_order_empty_sentences_empty(translator, saved_model, batch_size):
    results = translator(SENTENCES, batch_size=batch_size, **SHORT)
    assert results == [{"translation_text": translate_by_hand(saved_model, s, **SHORT)} for s in SENTENCES]
    assert results[2] == results[4] == {"translation_text": ""}


@pytest.fixture
def shapes(translator, monkeypatch):
    """The shapes of what `generate` is given."""
    shapes = []
    generate = translator.model.generate
    monkeypatch.setattr(
        translator.model, "generate", lambda **inputs: shapes.append(inputs["input_ids"].shape) or generate(**inputs)
    )
    return shapes


def test_batch_size_is_honoured_and_blank_sentences_are_not_decoded(translator, shapes):
    translator(SENTENCES, batch_size=2, **SHORT)
    assert [shape[0] for shape in shapes] == [2, 1]
    pipeline("translation", model=translator.model, tokenizer=translator.tokenizer, batch_size=1)(SENTENCES, **SHORT)
    assert [shape[0] for shape in shapes[2:]] == [1, 1, 1]


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


def test_translations_do_not_depend_on_batches(lively_model):
    translator = pipeline("translation", model=str(lively_model))
    sentences = [*SENTENCES, "one\u2028line", "a dog", "The old man sleeps.", "two pictures", "a"]
    expected = [translate_by_hand(lively_model, sentence, **SHORT) for sentence in sentences]
    assert len(set(expected)) >= len(expected) - 2
    for options in ({}, {"batch_size": 1}, {"batch_size": 3}, {"batch_size": 3, "num_workers": 0}):
        assert [row["translation_text"] for row in translator(sentences, **options, **SHORT)] == expected
    for tokens in (1, 20, 4096):
        assert translate_all(translator, sentences, tokens_per_batch=tokens) == [[text] for text in expected]


def test_what_the_pipeline_was_made_with_counts_for_lists_too(lively_model):
    translator = pipeline("translation", model=str(lively_model), max_new_tokens=2, num_return_sequences=2)
    assert translator([SENTENCES[0]]) == [translator(SENTENCES[0])]
    assert translator(SENTENCES[0], max_new_tokens=5) != translator(SENTENCES[0])
    search = GenerationConfig(max_new_tokens=5)  # replaces the constructor's, as in transformers' pipelines
    default = pipeline("translation", model=str(lively_model))
    assert translator(SENTENCES[0], generation_config=search) == default(SENTENCES[0], max_new_tokens=5)
    forced = pipeline("translation", model=str(lively_model), max_new_tokens=2, prefix_allowed_tokens_fn=lambda *_: [9])
    assert forced(SENTENCES[0]) != translator(SENTENCES[0])[:1]


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


def test_columns_and_tuples_are_read_like_lists(translator):
    from datasets import Dataset

    expected = translator(SENTENCES, **SHORT)
    assert translator(tuple(SENTENCES), **SHORT) == expected
    assert translator(Dataset.from_dict({"text": SENTENCES})["text"], **SHORT) == expected
    assert translator([]) == []


def test_several_hypotheses_are_returned_on_request(translator):
    hypotheses = translator("Dogs!", num_return_sequences=3, **SHORT)
    assert len(hypotheses) == 3
    nested = translator(["Dogs!", "Cats!"], num_return_sequences=3, batch_size=2, **SHORT)
    assert nested[0] == hypotheses
    assert [len(row) for row in nested] == [3, 3]
    assert translator(["", "Dogs!"], num_return_sequences=3, **SHORT) == [[{"translation_text": ""}] * 3, hypotheses]
    assert translator([" "], num_return_sequences=2, **SHORT) == [translator(" ", num_return_sequences=2, **SHORT)]
    translator.model.generation_config.num_return_sequences = 2
    assert translate_all(translator, [" ", "Dogs!"]) == [["", ""], [row["translation_text"] for row in hypotheses[:2]]]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_all_translations_begin_with_given_tokens(lively_model, num_beams):
    translator = pipeline("translation", model=str(lively_model))
    prefix = translator.tokenizer(text_target="Der alte", add_special_tokens=False, return_tensors="pt").input_ids
    options = {**SHORT, "num_beams": num_beams, "decoder_input_ids": prefix}
    found = [each["translation_text"] for each in translator(SENTENCES, batch_size=2, **options)]
    assert found == [translate_by_hand(lively_model, sentence, **options) for sentence in SENTENCES]
    assert [text.startswith("Der alte") for text in found] == [bool(sentence.strip()) for sentence in SENTENCES]
    listed = translator(SENTENCES, batch_size=2, **{**options, "decoder_input_ids": prefix.tolist()})
    assert [each["translation_text"] for each in listed] == found
    ended = torch.cat((prefix, torch.tensor([[translator.tokenizer.eos_token_id]])), dim=1)
    for wrong in (prefix.expand(2, -1), prefix[0], prefix[:, :0], ended):
        with pytest.raises(ValueError, match=r"^decoder_input_ids: must be one row without EOS"):
            translator(SENTENCES, **{**options, "decoder_input_ids": wrong})


def test_other_things_than_text_are_refused(translator):
    for inputs, kind in ((7, "int: 7"), (["Dogs!", None], "NoneType: None")):
        with pytest.raises(TypeError, match=f"takes strings, not {kind}"):
            translator(inputs)


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


def test_input_is_cut_on_request(translator):
    translator.tokenizer.model_max_length = 4
    cut = translator("dog " * 50, truncation=True, **SHORT)
    assert cut == translator("dog " * 9, truncation=True, **SHORT) != translator("dog " * 50, **SHORT)


def test_translations_end_with_a_stop_string(translator):
    whole = translator(SENTENCES[0], max_new_tokens=30)[0]["translation_text"]
    cut = translator(SENTENCES[0], max_new_tokens=30, stop_strings=[whole[3:6]], num_beams=1)[0]["translation_text"]
    assert cut.endswith(whole[3:6]) or whole[3:6] not in cut
    assert translator(SENTENCES[0], **SHORT, return_dict_in_generate=True) == translator(SENTENCES[0], **SHORT)


def test_a_tokenizer_with_languages_of_its_own_is_not_given_others(translator, monkeypatch):
    monkeypatch.setattr(type(translator.tokenizer), "set_src_lang_special_tokens", None, raising=False)
    with pytest.raises(ValueError, match=r"src_lang, tgt_lang: .* names languages itself"):
        translator(SENTENCES[0], tgt_lang="de")
    with pytest.raises(ValueError, match=r"src_lang, tgt_lang: .* names languages itself"):
        [*translate_in_batches(translator.model, translator.tokenizer, SENTENCES, target_language="de")]
    assert translator(SENTENCES[0], **SHORT)


def test_installing_the_task_again_changes_nothing():
    registry = transformers_pipelines.PIPELINE_REGISTRY
    before = registry.check_task
    install_translation_task()
    assert registry.check_task is before
    with pytest.raises(KeyError):
        registry.check_task("translation_nonsense")
    with pytest.raises(KeyError):
        transformers_pipelines.check_task("no-such-task")


def test_saved_pipeline_loads_again(translator, tmp_path):
    expected = translator(SENTENCES[0], **SHORT)
    translator.save_pretrained(tmp_path)
    assert pipeline("translation", model=str(tmp_path))(SENTENCES[0], **SHORT) == expected


@pytest.mark.system
def test_a_fresh_process_needs_only_the_import(hub, saved_model, tmp_path):
    code = (
        "import sys, vaswani_transformer\n"
        "from transformers import pipeline\n"
        "print(pipeline('translation_en_to_de', model=sys.argv[1])('Dogs!', max_new_tokens=8)[0]['translation_text'])"
    )
    result = hub.run(code, saved_model, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.rstrip("\n") == translate_by_hand(saved_model, "Dogs!", **SHORT)


class Rows(torch.utils.data.Dataset):
    """Rows as `datasets` has them."""

    def __len__(self):
        return len(SENTENCES)

    def __getitem__(self, index):
        return {"id": index, "text": SENTENCES[index]}


def test_a_dict_stands_for_its_text(translator):
    expected = translator(SENTENCES, **SHORT)
    assert translator({"text": SENTENCES[0]}, **SHORT) == expected[:1]
    assert translator([{"text": sentence, "id": 7} for sentence in SENTENCES], **SHORT) == expected
    assert translator([{"text": SENTENCES[0]}, SENTENCES[1]], batch_size=2, **SHORT) == expected[:2]
    assert list(translator(({"text": sentence} for sentence in SENTENCES), **SHORT)) == [[row] for row in expected]
    assert list(translator(Rows(), batch_size=2, **SHORT)) == [[row] for row in expected]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"inputs": "Dogs!", "id": 3}, r"dicts with \"text\"; text \d has only \['inputs', 'id'\]"),
        ({"text": ["Dogs!", "Cats!"]}, "takes strings, not list"),
    ],
)
def test_other_dicts_are_refused(translator, wrong, message):
    for inputs in (wrong, [SENTENCES[0], wrong]):
        with pytest.raises(TypeError, match=message):
            translator(inputs, **SHORT)


def test_a_lone_surrogate_is_refused(translator):
    message = r"'a\\ud800' has a lone surrogate at position 1; give valid Unicode$"
    texts = [*SENTENCES, "a\ud800"]
    for inputs, place in ((texts[-1], 0), (texts, len(SENTENCES))):
        with pytest.raises(ValueError, match=f"^text {place}: {message}"):
            list(translator(inputs, **SHORT))


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
        ("translation_en_to_de", {"src_lang": "fr"}, "translates from en, not fr"),
    ],
)
def test_another_language_pair_than_the_models_is_refused(english_to_german, task, languages, message):
    with pytest.raises(ValueError, match=message):
        pipeline(task, model=english_to_german, **languages)
    if languages:
        translator = pipeline(task, model=english_to_german)
        with pytest.raises(ValueError, match=message):
            translator("Dogs!", **languages, **SHORT)
        with pytest.raises(ValueError, match=message):
            translator(["Dogs!", {"text": "Dogs!", **languages}], **SHORT)


@pytest.mark.parametrize(
    "task", ["translation", "translation_en_to_de", "translation_en_US_to_DE", "translation_en_to_de-AT"]
)
def test_the_models_own_language_pair_is_translated(english_to_german, task):
    translator = pipeline(task, model=english_to_german)
    expected = [{"translation_text": translate_by_hand(english_to_german, "Dogs!", **SHORT)}]
    assert translator("Dogs!", **SHORT) == translator("Dogs!", src_lang="en", tgt_lang="de-AT", **SHORT) == expected


def test_a_model_that_knows_no_languages_takes_any_pair(saved_model):
    assert AutoConfig.from_pretrained(saved_model).source_language is None
    assert pipeline("translation_en_to_fr", model=str(saved_model))("Dogs!", src_lang="xx", **SHORT)


def test_token_ids_are_returned_on_request(lively_model):
    translator = pipeline("translation", model=str(lively_model))
    sentences = ["Dogs!", " ", "The child sleeps because it is tired."]
    texts = [row["translation_text"] for row in translator(sentences, max_new_tokens=30)]
    both = translator(sentences, return_tensors=True, return_text=True, max_new_tokens=30)
    assert [row["translation_text"] for row in both] == texts
    for sentence, row in zip(sentences, both, strict=True):
        (alone,) = translator(sentence, return_tensors=True, max_new_tokens=30)
        assert alone.keys() == {"translation_token_ids"}
        assert alone["translation_token_ids"].tolist() == row["translation_token_ids"].tolist()
    by_hand = translator.model.generate(**translator.tokenizer(sentences[0], return_tensors="pt"), max_new_tokens=30)
    assert both[0]["translation_token_ids"].tolist() == by_hand[0].tolist()
    always = pipeline("translation", model=str(lively_model), return_tensors=True)
    assert always("Dogs!", return_tensors=False, max_new_tokens=30) == [{"translation_text": texts[0]}]


def test_spaces_before_punctuation_are_cleaned_up_on_request(translator, monkeypatch):
    seen = []
    monkeypatch.setattr(translator.tokenizer, "batch_decode", lambda *ids, **options: seen.append(options) or ["x ."])
    translator("Dogs!", clean_up_tokenization_spaces=True, **SHORT)
    assert seen == [{"skip_special_tokens": True, "clean_up_tokenization_spaces": True}]


@pytest.mark.parametrize(
    ("options", "limit"),
    [({}, 53), ({"num_beams": 8}, 53), ({"max_new_tokens": 500}, 500), ({"max_new_tokens_over_source": 9}, 12)],
)
def test_short_sentences_do_not_fill_memory(translator, monkeypatch, options, limit):
    """What the beams of a batch may generate is bounded, too: here each sentence has three tokens."""
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
