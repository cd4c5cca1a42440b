"""Checkpoints in fairseq's formats, made by hand from FSMT models, which are transformers' port of fairseq's."""

import argparse
import copy
import io
import json
import os
import re
import sys
import types
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from test_convert import PAIRS, TEXTS, Code, batch, recipe, same_logits, same_search, teach, untrained  # noqa: F401
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, FSMTForConditionalGeneration, FSMTTokenizer, pipeline

from vaswani_transformer.convert.fairseq import convert_fairseq, read_checkpoint
from vaswani_transformer.convert.fairseq_tokenizer import fairseq_tokenizer, read_codes, read_dictionary


sacremoses = pytest.importorskip("sacremoses")

LEARNED = 32  # rows of a learned table of positions; none is at the first two, the second one being padding's


def options(model: FSMTForConditionalGeneration, **changes: Any) -> dict[str, Any]:
    """Those of training that tell what the model is, and others."""
    return {
        "arch": "transformer_wmt_en_de",
        "activation_fn": "relu",
        "encoder_attention_heads": model.config.encoder_attention_heads,
        "decoder_attention_heads": model.config.decoder_attention_heads,
        "encoder_normalize_before": False,
        "decoder_normalize_before": False,
        "dropout": 0.3,
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
    """By the names that fairseq has had since 2019."""
    weights = {
        name.removeprefix("model."): weight
        for name, weight in model.state_dict().items()
        if "embed_positions" not in name
    }
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.version"] = torch.tensor([3.0])
        table = getattr(model.model, stack).embed_positions.weight
        if len(table) == LEARNED:
            weights[f"{stack}.embed_positions.weight"] = table.detach()
        else:
            weights[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    return OrderedDict(weights)


def weights_of_2018(model: FSMTForConditionalGeneration) -> dict[str, torch.Tensor]:
    """By the older names: projections of one input together, numbered norms, and no own matrix of the softmax if shared."""
    weights = weights_of(model)
    norms = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}
    for name in list(weights):
        stack = name.split(".")[0]
        for number, norm in enumerate(norms[stack]):
            if f".{norm}_layer_norm." in name:
                weights[name.replace(f"{norm}_layer_norm", f"layer_norms.{number}")] = weights.pop(name)
        if ".q_proj." in name:
            parts = [weights.pop(name.replace(".q_proj.", f".{projection}_proj.")) for projection in "qkv"]
            weights[name.replace(".q_proj.", ".in_proj_")] = torch.cat(parts)
    weights["decoder.embed_out"] = weights.pop("decoder.output_projection.weight")
    if torch.equal(weights["decoder.embed_out"], weights["decoder.embed_tokens.weight"]):
        del weights["decoder.embed_out"]
    return weights


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """`cfg` of models whose options are dataclasses, as of 2021."""
    model: dict[str, Any] = {"_name": "transformer", "encoder": {}, "decoder": {}, "quant_noise": {"pq": 0.0}}
    task = {
        "_name": "translation",
        "source_lang": settings.pop("source_lang"),
        "target_lang": settings.pop("target_lang"),
    }
    for name, value in settings.items():
        stack, _, rest = name.partition("_")
        (model[stack] if stack in ("encoder", "decoder") else model).update({rest if stack in model else name: value})
    return {"_name": None, "common": {"fp16": True}, "task": task, "model": model}


FORMATS = ("2018", "args", "namespace in cfg", "cfg")


def save_checkpoint(path: Path, model: FSMTForConditionalGeneration, form: str, **changes: Any) -> Path:
    """A file as fairseq leaves it, with the optimizer's state and statistics."""
    settings = options(model, **changes)
    saved: dict[str, Any] = {
        "args": None,
        "model": weights_of_2018(model) if form == "2018" else weights_of(model),
        "optimizer_history": [{"criterion_name": "LabelSmoothedCrossEntropyCriterion", "num_updates": 7}],
        "extra_state": {"epoch": 1, "val_loss": 4.2, "train_iterator": {"epoch": 1}},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3)}}},
    }
    meters = types.ModuleType("fairseq.meters")
    if form in ("2018", "args"):
        saved["args"] = argparse.Namespace(**settings)
    elif form == "namespace in cfg":
        saved["cfg"] = {"model": argparse.Namespace(**settings), "task": {"_name": "translation"}}
    else:
        saved["cfg"] = nested(settings)
    if form == "2018":  # statistics were saved as they were
        meters.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters"})
        meter = meters.AverageMeter()
        meter.avg = 4.2
        saved["extra_state"]["train_meters"] = OrderedDict(train_loss=meter)
    else:  # of --eval-bleu
        meter = {"val": np.array([3, 1]), "sum": np.float64(0.5), "count": 2, "round": None}
        saved["extra_state"]["metrics"] = {"valid": [(100, "_bleu_counts", "AverageMeter", meter)]}
    with patch.dict(sys.modules, {"fairseq": types.ModuleType("fairseq"), "fairseq.meters": meters}):
        torch.save(saved, path, _use_new_zipfile_serialization=form != "2018")
    return path


@pytest.fixture(scope="module", params=["own matrices", "own vocabularies", "one vocabulary", "learned positions"])
def model(request) -> FSMTForConditionalGeneration:
    """One that has learned somewhat to repeat its sources."""
    torch.manual_seed(0)
    changes = {"src_vocab_size": 49, "tie_word_embeddings": True} if request.param == "one vocabulary" else {}
    model = untrained("fsmt", **changes)
    if request.param == "own vocabularies":
        model.model.decoder.output_projection.weight = model.model.decoder.embed_tokens.weight
    if request.param == "learned positions":
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.data = torch.randn(LEARNED, model.config.d_model)
    teach(model, batch(model))
    return model


@pytest.mark.parametrize("form", FORMATS)
def test_logits_are_the_same_in_every_format(model, form, tmp_path):
    checkpoint = read_checkpoint(save_checkpoint(tmp_path / "checkpoint_best.pt", model, form))
    assert checkpoint.languages == ("en", "de")
    assert checkpoint.vocab_sizes == (model.config.src_vocab_size, model.config.tgt_vocab_size)
    same_logits(model, convert_fairseq(checkpoint), batch(model))
