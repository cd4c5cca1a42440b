"""Word alignment of given translations by encoder-decoder attention, and the choice of the heads that align."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.languages_vaswani import with_tag
from ..model.pipeline_vaswani import batches_of_similar_length
from ..model.scores_vaswani import AlignmentHeads, align_words, read_decoder, token_words
from ..model.tokenization_vaswani import for_targets
from .translation import search_on_all_processes


Links = list[tuple[int, int]]  # places of a source word and a target word, counted from 0


@dataclass(frozen=True)
class ChosenHeads:
    """The heads by which two models of opposite directions agree most.

    Attributes:
        forward: Of the model from source to target.
        backward: Of the other.
        agreement: Share of the links of either that both have, `2 |A & B| / (|A| + |B|)`, in pairs that did not choose.
        agreement_before: By all heads of the last layer of each.
    """

    forward: AlignmentHeads
    backward: AlignmentHeads
    agreement: float
    agreement_before: float


@dataclass(frozen=True)
class Aligner:
    """Aligns words by a translation model.

    Attributes:
        model: The model, on the device to use.
        tokenizer: Its tokenizer.
        tag: Begins each source of a model of several directions; it is no word.
        tokens_per_batch: Tokens of the longer side of a batch, padding included.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    tag: str | None = None
    tokens_per_batch: int = 4096

    @property
    def candidates(self) -> list[AlignmentHeads]:
        """What to choose from: all heads of each layer, and each head alone, at either step."""
        config = self.model.config
        layers, heads = range(config.decoder_layers), range(config.decoder_attention_heads)
        whole = [[[layer, head] for head in heads] for layer in layers]
        groups = whole + [[pair] for layer in whole for pair in layer]
        return [AlignmentHeads(pairs, is_shifted) for is_shifted in (False, True) for pairs in groups]

    def align(
        self, sources: Sequence[str], targets: Sequence[str], heads: Sequence[AlignmentHeads]
    ) -> list[list[Links]]:
        """The links between the words of each pair, by each of some `heads`. Collective.

        White space around sentences is removed. A blank sentence has no links.
        """
        self.model.eval()
        tagged = [with_tag(sentence.strip(), self.tag) for sentence in sources]
        spoken = [sentence.strip() for sentence in targets]
        encoded = self.tokenizer(tagged).input_ids, for_targets(self.tokenizer)(text_target=spoken).input_ids
        lengths = [max(map(len, pair)) for pair in zip(*encoded, strict=True)]
        start, device = self.model.config.decoder_start_token_id, self.model.device

        def search(indices: list[int]) -> Iterator[tuple[list[int], list[list[Links]]]]:
            own = [lengths[index] for index in indices]
            for batch in batches_of_similar_length(own, {length: length for length in own}, self.tokens_per_batch):
                source, target = ([column[indices[place]] for place in batch] for column in encoded)
                inputs = self.tokenizer.pad({"input_ids": source}, return_tensors="pt").to(device)
                forced = self.tokenizer.pad({"input_ids": [[start, *ids] for ids in target]}, return_tensors="pt")
                _, attention = read_decoder(
                    self.model, inputs, forced.input_ids.to(device), [each.pairs for each in heads]
                )
                rows = zip(attention.cpu(), source, target, strict=True)  # of [groups, target, source]
                yield batch, [_links(self.tokenizer, heads, *row) for row in rows]

        return search_on_all_processes(lengths, search, "Aligning")


def choose_heads(
    forward: Aligner, backward: Aligner, sources: Sequence[str], targets: Sequence[str], same: bool = False
) -> ChosenHeads:
    """Choose among the candidates of both models those with the highest agreement (Chen et al., 2020). Collective.

    The first of every two pairs choose, and the second show how well.

    Args:
        forward: Aligns from sources to targets.
        backward: Aligns from targets to sources.
        sources: Sentences.
        targets: Their translations.
        same: Choose the same heads for both, as a model of both directions keeps them.
    """
    ahead, back = (
        forward.align(sources, targets, forward.candidates),
        backward.align(targets, sources, backward.candidates),
    )
    of_forward = [[set(links) for links in found] for found in zip(*ahead, strict=True)]
    of_backward = [[{(s, t) for t, s in links} for links in found] for found in zip(*back, strict=True)]

    def agreement(choice: tuple[int, int], half: int) -> float:
        return _agreement(of_forward[choice[0]][half::2], of_backward[choice[1]][half::2])

    choices = ((a, b) for a in range(len(of_forward)) for b in ([a] if same else range(len(of_backward))))
    best = max(choices, key=lambda choice: agreement(choice, 0))
    before = tuple(each.model.config.decoder_layers - 1 for each in (forward, backward))  # places among the candidates
    heads = forward.candidates[best[0]], backward.candidates[best[1]]
    return ChosenHeads(*heads, agreement(best, 1), agreement(before, 1))


def _agreement(forward: Sequence[set[tuple[int, int]]], backward: Sequence[set[tuple[int, int]]]) -> float:
    both = sum(len(one & other) for one, other in zip(forward, backward, strict=True))
    return 2 * both / max(1, sum(map(len, forward)) + sum(map(len, backward)))


def _links(
    tokenizer: PreTrainedTokenizerBase,
    heads: Sequence[AlignmentHeads],
    attention: torch.Tensor,
    source: Sequence[int],
    target: Sequence[int],
) -> list[Links]:
    words = *token_words(tokenizer, source, True), *token_words(tokenizer, target, True)
    return [align_words(each.token_attention(found), *words) for each, found in zip(heads, attention, strict=True)]
