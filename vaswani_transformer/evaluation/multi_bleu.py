"""The paper's BLEU (6.1): tokens of Moses, German compounds split, counted by the rules of multi-bleu.perl.

`MultiBleu()`, or `evaluate.load` with this file's path, is an `evaluate.Metric` without network. Like bleu.py the file
needs nothing else of the package: a folder or a Space of the Hub that is named `multi_bleu` and holds it is a metric.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import evaluate
import sacremoses


MAX_ORDER = 4

_COMPOUND = re.compile(rb"(\S)-(\S)")

_CITATION = """\
@inproceedings{vaswani2017,
    title = "Attention Is All You Need",
    author = "Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and
              Gomez, Aidan N. and Kaiser, {\\L}ukasz and Polosukhin, Illia",
    booktitle = "Advances in Neural Information Processing Systems 30",
    year = "2017",
    eprint = "1706.03762",
}
@inproceedings{koehn2007,
    title = "{M}oses: Open Source Toolkit for Statistical Machine Translation",
    author = "Koehn, Philipp and Hoang, Hieu and Birch, Alexandra and Callison-Burch, Chris and Federico, Marcello and
              Bertoldi, Nicola and Cowan, Brooke and Shen, Wade and Moran, Christine and Zens, Richard and Dyer, Chris
              and Bojar, Ond{\\v{r}}ej and Constantin, Alexandra and Herbst, Evan",
    booktitle = "Proceedings of the 45th Annual Meeting of the Association for Computational Linguistics, Demo and
                 Poster Sessions",
    year = "2007",
    pages = "177--180",
}"""

_DESCRIPTION = """\
Corpus BLEU as multi-bleu.perl of Moses computes it, cased and unsmoothed: of lines of tokens; or, given a language, of
plain text after the steps behind Table 2 of "Attention Is All You Need". Its values compare with those of papers of
that time, which state no signature; what is reported today is sacreBLEU."""

_INPUTS = """\
Args:
    predictions: Translations: plain text if a language is given, else tokens between single spaces.
    references: The same of one reference, or of a list of them, for each prediction.
    language: Code of the language, such as "de", whose rules Moses' tokenizer follows; compounds are split in "de".

Returns:
    "score" from 0 to 100, "precisions" in percent, "brevity_penalty", "hypothesis_length" and "reference_length" in
    tokens, and "signature", which says what was done."""


def multi_bleu(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> float:
    """Corpus BLEU of lines of tokens, as multi-bleu.perl computes it.

    Tokens stand between single spaces, so that a line of nothing is one empty token. Thus tensorflow/nmt counted for
    the values that it published; the script itself splits at any white space, as `paper_bleu` does.

    Args:
        hypotheses: Lines of tokens.
        references: One line, or several alternatives, for each of them.

    Returns:
        BLEU from 0 to 100.

    Raises:
        ValueError: There is nothing to score, or a hypothesis has no reference.
    """
    return corpus_bleu(hypotheses, references, split_at_spaces)["score"]


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], language: str) -> float:
    """The BLEU of Table 2, of plain text: tokenized by `paper_tokenizer`, counted as multi-bleu.perl does.

    Args:
        hypotheses: Translations, not tokenized.
        references: One text, or several alternatives, for each of them.
        language: Code of the language they are in, such as "de".

    Returns:
        BLEU from 0 to 100.

    Raises:
        ValueError: There is nothing to score, a hypothesis has no reference, or the language is no code.
    """
    return corpus_bleu(hypotheses, references, paper_tokenizer(language))["score"]


def split_at_spaces(line: str) -> list[str]:
    """The tokens of a line that was tokenized before."""
    return line.split(" ")


def paper_tokenizer(language: str) -> Callable[[str], list[str]]:
    """A function that makes tokens of plain text as the authors' script does: Moses' tokenizer.perl, with its escaping
    of `&`, quotes and brackets, and then `split_compounds`.

    That script is for German. For French none was published: there, as in every language but German, only Moses'
    tokenizer is run, with the rules of the language. (fairseq's French BLEU is higher: its corpus was tokenized with
    every hyphen split.) Where Moses has no abbreviations of a language, it uses the English ones.

    Raises:
        ValueError: The language is no code such as "de".
    """
    if not re.fullmatch("[a-z]{2,3}", language):
        raise ValueError(f'language: must be a code such as "de", is {language!r}')
    moses = sacremoses.MosesTokenizer(lang=language)

    def tokenize(text: str) -> list[str]:
        tokenized = moses.tokenize(text, return_str=True, escape=True)
        return (split_compounds(tokenized) if language == "de" else tokenized).split()

    return tokenize


def split_compounds(text: str) -> str:
    """Put ` ##AT##-##AT## ` for every hyphen between two characters that are no white space.

    A character stands beside one such hyphen only: `a-b-c` keeps its second. And characters are bytes, as they are to a
    Perl that is not told of UTF-8: `a-ü-c` keeps none.
    """
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", text.encode()).decode()


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    tokenize: Callable[[str], list[str]],
) -> dict[str, Any]:
    """BLEU by the rules of multi-bleu.perl.

    An n-gram is expected as often as that reference has it that has it most often. For the brevity penalty, of several
    references the one nearest in length counts, and of two as near the shorter. If no n-gram of some order is found,
    the score is 0.

    Returns:
        "score" from 0 to 100, "precisions" in percent, "brevity_penalty", "hypothesis_length" and "reference_length" in
        tokens.

    Raises:
        ValueError: There is nothing to score, or a hypothesis has no reference.
    """
    correct, total = Counter[int](), Counter[int]()  # by order
    reference_length = 0
    for line, alternatives in zip(hypotheses, _alternatives(hypotheses, references), strict=True):
        hypothesis = tokenize(line)
        tokenized = [tokenize(alternative) for alternative in alternatives]
        expected: Counter[tuple[str, ...]] = Counter()
        for reference in tokenized:
            expected |= _ngrams(reference)
        for ngram, count in _ngrams(hypothesis).items():
            total[len(ngram)] += count
            correct[len(ngram)] += min(count, expected[ngram])
        reference_length += _nearest(len(hypothesis), [len(reference) for reference in tokenized])
    precisions = [correct[order] / max(total[order], 1) for order in range(1, MAX_ORDER + 1)]
    brevity_penalty = _brevity_penalty(total[1], reference_length)
    mean_log = sum(map(math.log, precisions)) / MAX_ORDER if all(precisions) else -math.inf
    return {
        "score": 100 * brevity_penalty * math.exp(mean_log),
        "precisions": [100 * precision for precision in precisions],
        "brevity_penalty": brevity_penalty,
        "hypothesis_length": total[1],
        "reference_length": reference_length,
    }


def _ngrams(tokens: Sequence[str]) -> Counter[tuple[str, ...]]:
    orders = range(1, MAX_ORDER + 1)
    return Counter(tuple(tokens[i : i + order]) for order in orders for i in range(len(tokens) - order + 1))


def _nearest(length: int, candidates: Sequence[int]) -> int:
    return min(candidates, key=lambda candidate: (abs(candidate - length), candidate))


def _brevity_penalty(hypothesis_length: int, reference_length: int) -> float:
    if hypothesis_length >= reference_length:
        return 1.0
    return math.exp(1 - reference_length / hypothesis_length) if hypothesis_length else 0.0


def _alternatives(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    """For each hypothesis its references, if there are any."""
    if len(hypotheses) != len(references):
        raise ValueError(f"references: there are {len(references)} of them for {len(hypotheses)} hypotheses")
    if not hypotheses:
        raise ValueError("hypotheses: there is nothing to score")
    alternatives = [[reference] if isinstance(reference, str) else reference for reference in references]
    if [] in alternatives:
        raise ValueError(f"references: there is none for hypothesis {alternatives.index([]) + 1}")
    return alternatives


class MultiBleu(evaluate.Metric):
    """`multi_bleu` or, given a language, `paper_bleu`, with what they are made of."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=[
                datasets.Features({"predictions": text, "references": text}),
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
            ],
            homepage="https://github.com/moses-smt/mosesdecoder",
            license="Apache-2.0",
            codebase_urls=["https://github.com/moses-smt/mosesdecoder", "https://github.com/hplt-project/sacremoses"],
            reference_urls=["https://arxiv.org/abs/1706.03762", "https://aclanthology.org/P07-2045"],
        )

    def _compute(self, predictions, references, language=None):
        tokenize = split_at_spaces if language is None else paper_tokenizer(language)
        scores = corpus_bleu(predictions, references, tokenize)
        counts = {len(alternatives) for alternatives in _alternatives(predictions, references)}
        number = counts.pop() if len(counts) == 1 else "var"
        return {**scores, "signature": f"nrefs:{number}|case:mixed|{_steps(language)}|smooth:none"}


def _steps(language: str | None) -> str:
    if language is None:
        return "tok:spaces"
    compounds = "split" if language == "de" else "whole"
    return f"tok:moses-{language}|compounds:{compounds}|sacremoses:{sacremoses.__version__}"
