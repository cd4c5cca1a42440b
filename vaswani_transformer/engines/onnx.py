"""Export to ONNX, in the layout of optimum and transformers.js, and translation by onnxruntime."""

import copy
import logging
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationConfig, MarianConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..model.keywords_vaswani import CACHE, named_cache
from ..model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniPositionalEncoding
from .engine import export_directory, save_stock_tokenizer
from .marian import POSITIONS, marian_config, require_marian_heads, transformers_search


LIBRARIES = ("torch", "onnxscript")  # whose versions decide the export

# Files of an exported directory, by the names of optimum and transformers.js.
ENCODER, DECODER = Path("onnx", "encoder_model.onnx"), Path("onnx", "decoder_model_merged.onnx")

_DECODER_INPUTS = ("input_ids", "encoder_attention_mask", "encoder_hidden_states")
_SOURCE, _TARGET = "encoder_sequence_length", "decoder_sequence_length"


def export(
    model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, output: str | Path, force: bool = False
) -> Path:
    """Write a directory for onnxruntime, optimum and transformers.js: ONNX graphs, configuration, tokenizer, search.

    The graphs compute the model's logits for any batch size and for sequences of up to 1,024 tokens, or as many as a
    learned position table has. `config.json` describes a MarianMT model, because these clients choose their classes by
    `model_type`, and MarianMT's graphs have the same interface. optimum searches as described at `marian.export`;
    transformers.js greedily, and it continues the shorter sentences of a batch after their end: give it one at a time.

    For arguments and errors, see `export_directory`; a ValueError also names a setting that the clients cannot express.
    """
    output = Path(output)
    require_marian_heads(model.config, "the ONNX layout of transformers.js")
    positions = model.config.max_positions or POSITIONS
    with export_directory(output, force, model, tokenizer) as directory:
        (directory / ENCODER).parent.mkdir()
        _export_graphs(model, directory, positions)
        marian_config(model.config, positions).save_pretrained(directory)
        transformers_search(model.generation_config, positions).save_pretrained(directory)
        save_stock_tokenizer(tokenizer, directory, positions)
    return output


class PositionTable(nn.Module):
    """A table of the first positional encodings, because onnxruntime for browsers does not compute in float64."""

    table: torch.Tensor  # [positions, d_model]

    def __init__(self, encoding: VaswaniPositionalEncoding, positions: int) -> None:
        super().__init__()
        self.register_buffer("table", encoding(torch.arange(positions), torch.float32, positions))

    def forward(self, positions: torch.Tensor, dtype: torch.dtype, length: int) -> torch.Tensor:
        return F.embedding(positions, self.table)


class Encoder(nn.Module):
    """The encoder as a function of tensors: `[batch, source]` ids and mask to `[batch, source, d_model]`."""

    def __init__(self, model: VaswaniForConditionalGeneration) -> None:
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids, attention_mask).last_hidden_state


class Decoder(nn.Module):
    """One or several steps of the decoder as a function of tensors, cache included.

    One graph computes first and later steps without a branch (`use_cache_branch`): if the source cache is empty, it
    projects all source positions to keys and values; otherwise it projects none.
    """

    def __init__(self, model: VaswaniForConditionalGeneration) -> None:
        super().__init__()
        self.decoder, self.lm_head = model.model.decoder, model.lm_head

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past_key_values: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Logits `[batch, target, vocabulary]`, and the tensors of `past_key_values` with the new positions.

        Args:
            input_ids: `[batch, target]`
            encoder_attention_mask: `[batch, source]`
            encoder_hidden_states: `[batch, source, d_model]`
            past_key_values: For each layer, keys and values `[batch, heads, past, d_k]` of self-attention, and
                `[batch, heads, source or 0, d_k]` of encoder-decoder attention.
        """
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        missing = encoder_hidden_states[:, past_key_values[2].shape[2] :]
        layers: Any = self.decoder.layers
        for index, layer in enumerate(layers):
            key, value, source_key, source_value = past_key_values[4 * index : 4 * index + 4]
            cache.self_attention_cache.update(key, value, index)
            cache.cross_attention_cache.update(source_key, source_value, index)
            layer.encoder_attn.keys_and_values(None, missing, cache)
        hidden = self.decoder(
            input_ids, None, encoder_hidden_states, encoder_attention_mask, cache, use_cache=True
        ).last_hidden_state
        return self.lm_head(hidden), *_tensors(cache)


def _tensors(cache: EncoderDecoderCache) -> list[torch.Tensor]:
    """Keys and values of self-attention and of encoder-decoder attention, layer by layer."""
    pairs = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
    return [tensor for pair in pairs for layer in pair for tensor in (layer.keys, layer.values)]


def _cache_names(layers: int) -> list[str]:
    """Names of the cache's tensors, without the prefix `past_key_values.` or `present.`."""
    return [
        f"{n}.{stack}.{kind}" for n in range(layers) for stack in ("decoder", "encoder") for kind in ("key", "value")
    ]


@torch.no_grad()
def _export_graphs(model: VaswaniForConditionalGeneration, directory: Path, positions: int) -> None:
    config = model.config
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    model.set_attn_implementation("eager")  # the plainest graph, which can also restrict attention
    stacks: list[Any] = [model.model.encoder, model.model.decoder]
    for stack in stacks:
        stack.embed_positions = PositionTable(stack.embed_positions, positions)
    batch, source, target, past, cached = 2, 7, 3, 4, 5  # distinct sizes; torch.export turns 0 and 1 into constants
    ids, mask = torch.full((batch, source), 3), torch.ones(batch, source, dtype=torch.long)
    states = torch.zeros(batch, source, config.d_model)
    source_axes, target_axes = {0: "batch_size", 1: _SOURCE}, {0: "batch_size", 1: _TARGET}
    names = _cache_names(config.decoder_layers)
    lengths = [(past, _TARGET) if "decoder" in name else (cached, _SOURCE) for name in names]
    cache = [torch.zeros(batch, config.num_heads, length, config.d_k) for length, _ in lengths]
    cache_axes = [{0: "batch_size", 2: f"past_{axis}"} for _, axis in lengths]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it complains about torchvision
    export = partial(torch.onnx.export, dynamo=True, external_data=False, verbose=False)
    with warnings.catch_warnings(action="ignore"):  # axes share names
        export(
            Encoder(model).eval(),
            (ids, mask),
            directory / ENCODER,
            dynamic_shapes=(source_axes, source_axes),
            input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state"],
        )
        export(
            Decoder(model).eval(),
            (ids[:, :target], mask, states, cache),
            directory / DECODER,
            dynamic_shapes=(target_axes, source_axes, source_axes, cache_axes),
            input_names=[*_DECODER_INPUTS, *(f"past_key_values.{name}" for name in names)],
            output_names=["logits", *(f"present.{name}" for name in names)],
        )


class OnnxEncoder(nn.Module):
    """An exported encoder that onnxruntime runs."""

    main_input_name = "input_ids"

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        super().__init__()
        self.session = session

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        (states,) = self.session.run(
            ["last_hidden_state"], {"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()}
        )
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))


class OnnxModel(PreTrainedModel, GenerationMixin):
    """An exported model that onnxruntime runs on the CPU, for `generate` of transformers."""

    config_class = MarianConfig
    main_input_name = "input_ids"

    def __init__(self, directory: str | Path) -> None:
        directory, providers = Path(directory), ["CPUExecutionProvider"]
        super().__init__(MarianConfig.from_pretrained(directory, trust_remote_code=False))
        self.generation_config = GenerationConfig.from_pretrained(directory)
        self.encoder = OnnxEncoder(onnxruntime.InferenceSession(directory / ENCODER, providers=providers))
        self.session = onnxruntime.InferenceSession(directory / DECODER, providers=providers)
        self.names = _cache_names(self.config.decoder_layers)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits `[batch, target, vocabulary]` of `decoder_input_ids` `[batch, target]`, and the extended cache."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        cache: EncoderDecoderCache | None = named_cache(kwargs, CACHE).get(CACHE)
        if cache is None or cache.get_seq_length() == 0:
            heads, width = self.config.decoder_attention_heads, self.config.d_model
            past = [torch.zeros(len(decoder_input_ids), heads, 0, width // heads)] * len(self.names)
        else:
            past = _tensors(cache)
        logits, *present = self.session.run(
            ["logits", *(f"present.{name}" for name in self.names)],
            {
                "input_ids": decoder_input_ids.numpy(),
                "encoder_attention_mask": attention_mask.numpy(),
                "encoder_hidden_states": encoder_outputs[0].numpy(),
                **{f"past_key_values.{name}": tensor.numpy() for name, tensor in zip(self.names, past, strict=True)},
            },
        )
        tensors = [torch.from_numpy(array) for array in present]
        pairs = list(zip(tensors[::2], tensors[1::2], strict=True))  # self- and encoder-decoder attention in turn
        cache = EncoderDecoderCache(DynamicCache(pairs[::2]), DynamicCache(pairs[1::2]))
        return Seq2SeqLMOutput(logits=torch.from_numpy(logits), **{CACHE: cache})
