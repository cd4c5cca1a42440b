"""sacreBLEU as an `evaluate.Metric` that needs no network.

Use it as `Bleu()`, or through `evaluate.load` with this file's path. The file imports no other module of the package,
so that it can be a Hub Space named `bleu` by itself.
"""

import datasets
import evaluate
from sacrebleu.metrics.bleu import BLEU, BLEUScore


_CITATION = "Matt Post (2018): A Call for Clarity in Reporting BLEU Scores. https://aclanthology.org/W18-6319"

_DESCRIPTION = """\
Corpus BLEU as sacreBLEU computes it: the geometric mean of the precisions of 1-grams to 4-grams, times a brevity
penalty. Scores compare only if their signatures are equal."""

_INPUTS = """\
Args:
    predictions: Translations, not tokenized.
    references: For each prediction one reference or a list of them, the same number for all.
    tokenize: Name of sacreBLEU's tokenizer, "13a" by default.
    lowercase: Whether case is ignored."""

_RETURNS = """

Returns:
    "score" from 0 to 100, "precisions" in percent, "brevity_penalty", "hypothesis_length" and "reference_length" in
    tokens, and "signature", which says how it was computed."""


def metric_info(description: str, citation: str, inputs: str) -> evaluate.MetricInfo:
    """Description of a corpus BLEU for `evaluate`; each prediction has one reference or several."""
    text = datasets.Value("string")
    features = [
        datasets.Features({"predictions": text, "references": text}),
        datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
    ]
    return evaluate.MetricInfo(
        description=description, citation=citation, inputs_description=inputs + _RETURNS, features=features
    )


def as_result(bleu: BLEUScore, signature: str) -> dict[str, object]:
    """A score as the result of `compute`."""
    return {
        "score": bleu.score,
        "precisions": bleu.precisions,
        "brevity_penalty": bleu.bp,
        "hypothesis_length": bleu.sys_len,
        "reference_length": bleu.ref_len,
        "signature": signature,
    }


class Bleu(evaluate.Metric):
    """Corpus BLEU as sacreBLEU computes it, with its signature."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(_DESCRIPTION, _CITATION, _INPUTS)

    def _compute(self, predictions, references, tokenize="13a", lowercase=False):
        if isinstance(references[0], str):
            references = [[reference] for reference in references]
        if len({len(alternatives) for alternatives in references}) != 1:
            raise ValueError("references: every prediction must have the same number of references")
        metric = BLEU(tokenize=tokenize, lowercase=lowercase)
        streams = [list(stream) for stream in zip(*references, strict=True)]
        return as_result(metric.corpus_score(predictions, streams), metric.get_signature().format())
