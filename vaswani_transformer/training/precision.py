"""Measures which precision trains a model fastest on this machine, with a model of one encoder and one decoder layer.

Instructions for 16-bit products are fast on some processors and slow on others; conversions cost more in a small model.
"""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig

from ..system.processor import has_products_of
from .loss import LabelSmoothedLoss


DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_LENGTH = 25  # tokens of a sentence in the measured batch
_MOST_TOKENS = {"cpu": 400, "cuda": 8000}  # of that batch; more change the ratios little, and allow fewer rounds


def usable_precisions(device: torch.device) -> list[str]:
    """The precisions in which a device can train, from less rounding to more."""
    if device.type == "cpu":
        return ["float32", *(["bf16"] if has_products_of("bfloat16") else [])]
    if device.type != "cuda":
        return ["float32"]
    return ["float32", *(["bf16"] if torch.cuda.is_bf16_supported(including_emulation=False) else []), "fp16"]


def relative_speeds(
    config: PreTrainedConfig, device: torch.device, tokens: int, seconds: float = 0.5
) -> dict[str, float]:
    """The training speed in each precision that a device can train in, relative to float32.

    The measured model has one encoder and one decoder layer. Only a share of the target tokens reaches the projection
    onto the vocabulary, since a full model has one projection for all layers.

    Args:
        config: The configuration of the model to train, vocabulary size included.
        device: The device of the training.
        tokens: Target tokens of a batch on the device.
        seconds: Approximate duration of the measurement.
    """
    if usable_precisions(device) == ["float32"]:
        return {"float32": 1.0}
    length = min(_LENGTH, config.max_positions or _LENGTH)
    projected = max(1, round(2 * length / (config.encoder_layers + config.decoder_layers)))
    config = copy.deepcopy(config)
    config.encoder_layers = config.decoder_layers = 1
    model = AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=False).to(device).train()
    loss = LabelSmoothedLoss(config.label_smoothing)
    sentences = max(1, min(tokens, _MOST_TOKENS[device.type]) // length)
    source = torch.randint(config.vocab_size, (sentences, length), device=device)
    target = torch.randint(config.output_vocab_size, (sentences, length), device=device)

    def train(precision: str) -> None:
        with torch.autocast(device.type, DTYPES[precision], enabled=precision != "float32"):
            outputs = model(source, torch.ones_like(source), target, use_cache=False, logits_to_keep=projected)
        loss(outputs, target[:, -projected:]).backward()
        model.zero_grad()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    return compare(usable_precisions(device), train, seconds)


def compare(names: Sequence[str], work: Callable[[str], object], seconds: float) -> dict[str, float]:
    """The speed of each of some works, relative to the first."""
    times = shortest_times(names, work, seconds)
    return {name: times[names[0]] / each for name, each in times.items()}


def shortest_times(names: Sequence[str], work: Callable[[str], object], seconds: float) -> dict[str, float]:
    """The duration of each work's fastest run, because other programs slow some runs.

    All works are timed in turn until `seconds` have passed.
    """
    for name in names:
        work(name)  # the first run loads libraries
    shortest, started = dict.fromkeys(names, math.inf), time.perf_counter()
    while math.inf in shortest.values() or time.perf_counter() - started < seconds:
        for name in names:
            begun = time.perf_counter()
            work(name)
            shortest[name] = min(shortest[name], time.perf_counter() - begun)
    return shortest


def fastest_precision(speeds: Mapping[str, float], margin: float = 1.05) -> str:
    """The fastest precision; a later one, which rounds more, must be faster by the factor `margin`."""
    chosen = next(iter(speeds))
    for precision, speed in speeds.items():
        if speed > margin * speeds[chosen]:
            chosen = precision
    return chosen
