"""Section 6.3 of the paper: the parser, and `pipeline("constituency-parsing")`: a sentence in, its tree out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, NotRequired, TypedDict

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .configuration_vaswani import VaswaniConfig
from .generation_vaswani import search_options
from .languages_vaswani import ENCODING_LOCK, INVISIBLE, require_text
from .modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from .parse_sequence_vaswani import LABEL_MARK, LegalParse, Parse, ParseLabels, parse_of_sequence
from .pipeline_vaswani import GeneratingPipeline, StageOptions, register_task
from .translation_vaswani import generate_in_batches, in_order


class VaswaniParsingConfig(VaswaniConfig):
    """Configuration of a parser (6.3), with the fields of a translation model."""

    model_type = "vaswani_parser"
    task = "constituency-parsing"
    code: ClassVar[dict[str, str]] = {
        "AutoConfig": "parsing_vaswani.VaswaniParsingConfig",
        "AutoModel": "parsing_vaswani.VaswaniParsingModel",
        "AutoModelForSeq2SeqLM": "parsing_vaswani.VaswaniForConstituencyParsing",
    }
    pipeline_code = "parsing_vaswani.VaswaniParsingPipeline"


class VaswaniParsingModel(VaswaniModel):
    """Encoder and decoder of a parser, without the softmax."""

    config_class = VaswaniParsingConfig


class VaswaniForConstituencyParsing(VaswaniForConditionalGeneration):
    """The model of 6.3: it translates the words of a sentence into the labels of its parse.

    It has the layers and the search of a translation model, but its own classes, so that the code of parsing goes to
    the Hub with parsers only.
    """

    config_class = VaswaniParsingConfig


class ParseRecord(TypedDict):
    """A parse as the pipeline returns it: the tree in brackets, and as an `nltk.Tree` with `return_nltk`."""

    tree: str
    words: list[str]
    repairs: int
    nltk_tree: NotRequired[Any]


# Rules, applied in turn, that divide words as the Penn Treebank does.
_WORD_RULES = [
    (re.compile(r'(?:^|(?<=[\s(\[{<]))"'), " `` "),
    (re.compile('"'), " '' "),
    (re.compile(r"\.\.\.|--|[;@#$%&?!()\[\]{}<>]|[,:](?!\d)"), r" \g<0> "),
    (re.compile(r"(?<![.\s])\.(?=[)\]}>'\s]*$)"), " ."),  # only the last period ends a sentence
    (re.compile(r"(?<=\w)'(?:s|m|d|ll|re|ve)\b", re.IGNORECASE), r" \g<0>"),
    (re.compile(r"(?<=\w)n't\b", re.IGNORECASE), r" \g<0>"),
    (re.compile(r"(?<=[sS])'(?=\s|$)"), " '"),
]
_QUOTES = str.maketrans({"“": " `` ", "”": " '' ", "‘": " ` ", "’": "'"})  # as the treebank writes them
_BRACKETS = {"(": "-LRB-", ")": "-RRB-"}


def split_words(text: str) -> list[str]:
    """Divide a sentence into words as the Penn Treebank does, such as `do`, `n't` and `?`.

    Invisible characters, such as soft hyphens, are removed.
    """
    text = re.sub(INVISIBLE, "", text.translate(_QUOTES))
    for pattern, replacement in _WORD_RULES:
        text = pattern.sub(replacement, text)
    return text.split()


def join_words(words: Sequence[str]) -> str:
    """Join words as a parser's tokenizer takes them: separated by spaces, brackets replaced by their names.

    A word of invisible characters, such as U+200B, becomes "-": the tokenizer would drop it, but it has a tag.
    """
    visible = (re.sub(INVISIBLE, "", word) or "-" for word in words)
    return " ".join(_BRACKETS.get(word, word) for word in visible)


def parse_in_batches(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Sequence[str]],
    tokens_per_batch: int = 4096,
    batch_size: int | None = None,
    constrained: bool = False,
    **generate_kwargs: Any,
) -> Iterator[tuple[list[int], list[list[Parse]]]]:
    """Parse sentences in batches of similar length, the longest first.

    Args:
        model, tokenizer: The model, on the device to use, and its tokenizer, with the labels.
        sentences: Words of each sentence; no word may be empty or contain white space.
        tokens_per_batch, batch_size: As in `translate_in_batches`.
        constrained: Search only among well-formed parses, which need no repair.
        generate_kwargs: Keywords of `generate`.

    Yields:
        Indices into `sentences`, and for each of them its parses: one, or `num_return_sequences` of them, best first.

    Raises:
        ValueError: A sentence has no words, or a word is empty or has white space; or the tokenizer has no labels.
    """
    vocabulary = tokenizer.get_vocab()
    labels = ParseLabels.from_vocabulary(vocabulary)
    if not labels.phrases:
        raise ValueError("the tokenizer has no labels of parses; give a model that was trained to parse")
    for index, words in enumerate(sentences):
        if not words or " ".join(words).split() != list(words):
            raise ValueError(f"sentence {index}: {words!r} must be words, at least one, without white space")
    texts = [join_words(words) for words in sentences]
    if (most := model.config.max_positions) is not None and texts:
        with ENCODING_LOCK:
            encoded = tokenizer(texts).input_ids
        for index, ids in enumerate(encoded):
            if len(ids) > most:
                raise ValueError(f"sentence {index}: has {len(ids)} tokens, more than max_position_embeddings = {most}")
    size, search = model.config.output_vocab_size, search_options(model, generate_kwargs)

    def legal(indices: list[int], lengths: list[int]) -> list[LegalParse]:
        words = torch.tensor([len(sentences[index]) for index in indices])
        limits = torch.tensor([search.limit.new_tokens(length) for length in lengths])
        return [LegalParse(vocabulary, size, tokenizer.eos_token_id, words, limits)]

    processors = legal if constrained else None
    batches = generate_in_batches(
        model, tokenizer, texts, search, tokens_per_batch, batch_size, processors=processors, **generate_kwargs
    )
    special = {tokenizer.pad_token_id, tokenizer.eos_token_id}
    for indices, _, output_ids in batches:
        parses: list[list[Parse]] = [[] for _ in indices]
        for parsed, index, hypotheses in zip(parses, indices, output_ids.tolist(), strict=True):
            for hypothesis in hypotheses:
                entries = tokenizer.convert_ids_to_tokens([number for number in hypothesis if number not in special])
                sequence = [entry.removeprefix(LABEL_MARK) for entry in entries]
                parsed.append(parse_of_sequence(sequence, sentences[index], labels))
        yield indices, parses


class VaswaniParsingPipeline(GeneratingPipeline):
    """Parses sentences.

    For a sentence or a list it returns a list of `{"tree": ..., "words": [...], "repairs": 0}`, one for each sentence
    (a list of lists with `num_return_sequences` above 1); for a dataset or generator, an iterator over such lists. A
    sentence is a string, which `split_words` divides, or a dict with "text"; `parse_in_batches` takes lists of words.

    Args:
        constrained: Search only among well-formed parses.
        return_nltk: Also return "nltk_tree", an `nltk.Tree`.
        batch_size: Sentences parsed at once.

    Raises:
        TypeError: An input is not a sentence.
        ValueError: As from `parse_in_batches`.
        ImportError: `return_nltk` needs nltk.
    """

    def stage_options(self, return_nltk: bool | None = None, **forward: Any) -> StageOptions:
        return {}, forward, {} if return_nltk is None else {"return_nltk": return_nltk}

    def preprocess(self, items: list[Any]) -> dict[str, list[list[str]]]:
        texts = [item["text"] if isinstance(item, Mapping) and "text" in item else item for item in items]
        return {"sentences": [split_words(require_text(text, f"sentence {i}")) for i, text in enumerate(texts)]}

    def _forward(
        self, model_inputs: dict[str, list[list[str]]], batch_size: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        sentences = model_inputs["sentences"]
        batches = parse_in_batches(self.model, self.tokenizer, sentences, batch_size=batch_size, **kwargs)
        return {"sentences": sentences, "parses": in_order(batches)}

    def postprocess(self, model_outputs: dict[str, Any], return_nltk: bool = False) -> list[list[ParseRecord]]:
        results: list[list[ParseRecord]] = [
            [{"tree": parse.tree, "words": words, "repairs": parse.repairs} for parse in parses]
            for words, parses in zip(model_outputs["sentences"], model_outputs["parses"], strict=True)
        ]
        if return_nltk:
            try:  # without it, transformers would require nltk of every parser's user
                from nltk import Tree  # takes a third of a second
            except ImportError:
                raise ImportError("return_nltk: nltk is not installed; run `pip install nltk`") from None
            for record in chain.from_iterable(results):
                record["nltk_tree"] = Tree.fromstring(record["tree"])
        return results


# In remote code, too, since a pipeline can be made from a loaded model.
register_task(VaswaniParsingConfig.task, VaswaniParsingPipeline)
