"""PEFT: adapters learn, forward and beam search see them, and the model beneath stays as it was."""

import copy
import shutil

import peft
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from vaswani_transformer import CheckpointAveraging, VaswaniTrainer, VaswaniTrainingArguments


LINEAR = "all-linear"  # PEFT has no default for this type of model
TOKENS = list(range(3, 200))
TASK = {"task_type": "SEQ_2_SEQ_LM"}


def lora(**more):
    return peft.LoraConfig(**{"r": 8, "target_modules": LINEAR, **TASK, **more})


METHODS = {
    "LoRA": lora(),
    "DoRA": lora(use_dora=True),
    "LoRA with trainable tokens": lora(trainable_token_indices=TOKENS),
    "LoRA of embeddings": lora(target_modules=["embed_tokens"]),
    "IA3": peft.IA3Config(target_modules=["k_proj", "v_proj", "fc2"], feedforward_modules=["fc2"], **TASK),
    "trainable tokens": peft.TrainableTokensConfig(
        token_indices=TOKENS, target_modules=["decoder.embed_tokens"], **TASK
    ),
    "prefix tuning": peft.PrefixTuningConfig(num_virtual_tokens=8, **TASK),
    "prompt tuning": peft.PromptTuningConfig(num_virtual_tokens=8, **TASK),
}
IS_PROMPT = {"prefix tuning", "prompt tuning"}  # no weights of the model change
FEW_NUMBERS = IS_PROMPT | {"IA3", "trainable tokens"}  # few parameters, which need a larger learning rate
IS_TIED = {"LoRA of embeddings", "trainable tokens"}  # merged, they would change the softmax, too


@pytest.mark.parametrize("method", METHODS)
def test_adapters(model, translate, logits, train, error_of_search, tmp_path, method):
    """Trained, seen by the search, taken off, saved and loaded, merged"""
    plain, translations = logits(model), translate(model)
    tuned = peft.get_peft_model(model, copy.deepcopy(METHODS[method])).eval()
    first, last = train(tuned, learning_rate=0.1 if method in FEW_NUMBERS else 1e-2)
    assert last < 0.99 * first
    error = error_of_search(tuned)
    assert error < 1e-3
    found, tuned_logits = translate(tuned), logits(tuned)
    changed = sum(new != old for new, old in zip(found, translations, strict=True))
    assert changed > 0
    with tuned.disable_adapter():
        assert torch.equal(logits(tuned), plain)
        assert method == "prompt tuning" or translate(tuned) == translations  # there PEFT leaves `generate` changed
    tuned.save_pretrained(tmp_path)
    fresh = type(model).from_pretrained(model.name_or_path, trust_remote_code=False).eval()
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path).eval()
    assert torch.equal(logits(loaded), tuned_logits)
    assert translate(loaded) == found
    if method not in IS_PROMPT | IS_TIED:
        merged = loaded.merge_and_unload()
        difference = (logits(merged) - tuned_logits).abs().max().item()
        assert difference < 1e-3
        assert translate(merged) == found


@pytest.mark.parametrize("method", sorted(IS_TIED))
def test_merging_into_shared_embeddings(model, method):
    """Merged: the softmax shares the matrix of the embeddings and would change, too"""
    with pytest.warns(UserWarning, match="tie_word_embeddings=True"):
        peft.get_peft_model(model, copy.deepcopy(METHODS[method]))


def test_trainable_tokens_of_two_matrices(model, logits):
    """Trainable tokens without target_modules: shared embeddings need target_modules=["decoder.embed_tokens"]"""
    tuned = peft.get_peft_model(model, peft.TrainableTokensConfig(token_indices=TOKENS, **TASK))
    with pytest.raises(ValueError, match="targeting the wrong layer"):
        logits(tuned)


def test_one_batch_of_several_adapters(model, encode, pairs, train):
    """A batch whose sentences name different adapters (adapter_names), searched with beams"""
    tuned = peft.get_peft_model(model, copy.deepcopy(METHODS["LoRA"]), "tuned").eval()
    train(tuned)
    batch = encode(pairs)
    sources = {name: batch[name] for name in ("input_ids", "attention_mask")}
    options = {"return_dict_in_generate": True, "output_scores": True}
    scores = {"tuned": tuned.generate(**sources, **options).sequences_scores}
    with tuned.disable_adapter():
        scores["__base__"] = tuned.generate(**sources, **options).sequences_scores
    names = ["tuned" if index % 2 else "__base__" for index in range(len(pairs))]
    # PEFT repeats the names for the beams only if their number is given here.
    mixed = tuned.generate(**sources, **options, adapter_names=names, num_beams=4).sequences_scores
    expected = torch.stack([scores[name][index] for index, name in enumerate(names)])
    error = (mixed - expected).abs().max().item()
    assert error < 1e-4


TRAINERS = {
    "Seq2SeqTrainer": (Seq2SeqTrainer, Seq2SeqTrainingArguments, {"per_device_train_batch_size": 4}),
    "VaswaniTrainer": (VaswaniTrainer, VaswaniTrainingArguments, {"source_tokens": 100, "target_tokens": 100}),
}


@pytest.fixture
def make_trainer(tokenizer, pairs, tmp_path):
    """Makes a trainer of an adapter of this name, of four steps, that saves at each."""
    rows = Dataset.from_list([dict(tokenizer(source, text_target=target)) for source, target in pairs])

    def make(model, name, adapter, *callbacks):
        trainer_class, arguments_class, sizes = TRAINERS[name]
        torch.manual_seed(0)
        args = arguments_class(
            str(tmp_path),
            max_steps=4,
            save_strategy="steps",
            save_steps=1,
            learning_rate=1e-2,
            report_to="none",
            use_cpu=True,
            **sizes,
        )
        return trainer_class(
            peft.get_peft_model(copy.deepcopy(model), lora(), adapter),
            args,
            train_dataset=rows,
            processing_class=tokenizer,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            callbacks=[*callbacks],
        )

    return make


@pytest.mark.parametrize("adapter", ["default", "named"])
@pytest.mark.parametrize("name", TRAINERS)
def test_resuming_and_averaging(model, logits, make_trainer, tmp_path, name, adapter):
    """Trained with CheckpointAveraging, resumed: the adapter is the mean of the last, the model beneath unchanged"""
    plain, averaging = logits(model), CheckpointAveraging(2)
    whole = make_trainer(model, name, adapter, averaging)
    whole.train()
    tuned = whole.model.eval()
    saved = [each / ("" if adapter == "default" else adapter) for each in averaging.averaged]
    assert [each.name for each in averaging.averaged] == ["checkpoint-3", "checkpoint-4"]
    first, second = (load_file(each / "adapter_model.safetensors") for each in saved)
    for part, weights in peft.get_peft_model_state_dict(tuned, adapter_name=adapter).items():
        torch.testing.assert_close(weights, (first[part] + second[part]) / 2)
        assert not torch.equal(first[part], second[part])
    averaged = logits(tuned)
    with tuned.disable_adapter():
        assert torch.equal(logits(tuned), plain)
    whole.save_model(tmp_path / "final")
    folder = tmp_path / "final" / ("" if adapter == "default" else adapter)
    assert torch.equal(logits(peft.PeftModel.from_pretrained(copy.deepcopy(model), folder).eval()), averaged)
    # The mean of the factors is not quite that of their products, but much nearer to it than a checkpoint is.
    merged = [
        peft.PeftModel.from_pretrained(copy.deepcopy(model), each).merge_and_unload().state_dict() for each in saved
    ]
    mean = copy.deepcopy(model)
    mean.load_state_dict({part: (merged[0][part] + merged[1][part]) / 2 for part in merged[0]})
    of_products = logits(mean)
    last = logits(peft.PeftModel.from_pretrained(copy.deepcopy(model), saved[1]).eval())
    assert (averaged - of_products).norm() < 0.1 * (last - of_products).norm()

    for each in averaging.averaged:
        shutil.rmtree(each)
    resumed = make_trainer(model, name, adapter, CheckpointAveraging(2))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    assert torch.equal(logits(resumed.model.eval()), averaged)
