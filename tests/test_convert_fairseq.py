"""Checkpoints in fairseq's formats, made by hand from FSMT models, which are transformers' port of fairseq's."""

import argparse
import copy
import json
import os
import re
import shlex
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacremoses
import torch
from datasets import Dataset
from foreign_models import (
    PAIRS,
    TEXTS,
    batch,
    require_sound_generate,
    same_logits,
    same_search,
    teach,
    untrained,
)
from helpers import Code, call_recipe
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    FSMTForConditionalGeneration,
    FSMTTokenizer,
    GenerationConfig,
    pipeline,
)
from transformers.activations import ACT2FN

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.convert.fairseq import fairseq_tokenizer, from_fairseq, read_checkpoint
from vaswani_transformer.data.cleaning import encode_corpus


RATES = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.15}
LEARNED = 32  # rows of a learned table of positions; none is at the first two, the second one being padding's


def options(model: FSMTForConditionalGeneration, **changes: Any) -> dict[str, Any]:
    """Options of a training: those that describe the model, and others."""
    return {
        "arch": "transformer_wmt_en_de",
        "activation_fn": "relu",
        "encoder_attention_heads": model.config.encoder_attention_heads,
        "decoder_attention_heads": model.config.decoder_attention_heads,
        "encoder_normalize_before": False,
        "decoder_normalize_before": False,
        **RATES,
        "max_source_positions": 512,
        "max_target_positions": 512,
        "source_lang": "en",
        "target_lang": "de",
        "lr": [0.0005],
        "update_freq": [16],
        "bpe": None,
        **changes,
    }


def weights_of(model: FSMTForConditionalGeneration) -> dict[str, torch.Tensor]:
    """The weights by fairseq's names."""
    state = model.state_dict().items()
    weights = {name.removeprefix("model."): weight for name, weight in state if "embed_positions" not in name}
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.version"] = torch.tensor([3.0])
        table = getattr(model.model, stack).embed_positions.weight
        if len(table) == LEARNED:
            weights[f"{stack}.embed_positions.weight"] = table.detach()
        else:
            weights[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    return OrderedDict(weights)


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """`cfg` of models whose options are dataclasses, as of 2021."""
    model: dict[str, Any] = {"_name": "transformer", "encoder": {}, "decoder": {}, "quant_noise": {"pq": 0.0}}
    task = {"_name": "translation", **{name: settings.pop(name) for name in ("source_lang", "target_lang")}}
    for name, value in settings.items():
        stack, _, rest = name.partition("_")
        (model[stack] if stack in ("encoder", "decoder") else model).update({rest if stack in model else name: value})
    return {"_name": None, "common": {"fp16": True}, "task": task, "model": model}


FORMATS = ("args", "namespace in cfg", "cfg")


def save_checkpoint(path: Path, model: FSMTForConditionalGeneration, form: str, **changes: Any) -> Path:
    """A file as fairseq leaves it, with the optimizer's state and statistics."""
    settings = options(model, **changes)
    saved: dict[str, Any] = {
        "args": None,
        "model": weights_of(model),
        "optimizer_history": [{"criterion_name": "LabelSmoothedCrossEntropyCriterion", "num_updates": 7}],
        "extra_state": {"epoch": 1, "val_loss": 4.2, "train_iterator": {"epoch": 1}},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3)}}},
    }
    if form == "args":
        saved["args"] = argparse.Namespace(**settings)
        if torch.equal(saved["model"]["decoder.output_projection.weight"], model.model.decoder.embed_tokens.weight):
            del saved["model"]["decoder.output_projection.weight"]  # until 2020
    elif form == "namespace in cfg":
        saved["cfg"] = {"model": argparse.Namespace(**settings), "task": {"_name": "translation"}}
    else:
        saved["cfg"] = nested(settings)
    meter = {"val": np.array([3, 1]), "sum": np.float64(0.5), "count": 2, "round": None}  # of --eval-bleu
    saved["extra_state"]["metrics"] = {"valid": [(100, "_bleu_counts", "AverageMeter", meter)]}
    torch.save(saved, path)
    return path


@pytest.fixture(scope="module", params=["own matrices", "own vocabularies", "one vocabulary", "learned positions"])
def model(request) -> FSMTForConditionalGeneration:
    """One that has learned to repeat some sources, its `sources`."""
    torch.manual_seed(0)
    changes = {"src_vocab_size": 49, "tie_word_embeddings": True} if request.param == "one vocabulary" else {}
    model = untrained("fsmt", **changes)
    if request.param == "own vocabularies":
        model.model.decoder.output_projection.weight = model.model.decoder.embed_tokens.weight
    if request.param == "learned positions":
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.data = torch.randn(LEARNED, model.config.d_model)
    model.sources = batch(model)
    teach(model, model.sources, steps=60)
    return model


@pytest.mark.parametrize("form", FORMATS)
def test_logits_are_the_same_in_every_format(model, form, tmp_path):
    converted = from_fairseq(read_checkpoint(save_checkpoint(tmp_path / "checkpoint_best.pt", model, form)))
    same_logits(model, converted, model.sources)


def test_it_searches_as_fairseq_does_by_default(model, tmp_path):
    converted = from_fairseq(read_checkpoint(save_checkpoint(tmp_path / "checkpoint_best.pt", model, "cfg")))
    assert (converted.config.source_language, converted.config.target_language) == ("en", "de")
    assert {name: getattr(converted.config, name) for name in RATES} == RATES
    limit = converted.generation_config.max_new_tokens
    assert limit == 201  # EOS is not counted there
    source = copy.deepcopy(model)
    search = {"num_beams": 5, "length_penalty": 1.0, "early_stopping": True, "max_new_tokens": limit}
    source.generation_config = GenerationConfig(**search, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2)
    lengths = same_search(source, converted, model.sources)
    assert len(set(lengths)) > 3
    assert max(lengths) < limit


def test_activations_are_converted_by_their_names_in_fairseq(tmp_path):
    source = untrained("fsmt")
    for theirs, function in (("gelu_accurate", "gelu_new"), ("gelu", "gelu"), ("swish", "silu")):
        path = save_checkpoint(tmp_path / f"{theirs}.pt", source, "cfg", activation_fn=theirs)
        for layer in (*source.model.encoder.layers, *source.model.decoder.layers):
            layer.activation_fn = ACT2FN[function]
        same_logits(source, from_fairseq(read_checkpoint(path)), batch(source))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_attention_heads": 2}, "^encoder_attention_heads: 2 of the encoder and 4 of the decoder"),
        ({"encoder_normalize_before": True}, "^encoder_normalize_before: cannot be expressed"),
        ({"activation_fn": "sine"}, "'sine'"),
    ],
)
def test_options_that_cannot_be_expressed_are_refused(changes, message, tmp_path):
    path = save_checkpoint(tmp_path / "checkpoint_best.pt", untrained("fsmt"), "cfg", **changes)
    with pytest.raises(ValueError, match=message):
        from_fairseq(read_checkpoint(path))


def test_a_damaged_file_is_refused_by_name(tmp_path):
    path = save_checkpoint(tmp_path / "checkpoint_best.pt", untrained("fsmt"), "args")
    whole = path.read_bytes()
    for content in (b"", b"no checkpoint\n", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: is not a file of torch.save, or is damaged"):
            read_checkpoint(path)
    with pytest.raises(OSError, match="nowhere"):
        read_checkpoint(tmp_path / "nowhere.pt")


class System(Code):
    def __reduce__(self):
        return os.system, (f"touch {shlex.quote(str(self.path))}",)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path):
    saved = {"args": argparse.Namespace(user_dir=System(tmp_path / "ran")), "model": {}}
    path = tmp_path / "checkpoint_best.pt"
    torch.save(saved, path)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: contains posix.system.* refused; if you trust"):
        read_checkpoint(path)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()  # it would have


def words_of(text: str, language: str) -> list[str]:
    return sacremoses.MosesTokenizer(lang=language).tokenize(text, aggressive_dash_splits=True, escape=True)


@pytest.fixture(scope="module")
def byte_pairs() -> Tokenizer:
    """A byte-pair vocabulary of the embedded corpus, learned and applied by another library."""
    learned = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learned.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=220, end_of_word_suffix="</w>", show_progress=False)
    corpus = (
        " ".join(words_of(text, language)) for pair in PAIRS for text, language in zip(pair, ("en", "de"), strict=True)
    )
    learned.train_from_iterator(corpus, trainer)
    return learned


def pieces(byte_pairs: Tokenizer, text: str, language: str) -> list[str]:
    """Pieces as fastBPE and subword-nmt write them: `@@` follows each but the last of a word."""
    found = byte_pairs.encode(" ".join(words_of(text, language))).tokens
    return [piece[: -len("</w>")] if piece.endswith("</w>") else f"{piece}@@" for piece in found]


@pytest.fixture(scope="module")
def dictionaries(byte_pairs, tmp_path_factory) -> Path:
    """A folder as `fairseq-preprocess` leaves it, and the codes, as of subword-nmt."""
    folder = tmp_path_factory.mktemp("data-bin")
    for side, language in enumerate(("en", "de")):
        counts = Counter(piece for pair in PAIRS for piece in pieces(byte_pairs, pair[side], language))
        lines = [f"{piece} {count}\n" for piece, count in counts.most_common()]
        lines += [f"madeupword{number:04d} 0\n" for number in range(-(len(lines) + 4) % 8)]
        (folder / f"dict.{language}.txt").write_text("".join(lines), encoding="utf-8")
    merges = [" ".join(pair) for pair in json.loads(byte_pairs.to_str())["model"]["merges"]]
    (folder / "bpecodes").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    return folder


def sizes(folder: Path) -> tuple[int, int]:
    """Entries of the dictionaries, with the four that stand in no file."""
    source, target = (len((folder / f"dict.{language}.txt").read_text().splitlines()) + 4 for language in ("en", "de"))
    return source, target


def tokenizer_of(folder: Path, source: int, target: int, target_language: str = "de") -> FSMTTokenizer:
    """The tokenizer for a model from English with vocabularies of these sizes."""
    config = VaswaniConfig(vocab_size=source, target_vocab_size=target)
    config.source_language, config.target_language = "en", target_language
    return fairseq_tokenizer(folder, config)


@pytest.mark.parametrize("codes", ["subword-nmt", "fastBPE"])
def test_text_has_the_ids_of_fairseqs_dictionary_and_comes_back(codes, byte_pairs, dictionaries, tmp_path):
    for path in dictionaries.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if codes == "fastBPE":
        merges = (tmp_path / "bpecodes").read_text(encoding="utf-8").splitlines()[1:]
        (tmp_path / "bpecodes").unlink()
        (tmp_path / "code").write_text("".join(f"{merge} 7\n" for merge in merges), encoding="utf-8")
    tokenizer = tokenizer_of(tmp_path, *sizes(tmp_path))
    english, german = (
        [line.rsplit(" ", 1)[0] for line in (tmp_path / f"dict.{language}.txt").open(encoding="utf-8")]
        for language in ("en", "de")
    )
    for source, target in PAIRS[:60]:
        expected = [english.index(piece) + 4 for piece in pieces(byte_pairs, source, "en")]
        assert tokenizer(source)["input_ids"] == [*expected, 2]
        ids = [german.index(piece) + 4 for piece in pieces(byte_pairs, target, "de")]
        assert tokenizer.decode([2, *ids, 2, 1], skip_special_tokens=True) == target
    assert tokenizer("\u4e16")["input_ids"] == [3, 2]
    assert not tokenizer.do_lower_case


def test_targets_are_divided_into_words_as_their_own_language(dictionaries, tmp_path):
    text = "L'homme dort aujourd'hui."
    (tmp_path / "bpecodes").write_bytes((dictionaries / "bpecodes").read_bytes())
    merged = {"".join(line.split()[:2]) for line in (tmp_path / "bpecodes").open(encoding="utf-8")}
    wholes = sorted({entry.removesuffix("</w>") for entry in merged} | set(text + "&apos;"))
    for language in ("en", "fr"):
        lines = "".join(f"{entry} 1\n{entry}@@ 1\n" for entry in wholes if entry.strip())
        (tmp_path / f"dict.{language}.txt").write_text(lines, encoding="utf-8")
    entries = lines.count("\n") + 4
    tokenizer = tokenizer_of(tmp_path, entries, entries, "fr")
    (row,) = encode_corpus(Dataset.from_list([{"translation": {"en": text, "fr": text}}]), tokenizer, "en", "fr")
    words = {
        side: "".join(tokenizer.convert_ids_to_tokens(row[side][:-1])).removesuffix("</w>").split("</w>")
        for side in ("input_ids", "labels")
    }
    moses = {language: sacremoses.MosesTokenizer(language).tokenize(text, escape=True) for language in ("en", "fr")}
    assert moses["en"] != moses["fr"]
    assert words == {"input_ids": moses["en"], "labels": moses["fr"]}
    assert tokenizer(text)["input_ids"] == row["input_ids"]  # the tokenizer itself is unchanged


def test_a_dictionary_without_capitals_was_made_of_lower_case(dictionaries, tmp_path):
    (tmp_path / "bpecodes").write_text("#version: 0.2\na b</w>\n", encoding="utf-8")
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").write_text("ab 3\nthe 2\nc@@ 1\n", encoding="utf-8")
    tokenizer = tokenizer_of(tmp_path, 7, 7)
    assert tokenizer("AB")["input_ids"] == [4, 2]


def test_the_recipe_makes_a_directory_that_translates_as_fsmt_does(dictionaries, tmp_path, capsys):
    source_size, target_size = sizes(dictionaries)
    source = untrained("fsmt", src_vocab_size=source_size, tgt_vocab_size=target_size)
    tokenizer = tokenizer_of(dictionaries, source_size, target_size)
    ids = tokenizer(TEXTS, return_tensors="pt", padding=True)["input_ids"]
    teach(source, ids.clamp(max=target_size - 1), steps=60)
    checkpoint = save_checkpoint(tmp_path / "checkpoint_best.pt", source, "args")
    arguments = ["--toolkit", "fairseq", "--model", checkpoint, "--output", tmp_path / "out"]
    for path in dictionaries.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    call_recipe("convert.py", *arguments)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(loaded) is FSMTTokenizer
    assert loaded.model_max_length == 512
    assert loaded(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    search = {"num_beams": 5, "early_stopping": True, "max_new_tokens": 201, "max_length": None, "bad_words_ids": None}
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    require_sound_generate(source)
    expected = tokenizer.batch_decode(source.generate(**inputs, **search), skip_special_tokens=True)
    assert len(set(expected)) > 3
    translator = pipeline("translation", model=str(tmp_path / "out"))
    assert [translation["translation_text"] for translation in translator(TEXTS)] == expected
    same_logits(source, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out"), ids.clamp(max=target_size - 1))
    assert "5 beams" in capsys.readouterr().out
