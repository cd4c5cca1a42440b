"""Seq2SeqTrainer and VaswaniTrainer with predict_with_generate: BLEU of whole translations while training."""

import copy

import pytest
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments

from vaswani_transformer import VaswaniTrainer, VaswaniTrainingArguments
from vaswani_transformer.evaluation.scores import sacrebleu_score


TRAINERS = {
    "Seq2SeqTrainer": (Seq2SeqTrainer, Seq2SeqTrainingArguments, {}),
    "VaswaniTrainer": (VaswaniTrainer, VaswaniTrainingArguments, {"source_tokens": 300, "target_tokens": 300}),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_predict_with_generate(model, tokenizer, pairs, translate, tmp_path, caplog, name):
    """predict_with_generate: its BLEU is that of our own translations, before and after training"""
    trainer_class, arguments_class, sizes = TRAINERS[name]
    references = [target for _, target in pairs]
    rows = Dataset.from_list([dict(tokenizer(source, text_target=target)) for source, target in pairs])
    settings = copy.deepcopy(model.generation_config.to_diff_dict())
    longest = []

    def bleu(predicted):
        tokens = predicted.predictions
        longest.append(tokens.shape[1])
        texts = tokenizer.batch_decode(tokens.clip(min=0), skip_special_tokens=True)
        return {"bleu": sacrebleu_score(texts, references).score}

    args = arguments_class(
        str(tmp_path),
        predict_with_generate=True,
        max_steps=2,
        learning_rate=1e-5,
        per_device_eval_batch_size=5,
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        **sizes,
    )
    trainer = trainer_class(
        model,
        args,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=bleu,
    )
    for moment in ("before", "after"):
        if moment == "after":
            trainer.train()
        found = trainer.evaluate()["eval_bleu"]
        expected = sacrebleu_score(translate(trainer.model), references).score
        assert found == pytest.approx(expected)
    assert max(longest) > 20  # transformers' default limit would cut them
    assert "max_length" not in caplog.text
    trainer.save_model()
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert saved.max_length is None  # the stock trainer has filled in 20, and other defaults, which change nothing
    assert settings.items() <= saved.to_diff_dict().items()
