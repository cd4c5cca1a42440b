"""What is reported of translations: both BLEUs, chrF, BLEU by source length, and whether one system is better."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from .bleu import Bleu
from .multi_bleu import MultiBleu


def score_translations(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str
) -> dict[str, dict[str, Any]]:
    """Corpus scores of plain text.

    Args:
        hypotheses: Translations.
        references: One or several for each of them, as many for all.
        language: Code of the language they are in; the paper's BLEU depends on it.

    Returns:
        "sacrebleu", "paper_bleu" and "chrf" (chrF2), each with a "score" from 0 to 100 and a "signature".
    """
    return {
        "sacrebleu": Bleu().compute(predictions=hypotheses, references=references),
        "paper_bleu": MultiBleu().compute(predictions=hypotheses, references=references, language=language),
        "chrf": chrf(hypotheses, references),
    }


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Corpus chrF2 of sacreBLEU, F-score of character n-grams: "score", from 0 to 100, and "signature"."""
    metric = CHRF()
    score = metric.corpus_score(hypotheses, _streams(references)).score
    return {"score": score, "signature": metric.get_signature().format()}


def bleu_by_source_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    width: int = 10,
    longest: int = 60,
) -> list[dict[str, Any]]:
    """sacreBLEU of the sentences whose sources have about as many words, white space between words.

    Args:
        sources: Source sentences.
        hypotheses: Their translations.
        references: One or several for each of them, as many for all.
        width: Lengths in a group.
        longest: Longer sources than this are one group.

    Returns:
        For each group that is not empty, the shortest first: "shortest" and "longest" of its lengths (the last group's
        longest is None), the number of "sentences", and "sacrebleu" from 0 to 100.
    """
    groups: dict[int, list[int]] = {}
    for place, source in enumerate(sources):
        length = max(1, len(source.split()))
        groups.setdefault(min(length - 1, longest) // width, []).append(place)
    found = []
    for group, places in sorted(groups.items()):
        chosen = [hypotheses[place] for place in places]
        bleu = BLEU().corpus_score(chosen, _streams([references[place] for place in places]))
        end = (group + 1) * width
        found.append(
            {
                "shortest": group * width + 1,
                "longest": end if end <= longest else None,
                "sentences": len(places),
                "sacrebleu": bleu.score,
            }
        )
    return found


def paired_bootstrap(
    baseline: Sequence[str], system: Sequence[str], references: Sequence[Sequence[str]], samples: int = 1000
) -> dict[str, dict[str, Any]]:
    """Whether a system differs from a baseline by more than chance: sacreBLEU's paired bootstrap (Koehn, 2004).

    Args:
        baseline: Its translations.
        system: The other's, of the same sentences.
        references: One or several for each of them, as many for all.
        samples: How often the test set is drawn anew.

    Returns:
        For "BLEU" and "chrF2" the "p_value", how likely chance alone makes so great a difference (1 if there is none),
        the "signature", and for "baseline" and "system" the "score", and of the samples "mean" and "confidence", half
        the 95 % interval.
    """
    named = [("baseline", baseline), ("system", system)]
    metrics = {"BLEU": BLEU(), "chrF": CHRF()}
    test = PairedTest(named, metrics, _streams(references), test_type="bs", n_samples=samples)
    signatures, scores = test()
    found = {}
    for name, signature in signatures.items():
        results: list[Any] = scores[name]
        found[name] = {
            # sacreBLEU, which counts the samples that differ by more, would call no difference significant.
            "p_value": results[1].p_value if results[0].score != results[1].score else 1.0,
            "signature": signature.format(),
            "baseline": _resampled(results[0]),
            "system": _resampled(results[1]),
        }
    return found


def _resampled(result: Any) -> dict[str, float]:
    return {"score": result.score, "mean": float(result.mean), "confidence": float(result.ci)}


def _streams(references: Sequence[Sequence[str]]) -> list[list[str]]:
    """What sacreBLEU takes: the first references of all sentences, then the second ones, and so on."""
    return [list(stream) for stream in zip(*references, strict=True)]
