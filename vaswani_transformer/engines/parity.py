"""Parity of an exported model with ours: share of identical hypotheses, and cause of each difference."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from ..evaluation.scores import BleuScore, sacrebleu_score
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.scores_vaswani import TranslationScorer
from ..model.search_options_vaswani import SearchOptions
from ..system.typed_json import Record
from .engine import Engine
from .transformers_engine import TransformersTranslator


KINDS = ("tie", "rule", "ours_scores_higher", "exported_scores_higher")

_TIE = 1e-3  # scores with a smaller difference are equal up to rounding


@dataclass(frozen=True)
class Difference:
    """A sentence for which two systems return different hypotheses.

    Attributes:
        line: Number of the sentence in the text, from 1.
        kind: "tie", both scores are equal up to rounding; "rule", ours finds the same hypothesis by the engine's rule;
            else "ours_scores_higher" or "exported_scores_higher": the weights differ, or the engine has a length limit
            or a shortlist.
        source, ours, exported: Source and hypotheses as text.
        ours_score, exported_score: Normalised scores of both hypotheses, both computed by our model.
    """

    line: int
    kind: str
    source: str
    ours: str
    exported: str
    ours_score: float
    exported_score: float


@dataclass(frozen=True)
class ParityReport(Record):
    """Agreement of an exported model with ours on a text: `parity.json`.

    Attributes:
        lines: Number of sentences compared.
        identical: Number of identical hypotheses.
        kinds: Number of differences of each kind.
        differences: All differences, by line.
        bleu: sacreBLEU of "ours" and "exported", if there are references.
        same_tokens: Number of sentences with the same ids by `tokenizers` and the exported `tokenizer.json` alone; None
            without such a file.
    """

    lines: int
    identical: int
    kinds: dict[str, int]
    differences: list[Difference]
    bleu: dict[str, BleuScore] | None = None
    same_tokens: int | None = None


def parity_report(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    engine: Engine,
    sentences: Sequence[str],
    references: Sequence[str] | None = None,
    tokenizer_file: Path | None = None,
    language: str | None = None,
) -> ParityReport:
    """Translate with our model and with the exported one, and compare the hypotheses and the sentences' tokens.

    Args:
        model: Our model, in float32.
        tokenizer: Its tokenizer.
        engine: The exported model.
        sentences: Source sentences, not all blank; surrounding white space is removed, and blank ones are left out.
        references: Their translations, for BLEU.
        tokenizer_file: The exported `tokenizer.json`, if there is one.
        language: Code of the references' language, by which sacreBLEU chooses its tokenizer.
    """
    lines = [index for index, sentence in enumerate(sentences) if sentence.strip()]
    model.eval()
    texts = [sentences[line].strip() for line in lines]
    sources = tokenizer(texts)["input_ids"]
    translator = TransformersTranslator(model, "our model")
    ours, exported = translator.hypotheses(sources), engine.hypotheses(sources)
    differing = [row for row in range(len(lines)) if ours[row] != exported[row]]
    by_rule = translator.hypotheses([sources[row] for row in differing], **engine.rule)
    search = SearchOptions.from_fields(vars(model.generation_config))
    alpha = search.length_penalty if search.num_beams > 1 else 0.0  # greedy search has none
    scorer = TranslationScorer(model, tokenizer, alpha, search.length_penalty_type)
    differences = []
    for row, same in zip(differing, by_rule, strict=True):
        ids = torch.tensor([sources[row]], device=model.device)  # [1, source]
        both = [torch.tensor([model.config.decoder_start_token_id, *each]) for each in (ours[row], exported[row])]
        output_ids = pad_sequence(both, True, model.config.pad_token_id).to(model.device)  # [2, 1 + target]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        first, second = (each.score for each in scorer.score(inputs, output_ids))
        kind = _kind(first, second, is_by_rule=same == exported[row])
        tokens = [sources[row], ours[row], exported[row]]
        source, our_text, exported_text = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        differences.append(Difference(lines[row] + 1, kind, source, our_text, exported_text, first, second))
    bleu = same_tokens = None
    if references is not None:
        targets, bleu = [references[line] for line in lines], {}
        for name, hypotheses in (("ours", ours), ("exported", exported)):
            translations = tokenizer.batch_decode(hypotheses, skip_special_tokens=True)
            bleu[name] = sacrebleu_score(translations, targets, language)
    if tokenizer_file is not None:
        encodings = Tokenizer.from_file(str(tokenizer_file)).encode_batch(texts)
        same_tokens = sum(encoding.ids == ids for encoding, ids in zip(encodings, sources, strict=True))
    counts = {kind: sum(each.kind == kind for each in differences) for kind in KINDS}
    return ParityReport(len(lines), len(lines) - len(differences), counts, differences, bleu, same_tokens)


def _kind(ours_score: float, exported_score: float, is_by_rule: bool) -> str:
    """The kind of a difference; see `Difference.kind`."""
    if abs(ours_score - exported_score) < _TIE:
        return "tie"
    if is_by_rule:
        return "rule"
    return "ours_scores_higher" if ours_score > exported_score else "exported_scores_higher"
