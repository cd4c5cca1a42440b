"""The paper's BLEU (6.1): Moses tokenization, German compounds split, counts as in multi-bleu.perl.

sacremoses tokenizes. Splitting compounds, and lines into tokens, is done here. sacreBLEU counts and clips n-grams, and
applies the brevity penalty.

`MultiBleu()`, or `evaluate.load` with this file's path, is an `evaluate.Metric` that needs no network. The file imports
only bleu.py of the package, so that a Hub Space named `multi_bleu` needs just these two files.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import evaluate
import sacremoses
from sacrebleu.metrics.bleu import BLEU, BLEUScore

from .bleu import as_result, metric_info


_COMPOUND = re.compile(rb"(\S)-(\S)")

_CITATION = """\
Koehn et al. (2007): Moses: Open Source Toolkit for Statistical Machine Translation. https://aclanthology.org/P07-2045
Vaswani et al. (2017): Attention Is All You Need. https://arxiv.org/abs/1706.03762"""

_DESCRIPTION = """\
Corpus BLEU as multi-bleu.perl of Moses computes it, cased and unsmoothed. It scores lines of tokens; or, given a
language, plain text, tokenized as for Table 2 of "Attention Is All You Need". Its values are comparable with papers of
2017, which state no signature. Papers today report sacreBLEU."""

_INPUTS = """\
Args:
    predictions: Translations: plain text if a language is given, else tokens separated by single spaces.
    references: For each prediction one reference or a list of them, in the same form.
    language: Code of the language, such as "de", for the rules of Moses' tokenizer; compounds are split in "de"."""


def multi_bleu(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> float:
    """Corpus BLEU of lines of tokens, as multi-bleu.perl computes it.

    Tokens are separated by single spaces, so that an empty line is one empty token, as in the published values of
    tensorflow/nmt. The script itself splits at any white space, as `paper_bleu` does.

    Args:
        hypotheses: Lines of tokens.
        references: One line, or several alternatives, for each of them.

    Returns:
        BLEU from 0 to 100.

    Raises:
        ValueError: There is nothing to score, or a hypothesis has no reference.
    """
    return corpus_bleu(hypotheses, references, split_at_spaces).score


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], language: str) -> float:
    """The BLEU of Table 2 for plain text: `paper_tokenizer`, then counts as in multi-bleu.perl.

    Args:
        hypotheses: Translations, not tokenized.
        references: One text, or several alternatives, for each of them.
        language: Code of the target language, such as "de" or "pt_BR".

    Returns:
        BLEU from 0 to 100.

    Raises:
        ValueError: There is nothing to score, a hypothesis has no reference, or the language is not a code.
    """
    return corpus_bleu(hypotheses, references, paper_tokenizer(language)).score


def split_at_spaces(line: str) -> list[str]:
    """The tokens of a tokenized line."""
    return line.split(" ")


def paper_tokenizer(language: str) -> Callable[[str], list[str]]:
    """A function that tokenizes text like the authors' script: Moses' tokenizer.perl, then `split_compounds`.

    Moses escapes `&`, quotes and brackets. The authors published a script for German only. In all other languages,
    Moses' tokenizer runs alone. (fairseq's French BLEU is higher, because its corpus was tokenized with every hyphen
    split.) For languages without an abbreviation list, Moses uses the English one.

    Raises:
        ValueError: The language is not a code such as "de" or "pt_BR".
    """
    if not re.fullmatch(r"[a-z]{2,3}([-_]\w+)*", language):
        raise ValueError(f'language: must be a code such as "de", is {language!r}')
    language = re.split("[-_]", language)[0]
    moses = sacremoses.MosesTokenizer(lang=language)

    def tokenize(text: str) -> list[str]:
        tokenized = moses.tokenize(text, return_str=True, escape=True)
        return (split_compounds(tokenized) if language == "de" else tokenized).split()

    return tokenize


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

    numbered = [[as_numbers(text) for text in texts] for texts in _alternatives(hypotheses, references)]
    streams = list(itertools.zip_longest(*numbered))  # None if a hypothesis has fewer references than another
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return metric.corpus_score([as_numbers(line) for line in hypotheses], streams)


def _alternatives(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    """The list of references of each hypothesis."""
    if len(hypotheses) != len(references):
        raise ValueError(f"references: there are {len(references)} for {len(hypotheses)} hypotheses")
    if not hypotheses:
        raise ValueError("hypotheses: there is nothing to score")
    alternatives = [[reference] if isinstance(reference, str) else reference for reference in references]
    if [] in alternatives:
        raise ValueError(f"references: there is none for hypothesis {alternatives.index([]) + 1}")
    return alternatives


class MultiBleu(evaluate.Metric):
    """`multi_bleu` or, given a language, `paper_bleu`, with precisions, lengths and a signature."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(_DESCRIPTION, _CITATION, _INPUTS)

    def _compute(self, predictions, references, language=None):
        tokenize = split_at_spaces if language is None else paper_tokenizer(language)
        result = corpus_bleu(predictions, references, tokenize)
        counts = {len(alternatives) for alternatives in _alternatives(predictions, references)}
        number = counts.pop() if len(counts) == 1 else "var"
        tokens = "tok:spaces"
        if language is not None:
            compounds = "split" if language == "de" else "whole"
            tokens = f"tok:moses-{language}|compounds:{compounds}|sacremoses:{sacremoses.__version__}"
        return as_result(result, f"nrefs:{number}|case:mixed|{tokens}|smooth:none")
