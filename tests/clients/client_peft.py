"""PEFT: adapters learn, forward and beam search see them, and the model beneath stays as it was."""

import copy

import peft
import pytest
import torch


LINEAR = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
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
FEW_NUMBERS = IS_PROMPT | {"IA3"}  # few parameters, which need a larger learning rate
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
