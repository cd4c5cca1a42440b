"""Whether an exported model translates as ours does: the same hypotheses, or what tells them apart."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..evaluation import Bleu
from ..model.generation_vaswani import length_penalty
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from .batches import batches_of_one_length


KINDS = ("tie", "rule", "ours_scores_higher", "exported_scores_higher")

# Scores no further apart are the same but for rounding.
TIE = 1e-3


class Engine(Protocol):
    """Anything that searches as `CTranslate2Translator.search` does; by its own rule, as ours with
    `early_stopping=True`."""

    def search(
        self, sources: Sequence[Sequence[int]], *, by_own_rule: bool = False
    ) -> list[tuple[list[int], float]]: ...


def parity_report(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    engine: Engine,
    sentences: Sequence[str],
    references: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Translate with both and compare.

    Args:
        model: Our model, in float32.
        tokenizer: Its tokenizer.
        engine: The exported model.
        sentences: Source sentences; white space around them is removed, and blank ones are left out.
        references: Their translations, for BLEU.

    Returns:
        "lines" compared, "identical" ones, "identical_share", "tie_tolerance", "kinds" (how many differences there are
        of each) and "differences": for each its line, counted from 1, both hypotheses with their normalised scores,
        and its kind. Both scores are those that our model gives. The kinds are "tie"; "rule", where both find the same
        when ours searches by the engine's rule; "ours_scores_higher" and "exported_scores_higher". With references also
        "bleu", ours and the exported model's.

    Raises:
        ValueError: There is nothing to translate, or not one reference for each sentence.
    """
    if references is not None and len(references) != len(sentences):
        raise ValueError(f"references: there are {len(references)} of them for {len(sentences)} sentences")
    lines = [number for number, sentence in enumerate(sentences) if sentence.strip()]
    if not lines:
        raise ValueError("text: there is nothing in it to translate")
    model.eval()
    sources = tokenizer([sentences[line].strip() for line in lines])["input_ids"]
    exported = [tokens for tokens, _ in engine.search(sources)]
    ours = search(model, sources)
    differences = [
        {"line": line + 1, **_difference(model, tokenizer, source, mine, other)}
        for line, source, mine, other in zip(lines, sources, ours, exported, strict=True)
        if mine != other
    ]
    differing = [source for source, mine, other in zip(sources, ours, exported, strict=True) if mine != other]
    _mark_differences_of_rule(model, engine, differing, differences)
    kinds = [difference["kind"] for difference in differences]
    report: dict[str, Any] = {
        "lines": len(lines),
        "identical": len(lines) - len(differences),
        "identical_share": 1 - len(differences) / len(lines),
        "tie_tolerance": TIE,
        "kinds": {kind: kinds.count(kind) for kind in KINDS},
        "differences": differences,
    }
    if references is not None:
        chosen = [references[line] for line in lines]
        report["bleu"] = {
            name: Bleu().compute(
                predictions=tokenizer.batch_decode(hypotheses, skip_special_tokens=True), references=chosen
            )
            for name, hypotheses in (("ours", ours), ("exported", exported))
        }
    return report


def _mark_differences_of_rule(
    model: VaswaniForConditionalGeneration,
    engine: Engine,
    sources: Sequence[Sequence[int]],
    differences: list[dict[str, Any]],
) -> None:
    """Search the sources of differences again, by the engine's rule, which ours knows too."""
    if not differences:
        return
    exported = [tokens for tokens, _ in engine.search(sources, by_own_rule=True)]
    for difference, mine, other in zip(differences, search(model, sources, early_stopping=True), exported, strict=True):
        if difference["kind"] != "tie" and mine == other:
            difference["kind"] = "rule"


def search(
    model: VaswaniForConditionalGeneration, sources: Sequence[Sequence[int]], **settings: Any
) -> list[list[int]]:
    """Our model's best hypotheses, as token ids with EOS; `settings` are for `generate`."""
    best: list[list[int]] = [[]] * len(sources)
    with tqdm(total=len(sources), desc="Translating with our model", unit="sentences") as bar:
        for indices in batches_of_one_length(sources):
            batch = torch.tensor([sources[index] for index in indices], device=model.device)  # [batch, source]
            outputs = model.generate(batch, **settings)[:, 1:].tolist()  # without the start token
            for index, tokens in zip(indices, outputs, strict=True):
                eos = model.config.eos_token_id
                best[index] = tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
            bar.update(len(indices))
    return best


def _difference(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    source: Sequence[int],
    ours: Sequence[int],
    exported: Sequence[int],
) -> dict[str, Any]:
    scores = [normalised_score(model, source, hypothesis) for hypothesis in (ours, exported)]
    kind = "ours_scores_higher" if scores[0] > scores[1] else "exported_scores_higher"
    return {
        "kind": "tie" if abs(scores[0] - scores[1]) < TIE else kind,
        "source": tokenizer.decode(source, skip_special_tokens=True),
        "ours": tokenizer.decode(ours, skip_special_tokens=True),
        "exported": tokenizer.decode(exported, skip_special_tokens=True),
        "ours_score": scores[0],
        "exported_score": scores[1],
    }


@torch.no_grad()
def normalised_score(model: VaswaniForConditionalGeneration, source: Sequence[int], hypothesis: Sequence[int]) -> float:
    """The log-probability of a hypothesis, EOS included, divided by the length penalty of the model's search."""
    labels = torch.tensor([hypothesis], device=model.device)  # [1, target]
    logits = model(torch.tensor([source], device=model.device), labels=labels).logits  # [1, target, vocabulary]
    total = logits.double().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).sum().item()
    settings = model.generation_config
    return total / float(length_penalty(len(hypothesis), settings.length_penalty, settings.length_penalty_type))
