"""A model keeps its own search, whatever transformers fills in."""

import copy

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    GenerationMixin,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from vaswani_transformer import VaswaniTrainer, VaswaniTrainingArguments


SOURCES = ["The child sleeps because it is tired.", "Dogs!"]


@pytest.fixture
def model(loaded_model):
    return copy.deepcopy(loaded_model)


@pytest.fixture
def rows(tokenizer) -> Dataset:
    encoded = tokenizer(SOURCES, text_target=SOURCES)
    return Dataset.from_dict({"input_ids": encoded.input_ids, "labels": encoded.labels})


TRAINERS = {
    "transformers": (Seq2SeqTrainer, Seq2SeqTrainingArguments),
    "this package": (VaswaniTrainer, VaswaniTrainingArguments),
}


@pytest.fixture(params=TRAINERS)
def make_trainer(request, model, tokenizer, rows, tmp_path):
    """A function that makes a trainer that translates when it evaluates."""
    trainer_class, arguments_class = TRAINERS[request.param]
    settings = {"predict_with_generate": True, "per_device_eval_batch_size": 1, "use_cpu": True, "report_to": "none"}
    settings |= {"disable_tqdm": True, "learning_rate": 0.0, "max_steps": 1, "save_steps": 1}

    def make(**arguments):
        return trainer_class(
            model=model,
            args=arguments_class(str(tmp_path / "run"), **settings, **arguments),
            train_dataset=rows,
            eval_dataset=rows,
            processing_class=tokenizer,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model),
            compute_metrics=lambda predictions: {},  # without any, `evaluate` computes the loss alone
        )

    return make


def translate(model, tokenizer, **options) -> list[list[int]]:
    """The tokens of each translation, translated one by one."""
    outputs = [model.generate(**tokenizer(text, return_tensors="pt"), **options)[0] for text in SOURCES]
    return [without_padding(ids) for ids in outputs]


def without_padding(ids) -> list[int]:
    return [token for token in ids.tolist() if token > 0]


def predict(trainer) -> list[list[int]]:
    return [without_padding(torch.as_tensor(ids)) for ids in trainer.predict(trainer.eval_dataset).predictions]


def test_every_evaluation_translates_as_generate_did_before(make_trainer, model, tokenizer):
    expected = translate(model, tokenizer)
    assert min(map(len, expected)) > 20
    trainer = make_trainer()
    for _ in range(2):
        trainer.evaluate()
        assert predict(trainer) == expected
    assert translate(model, tokenizer) == expected


@pytest.mark.system
def test_checkpoints_and_the_saved_model_translate_as_the_model_did(make_trainer, model, tokenizer, tmp_path, caplog):
    """transformers' trainer fills in a limit after each batch, and its `generate` warns of it in the next."""
    expected = translate(model, tokenizer)
    trainer = make_trainer(eval_strategy="steps", eval_steps=1)
    trainer.train()
    trainer.evaluate()
    trainer.save_model()
    assert "max_length" not in caplog.text
    for directory in (tmp_path / "run", tmp_path / "run" / "checkpoint-1"):
        saved = AutoModelForSeq2SeqLM.from_pretrained(directory)
        assert translate(saved, tokenizer) == expected
        assert saved.generation_config.max_length is None


@pytest.mark.parametrize(
    "options",
    [{"eos_token_id": None}, {"suppress_tokens": None}, {"do_sample": True, "top_k": None, "temperature": 3.0}],
)
def test_a_keyword_that_is_none_removes_a_setting_as_in_transformers(model, tokenizer, options):
    inputs = tokenizer(SOURCES[0], return_tensors="pt")
    model.generation_config.update(num_beams=1, max_new_tokens=30)
    for name, place in (("suppress_tokens", 3), ("eos_token_id", 5)):
        setattr(model.generation_config, name, model.generate(**inputs)[0, [place]].tolist())

    def generate(function, **options):
        torch.manual_seed(0)
        return function(model, **inputs, **options).tolist()

    assert generate(type(model).generate, **options) == generate(GenerationMixin.generate, **options)
    kept = {name: value for name, value in options.items() if value is not None}
    assert generate(type(model).generate, **options) != generate(type(model).generate, **kept)


@pytest.mark.parametrize("content", [None, "{}", '{"_from_model_config": true, "eos_token_id": 1}'])
def test_a_file_that_says_nothing_of_the_search_leaves_it_to_the_paper(model, tokenizer, tmp_path, content):
    model.save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.unlink() if content is None else file.write_text(content, encoding="utf-8")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert translate(loaded, tokenizer) == translate(model, tokenizer)
    assert loaded.generation_config.to_dict() == model.generation_config.to_dict()
