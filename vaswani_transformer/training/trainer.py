"""`VaswaniTrainer`: `Seq2SeqTrainer` on batches measured in tokens (5.1).

Everything else that the paper's training needs is in callbacks or in the loss.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from datasets import Dataset
from huggingface_hub import ModelCard
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    Seq2SeqTrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput

from ..data.batching import TokenBudgetBatchSampler
from ..data.bpe_dropout import BpeDropout, EpochBatches, ResampledPairs
from ..data.mixing import MixedCorpus
from ..launch.interruption import EvaluationInterrupted, ignore_signals
from ..launch.processes import join_process_group
from ..options.arguments import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Interval, check_values, option, refuse_unused
from .callbacks import TrainingTotals
from .checkpoints import CheckpointingTrainer
from .divergence import DivergenceGuard
from .elastic import MicroBatch, MicroBatches, VirtualRanks, VirtualRankSampler, cpu_threads, gradients_of
from .flops import training_flops
from .loss import LabelSmoothedLoss
from .muon import Muon, split_parameters
from .randomness import SeedByRank


# A data worker listens on TMPDIR/pymp-xxxxxxxx/listener-xxxxxxxx, and the path of a socket has at most 107 bytes.
_LONGEST_TMPDIR = 107 - 32


@dataclass
class VaswaniTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's optimizer (5.3), and a batch size in tokens (5.1)."""

    source_tokens: int = option(
        25000,
        "Source tokens of a global batch, over all processes and accumulation steps.",
        COUNT,
        decides="weights",
        paper=25000,
    )
    target_tokens: int = option(
        25000,
        "Target tokens of a global batch, over all processes and accumulation steps.",
        COUNT,
        decides="weights",
        paper=25000,
    )
    batch_window: int = option(
        4,
        "Number of batches among which sentences of similar length are exchanged in each epoch. More mix better; fewer "
        "pad less.",
        COUNT,
        decides="weights",
    )
    bpe_dropout: float = option(
        0.0,
        "Probability of dropping a merge of sub-words, sampled anew in each epoch (BPE-dropout, Provilkov et al. 2020: "
        "0.1); training sentences only.",
        Interval(minimum=0, maximum=1),
        decides="weights",
        paper=0.0,
    )
    adam_beta1: float = option(0.9, "Adam's beta1 (5.3).", SHARE, decides="weights", paper=0.9)
    adam_beta2: float = option(0.98, "Adam's beta2 (5.3).", SHARE, decides="weights", paper=0.98)
    adam_epsilon: float = option(1e-9, "Adam's epsilon (5.3).", POSITIVE, decides="weights", paper=1e-9)
    muon: bool = option(
        False,
        "Optimize the matrices of the layers with Muon (Jordan et al. 2024), and the rest with Adam. Short "
        "trainings learn more with it.",
        decides="weights",
        paper=False,
    )
    ddp_find_unused_parameters: bool | None = option(
        False,
        "Look for parameters without a gradient; not needed, because every step uses every parameter.",
        decides=None,
    )
    max_grad_norm: float = option(
        0.0, "Maximum gradient norm; 0 disables clipping.", NOT_NEGATIVE, decides="weights", paper=0.0
    )
    logging_nan_inf_filter: bool = option(
        False, "Log another value for a loss that is not finite; training ends at the first one anyway.", decides=None
    )
    virtual_ranks: int | None = option(
        None,
        "Elastic training: divide every global batch into this number of virtual ranks. The final weights are then the "
        "same, bit for bit, on any number of processes up to virtual_ranks, and after restarts with other numbers, "
        "given the same versions, precision, type of processor and virtual_rank_threads (on GPUs also "
        "full_determinism).",
        COUNT,
        decides="weights",
    )
    virtual_rank_threads: int = option(
        1,
        "CPU threads of each process in elastic training; the final bits depend on it.",
        Interval(minimum=1, maximum=1024),
        decides="weights",
    )

    def __post_init__(self) -> None:
        given: dict | str | None = self.accelerator_config  # type: ignore[has-type]  # a field of the base class
        if given is None and self.dataloader_pin_memory:
            self.accelerator_config = {"non_blocking": True}  # else each batch on its way waits for the device
        use_cpu = self.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
        join_process_group(use_cpu, timedelta(seconds=self.ddp_timeout), self.ddp_backend)
        super().__post_init__()
        if self.dataloader_num_workers and len(os.fsencode(tempfile.gettempdir())) > _LONGEST_TMPDIR:
            raise ValueError(
                f"dataloader_num_workers: sockets of workers need a temporary directory whose path has at most "
                f"{_LONGEST_TMPDIR} bytes; set TMPDIR to a shorter one"
            )
        if self.muon and (self.fsdp or self.deepspeed):
            raise ValueError("muon: needs whole matrices on each process; leave out FSDP and DeepSpeed")
        if self.muon:
            names = ("optim", "optim_args", "optim_target_modules")
            refuse_unused(self, dict.fromkeys(names, "muon is the optimizer; leave one of them out"))
        if self.virtual_ranks is None:
            refuse_unused(self, {"virtual_rank_threads": "set virtual_ranks, for elastic training; or leave it out"})
            return
        check_values(self)
        if self.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps: must be 1 in elastic training, is {self.gradient_accumulation_steps}; "
                f"virtual_ranks alone divides a batch"
            )
        if self.fsdp or self.deepspeed:
            raise ValueError("virtual_ranks: elastic training needs the whole model on each process; leave out FSDP")
        self.average_tokens_across_devices = False  # the trainer would multiply the loss by the number of processes

    @property
    def elastic_threads(self) -> int | None:
        """CPU threads of elastic training, on which its bits depend; None in other trainings."""
        return None if self.virtual_ranks is None else self.virtual_rank_threads


class VaswaniTrainer(CheckpointingTrainer):
    """`Seq2SeqTrainer` on token-budget batches, with atomic checkpoints (see `CheckpointingTrainer`).

    By default it collates with `DataCollatorForSeq2Seq`, and smooths labels by `model.config.label_smoothing`. Its
    logs also have `target_tokens_per_second`, over all processes, `padding_share` of the first epoch, and, beside
    the smoothed `loss`, `nll_loss`, the negative log-likelihood.

    Args:
        model: As in `Seq2SeqTrainer`, like all arguments that are not listed here.
        args: With `source_tokens` and `target_tokens`.
        validation_bleu: Scores the model at each evaluation, which then also logs `eval_bleu`; it calls its second
            argument between batches, so that a signal can end it.
        mixed: Corpora, the last rows of `train_dataset`, from which pairs are drawn for each epoch; by default an epoch
            is all of it.
        train_dataset: A `datasets.Dataset` with columns `input_ids` and `labels`. Without columns `source_length` and
            `target_length` every row is read once, to compute the lengths.

    Raises:
        TypeError: `args` is not a `VaswaniTrainingArguments`.
        ValueError: There is neither a tokenizer nor a collator; `label_smoothing_factor` is not 0; `bpe_dropout` is not
            for this tokenizer; or one process is given several GPUs. From `train()`: there is no dataset, the token
            budget cannot hold the longest sentence, or be divided (see `TokenBudgetBatchSampler`).
        DivergenceError: From `train()` and `save_model()`: a loss, gradient or weight is not finite. Such weights are
            never written.
    """

    def __init__(
        self,
        model: Any,
        args: VaswaniTrainingArguments,
        validation_bleu: Callable[[PreTrainedModel, Callable[[], object]], float] | None = None,
        mixed: Sequence[MixedCorpus] = (),
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, VaswaniTrainingArguments):
            raise TypeError(f"args: must be VaswaniTrainingArguments, is {type(args).__name__}")
        if args.n_gpu > 1:
            raise ValueError(
                f"n_gpu: one process cannot train on {args.n_gpu} GPUs; start one for each with `accelerate launch`, "
                f"or choose one GPU with CUDA_VISIBLE_DEVICES"
            )
        if kwargs.get("data_collator") is None:
            if kwargs.get("processing_class") is None:
                raise ValueError("processing_class: padding needs the tokenizer; give it, or a data_collator")
            kwargs["data_collator"] = DataCollatorForSeq2Seq(kwargs["processing_class"], model=model)
        if kwargs.get("compute_loss_func") is None:
            if args.label_smoothing_factor:
                raise ValueError("label_smoothing_factor: set label_smoothing in the model's configuration instead")
            kwargs["compute_loss_func"] = LabelSmoothedLoss(model.config.label_smoothing)
        super().__init__(model, args, **kwargs)
        self._bpe_dropout = BpeDropout(self.processing_class, args.bpe_dropout) if args.bpe_dropout else None
        self.validation_bleu = validation_bleu
        self.virtual_ranks: VirtualRanks | None = None
        if args.virtual_ranks is not None:
            self.virtual_ranks = VirtualRanks(args.virtual_ranks, args.world_size, args.process_index)
        self._mixed = mixed
        self.batch_sampler: TokenBudgetBatchSampler | None = None
        self.padding_share = 0.0
        self._resampled: ResampledPairs | None = None
        self._planned_for: tuple[Dataset, dict[str, int]] | None = None
        self.add_callback(SeedByRank())
        self.add_callback(TrainingTotals())
        self._start_interval()
        self._divergence = DivergenceGuard(self.examples_of_step)
        self.add_callback(self._divergence)

    @property
    def totals(self) -> TrainingTotals:
        """Time and tokens spent on the training, also before it was resumed."""
        # Looked up each time, since `restore_callback_states_from_checkpoint` replaces the callbacks.
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, TrainingTotals))

    @property
    def total_target_tokens(self) -> int:
        """Number of target tokens that the model was trained on, over all processes."""
        return int(self.totals.target_tokens)

    def get_train_dataloader(self) -> DataLoader:
        self._check_train_dataset()
        sampler: TokenBudgetBatchSampler | EpochBatches = self._plan_batches()
        rows = self.train_dataset
        if self.args.remove_unused_columns:
            rows = rows.select_columns(sorted({"input_ids", "attention_mask", "labels"} & {*rows.column_names}))
        if self._resampled is not None:
            rows, sampler = self._resampled, EpochBatches(self.batch_sampler)
        ranks = self.virtual_ranks
        loader: DataLoader = DataLoader(
            rows if ranks is None else MicroBatches(rows, self.data_collator),
            batch_sampler=sampler if ranks is None else VirtualRankSampler(sampler, ranks),
            collate_fn=self.data_collator if ranks is None else list,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            worker_init_fn=ignore_signals,
        )
        return self.accelerator.prepare(loader)

    def _plan_batches(self) -> TokenBudgetBatchSampler:
        """Plan the global batches again only if data or options have changed: millions of rows take a while."""
        settings = {
            "source_tokens": self.args.source_tokens,
            "target_tokens": self.args.target_tokens,
            "num_parts": self.args.virtual_ranks or self.args.world_size * self.args.gradient_accumulation_steps,
            "seed": self.args.data_seed if self.args.data_seed is not None else self.args.seed,
            "window": self.args.batch_window,
        }
        if self.batch_sampler is None or self._planned_for != (self.train_dataset, settings):
            lengths = self._lengths("source_length", "input_ids"), self._lengths("target_length", "labels")
            if self._bpe_dropout is None:
                self.batch_sampler = TokenBudgetBatchSampler(*lengths, **settings, mixed=self._mixed)
                self.padding_share = self.batch_sampler.padding_share
            else:
                self._resampled = self._resample(self._bpe_dropout, lengths, settings["seed"])
                self.batch_sampler = TokenBudgetBatchSampler(*self._resampled.bounds, **settings, mixed=self._mixed)
                self.padding_share = self._resampled.padding_share(self.batch_sampler)
            self._planned_for = self.train_dataset, settings
        return self.batch_sampler

    def _resample(self, dropout: BpeDropout, lengths: tuple[Sequence[int], Sequence[int]], seed: int) -> ResampledPairs:
        """The training pairs with BPE-dropout, none of them longer than the token budget and the model allow."""
        table = self.model.config.max_positions or math.inf
        limits = min(self.args.source_tokens, table), min(self.args.target_tokens, table)
        return ResampledPairs(self.train_dataset, lengths, limits, dropout, seed)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        if not self.args.muon or self.optimizer is not None:  # type: ignore[has-type]
            return super().create_optimizer(model)
        args, parameters = self.args, split_parameters(model or self.model)
        betas = args.adam_beta1, args.adam_beta2
        self.optimizer = Muon(*parameters, args.learning_rate, betas, args.adam_epsilon, args.weight_decay)
        return self.optimizer

    def _check_train_dataset(self) -> None:
        if not isinstance(self.train_dataset, Dataset) or not len(self.train_dataset):
            kind = type(self.train_dataset).__name__
            raise ValueError(f"train_dataset: training needs a datasets.Dataset with at least one row, got a {kind}")
        if missing := {"input_ids", "labels"} - {*self.train_dataset.column_names}:
            raise ValueError(f"train_dataset: has no column {min(missing)}; encode the corpus first")

    def examples_of_step(self, step: int) -> list[int]:
        """Indices in the training set of a step's global batch, over all processes; steps count from 1."""
        if self.batch_sampler is None:
            return []
        sampler, parts = copy(self.batch_sampler), self.batch_sampler.num_parts
        epoch, batch = divmod(step - 1, len(sampler) // parts)
        sampler.set_epoch(epoch)
        return [*chain(*islice(sampler, batch * parts, (batch + 1) * parts))]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        self._divergence.check_weights(self.model, self.args, self.state)
        super().save_model(output_dir, _internal_call)

    def _lengths(self, column: str, tokens: str) -> Sequence[int]:
        if column in self.train_dataset.column_names:
            return self.train_dataset[column][:]  # at once: millions of rows one by one take minutes
        return [len(row) for row in self.train_dataset[tokens]]

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, torch.Tensor | int | None]:
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        if self.virtual_ranks is not None:
            num_items = self._count_labels(batches[0])
        if num_items is not None:
            # A tensor, to avoid a host-device synchronization; int64, since a run has billions of tokens.
            self.totals.target_tokens = self.totals.target_tokens + torch.as_tensor(num_items).long()
        return batches, num_items

    def compute_loss(self, model: torch.nn.Module, inputs: MicroBatch, *args: Any, **kwargs: Any) -> Any:
        if self.args.torch_compile:  # else each new shape, or two sizes that happen to be equal, may ask for a graph
            for tensor in inputs.values():
                for dimension in range(tensor.dim()):
                    torch._dynamo.maybe_mark_dynamic(tensor, dimension)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _count_labels(self, micro_batches: list[MicroBatch]) -> torch.Tensor:
        """Number of target tokens in the global batch; each process gives its own micro-batches. Collective."""
        count = torch.stack([batch["labels"].ne(-100).sum() for batch in micro_batches]).sum()
        return self.accelerator.gather(count.to(self.args.device)).sum()

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as `Seq2SeqTrainer.evaluate` does, without any effect on later training steps.

        A signal that ends an evaluation of the training leaves a checkpoint.
        """
        device, logged = self.args.device, len(self.state.log_history)
        try:
            # Every iteration over a `DataLoader`, shuffled or not, draws a seed from the generator that dropout uses.
            with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
                return super().evaluate(eval_dataset, *args, **kwargs)
        except EvaluationInterrupted:
            if eval_dataset is None:  # else the trainer evaluates several, and the outer call comes here, too
                del self.state.log_history[logged:]  # metrics before the signal; resuming evaluates all datasets again
                self._save_checkpoint(self.model, None)
                self.callback_handler.on_save(self.args, self.state, self.control)
            raise

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.validation_bleu is not None and metric_key_prefix == "eval":
            # An event between batches, at which a signal can end the evaluation.
            event = partial(self.callback_handler.on_prediction_step, self.args, self.state, self.control)
            output.metrics["eval_bleu"] = self.validation_bleu(self.model, event)
        return output

    def _run_epoch(self, *, epoch: int, epochs_trained: int, **kwargs: Any) -> None:
        if epoch == epochs_trained:
            self._start_interval()
        if self.batch_sampler is not None:  # accelerate's loaders set it late, or, on several processes, never
            self.batch_sampler.set_epoch(epoch)
        super()._run_epoch(epoch=epoch, epochs_trained=epochs_trained, **kwargs)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: torch.Tensor | None = None) -> torch.Tensor | None:
        """None, unless clipping has computed it: `DivergenceGuard` computes it, and `log` takes it from there."""
        if grad_norm is None:
            self.accelerator.unscale_gradients()
        return grad_norm

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with cpu_threads(self.args.elastic_threads):
            return super().train(*args, **kwargs)

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: MicroBatch | list[MicroBatch],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        if not isinstance(inputs, list) or self.virtual_ranks is None:
            loss = super().training_step(model, inputs, num_items_in_batch)
            self._likelihoods += self._likelihood
            return loss
        # Unwrapped, since `DistributedDataParallel` would add gradients in another order.
        model = self.accelerator.unwrap_model(model, keep_torch_compile=True)
        parameters = [weights for weights in model.parameters() if weights.requires_grad]
        micro_batches = dict(zip(self.virtual_ranks.block(self.virtual_ranks.process), inputs, strict=True))
        step = super().training_step

        def compute(virtual_rank: int) -> list[torch.Tensor]:
            backward = partial(step, model, micro_batches[virtual_rank], num_items_in_batch)
            gradients = gradients_of(parameters, backward, self.args.seed, self.state.global_step, virtual_rank)
            return [*gradients, self._likelihood]

        *gradients, loss, likelihood = self.virtual_ranks.tree_sum(compute)
        for weights, gradient in zip(parameters, gradients, strict=True):
            weights.grad = gradient
        self._losses.append(loss)
        self._likelihoods += likelihood
        return loss

    @property
    def _likelihood(self) -> torch.Tensor:
        """The likelihood of the latest micro-batch, for the log; 0 if the loss is not ours."""
        if isinstance(self.compute_loss_func, LabelSmoothedLoss):
            return self.compute_loss_func.likelihood
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: MicroBatch | list[MicroBatch]) -> float:
        """Operations of training on a micro-batch or several; `state.total_flos` sums over processes and steps."""
        if isinstance(inputs, list):
            return sum(self.floating_point_ops(batch) for batch in inputs)
        sentences, source_length = inputs["input_ids"].shape
        return training_flops(self.model.config, sentences, source_length, inputs["labels"].shape[1])

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write transformers' card with the pipeline tag "translation", unless there is a card."""
        path = Path(self.args.output_dir, "README.md")
        if not self.is_world_process_zero() or path.exists():
            return
        super().create_model_card(*args, **kwargs)
        card = ModelCard.load(path)
        card.data.pipeline_tag = "translation"
        card.save(path)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.batch_sampler is not None:
            seconds = max(time.monotonic() - self._interval_began, 1e-9)  # two readings of a coarse clock may be equal
            logs["target_tokens_per_second"] = (self.total_target_tokens - self._tokens_before) / seconds
            logs["padding_share"] = self.padding_share
            logs.setdefault("grad_norm", self._divergence.norm.item())
            if self._losses:  # the trainer's mean over processes would round differently for each number of processes
                logs["loss"] = torch.stack(self._losses).double().mean().item()
            if isinstance(self.compute_loss_func, LabelSmoothedLoss):
                summed = self._likelihoods if self._losses else self.accelerator.gather(self._likelihoods).sum()
                logs["nll_loss"] = summed.item() / max(1, self.state.global_step - self._steps_before)
            self._start_interval()
        super().log(logs, start_time)

    def _start_interval(self) -> None:
        """Begin the interval whose speed is logged next."""
        self._losses: list[torch.Tensor] = []  # one for each step of elastic training
        self._likelihoods = torch.zeros((), device=self.args.device)  # summed over the steps
        self._tokens_before = self.total_target_tokens
        self._steps_before = self.state.global_step
        self._interval_began = time.monotonic()
