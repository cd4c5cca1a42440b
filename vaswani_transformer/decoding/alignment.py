"""Word alignment of sentence pairs by encoder-decoder attention, and the choice of the heads that align."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.languages_vaswani import with_tag
from ..model.scores_vaswani import AlignmentHeads, best_links, read_decoder, token_words, word_attention
from ..model.search_options_vaswani import similar_length_batches
from ..model.tokenization_vaswani import for_targets
from .translation import search_on_all_processes


T = TypeVar("T")

TokenPair = tuple[list[int], list[int]]  # ids of a source and of its translation
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

        pairs = self._token_ids(sources, targets)

        def read(rows: list[int]) -> list[list[Links]]:
            return [[best_links(weights) for weights in row] for row in self._attention(pairs, rows, heads)]

        return self._in_batches(pairs, read)

    def align_with(
        self,
        reverse: "Aligner",
        sources: Sequence[str],
        targets: Sequence[str],
        heads: Sequence[AlignmentHeads],
        is_mutual: bool = False,
    ) -> list[Links]:
        """The links for which the product of two models' attention is largest. Collective.

        A model's attention from a word is divided by its sum.

        Args:
            reverse: The model from target to source.
            sources: The sources.
            targets: Their translations.
            heads: The heads of this model, then those of the reverse one.
            is_mutual: Whether a link must be the best of its source word, too, not only of its target word.
        """

        pairs, reversed_pairs = self._token_ids(sources, targets), reverse._token_ids(targets, sources)

        def read(rows: list[int]) -> list[Links]:
            ahead = self._attention(pairs, rows, heads[:1])
            back = reverse._attention(reversed_pairs, rows, heads[1:])
            return [product_links(one, other, is_mutual) for (one,), (other,) in zip(ahead, back, strict=True)]

        return self._in_batches(pairs, read)

    def _in_batches(self, pairs: Sequence[TokenPair], read: Callable[[list[int]], list[T]]) -> list[T]:
        """What `read` makes of each pair; it gets the places of pairs of similar length."""
        lengths = [max(map(len, pair)) for pair in pairs]

        def search(indices: list[int]) -> Iterator[tuple[list[int], list[T]]]:
            share = [lengths[index] for index in indices]
            for batch in similar_length_batches(share, lambda length: length, self.tokens_per_batch):
                yield batch, read([indices[place] for place in batch])

        return search_on_all_processes(lengths, search, "Aligning")

    def _token_ids(self, sources: Sequence[str], targets: Sequence[str]) -> list[TokenPair]:
        source_ids = self.tokenizer([with_tag(text.strip(), self.tag) for text in sources]).input_ids
        target_ids = for_targets(self.tokenizer)(text_target=[text.strip() for text in targets]).input_ids
        return [*zip(source_ids, target_ids, strict=True)]

    def _attention(
        self, pairs: Sequence[TokenPair], rows: Sequence[int], heads: Sequence[AlignmentHeads]
    ) -> list[list[torch.Tensor]]:
        """Attention of the words of some pairs, by each of the `heads`: `[target words, source words]`."""
        self.model.eval()
        start, device = self.model.config.decoder_start_token_id, self.model.device
        batch = [pairs[row] for row in rows]
        inputs = self.tokenizer.pad({"input_ids": [source for source, _ in batch]}, return_tensors="pt").to(device)
        prefixed = {"input_ids": [[start, *target] for _, target in batch]}
        forced = self.tokenizer.pad(prefixed, return_tensors="pt").input_ids.to(device)
        _, attention = read_decoder(self.model, inputs, forced, [each.pairs for each in heads])
        weights = []
        for row, (source, target) in zip(attention.cpu(), batch, strict=True):  # [groups, target, source]
            words = *token_words(self.tokenizer, source, True), *token_words(self.tokenizer, target, True)
            groups = zip(heads, row, strict=True)
            weights.append([word_attention(each.token_attention(group), *words) for each, group in groups])
        return weights


def product_links(forward: torch.Tensor, backward: torch.Tensor, is_mutual: bool) -> Links:
    """The best links by the product of `[target, source]` and `[source, target]` attention of words."""
    # Nothing may be attended to but the end of the sentence, and then the sum is 0.
    forward, backward = (weights / weights.sum(1, keepdim=True).clamp_min(1e-9) for weights in (forward, backward))
    joint = forward * backward.T
    links = best_links(joint)
    if is_mutual:
        others = {(source, target) for target, source in best_links(joint.T)}
        links = [link for link in links if link in others]
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
