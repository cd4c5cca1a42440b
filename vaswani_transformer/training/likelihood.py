"""The loss of an evaluation, averaged over the tokens of the corpus."""

from typing import Any

import torch
from accelerate import Accelerator
from torch.nn import functional as F

from .loss import LabelSmoothedLoss


class CorpusLikelihood(LabelSmoothedLoss):
    """Sums the negative log-likelihood over an evaluation's target tokens, each pair once.

    It is a trainer's `compute_loss_func` during evaluation. The trainer itself averages the means of batches, which
    have different numbers of tokens. On several processes it also repeats pairs to even the batches; accelerate removes
    the repeated ones.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(epsilon=0.0)
        self.accelerator = accelerator
        self._pairs: list[torch.Tensor] = []  # nats and tokens of each pair, [pairs, 2]

    def __call__(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The mean over the batch, in nats per token. Collective."""
        logits = outputs["logits"].flatten(0, 1).float()  # [batch * target, vocabulary]
        nats = F.cross_entropy(logits, labels.flatten(), reduction="none").view_as(labels)  # 0 where labels are ignored
        pairs = torch.stack([nats.sum(-1), labels.ne(-100).sum(-1)], dim=-1)  # [batch, 2]
        self._pairs.append(self.accelerator.gather_for_metrics(pairs))
        total_nats, tokens = pairs.sum(0)
        return total_nats / tokens

    def mean(self) -> float | None:
        """The mean over all tokens since the beginning; None without tokens."""
        if not self._pairs:
            return None
        nats, tokens = torch.cat(self._pairs).cpu().double().sum(0).tolist()
        return nats / tokens if tokens else None
