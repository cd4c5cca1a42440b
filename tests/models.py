"""Small models and sources for tests of the search and of parsing."""

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import torch
from helpers import save_model
from torch import nn
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniForConstituencyParsing
from vaswani_transformer.model.parse_sequence_vaswani import ParseLabels
from vaswani_transformer.model.parsing_vaswani import VaswaniParsingConfig
from vaswani_transformer.parsing.tokenizer import VaswaniParsingTokenizer


EOS = 1
POSITION_ENCODINGS = get_args(VaswaniConfig.__annotations__["position_encoding"])
SOURCES = [[7, 8, 9, 4, 5, 1], [7, 1], [30, 4, 1], [12, 31, 22, 39, 17, 6, 8, 1], [5, 5, 5, 5, 1], [1], [20, 13, 1]]
PARSE_LABELS = ParseLabels(tags=frozenset({"DT", "NN", "VB", "."}), phrases=frozenset({"NP", "S", "VP"}))
GOLD = "((S (NP (DT The) (NN cat)) (VP (VBD sat)) (. .)))\n((S (NP-SBJ (-NONE- *)) (VP (VB Go)) (. .)))\n"
PARSED = ["The cat sat .", "WHO SAW THE CAT ?", "Cats .", "unseen wörds 🐈 and ( brackets )"]


def as_batch(sources: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, sources))
    return torch.tensor([source + [0] * (longest - len(source)) for source in sources])


def randomize(module: nn.Module, spread: float = 0.3) -> None:
    """Weights large enough that every one of them, biases and norms included, moves the output."""
    for parameter in module.parameters():
        parameter.data = spread * torch.randn_like(parameter)


def lively(vocab_size: int, seed: int = 0, **changes: int) -> VaswaniForConditionalGeneration:
    """A model with weights so large that hypotheses differ."""
    torch.manual_seed(seed)
    sizes = {"d_model": 8, "d_ff": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, **changes}
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=vocab_size, **sizes)).eval()
    randomize(model, spread=1.0)
    return model


def distinct(vocab_size: int = 50, **changes: object) -> VaswaniForConditionalGeneration:
    """A model in which every weight is its own, biases and norms too, so that no mix-up goes unseen."""
    sizes = {"d_model": 24, "d_ff": 40, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 3}
    model = VaswaniForConditionalGeneration(VaswaniConfig(**{"vocab_size": vocab_size, **sizes, **changes})).eval()
    with torch.no_grad():
        for weight in (*model.parameters(), *model.lm_head.buffers()):
            weight.add_(0.2 * torch.randn_like(weight))
    return model


def with_own_softmax(vocab_size: int = 50, **changes: object) -> VaswaniForConditionalGeneration:
    """A model as PEFT's merge of `modules_to_save=["lm_head"]` leaves it: the flag is not true any more."""
    model = distinct(vocab_size, **changes)
    model.lm_head = copy.deepcopy(model.lm_head)
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn_like(model.lm_head.weight))
    return model


def talkative() -> VaswaniForConditionalGeneration:
    """A lively model whose sentences end at different lengths, as a trained one's do; the seed is one that does it."""
    model = lively(40, seed=63, d_model=16, d_ff=32, decoder_layers=2)
    last = model.model.decoder.layers[-1].feed_forward_residual.norm
    model.model.shared.weight.data[EOS] += 0.45 * last.bias.data
    last.weight.data *= 0.4
    model.generation_config.max_new_tokens_over_source = 8
    return model


def penalty(length: int, alpha: float, penalty_type: str) -> float:
    return ((5 + length) / 6) ** alpha if penalty_type == "gnmt" else length**alpha


@torch.no_grad()
def translate_alone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, **options: object) -> str:
    """The translation of one text by `generate`, with options of it; a blank text has none."""
    if not text.strip():
        return ""
    output = model.generate(**tokenizer(text.strip(), return_tensors="pt"), **options)
    return tokenizer.decode(output[0], skip_special_tokens=True)


class Numbers:
    """A tokenizer of sentences such as "7 8 9"."""

    def __call__(self, text: str, add_special_tokens: bool = True, return_tensors: str | None = None) -> object:
        tokens = [int(word) for word in text.split() if word.isdigit()]
        return BatchEncoding({"input_ids": [tokens]}, tensor_type=return_tensors)

    def decode(self, tokens: list[int], **options: object) -> str:
        return " ".join(map(str, tokens))

    def convert_ids_to_tokens(self, token: int) -> str:
        return str(token)


# A score, and the tokens after the start token.
Scored = tuple[float, tuple[int, ...]]


@functools.cache
@torch.no_grad()
def next_tokens(
    model: VaswaniForConditionalGeneration, source: tuple[int, ...], live: tuple[tuple[int, ...], ...]
) -> list[list[float]]:
    """Log-probabilities of the token after each live hypothesis; of a model that nobody changes between the calls."""
    ids = torch.tensor([[0, *tokens] for tokens in live])
    logits = model(torch.tensor([source]).expand(len(ids), -1), decoder_input_ids=ids).logits[:, -1]
    return logits.double().log_softmax(-1).tolist()


def steps_by_definition(
    model: VaswaniForConditionalGeneration, source: list[int], num_beams: int, alpha: float, rule: object, kind: str
) -> Iterator[tuple[list[Scored], list[Scored], list[Scored]]]:
    """Candidates, live and finished hypotheses of each step of a search for one sentence, best first."""
    limit = len(source) + model.generation_config.max_new_tokens_over_source
    live, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        steps = next_tokens(model, tuple(source), tuple(tokens for _, tokens in live))
        candidates = sorted(
            ((score + step, (*tokens, token)) for (score, tokens), row in zip(live, steps, strict=True)
             for token, step in enumerate(row)), reverse=True
        )[: 2 * num_beams]  # fmt: skip
        counted = candidates if rule == "never" else candidates[:num_beams]
        ends = {EOS} if kind == "gnmt" or length < limit else set(range(len(steps[0])))  # transformers' limit ends all
        finished += [(score / penalty(length, alpha, kind), tokens) for score, tokens in counted if tokens[-1] in ends]
        finished = sorted(finished, reverse=True)[:num_beams]
        live = [candidate for candidate in candidates if candidate[1][-1] not in ends][:num_beams]
        yield candidates, live, list(finished)
        if not live:
            break
        full = len(finished) == num_beams
        if rule is True and full:
            break
        if rule is False and full and finished[-1][0] >= live[0][0] / penalty(length, alpha, kind):
            break
        if rule == "never" and finished:
            lengths = (length + 1, limit)
            if finished[0][0] >= max(live[0][0] / penalty(end, alpha, kind) for end in lengths):
                break


def beam_search_by_definition(
    model: VaswaniForConditionalGeneration, source: list[int], num_beams: int, alpha: float, rule: object, kind: str
) -> list[Scored]:
    """Finished hypotheses of one sentence, best first, or live ones; each with its score."""
    for length, (_, live, finished) in enumerate(  # noqa: B007 - the last step counts
        steps_by_definition(model, source, num_beams, alpha, rule, kind), start=1
    ):
        pass
    return finished or [(score / penalty(length, alpha, kind), tokens) for score, tokens in live]


def make_parser(directory: Path, **changes: object) -> Path:
    """Save a model with random weights that parses, and its tokenizer."""
    torch.manual_seed(0)
    text = [sentence.lower() for sentence in PARSED] * 3
    tokenizer = VaswaniParsingTokenizer.train_with_labels(text, PARSE_LABELS.names, 290)
    sizes = {"d_model": 16, "d_ff": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, **changes}
    config = VaswaniParsingConfig(vocab_size=290, target_vocab_size=3 + len(PARSE_LABELS.names), **sizes)
    model = VaswaniForConstituencyParsing(config).eval()
    model.generation_config.max_new_tokens_over_source = 20
    return save_model(directory, model, tokenizer)
