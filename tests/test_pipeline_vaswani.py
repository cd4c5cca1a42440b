"""`pipeline("translation")` and the Auto classes, on what training leaves behind."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from transformers import pipelines as transformers_pipelines
from transformers.pipelines.pt_utils import KeyDataset

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer import VaswaniTranslationPipeline as TranslationPipeline
from vaswani_transformer.pipeline_vaswani import install_translation_task


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


def test_auto_classes_find_the_package(saved_model):
    assert isinstance(AutoConfig.from_pretrained(saved_model), VaswaniConfig)
    assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(saved_model), VaswaniForConditionalGeneration)
    assert isinstance(AutoTokenizer.from_pretrained(saved_model), VaswaniTokenizer)


@pytest.mark.parametrize("task", ["translation", "translation_en_to_de"])
def test_both_names_of_the_task_are_known(saved_model, task):
    translator = pipeline(task, model=str(saved_model))
    assert isinstance(translator, TranslationPipeline)
    expected = translate_by_hand(saved_model, SENTENCES[0])
    assert translator(SENTENCES[0]) == [{"translation_text": expected}]


def test_model_object_and_tokenizer_object_are_taken(saved_model):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved_model)
    tokenizer = AutoTokenizer.from_pretrained(saved_model)
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    assert translator("Dogs!", **SHORT) == [{"translation_text": translate_by_hand(saved_model, "Dogs!", **SHORT)}]


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_lists_come_back_in_order_empty_sentences_empty(translator, saved_model, batch_size):
    results = translator(SENTENCES, batch_size=batch_size, **SHORT)
    assert results == [{"translation_text": translate_by_hand(saved_model, s, **SHORT)} for s in SENTENCES]
    assert results[2] == results[4] == {"translation_text": ""}


def test_batch_size_is_honoured(translator, monkeypatch):
    sizes = []
    generate = translator.model.generate
    monkeypatch.setattr(
        translator.model, "generate", lambda **inputs: sizes.append(len(inputs["input_ids"])) or generate(**inputs)
    )
    translator(SENTENCES, batch_size=2, **SHORT)
    assert sizes == [2, 2, 1]


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


def test_length_is_limited_by_the_source_by_default(translator, monkeypatch):
    limits = []
    search = type(translator.model)._beam_search

    def spy(self, *args, generation_config, **kwargs):
        limits.append(generation_config.max_new_tokens)
        return search(self, *args, generation_config=generation_config, **kwargs)

    monkeypatch.setattr(type(translator.model), "_beam_search", spy)
    translator("Dogs!")
    assert limits == [len(translator.tokenizer("Dogs!").input_ids) + 50]


def test_other_things_than_text_are_refused(translator):
    with pytest.raises(TypeError, match="takes strings, not int: 7"):
        translator([7])


def test_very_long_input_is_translated(translator):
    assert translator("dog " * 2000, **SHORT)[0].keys() == {"translation_text"}
    assert translator("dog " * 2000, **SHORT) != translator("dog " * 3, **SHORT)


def test_input_beyond_a_learned_table_is_cut(tokenizer, tmp_path):
    config = VaswaniConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        d_ff=32,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=1,
        position_encoding="learned",
        max_position_embeddings=10,
    )
    translator = pipeline("translation", model=VaswaniForConditionalGeneration(config), tokenizer=tokenizer)
    assert translator("dog " * 200)[0].keys() == {"translation_text"}


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


def test_a_fresh_process_needs_only_the_import(saved_model):
    code = (
        "import sys, vaswani_transformer\n"
        "from transformers import pipeline\n"
        "print(pipeline('translation_en_to_de', model=sys.argv[1])('Dogs!', max_new_tokens=8)[0]['translation_text'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(saved_model)], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert result.stdout.rstrip("\n") == translate_by_hand(saved_model, "Dogs!", **SHORT)
