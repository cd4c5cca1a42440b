"""BLEU by sacreBLEU as an `evaluate.Metric` without network: `Bleu()`, or `evaluate.load` with this file's path."""

import datasets
import evaluate
import sacrebleu


class Bleu(evaluate.Metric):
    """Corpus BLEU as sacreBLEU computes it, with the signature that makes the number comparable."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="Corpus BLEU by sacreBLEU, with its signature.",
            citation="",
            inputs_description=(
                "predictions: detokenized sentences; references: one sentence, or a list of them, for each prediction; "
                'tokenize: sacreBLEU\'s tokenizer, "13a" by default; lowercase: ignore case.'
            ),
            features=[
                datasets.Features({"predictions": text, "references": text}),
                datasets.Features({"predictions": text, "references": datasets.Sequence(text)}),
            ],
        )

    def _compute(self, predictions, references, tokenize="13a", lowercase=False):
        if isinstance(references[0], str):
            references = [[reference] for reference in references]
        if len({len(alternatives) for alternatives in references}) != 1:
            raise ValueError("references: every sentence must have the same number of them")
        metric = sacrebleu.metrics.BLEU(tokenize=tokenize, lowercase=lowercase)
        streams = [list(stream) for stream in zip(*references, strict=True)]
        result = metric.corpus_score(predictions, streams)
        return {
            "score": result.score,
            "precisions": result.precisions,
            "brevity_penalty": result.bp,
            "hypothesis_length": result.sys_len,
            "reference_length": result.ref_len,
            "signature": metric.get_signature().format(),
        }
