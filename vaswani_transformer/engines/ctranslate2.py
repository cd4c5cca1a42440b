"""Export to CTranslate2, and search with the exported model."""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from ctranslate2.specs import common_spec, transformer_spec
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_options_vaswani import LENGTH_FIELDS, SPECIAL_IDS, SearchOptions, set_options
from ..system.files import read_json
from ..system.processor import has_products_of
from .engine import UNUSED, Engine, export_directory, most_positions, require_fields, save_stock_tokenizer


# Rows of the exported table of sinusoids; CTranslate2 itself computes only the layout of the authors' code.
POSITIONS = 4096

LIBRARIES = ("ctranslate2",)  # whose versions decide the export

# Fields of generation_config that CTranslate2 supports, or replaces by its own rules.
_SUPPORTED = {"num_beams", "length_penalty", "length_penalty_type", "early_stopping", *LENGTH_FIELDS, *SPECIAL_IDS}

# The only values of these fields that CTranslate2 supports.
_EXPRESSIBLE = {
    "activation": "relu",
    "attention_neighborhood": None,
    "logits_bias": False,
    "position_offset": 0,
    "target_vocab_size": None,
    "zero_padding_embedding": True,
}

# Source tokens of a batch, padding included. Small batches keep all threads of a CPU busy to the end.
_TOKENS_PER_BATCH = {"cpu": 2048, "cuda": 4096}


def export(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    output: str | Path,
    quantization: str | None = None,
    force: bool = False,
    shortlist: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write a directory for CTranslate2 atomically: weights, vocabulary, tokenizer, generation_config.

    `ctranslate2.Translator(output).translate_batch(tokens, beam_size=4, length_penalty=0.6)` then searches by its own
    rules: a sentence stops once four hypotheses are finished, and scores are log P / |Y|^0.6. It also takes a limit of
    the translation's length, in the paper source length + 50.

    Args:
        output, force, model, tokenizer: As in `export_directory`.
        quantization: CTranslate2's name of a dtype, such as "int8"; by default weights are float32.
        shortlist: The result of `learn_shortlist`, written as `vmap.txt`. With `use_vmap=True`, CTranslate2 then
            searches only among the candidates of a batch's source tokens.

    Raises:
        FileExistsError, ValueError: As in `export_directory`; or CTranslate2 does not support the quantization, the
            model or its generation_config.
    """
    output, types = Path(output), ctranslate2.get_supported_compute_types("cpu")
    if quantization == "int16" and quantization not in types:
        raise ValueError(
            "quantization: CTranslate2 does not support int16 on this processor and would compute in int8; choose one "
            f"of {', '.join(sorted(types))}"
        )
    require_fields(model.config, {**_EXPRESSIBLE, "d_v": model.config.d_k}, "CTranslate2")
    if others := set_options(model.generation_config).keys() - _SUPPORTED:
        raise ValueError(
            f"generation_config: CTranslate2 would ignore {', '.join(sorted(others))}; remove it from the model's "
            f"generation_config.json to export it"
        )
    with export_directory(output, force, model, tokenizer) as directory:
        spec = _specification(model, tokenizer)
        positions = len(spec.encoder.position_encodings.encodings)
        spec.validate()
        spec.optimize(quantization)
        spec.save(str(directory))
        save_stock_tokenizer(tokenizer, directory, positions)
        model.generation_config.save_pretrained(directory)
        if shortlist is not None:
            lines = (f"{source}\t{' '.join(targets)}\n" for source, targets in shortlist.items())
            (directory / "vmap.txt").write_text("".join(lines), encoding="utf-8")
    if quantization is not None and quantization.startswith("int8"):
        warn_of_saturation()
    return output


def _specification(
    model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> transformer_spec.TransformerSpec:
    """CTranslate2's specification of the model, with its weights."""
    config = model.config
    shape = {"pre_norm": False, "activation": common_spec.Activation.RELU, "head_dim": config.d_k}
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(config.encoder_layers, config.num_heads, **shape),
        transformer_spec.TransformerDecoderSpec(config.decoder_layers, config.num_heads, **shape),
    )
    _fill_stack(spec.encoder, model.model.encoder)
    _fill_stack(spec.decoder, model.model.decoder)
    spec.encoder.embeddings[0].weight = _copy(model.model.encoder.embed_tokens.weight)
    spec.decoder.embeddings.weight = _copy(model.model.decoder.embed_tokens.weight)
    _fill_linear(spec.decoder.projection, model.lm_head)
    spec.decoder.start_from_zero_embedding = config.decoder_start_token_id == config.pad_token_id
    unused = [UNUSED.format(token) for token in range(len(tokenizer), config.vocab_size)]
    vocabulary = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) + unused
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.unk_token = tokenizer.unk_token
    spec.config.eos_token = spec.config.bos_token = vocabulary[config.eos_token_id]
    spec.config.decoder_start_token = vocabulary[config.decoder_start_token_id]
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    return spec


def _fill_stack(spec: Any, stack: Any) -> None:
    """Copy positions `[positions, d_model]` (3.5) and layers of the encoder or the decoder."""
    config = stack.config
    rows = config.max_positions or POSITIONS
    spec.position_encodings.encodings = _copy(stack.embed_positions(torch.arange(rows), torch.float32, rows))
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_attention(layer_spec.self_attention, layer.self_attn, layer.self_attn_residual.norm)
        if hasattr(layer, "encoder_attn"):
            _fill_attention(layer_spec.attention, layer.encoder_attn, layer.encoder_attn_residual.norm)
        _fill_linear(layer_spec.ffn.linear_0, layer.feed_forward.fc1)
        _fill_linear(layer_spec.ffn.linear_1, layer.feed_forward.fc2)
        _fill_norm(layer_spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _fill_attention(spec: Any, attention: Any, norm: nn.LayerNorm) -> None:
    """Copy attention, with fused projections: Q, K, V in self-attention; K, V in encoder-decoder attention."""
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    fused = [projections[:1], projections[1:]] if attention.is_cross else [projections]
    for linear_spec, linears in zip(spec.linear, [*fused, [attention.out_proj]], strict=True):
        _fill_linear(linear_spec, *linears)
    _fill_norm(spec.layer_norm, norm)


def _fill_linear(spec: Any, *linears: nn.Linear) -> None:
    spec.weight = torch.cat([_copy(linear.weight) for linear in linears])
    if linears[0].bias is not None:
        spec.bias = torch.cat([_copy(linear.bias) for linear in linears])


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _copy(norm.weight), _copy(norm.bias)


def _copy(weight: torch.Tensor) -> torch.Tensor:
    """A float32 copy on the CPU, since quantization works in place."""
    return weight.detach().to("cpu", torch.float32, copy=True)


@cache
def warn_of_saturation() -> None:
    """Warn once if CTranslate2 computes 8-bit weights badly on this processor, and name a better type."""
    # MKL adds products correctly. It supports int16; oneDNN does not.
    by_mkl = "int16" in ctranslate2.get_supported_compute_types("cpu")
    if not by_mkl and not has_products_of("int8"):
        logging.getLogger(__name__).warning(
            "int8: this processor has neither VNNI nor AMX, so CTranslate2 saturates sums of products, which changes "
            'more translations; float32 is exact (--engine ctranslate2; an int8 export by compute_type="float32")'
        )


class CTranslate2Translator(Engine):
    """Searches with an exported model by `ctranslate2.Translator`, with the options of its generation_config.

    Args:
        directory: The exported directory.
        options: Arguments of `ctranslate2.Translator`: `device` ("cpu", "cuda"), `compute_type`, `inter_threads`, ...
            By default, each thread of torch on the CPU searches for a batch of its own.

    Attributes:
        rule: Keywords with which `generate` of our model searches by the same rules: a sentence stops once `num_beams`
            hypotheses are finished, and scores are log P / |Y|^alpha.
    """

    rule: Mapping[str, Any] = {"early_stopping": True, "length_penalty_type": "transformers"}
    batches = 16
    calls = 2

    def __init__(self, directory: str | Path, **options: Any) -> None:
        directory = Path(directory)
        self._tokens = json.loads((directory / "shared_vocabulary.json").read_text(encoding="utf-8"))
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        search = read_json(directory / "generation_config.json")
        self.search = SearchOptions.from_fields(search, most_positions(directory))
        if options.get("device", "cpu") == "cpu":
            options = {"inter_threads": torch.get_num_threads(), "intra_threads": 1, **options}
        self.engine = ctranslate2.Translator(str(directory), **options)
        if self.engine.device == "cpu" and self.engine.compute_type.startswith("int8"):
            warn_of_saturation()

    def n_best(self, sources: Sequence[Sequence[int]], search: SearchOptions | None = None) -> list[list[list[int]]]:
        search = search or self.search
        limits = [search.limit.new_tokens(len(source)) for source in sources]
        longest = max(limits, default=1)
        results = self._translate(sources, search, longest)
        # The engine has one limit for all sentences. If a search may have passed a sentence's own limit, search again.
        passed = [
            index for index, limit in enumerate(limits) if limit < longest and max(map(len, results[index])) >= limit
        ]
        for limit in {limits[index] for index in passed}:
            indices = [index for index in passed if limits[index] == limit]
            again = self._translate([sources[index] for index in indices], search, limit)
            for index, ranked in zip(indices, again, strict=True):
                results[index] = ranked
        return [ranked[: search.num_return_sequences] for ranked in results]

    def _translate(self, sources: Sequence[Sequence[int]], search: SearchOptions, limit: int) -> list[list[list[int]]]:
        """The hypotheses of sources of any lengths, each of at most `limit` tokens.

        The whole beam is returned, so that the longest hypothesis tells when the search ended; without a length penalty
        the engine may stop once the requested number of hypotheses is finished.
        """
        results = self.engine.translate_batch(
            [[self._tokens[token] for token in source] for source in sources],
            max_batch_size=_TOKENS_PER_BATCH[self.engine.device],
            batch_type="tokens",
            beam_size=search.num_beams,
            num_hypotheses=search.num_beams if search.length_penalty else search.num_return_sequences,
            length_penalty=search.length_penalty,
            max_decoding_length=limit,
            min_decoding_length=0,
            max_input_length=0,  # no limit, which would cut off longer sources
            return_end_token=True,
            use_vmap=True,  # if the export has one
        )
        return [[[self._ids[token] for token in each] for each in result.hypotheses] for result in results]
