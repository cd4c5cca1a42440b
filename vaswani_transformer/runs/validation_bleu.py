"""BLEU of a model in training on part of the validation corpus, and the choice of the length penalty by it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from accelerate import PartialState
from sacrebleu.metrics import BLEU
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.corpora import evenly_spaced, sentences
from ..data.prepared_directory import TrainingData
from ..decoding.translation import translate_corpus
from ..evaluation.scores import sacrebleu_score, sacrebleu_tokenizer, two_sided_bootstrap


@dataclass(frozen=True)
class ValidationBleu:
    """sacreBLEU of the translations of some sentences.

    Attributes:
        sources: Sentences to translate.
        references: Their reference translations, not tokenized.
        tokenizer: Tokenizer of the model.
        num_beams: Beams of the search (6.1); None for the model's generation_config.
    """

    sources: Sequence[str]
    references: Sequence[str]
    tokenizer: PreTrainedTokenizerBase
    num_beams: int | None = None

    @classmethod
    def on_sample(cls, data: TrainingData, config: PreTrainedConfig, count: int, num_beams: int | None = None) -> Self:
        """BLEU of `count` sentences of the validation corpus, evenly spaced."""
        corpus = data.text["validation"]
        sample = corpus.select(evenly_spaced(len(corpus), count))
        languages = config.source_language, config.target_language
        source, reference = (list(sentences(sample, [language])) for language in languages)
        return cls(source, reference, data.tokenizer, num_beams)

    def __call__(self, model: PreTrainedModel) -> float:
        """BLEU of a model, from 0 to 100; it translates by `translate`."""
        return sacrebleu_score(self.translate(model), self.references, model.config.target_language).score

    def translate(self, model: PreTrainedModel, **search: Any) -> list[str]:
        """Translate the sentences. Collective: the processes share them, and all return the same result.

        The model computes on its device, and is in evaluation mode afterwards.
        """
        if self.num_beams is not None:
            search["num_beams"] = self.num_beams
        search["target_language"] = model.config.target_language
        return translate_corpus(model, self.tokenizer, self.sources, show_progress=False, **search)


def choose_length_penalty(model: PreTrainedModel, penalties: Sequence[float], data: TrainingData) -> float:
    """The first alpha (6.1), unless another has a significantly better BLEU on the validation set. Collective.

    Significant means p < 0.05 after multiplying by the number of the others (Bonferroni). A single alpha is not tested.
    """
    first = penalties[0]
    if len(penalties) == 1:
        return first
    bleu = ValidationBleu.on_sample(data, model.config, len(data.text["validation"]))
    language = model.config.target_language
    outputs = {alpha: bleu.translate(model, length_penalty=alpha) for alpha in penalties}
    scores = {alpha: sacrebleu_score(lines, bleu.references, language).score for alpha, lines in outputs.items()}
    best = max(scores, key=scores.__getitem__)
    chosen, against = first, ""
    if best != first:
        references = [[line] for line in bleu.references]
        metric = BLEU(tokenize=sacrebleu_tokenizer(language))
        p_value = (len(outputs) - 1) * two_sided_bootstrap(metric, outputs[first], outputs[best], references, 1000)
        chosen = best if p_value < 0.05 else first
        against = f"; {best:g} against {first:g}: p = {min(1.0, p_value):.3f}"
    if PartialState().is_main_process:
        measured = ", ".join(f"{alpha:g}: {score:.2f}" for alpha, score in scores.items())
        print(f"length_penalty {chosen:g}; validation BLEU by length_penalty: {measured}{against}", flush=True)
    return chosen
