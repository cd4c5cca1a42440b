"""Word alignment of sentence pairs by encoder-decoder attention, and the choice of the heads that align."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.languages_vaswani import with_tag
from ..model.pipeline_vaswani import similar_length_batches
from ..model.scores_vaswani import AlignmentHeads, align_words, read_decoder, token_words
from ..model.target_tokenizer import for_targets
from .translation import search_on_all_processes


Links = list[tuple[int, int]]  # places of a source word and a target word, counted from 0


@dataclass(frozen=True)
class ChosenHeads:
    """The heads by which two models of opposite directions agree most.

    Attributes:
        forward: Heads of the model from source to target.
        backward: Heads of the model from target to source.
        agreement: Share of links that both models have, `2 |A & B| / (|A| + |B|)`, in pairs that did not choose.
        agreement_before: The same by all heads of the last layer of each.
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
        source_ids = self.tokenizer([with_tag(text.strip(), self.tag) for text in sources]).input_ids
        target_ids = for_targets(self.tokenizer)(text_target=[text.strip() for text in targets]).input_ids
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]

        def search(indices: list[int]) -> Iterator[tuple[list[int], list[list[Links]]]]:
            share = [lengths[index] for index in indices]
            for batch in similar_length_batches(share, lambda length: length, self.tokens_per_batch):
                pairs = [(source_ids[indices[place]], target_ids[indices[place]]) for place in batch]
                yield batch, self._align_batch(pairs, heads)

        return search_on_all_processes(lengths, search, "Aligning")

    def _align_batch(
        self, pairs: Sequence[tuple[list[int], list[int]]], heads: Sequence[AlignmentHeads]
    ) -> list[list[Links]]:
        start, device = self.model.config.decoder_start_token_id, self.model.device
        inputs = self.tokenizer.pad({"input_ids": [source for source, _ in pairs]}, return_tensors="pt").to(device)
        prefixed = {"input_ids": [[start, *target] for _, target in pairs]}
        forced = self.tokenizer.pad(prefixed, return_tensors="pt").input_ids.to(device)
        _, attention = read_decoder(self.model, inputs, forced, [each.pairs for each in heads])
        links = []
        for row, (source, target) in zip(attention.cpu(), pairs, strict=True):  # [groups, target, source]
            words = *token_words(self.tokenizer, source, True), *token_words(self.tokenizer, target, True)
            links.append(
                [align_words(each.token_attention(group), *words) for each, group in zip(heads, row, strict=True)]
            )
        return links


def choose_heads(
    forward: Aligner, backward: Aligner, sources: Sequence[str], targets: Sequence[str], same: bool = False
) -> ChosenHeads:
    """Choose among the candidates of both models those with the highest agreement (Chen et al., 2020). Collective.

    Every other pair is used to choose, and the pairs between to measure the agreement. The `same` heads are chosen for
    both, if a model of both directions keeps them.
    """
    heads = forward.candidates, backward.candidates
    ahead = zip(*forward.align(sources, targets, heads[0]), strict=True)
    back = zip(*backward.align(targets, sources, heads[1]), strict=True)
    forward_links = [[set(links) for links in candidate] for candidate in ahead]  # [candidates][pairs]
    backward_links = [[{(s, t) for t, s in links} for links in candidate] for candidate in back]

    def agreement(choice: tuple[int, int], first: int) -> float:
        """The agreement of a candidate of each model, in every other pair from the first."""
        one, other = forward_links[choice[0]][first::2], backward_links[choice[1]][first::2]
        both = sum(len(a & b) for a, b in zip(one, other, strict=True))
        return 2 * both / max(1, sum(map(len, one)) + sum(map(len, other)))

    places = product(range(len(heads[0])), range(len(heads[1])))
    choices = ((first, second) for first, second in places if not same or first == second)
    best = max(choices, key=lambda choice: agreement(choice, 0))
    last_layers = forward.model.config.decoder_layers - 1, backward.model.config.decoder_layers - 1
    return ChosenHeads(heads[0][best[0]], heads[1][best[1]], agreement(best, 1), agreement(last_layers, 1))
