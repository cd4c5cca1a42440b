"""Elastic training: final weights are bit-identical for any number of processes.

Every global batch is divided into the same number of virtual ranks, on any number of processes. Three properties make
the result of a step independent of the processes:

- a virtual rank's micro-batch and dropout masks depend on the seed, the step and its number alone;
- its gradient is computed separately, not accumulated onto that of another virtual rank;
- gradients are added in the order of one fixed binary tree, even where its branches lie on different processes.

Floating-point sums depend on their order, which rules out the all-reduce of `DistributedDataParallel`. The guarantee
holds for one version of PyTorch and one type of processor, since PyTorch may otherwise choose other kernels. For the
same reason a process has one thread on a CPU. On GPUs the kernels must also be deterministic (`full_determinism`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import distributed
from torch.utils.data import DataLoader

from ..data.batching import TokenBudgetBatchSampler
from ..options.training import VaswaniTrainingArguments
from ..system.processes import derived_seed
from .trainer import VaswaniTrainer


MicroBatch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class VirtualRanks:
    """The virtual ranks of a global batch, and the process that computes each of them.

    Attributes:
        count: Number of virtual ranks.
        processes: Number of processes; each computes a contiguous block of virtual ranks.
        process: Index of this process.

    Raises:
        ValueError: There are more processes than virtual ranks.
    """

    count: int
    processes: int = 1
    process: int = 0

    def __post_init__(self) -> None:
        if self.processes > self.count:
            raise ValueError(
                f"virtual_ranks: {self.count} virtual ranks cannot occupy {self.processes} processes; "
                f"start at most {self.count}"
            )

    def block(self, process: int) -> range:
        """The virtual ranks that a process computes."""
        return range(process * self.count // self.processes, (process + 1) * self.count // self.processes)

    def owner(self, virtual_rank: int) -> int:
        """The process that computes a virtual rank."""
        return ((virtual_rank + 1) * self.processes - 1) // self.count

    def tree_sum(self, compute: Callable[[int], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Sum of the tensors of all virtual ranks, bit-identical on every process.

        Args:
            compute: Returns the tensors of a virtual rank, with the same shapes for each; called once for each virtual
                rank of this process, in ascending order. The tensors are overwritten.
        """
        sending: list[tuple[distributed.Work, torch.Tensor]] = []  # a buffer must live until it is sent
        total = self._subtree_sum(0, self.count, compute, sending)
        for work, _ in sending:
            work.wait()
        if self.processes == 1:
            return total
        buffer = _flatten(total)
        distributed.broadcast(buffer, src=self.owner(0))
        return _unflatten(buffer, total)

    def _subtree_sum(
        self,
        first: int,
        last: int,
        compute: Callable[[int], list[torch.Tensor]],
        sending: list[tuple[distributed.Work, torch.Tensor]],
    ) -> list[torch.Tensor]:
        """Sum of the virtual ranks from `first` to `last`, exclusive; complete only on the owner of `first`.

        On other processes the result is a partial sum, for its shapes, or empty. The order is post-order, so that at
        most log2(count) + 1 partial sums are alive. A process waits for another only after computing its own block.
        """
        if last - first == 1:
            return compute(first) if self.owner(first) == self.process else []
        middle = first + (1 << (last - first - 1).bit_length() - 1)  # the largest power of two below last - first
        left = self._subtree_sum(first, middle, compute, sending)
        right = self._subtree_sum(middle, last, compute, sending)
        to, source = self.owner(first), self.owner(middle)
        if self.process == source != to:
            buffer = _flatten(right)
            sending.append((distributed.isend(buffer, to), buffer))
        if self.process == to != source:
            buffer = _flatten(left)  # has the size and type of the received one
            distributed.recv(buffer, source)
            right = _unflatten(buffer, left)
        if self.process == to:
            for tensor, other in zip(left, right, strict=True):
                tensor.add_(other)
        return left or right


def _flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _unflatten(buffer: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    parts = buffer.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, like, strict=True)]


class VirtualRankSampler:
    """Yields, for each global batch, one list for each process: the micro-batches of its virtual ranks.

    `accelerate` deals the lists out in turn. Each process therefore takes one item from its loader in each step, and
    the number of steps, including steps to skip after resuming, does not depend on the number of processes.
    `micro_batches` yields the micro-batches of all virtual ranks in turn.
    """

    def __init__(self, micro_batches: TokenBudgetBatchSampler, ranks: VirtualRanks) -> None:
        self.micro_batches = micro_batches
        self.ranks = ranks

    def __len__(self) -> int:
        return len(self.micro_batches) // self.ranks.count * self.ranks.processes

    def __iter__(self) -> Iterator[list[list[int]]]:
        global_batch: list[list[int]] = []
        for micro_batch in self.micro_batches:
            global_batch.append(micro_batch)
            if len(global_batch) == self.ranks.count:
                for process in range(self.ranks.processes):
                    yield [global_batch[virtual_rank] for virtual_rank in self.ranks.block(process)]
                global_batch = []


class MicroBatches(torch.utils.data.Dataset):
    """A dataset of collated micro-batches; the index of a micro-batch is the list of its rows.

    `collate` turns a list of rows into a micro-batch. It must not draw random numbers.
    """

    def __init__(self, rows: Dataset, collate: Callable[[list], MicroBatch]) -> None:
        self.rows = rows
        self.collate = collate

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: list[int]) -> MicroBatch:
        return self.collate(self.rows.__getitems__(indices))


@contextmanager
def fixed_threads(args: VaswaniTrainingArguments) -> Iterator[None]:
    """Use one CPU thread in elastic training, whose bits depend on their number."""
    before = torch.get_num_threads()
    if args.virtual_ranks is not None:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ElasticTrainer(VaswaniTrainer):
    """`VaswaniTrainer` for `args.virtual_ranks`.

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
        with fixed_threads(self.args):
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
