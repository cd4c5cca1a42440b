"""Saved models that are broken, do not fit together or would run code are refused in one line, before any work."""

import hashlib
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import change_json, refusal
from models import distinct, with_own_softmax
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.data.prepared_directory import load_tokenizer
from vaswani_transformer.decoding.saved_model import open_model


@pytest.fixture
def model(saved_model, tmp_path) -> Path:
    """A copy of a saved model, to be broken."""
    return shutil.copytree(saved_model, tmp_path / "model")


def change_weights(directory: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(directory / "model.safetensors")
    edit(weights)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def refused(name: object, **options: Any) -> str:
    """The one line with which a model is refused."""
    with pytest.raises(ValueError, match=r"^model: ") as caught:
        open_model(name, **options).load()
    message = str(caught.value)
    assert str(name) in message
    assert len(message.splitlines()) == 1
    return message


def test_a_saved_model_is_loaded_as_it_was_saved(saved_model, tokenizer):
    saved = open_model(saved_model)
    model = saved.load()
    assert type(model) is VaswaniForConditionalGeneration  # the package's class, though config.json has an auto_map
    assert not model.training
    weights = load_file(saved_model / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in weights.items())
    assert saved.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert saved.load("float16").dtype == torch.float16


@pytest.mark.parametrize("changes", [{}, {"target_vocab_size": 43}], ids=["one vocabulary", "two"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_model_whose_matrices_are_not_those_of_its_flag_is_loaded_as_it_was_saved(flag, changes, tmp_path, caplog):
    model, ids = with_own_softmax(**changes), torch.tensor([[5, 6, 7, 1]])
    model.config.tie_word_embeddings = flag
    expected = model(ids, labels=ids).logits
    model.save_pretrained(tmp_path)
    assert torch.equal(model(ids, labels=ids).logits, expected)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["tie_word_embeddings"] is False
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids, labels=ids).logits, expected)
    softmax = loaded.lm_head.weight
    loaded.save_pretrained(tmp_path)
    assert loaded.lm_head.weight is softmax  # an optimizer may hold it
    assert not caplog.records


@pytest.mark.parametrize("make", [with_own_softmax, distinct])
def test_weights_that_accelerate_has_gathered_are_loaded_as_they_were_saved(make, tmp_path):
    model, ids = make(), torch.tensor([[5, 6, 7, 1]])
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path, state_dict=model.state_dict())
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids, labels=ids).logits, model(ids, labels=ids).logits)


def test_a_file_with_a_matrix_of_its_own_for_the_softmax_is_not_tied_later_either(tmp_path):
    distinct().save_pretrained(tmp_path)
    change_weights(tmp_path, lambda weights: weights.update({"lm_head.weight": weights["model.shared.weight"] + 1}))
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.config.tie_word_embeddings is False
    embedding = loaded.model.encoder.embed_tokens.weight.clone()
    loaded.resize_token_embeddings(52)
    loaded.tie_weights()
    assert torch.equal(loaded.lm_head.weight[:50], embedding + 1)
    for stack in (loaded.model.encoder, loaded.model.decoder):
        assert torch.equal(stack.embed_tokens.weight[:50], embedding)


def test_a_model_of_transformers_is_loaded_and_checked(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 400}
    model = MarianMTModel(MarianConfig(**sizes, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0))
    model.generation_config.max_length = 512
    model.save_pretrained(tmp_path)
    assert type(open_model(tmp_path).load()) is MarianMTModel
    assert "is of type 'marian', not 'vaswani'" in refused(tmp_path, model_type="vaswani")
    corpus = (sentence for pair in phrasebook("validation") for sentence in pair)
    VaswaniTokenizer.train(corpus, 500, show_progress=False).save_pretrained(tmp_path)
    assert "does not fit: it has 500 entries, the model's vocabulary 400" in refused(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"d_model": 32}, "mismatched_keys .*model.decoder"),
        ({"attention_bias": False}, "unexpected_keys model.decoder.layers.0.*bias"),
        ({"d_model": "16"}, "'d_model' expected int"),
        ({"model_type": "bert", "auto_map": {}}, "Unrecognized configuration class .*Bert"),
        ({"is_encoder_decoder": False}, "is not an encoder-decoder"),
        ({"attn_implementation": "user/kernel"}, "attn_implementation names code on the Hub"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_configuration_that_does_not_fit_is_refused(model, values, message):
    change_json(model / "config.json", **values)
    assert re.search(message, refused(model))


def test_an_eos_token_in_a_list_is_read_as_a_number(model):
    change_json(model / "generation_config.json", eos_token_id=[1])
    assert open_model(model).load().generation_config.eos_token_id == 1


def test_a_search_without_a_length_limit_is_refused(model):
    change_json(model / "generation_config.json", max_new_tokens_over_source=None)
    assert "generation_config.json has no length limit" in refused(model)


def with_manifest(directory: Path) -> None:
    """Write digests of all files, as an independent reader of the description would."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in directory.iterdir()
        if path.name not in ("config.json", "generation_config.json", "README.md")
    }
    (directory / "manifest.json").write_text(json.dumps({"files": files}), encoding="utf-8")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_byte_that_differs_from_the_manifest_is_noticed(model, name):
    with_manifest(model)
    open_model(model)
    content = (model / name).read_bytes()
    (model / name).write_bytes(content[:-1] + b"~")
    message = refused(model)
    assert f"{name} has changed since it was written; copy it from" in message
    assert "delete manifest.json" in message
    (model / name).write_bytes(content)
    open_model(model)


def test_no_program_loses_the_fact_that_another_writes_meanwhile(model):
    change_json(model / "config.json", language_tags={"de": 3, "en": 4}, confidence_curve={"de": [[-1.0, 2.0]]})
    first, second = open_model(model), open_model(model)
    first.update_config(alignment_heads=[[0, 0]], confidence_curve={"en": [[-1.0, 3.0]]})
    second.update_config(longest_source=9, confidence_curve={"de": [[-1.0, 4.0]]})
    config = open_model(model).config
    assert (config.alignment_heads, config.longest_source) == ([[0, 0]], 9)
    assert config.confidence_curve == {"de": [[-1.0, 4.0]], "en": [[-1.0, 3.0]]}


@pytest.mark.parametrize("content", [None, b"\x00\xff"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json"])
def test_a_missing_or_damaged_file_is_an_error_of_one_line(model, name, content):
    (model / name).unlink()
    if content is not None:
        (model / name).write_bytes(content)
    refused(model)


def test_a_directory_without_a_configuration_is_no_model(tmp_path):
    assert refused(tmp_path).endswith(": is no model, since it has no config.json")


def test_weights_that_are_cut_off_or_lack_a_tensor_are_refused(model):
    file = model / "model.safetensors"
    content = file.read_bytes()
    for length in (0, 4, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        assert "SafetensorError" in refused(model)
    file.write_bytes(content)
    change_weights(model, lambda weights: weights.pop("model.encoder.layers.0.feed_forward.fc1.weight"))
    assert "missing_keys model.encoder.layers.0.feed_forward.fc1.weight" in refused(model)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(model, value):
    name = "model.decoder.layers.0.feed_forward.fc2.weight"
    change_weights(model, lambda weights: weights[name][3].fill_(value))
    assert f"{name} has values that are not finite" in refused(model)


def test_pickled_weights_are_not_read(model):
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "pytorch_model.bin")
    assert "no file named model.safetensors" in refused(model)


def test_a_tokenizer_with_other_special_ids_is_refused(model):
    change_json(model / "tokenizer_config.json", eos_token="<unk>")
    assert "does not fit: its eos_token_id is 2, the model's 1" in refused(model)


@pytest.mark.parametrize("name", ["/nowhere", "nobody/nothing", ""])
def test_a_name_without_a_model_is_refused(name):
    with pytest.raises(ValueError, match=f"^compare: {name}: is neither a directory nor an accessible"):
        open_model(name, option="compare")


TRAP = """
import pathlib
pathlib.Path({trace!r}).touch()
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
class Config(PreTrainedConfig):
    model_type = "trap"
    is_encoder_decoder = True
class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def trap(model, tmp_path) -> Path:
    """A model whose code leaves a trace where it runs: the file `trace` beside it."""
    (model / "trap.py").write_text(TRAP.format(trace=str(tmp_path / "trace")), encoding="utf-8")
    change_json(model / "config.json", model_type="trap", auto_map={"AutoConfig": "trap.Config"})
    change_json(
        model / "tokenizer_config.json",
        tokenizer_class="TrapTokenizer",
        auto_map={"AutoTokenizer": [None, "trap.Tokenizer"]},
    )
    return model


def test_code_runs_only_where_it_is_trusted(trap, tmp_path):
    assert "contains custom code" in refused(trap)
    with pytest.raises(ValueError, match=r"^tokenizer: "):
        load_tokenizer(trap)
    assert not (tmp_path / "trace").exists()
    refused(trap, trust_remote_code=True)  # it has no model class
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate.py", "--model", "{trap}", "--output", "{folder}/out.txt"],
        ["train_wmt.py", "--config", "recipes/configs/demo.yaml", "--tokenizer", "{trap}", "--output_dir", "{new}"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_recipes_run_no_code_of_a_model_and_leave_standard_input_alone(arguments, trap, tmp_path, monkeypatch):
    answers = io.TextIOWrapper(io.BytesIO(b"y\n" * 9))
    places = {"trap": trap, "folder": tmp_path, "new": tmp_path / "new"}
    name, *options = [argument.format(**places) for argument in arguments]
    monkeypatch.setattr(sys, "stdin", answers)
    assert str(trap) in refusal(name, *options)
    assert answers.buffer.tell() == 0
    assert not (tmp_path / "trace").exists()
