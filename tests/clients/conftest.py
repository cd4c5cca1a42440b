"""Fixtures of the clients: a trained model, held-out sentences, and what is compared."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import REPOSITORY
from torch import nn
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.translation import translate_corpus


MODEL = REPOSITORY / "runs" / "demo"  # of `make demo`

Encode = Callable[..., dict[str, Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:  # pytest passes the items of all folders
            item.add_marker("system")  # clients train, and start programs


@pytest.fixture
def model() -> VaswaniForConditionalGeneration:
    """A model trained on the embedded corpus, loaded anew for each test."""
    return VaswaniForConditionalGeneration.from_pretrained(MODEL, trust_remote_code=False).eval()


@pytest.fixture(scope="session")
def tokenizer() -> VaswaniTokenizer:
    return AutoTokenizer.from_pretrained(MODEL, trust_remote_code=False)


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    """Held-out sentences and their references."""
    return [(source, target) for source, target in phrasebook("test")[:12]]


@pytest.fixture(scope="session")
def encode(tokenizer: VaswaniTokenizer) -> Encode:
    """Encodes pairs as one batch: `input_ids`, `attention_mask`, and `labels`, padded with -100."""

    def encode(pairs: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        batch = tokenizer(sources, text_target=targets, padding=True, return_tensors="pt")
        labels = batch["labels"].masked_fill(batch["labels"].eq(tokenizer.pad_token_id), -100)
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}

    return encode


@pytest.fixture
def translate(tokenizer: VaswaniTokenizer, pairs: list[tuple[str, str]]) -> Callable[..., list[str]]:
    """Translates the held-out sentences by the paper's beam search."""
    return functools.partial(translate_corpus, tokenizer=tokenizer, sentences=[source for source, _ in pairs])


@pytest.fixture
def logits(encode: Encode, pairs: list[tuple[str, str]]) -> Callable[[nn.Module], torch.Tensor]:
    """Logits of the first references, padding left out: `[tokens, vocabulary]`."""
    batch = encode(pairs[:8])

    def logits(model: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return model(**batch).logits[batch["labels"].ne(-100)]

    return logits


@pytest.fixture
def train(encode: Encode) -> Callable[..., tuple[float, float]]:
    """Trains what requires gradients to translate backwards, word by word; returns the loss before and after."""
    backwards = [(source, " ".join(target.split()[::-1])) for source, target in phrasebook("train")[:32]]

    def train(model: nn.Module, learning_rate: float = 1e-2, steps: int = 15) -> tuple[float, float]:
        batch = encode(backwards)
        optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], learning_rate)
        losses = []
        for _ in range(steps):
            loss = model(**batch).loss
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses[0], losses[-1]

    return train


@pytest.fixture
def error_of_search(encode: Encode, pairs: list[tuple[str, str]]) -> Callable[[nn.Module], float]:
    """The largest difference between a score of beam search and the score of the same translation by `forward`."""
    batch = encode(pairs)
    sources = {name: batch[name] for name in ("input_ids", "attention_mask")}

    def error(model: nn.Module) -> float:
        found = model.generate(**sources, return_dict_in_generate=True, output_scores=True)
        tokens = found.sequences[:, 1:]  # [batch, target]
        with torch.no_grad():
            logits = model(**sources, decoder_input_ids=found.sequences[:, :-1]).logits[:, -tokens.shape[1] :]
        chosen = logits.float().log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        is_token = tokens.ne(0)  # the search never finds padding
        penalty = ((5 + is_token.sum(-1)) / 6) ** 0.6
        scores = chosen.masked_fill(~is_token, 0.0).sum(-1) / penalty  # [batch], section 6.1
        return (scores - found.sequences_scores).abs().max().item()

    return error
