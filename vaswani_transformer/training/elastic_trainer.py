"""`ElasticTrainer`: the trainer on virtual ranks, whose weights do not depend on the number of processes."""

from typing import Any

import torch
from torch.utils.data import DataLoader

from .callbacks import derived_seed
from .elastic import MicroBatch, MicroBatches, VirtualRanks, VirtualRankSampler
from .trainer import VaswaniTrainer


class ElasticTrainer(VaswaniTrainer):
    """`VaswaniTrainer` for `args.virtual_ranks`; see `elastic.py`.

    Each training batch is a list: the micro-batches of this process's virtual ranks.

    Raises:
        ValueError: There are more processes than virtual ranks; or as from `VaswaniTrainer`.
    """

    def __init__(self, model: Any, args: Any, **kwargs: Any) -> None:
        self.virtual_ranks = VirtualRanks(args.virtual_ranks, args.world_size, args.process_index)
        super().__init__(model, args, **kwargs)

    @property
    def parts_of_batch(self) -> int:
        return self.virtual_ranks.count

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with self.args.elastic_threads():
            return super().train(*args, **kwargs)

    def make_train_loader(self, rows: Any, batch_sampler: Any, collate: Any) -> DataLoader:
        micro_batches = VirtualRankSampler(batch_sampler, self.virtual_ranks)
        return super().make_train_loader(MicroBatches(rows, collate), micro_batches, list)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, torch.Tensor]:
        """Count the target tokens over all virtual ranks; the base class sees a list."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        count = torch.stack([batch["labels"].ne(-100).sum() for batch in batches[0]]).sum()
        num_items = self.accelerator.gather(count.to(self.args.device)).sum()
        self.totals.target_tokens = self.totals.target_tokens + num_items
        return batches, num_items

    def training_step(
        self, model: torch.nn.Module, inputs: list[MicroBatch], num_items_in_batch: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute each virtual rank's gradient separately, and add them in the order of the tree."""
        # Unwrapped, since `DistributedDataParallel` would add gradients in another order.
        model = self.accelerator.unwrap_model(model, keep_torch_compile=True)
        parameters = [weights for weights in model.parameters() if weights.requires_grad]
        ranks, step = self.virtual_ranks, super().training_step
        micro_batches = dict(zip(ranks.block(ranks.process), inputs, strict=True))

        def compute(virtual_rank: int) -> list[torch.Tensor]:
            torch.manual_seed(derived_seed(self.args.seed, self.state.global_step, virtual_rank))
            for weights in parameters:
                weights.grad = None
            loss = step(model, micro_batches[virtual_rank], num_items_in_batch)
            gradients = [torch.zeros_like(weights) if weights.grad is None else weights.grad for weights in parameters]
            return [*gradients, torch.stack([loss.detach(), self.compute_loss_func.take_likelihood()])]

        *gradients, losses = ranks.tree_sum(compute)
        for weights, gradient in zip(parameters, gradients, strict=True):
            weights.grad = gradient
        self._losses.append(losses)
        return losses[0]

    def mean_losses(self) -> dict[str, float]:
        """The losses to log; the rounding of the trainer's mean would depend on the number of processes."""
        loss, likelihood = torch.stack(self._losses).double().mean(0).tolist()
        return {"loss": loss, "nll_loss": likelihood}

    def start_interval(self) -> None:
        super().start_interval()
        self._losses: list[torch.Tensor] = []  # loss and likelihood of each step, [2]

    def floating_point_ops(self, inputs: list[MicroBatch]) -> float:
        return sum(map(super().floating_point_ops, inputs))
