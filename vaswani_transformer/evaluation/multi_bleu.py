"""The paper's BLEU (6.1): Moses tokenization, German compounds split, counts as in multi-bleu.perl.

sacremoses tokenizes. Splitting compounds, and lines into tokens, is done here. sacreBLEU counts and clips n-grams, and
applies the brevity penalty.

`MultiBleu()`, or `evaluate.load` with this file's path, is an `evaluate.Metric` that needs no network. The file imports
nothing of the package, so that it is a Hub Space named `multi_bleu` by itself.
"""

import importlib.metadata
import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import evaluate
from sacrebleu.metrics.bleu import BLEU, BLEUScore


_COMPOUND = re.compile(rb"(\S)-(\S)")

_CITATION = """\
Koehn et al. (2007): Moses: Open Source Toolkit for Statistical Machine Translation. https://aclanthology.org/P07-2045
Vaswani et al. (2017): Attention Is All You Need. https://arxiv.org/abs/1706.03762"""

_INPUTS = """\
Args:
    predictions: Translations: plain text if a language is given, else tokens separated by single spaces.
    references: For each prediction one reference or a list of them, in the same form.
    language: Code of the language, such as "de", for the rules of Moses' tokenizer; compounds are split in "de", and
        text is normalized to NFC.

Returns:
    "score" from 0 to 100, "precisions" in percent, "brevity_penalty", "hypothesis_length" and "reference_length" in
    tokens, and "signature", which says how it was computed."""


def multi_bleu(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> float:
    """Corpus BLEU of tokenized lines, from 0 to 100, as multi-bleu.perl computes it.

    Each line has one reference or several. Tokens are separated by single spaces, so that an empty line is one empty
    token, as in the published values of tensorflow/nmt. The script splits at any white space.
    """
    return corpus_bleu(hypotheses, references, split_at_spaces).score


def split_at_spaces(line: str) -> list[str]:
    """The tokens of a tokenized line."""
    return line.split(" ")


def paper_tokenizer(language: str) -> Callable[[str], list[str]]:
    """A function that tokenizes text like the authors' script (Table 2): Moses' tokenizer, then `split_compounds`.

    Text is normalized to NFC first, because a word does not match itself in another form. Moses escapes `&`, quotes and
    brackets. The authors published a script for German only; other compounds stay whole. (fairseq's French BLEU is
    higher, because its corpus was tokenized with every hyphen split.) For languages without an abbreviation list, Moses
    uses the English one.

    Raises:
        ValueError: The language is not a code such as "de" or "pt_BR".
    """
    if not is_language(language):
        raise ValueError(f'language: must be a code such as "de", is {language!r}')
    language = re.split("[-_]", language)[0]
    import sacremoses  # takes a second; training and translation do not need it

    moses = sacremoses.MosesTokenizer(lang=language)

    def tokenize(text: str) -> list[str]:
        tokenized = moses.tokenize(unicodedata.normalize("NFC", text), return_str=True, escape=True)
        return (split_compounds(tokenized) if language == "de" else tokenized).split()

    return tokenize


def is_language(language: str) -> bool:
    """Whether a text is a code of a language for `paper_tokenizer`."""
    return re.fullmatch(r"[a-z]{2,3}([-_]\w+)*", language) is not None


def split_compounds(text: str) -> str:
    """Replace every hyphen between two characters that are not white space by ` ##AT##-##AT## `.

    Matches do not overlap: `a-b-c` keeps its second hyphen. Characters are bytes, as for a Perl that does not decode
    UTF-8: `a-ü-c` keeps no hyphen.
    """
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", text.encode()).decode()


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    tokenize: Callable[[str], list[str]],
) -> BLEUScore:
    """BLEU by the rules of multi-bleu.perl, which are sacreBLEU's without its tokenizer and smoothing.

    Matches are clipped by the maximum reference count. The brevity penalty uses the reference closest in length, or the
    shorter of two equally close ones. If no n-gram of some order matches, the score is 0.

    Raises:
        ValueError: There is nothing to score, or a hypothesis has no reference.
    """
    numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)

    def as_numbers(line: str) -> str:
        """Tokens as numbers, since sacreBLEU splits at any white space, and a token may contain some or be empty."""
        return " ".join(str(numbers[token]) for token in tokenize(line))

    if not hypotheses or len(references) != len(hypotheses):  # sacreBLEU would ignore the surplus
        raise ValueError(f"there are {len(hypotheses)} hypotheses and {len(references)} references; give one for each")
    alternatives = [[texts] if isinstance(texts, str) else texts for texts in references]
    streams = itertools.zip_longest(*([as_numbers(text) for text in texts] for texts in alternatives))
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    # If a hypothesis has fewer references than another, the missing ones are None.
    return metric.corpus_score([as_numbers(line) for line in hypotheses], list(streams))


def bleu_with_signature(
    predictions: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], language: str | None
) -> dict[str, Any]:
    """The result of `MultiBleu().compute`, without the files that an `evaluate.Metric` writes."""
    bleu = corpus_bleu(predictions, references, split_at_spaces if language is None else paper_tokenizer(language))
    counts = {1 if isinstance(texts, str) else len(texts) for texts in references}
    number = counts.pop() if len(counts) == 1 else "var"
    tokens = "tok:spaces"
    if language is not None:
        code = re.split("[-_]", language)[0]  # as `paper_tokenizer` takes it
        compounds = "split" if code == "de" else "whole"
        version = importlib.metadata.version("sacremoses")
        tokens = f"tok:moses-{code}|compounds:{compounds}|norm:NFC|sacremoses:{version}"
    return {
        "score": bleu.score,
        "precisions": bleu.precisions,
        "brevity_penalty": bleu.bp,
        "hypothesis_length": bleu.sys_len,
        "reference_length": bleu.ref_len,
        "signature": f"nrefs:{number}|case:mixed|{tokens}|smooth:none",
    }


class MultiBleu(evaluate.Metric):
    """`multi_bleu` or, given a language, the BLEU of Table 2, with precisions, lengths and a signature."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        one = datasets.Features({"predictions": text, "references": text})
        several = datasets.Features({"predictions": text, "references": datasets.Sequence(text)})
        return evaluate.MetricInfo(
            description=__doc__, citation=_CITATION, inputs_description=_INPUTS, features=[one, several]
        )

    def _compute(self, predictions, references, language=None):
        return bleu_with_signature(predictions, references, language)
