"""Section 5.4 of the paper: cross-entropy with label smoothing, averaged over the global batch."""

from typing import Any

import torch
from accelerate import Accelerator
from torch.nn import functional as F

from .divergence import spread_non_finite


class SmoothedCrossEntropy(torch.autograd.Function):
    """Cross-entropy with the smoothed target, and with the plain one, each summed over the labels.

    Its gradient is the prediction minus the target, written over the probabilities. Autograd would need three more
    tensors of this size, the largest of a step. Storing log-probabilities, whose exponentials the gradient needs, would
    take 1.3 to 1.5 times as long on a CPU.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = F.softmax(logits, dim=-1)  # [tokens, vocabulary]
        ctx.save_for_backward(probabilities, labels)
        ctx.epsilon = epsilon
        log_sum = logits.amax(-1) - probabilities.amax(-1).log()  # log of the sum of exponentials, [tokens]
        is_ignored = labels.eq(-100)
        of_labels = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        likelihood = (log_sum - of_labels).masked_fill(is_ignored, 0.0).sum()
        loss = (1 - epsilon) * likelihood
        if epsilon:
            loss += epsilon * (log_sum - logits.mean(-1)).masked_fill(is_ignored, 0.0).sum()
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        probabilities, labels = ctx.saved_tensors
        difference = probabilities.sub_(ctx.epsilon / probabilities.shape[-1])  # [tokens, vocabulary]
        rows = torch.arange(len(labels), device=labels.device)
        difference[rows, labels.clamp(min=0)] -= 1 - ctx.epsilon
        return difference.mul_((gradients[0] * labels.ne(-100)).unsqueeze(-1)), None, None


class LabelSmoothedLoss:
    """Cross-entropy with the smoothed target of Szegedy et al.: epsilon spread evenly over the whole vocabulary.

    It is a trainer's `compute_loss_func`. The trainer passes the number of target tokens of the global batch, over all
    processes and accumulation steps, so that the gradient does not depend on the division of the batch. Without
    gradients, in evaluation, it returns the plain negative log-likelihood, whose exponential is the perplexity of
    the batch.

    Args:
        epsilon: Share of the target taken from the label (paper: 0.1).
    """

    def __init__(self, epsilon: float = 0.1) -> None:
        self.epsilon = epsilon
        self._likelihoods = torch.zeros(())

    def __call__(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The loss, a scalar in nats per token.

        Args:
            outputs: The model's output, with `logits` `[batch, target, vocabulary]`.
            labels: `[batch, target]`, -100 at positions to ignore.
            num_items_in_batch: Divisor of the sum; by default the number of these labels.
        """
        loss, likelihood = self.losses(outputs, labels, num_items_in_batch)
        return self.record(loss, likelihood) if torch.is_grad_enabled() else likelihood

    def losses(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss and the plain negative log-likelihood, both divided; arguments as in a call."""
        logits, labels = outputs["logits"].flatten(0, 1).float(), labels.flatten()
        divisor = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        loss, likelihood = SmoothedCrossEntropy.apply(logits, labels, self.epsilon)
        return spread_non_finite(loss / divisor), likelihood / divisor

    def record(self, loss: torch.Tensor, likelihood: torch.Tensor) -> torch.Tensor:
        """Add the likelihood of a training batch to the sum of `take_likelihood`; the result is the loss."""
        self._likelihoods = self._likelihoods + likelihood
        return loss

    def take_likelihood(self) -> torch.Tensor:
        """The plain negative log-likelihood, divided like the loss, summed over training batches since the last call.

        The loss computes it anyway, so it costs nothing.
        """
        summed, self._likelihoods = self._likelihoods, torch.zeros(())
        return summed


class CorpusLikelihood:
    """Sums the negative log-likelihood over an evaluation's target tokens, each pair once.

    It is a trainer's `compute_loss_func` during evaluation. The trainer itself averages the means of batches, which
    have different numbers of tokens. On several processes it also repeats pairs to even the batches; accelerate removes
    the repeated ones.
    """

    def __init__(self, accelerator: Accelerator) -> None:
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
