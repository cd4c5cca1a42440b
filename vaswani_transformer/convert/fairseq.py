"""Conversion of fairseq's `transformer`: checkpoints, dictionaries and byte-pair codes, without fairseq."""

import argparse
import json
import pickle
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import FSMTTokenizer, GenerationConfig

from ..model.configuration_vaswani import VaswaniConfig
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .weights import Weights, model_from_weights


_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, not in dictionary files

# Special ids of every fairseq dictionary.
_TOKENS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}

_FIRST_POSITION = _TOKENS["pad_token_id"] + 1

_ACTIVATIONS = {"gelu_accurate": "gelu_pytorch_tanh", "gelu_fast": "gelu_pytorch_tanh", "relu_squared": "relu2"}

# Options that cannot be expressed, and do not show in the weights.
_INEXPRESSIBLE = (
    "encoder_normalize_before",
    "decoder_normalize_before",
    "no_scale_embedding",
    "no_token_positional_embeddings",
    "no_enc_token_positional_embeddings",
    "no_dec_token_positional_embeddings",
    "cross_self_attention",
)

# numpy's objects in checkpoints of --eval-bleu, which are not needed: unpickled as an empty class.
_IGNORED = (
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.ndarray",
    "numpy.dtype",
)

_NOT_WEIGHTS = re.compile(r"(encoder|decoder)\.(version|embed_positions\.(_float_tensor|weights))")


@dataclass(frozen=True)
class FairseqCheckpoint:
    """Options and weights of a checkpoint, under fairseq's names."""

    settings: dict[str, Any]
    weights: Weights


def read_checkpoint(path: str | Path) -> FairseqCheckpoint:
    """Read a checkpoint of fairseq since 2019, such as `checkpoint_best.pt`, without running code from it.

    Its options are an `argparse.Namespace` or, since fairseq 0.10, nested dictionaries.

    Raises:
        OSError: There is no such file.
        ValueError: It contains other objects, or is not a checkpoint of a translation model.
    """
    saved = _load(Path(path))
    settings = _settings(saved) if isinstance(saved, dict) and "model" in saved else {}
    if not (settings.get("source_lang") and settings.get("target_lang")):
        raise ValueError(
            f"{path}: is not a checkpoint of a translation model of fairseq, which has its weights under 'model', and "
            f"source_lang and target_lang among its options under 'args' or 'cfg'"
        )
    return FairseqCheckpoint(settings, _weights(saved["model"]))


class _Ignored:
    """Placeholder unpickled in place of `_IGNORED`."""

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _load(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([argparse.Namespace, *((_Ignored, name) for name in _IGNORED)]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        if refused := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{path}: contains {refused[1]}, which could execute code while loading, and is refused; if you trust "
                "the file, load it with fairseq and save only its 'args', 'cfg' and 'model'"
            ) from error
        raise ValueError(f"{path}: is not a file of torch.save, or is damaged") from error


def _settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Model and task options in one dictionary: `encoder: {layers: 6}` becomes `encoder_layers: 6`."""
    parts = saved.get("cfg") or {"model": saved.get("args")}
    settings: dict[str, Any] = {}
    for part in (parts.get("task"), parts.get("model")):
        options = vars(part) if isinstance(part, argparse.Namespace) else part or {}
        for name, value in options.items():
            if isinstance(value, dict):
                settings |= {f"{name}_{inner}": option for inner, option in value.items()}
            else:
                settings[name] = value
    return settings


def _weights(state: dict[str, torch.Tensor]) -> Weights:
    """The weights, without other entries of the state; learned positions begin with the first one in use."""
    weights = {name: weight for name, weight in state.items() if not _NOT_WEIGHTS.fullmatch(name)}
    for name in weights:
        if name.endswith(".embed_positions.weight"):
            weights[name] = weights[name][_FIRST_POSITION:]
    if "decoder.embed_tokens.weight" in weights:  # until 2020, a tied softmax had no entry
        weights.setdefault("decoder.output_projection.weight", weights["decoder.embed_tokens.weight"])
    return weights


def from_fairseq(checkpoint: FairseqCheckpoint) -> VaswaniForConditionalGeneration:
    """Convert a checkpoint to a float32 model with the same logits.

    Its generation_config has the defaults of `fairseq-generate`: 5 beams, scores `log P / |Y|`, where |Y| counts EOS
    (`length_penalty_type="transformers"`), and at most 200 tokens before EOS. A sentence stops when 5 hypotheses are
    finished. fairseq also forbids padding and empty translations, which trained models do not choose.

    Raises:
        ValueError: The architecture of this package cannot express the model.
    """
    settings = checkpoint.settings
    for name in _INEXPRESSIBLE:
        if settings.get(name):
            raise ValueError(f"{name}: cannot be expressed; only the paper's post-norm layers, positions and scale can")
    activation = settings.get("activation_fn") or "relu"
    positions: dict[str, Any] = {"position_encoding": "sinusoidal_halves", "position_offset": _FIRST_POSITION}
    if (table := checkpoint.weights.get("encoder.embed_positions.weight")) is not None:
        positions = {"position_encoding": "learned", "max_position_embeddings": len(table)}
    model = model_from_weights(
        checkpoint.weights,
        heads=(settings.get("encoder_attention_heads"), settings.get("decoder_attention_heads")),
        activation=_ACTIVATIONS.get(activation, activation),
        dropout=settings.get("dropout", 0.1),
        attention_dropout=settings.get("attention_dropout", 0.0),
        activation_dropout=settings.get("activation_dropout", 0.0),
        source_language=settings["source_lang"],
        target_language=settings["target_lang"],
        **_TOKENS,
        **positions,
    )
    longest = min(200, (settings.get("max_target_positions") or 1024) - 1)
    model.generation_config = GenerationConfig(
        num_beams=5,
        length_penalty=1.0,
        length_penalty_type="transformers",
        early_stopping=True,
        max_new_tokens=longest + 1,
        **_TOKENS,
    )
    return model


def fairseq_tokenizer(directory: str | Path, config: VaswaniConfig, model_max_length: int = 1024) -> FSMTTokenizer:
    """The tokenizer of a fairseq model: Moses tokenization, then BPE of fastBPE or subword-nmt.

    Args:
        directory: Directory with `dict.SRC.txt`, `dict.TGT.txt`, and `bpecodes` or `code`.
        config: Configuration of the model, with its languages, SRC and TGT, and the sizes of its vocabularies.
        model_max_length: Most tokens of a source.

    Raises:
        OSError: A file is missing.
        ValueError: A dictionary is malformed, or has a wrong size.
    """
    directory, languages = Path(directory), [config.source_language, config.target_language]
    paths = [directory / f"dict.{language}.txt" for language in languages]
    codes = directory / ("code" if (directory / "code").is_file() else "bpecodes")  # models, scripts
    vocabularies = [read_dictionary(path) for path in paths]
    sizes = (config.vocab_size, config.output_vocab_size)
    for path, vocabulary, size in zip(paths, vocabularies, sizes, strict=True):
        if len(vocabulary) != size:
            raise ValueError(
                f"{path}: with special tokens there are {len(vocabulary)} entries, but the model has {size}; "
                f"give the dictionaries of its training"
            )
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{side}.json" for side in ("source", "target")]
        for path, vocabulary in zip(files, vocabularies, strict=True):
            path.write_text(json.dumps(vocabulary), encoding="utf-8")
        return FSMTTokenizer(
            languages,
            *map(str, files),
            str(codes),
            # A dictionary without capitals was learned from lower-cased text.
            do_lower_case=not any(token.lower() != token for token in vocabularies[0]),
            model_max_length=model_max_length,
        )


def read_dictionary(path: Path) -> dict[str, int]:
    """Token ids of a fairseq dictionary, whose lines are `token count`.

    fairseq marks tokens that do not end a word by `@@`; FSMTTokenizer marks tokens that do by `</w>`.

    Raises:
        ValueError: A line is malformed.
    """
    ids = {token: number for number, token in enumerate(_SPECIAL)}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            token, _, count = line.rstrip().rpartition(" ")
            if not (token and count.isdecimal()):
                raise ValueError(f"{path}, line {number}: must be `token count`, is {line.rstrip()!r}")
            ids[token.removesuffix("@@") if token.endswith("@@") else f"{token}</w>"] = len(ids)
    return ids
