"""Section 5.4 of the paper: cross-entropy with label smoothing, averaged over the global batch."""

from typing import Any

import torch
from torch.nn import functional as F

from .divergence import spread_non_finite


class LabelSmoothedLoss:
    """Cross-entropy with the smoothed target of Szegedy et al.: epsilon spread evenly over the whole vocabulary.

    For a trainer's `compute_loss_func`. The trainer passes the number of target tokens of the global batch, over all
    processes and accumulation steps, so that the gradient does not depend on how the batch was divided. Without
    gradients, in evaluation, the plain negative log-likelihood is returned, whose exponential is the perplexity.

    Args:
        epsilon: Share of the target taken from the label (paper: 0.1).

    Raises:
        ValueError: epsilon is not at least 0 and below 1.

    Attributes:
        unsmoothed: Negative log-likelihood of the latest batch with gradients, divided like its loss.
    """

    def __init__(self, epsilon: float = 0.1) -> None:
        if not 0 <= epsilon < 1:
            raise ValueError(f"epsilon: must be at least 0 and below 1, is {epsilon}")
        self.epsilon = epsilon
        self.unsmoothed = torch.zeros(())

    def __call__(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The loss, a scalar in nats a token.

        Args:
            outputs: With `logits` `[batch, target, vocabulary]`.
            labels: `[batch, target]`, -100 where nothing is to be predicted.
            num_items_in_batch: Divisor of the sum; by default the number of labels given here.
        """
        logits = outputs["logits"].flatten(0, 1).float()  # [batch * target, vocabulary]
        epsilon = self.epsilon if torch.is_grad_enabled() else 0.0
        loss = F.cross_entropy(logits, labels.flatten(), reduction="sum", label_smoothing=epsilon)
        divisor = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        if not torch.is_grad_enabled():
            return loss / divisor
        with torch.no_grad():  # smoothing adds epsilon (logit of the label - mean logit) to each token's loss
            chosen = logits.gather(1, labels.flatten().clamp(min=0)[:, None])[:, 0]  # [batch * target]
            added = (chosen - logits.mean(1)).where(labels.flatten().ne(-100), 0).sum() * epsilon
            self.unsmoothed = (loss - added) / divisor
        return spread_non_finite(loss / divisor)
