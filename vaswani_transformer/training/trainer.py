"""`VaswaniTrainer`: `Seq2SeqTrainer` on batches measured in tokens (5.1), with atomic checkpoints.

It has the overrides of `Trainer`; elastic.py adds its own. Callbacks and the loss do the rest of
the paper's training.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, Seq2SeqTrainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput

from ..data.batching import MixedCorpus, PaddedCollator, TokenBudgetBatchSampler
from ..options.training import VaswaniTrainingArguments
from ..system.files import file_errors_as_os_error, publish
from ..system.manifests import MODEL_FILES, Manifest
from ..system.messages import errors_begin_with
from ..system.processes import all_ranks_or_none, derived_seed
from .averaging import CheckpointAveraging
from .callbacks import SeedByRank, TrainingTotals
from .checkpoints import (
    STAGING_NAME,
    list_checkpoints,
    newest_complete_checkpoint,
    publish_files,
    remove_incomplete,
    remove_surplus,
    verify_checkpoint,
)
from .costs import training_flops
from .divergence import DivergenceGuard
from .loss import CorpusLikelihood, LabelSmoothedLoss
from .muon import Muon, parameter_groups
from .signals import LoaderSignals


# Shapes of batches for `torch_compile`; CUDA graphs of a shape take memory, and two steps to warm up.
_MAX_SHAPES = 24


class VaswaniTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` on token-budget batches, with atomic checkpoints that are verified before training resumes.

    By default it collates with `DataCollatorForSeq2Seq`. It smooths labels by `model.config.label_smoothing`. Its
    logs also have `target_tokens_per_second`, over all processes, `padding_share` of the first epoch, and, next to
    the smoothed `loss`, `nll_loss`, the negative log-likelihood. Checkpoints beyond `save_total_limit` are deleted when
    a new one is complete, except those that `CheckpointAveraging` needs.

    Args:
        model: As in `Seq2SeqTrainer`, like all arguments that are not listed here, except `model_init` and
            `compute_loss_func`.
        args: Arguments with `source_tokens` and `target_tokens`.
        validation_bleu: Scores the model at each evaluation, which then also logs `eval_bleu`.
        mixed: Corpora, the last rows of `train_dataset`, from which pairs are drawn for each epoch; by default an epoch
            has all rows.
        train_dataset: A `datasets.Dataset` with columns `input_ids` and `labels`. Without columns `source_length` and
            `target_length`, every row is read once to compute the lengths. The rows of another dataset with a length
            are copied into one.
        processing_class: The tokenizer; not needed with a `data_collator`.

    Attributes:
        batch_sampler: The planned batches of `train_dataset`; missing without one.

    Raises:
        ValueError: An argument is missing or has no effect here, such as `label_smoothing_factor`; `train_dataset`
            cannot be used; `virtual_ranks` requires an `ElasticTrainer`; one process is given several GPUs; or as from
            `TokenBudgetBatchSampler`. From `train()`: there is no `train_dataset`, or the model's `generation_config`
            cannot be saved.
        DivergenceError: From `train()` and `save_model()`: a loss, gradient or weight is not finite. Such weights are
            never written.
    """

    state: TrainerState
    batch_sampler: TokenBudgetBatchSampler
    compute_loss_func: LabelSmoothedLoss
    _staging: Path | None = None  # the staging directory while a checkpoint is being written

    def __init__(
        self,
        model: Any,
        args: VaswaniTrainingArguments,
        validation_bleu: Callable[[PreTrainedModel], float] | None = None,
        mixed: Sequence[MixedCorpus] = (),
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, VaswaniTrainingArguments):
            raise ValueError(f"args: must be VaswaniTrainingArguments, is {type(args).__name__}")
        if args.n_gpu > 1:
            raise ValueError(
                f"n_gpu: one process cannot train on {args.n_gpu} GPUs; start one for each with `accelerate launch`, "
                f"or choose one GPU with CUDA_VISIBLE_DEVICES"
            )
        if kwargs.get("data_collator") is None:
            if kwargs.get("processing_class") is None:
                raise ValueError("processing_class: give the tokenizer, or a data_collator")
            kwargs["data_collator"] = DataCollatorForSeq2Seq(kwargs["processing_class"], model=model)
        if args.label_smoothing_factor:
            raise ValueError("label_smoothing_factor: set label_smoothing in the model's configuration instead")
        if args.label_names not in (None, ["labels"]):  # transformers would evaluate without a loss
            raise ValueError(f"label_names: must be ['labels'], the column labels, not {args.label_names}")
        if kwargs.get("train_dataset") is not None:
            kwargs["train_dataset"] = _training_rows(kwargs["train_dataset"])
        loss = LabelSmoothedLoss(model.config.label_smoothing)
        super().__init__(model, args, compute_loss_func=loss, **kwargs)
        self.model.register_load_state_dict_post_hook(_forget_tied_keys)
        if args.save_on_each_node:  # otherwise transformers 5.23 writes weights on rank 0 alone
            self.model.should_save_on_this_rank = bool  # of `is_main_process`, true for one rank per machine
        self.validation_bleu = validation_bleu
        if self.train_dataset is not None:
            self._plan_batches(mixed)
        self._divergence = DivergenceGuard()
        for callback in (SeedByRank(), TrainingTotals(), self._divergence):
            self.add_callback(callback)

    @property
    def totals(self) -> TrainingTotals:
        """Time and tokens spent on the training, including before it was resumed."""
        # Looked up each time, since `restore_callback_states_from_checkpoint` replaces the callbacks.
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, TrainingTotals))

    # Batches: measured in tokens, and equal however they are divided.

    @property
    def parts_of_batch(self) -> int:
        """The number of micro-batches of a global batch."""
        if self.args.virtual_ranks is not None:
            raise ValueError("virtual_ranks: requires training.elastic.ElasticTrainer")
        return self.args.world_size * self.args.gradient_accumulation_steps

    def _plan_batches(self, mixed: Sequence[MixedCorpus]) -> None:
        args = self.args
        rows = self.train_dataset
        if "source_length" in rows.column_names:
            lengths = rows["source_length"][:], rows["target_length"][:]  # as a slice: row by row takes minutes
        else:
            lengths = list(map(len, rows["input_ids"])), list(map(len, rows["labels"]))
        self.batch_sampler = TokenBudgetBatchSampler(
            *lengths,
            source_tokens=args.source_tokens,
            target_tokens=args.target_tokens,
            num_parts=self.parts_of_batch,
            seed=args.seed if args.data_seed is None else args.data_seed,
            window=args.batch_window,
            mixed=mixed,
            max_shapes=_MAX_SHAPES if args.torch_compile else None,
        )

    @cached_property
    def _loader_signals(self) -> LoaderSignals:
        return LoaderSignals()

    def get_train_dataloader(self) -> DataLoader:
        rows = self.train_dataset
        if self.args.remove_unused_columns:
            rows = rows.select_columns(sorted({"input_ids", "attention_mask", "labels"} & {*rows.column_names}))
        collate = self.data_collator
        if self.args.torch_compile:
            collate = PaddedCollator(collate, self.batch_sampler, self.model.config.pad_token_id)
        return self.accelerator.prepare(self.make_train_loader(rows, self.batch_sampler, collate))

    def make_train_loader(self, rows: Any, batch_sampler: Any, collate: Callable[[list], Any]) -> DataLoader:
        """The loader of all processes' micro-batches; accelerate gives each process its share."""
        return DataLoader(
            rows,
            batch_sampler=batch_sampler,
            collate_fn=collate,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            worker_init_fn=self._loader_signals,
            generator=torch.Generator().manual_seed(derived_seed(self.args.seed, self.args.process_index)),
        )

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        loader = super().get_eval_dataloader(*args, **kwargs)
        loader.base_dataloader.worker_init_fn = self._loader_signals
        return loader

    # Steps, counted in tokens and operations.

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Create Muon, which `optim` cannot name, for `args.muon`."""
        if not self.args.muon or self.optimizer is not None:  # type: ignore[has-type]
            return super().create_optimizer(model)
        args, model = self.args, model or self.model
        groups = parameter_groups(model, args.weight_decay, self.get_decay_parameter_names(model))
        # A CPU sends updates faster than it computes them. Elastic training must not depend on the number of ranks.
        is_shared = args.device.type == "cpu" and args.world_size > 1 and args.virtual_ranks is None
        betas = args.adam_beta1, args.adam_beta2
        self.optimizer = Muon(groups, args.learning_rate, betas, args.adam_epsilon, is_shared)
        return self.optimizer

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, torch.Tensor | int | None]:
        """Also count the target tokens of the global batch."""
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        if num_items is not None:
            # A tensor, to avoid a host-device synchronization; int64, since a run has billions of tokens.
            self.totals.target_tokens = self.totals.target_tokens + torch.as_tensor(num_items).long()
        return batches, num_items

    @cached_property
    def _compiled_losses(self) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
        """Model and loss in one graph for all shapes; a GPU replays it as CUDA graphs, captured for each shape."""
        args, mode = self.args, self.args.torch_compile_mode
        # The next replay overwrites the gradients, so that others could not be added to them.
        is_added = args.gradient_accumulation_steps > 1 or args.virtual_ranks is not None
        if mode is None and args.device.type == "cuda" and not is_added:
            mode = "reduce-overhead"
        return torch.compile(self._model_losses, backend=args.torch_compile_backend, mode=mode)

    def _model_losses(
        self, model: torch.nn.Module, inputs: dict[str, Any], labels: torch.Tensor, num_items: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.compute_loss_func.losses(model(**inputs), labels, num_items)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Make the decoder's inputs if the collator did not: transformers withholds the labels from the model."""
        if "labels" in inputs and "decoder_input_ids" not in inputs:
            inputs["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(inputs["labels"])
        if not self.args.torch_compile or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        for tensor in inputs.values():
            for dimension in range(tensor.dim()):  # otherwise each new shape, or two equal sizes, would need a graph
                torch._dynamo.maybe_mark_dynamic(tensor, dimension)
        labels = inputs.pop("labels")
        return self.compute_loss_func.record(*self._compiled_losses(model, inputs, labels, num_items_in_batch))

    def floating_point_ops(self, inputs: Any) -> float:
        """Count operations by the shapes of a micro-batch; transformers estimates 6 for each weight and token."""
        sentences, source_length = inputs["input_ids"].shape
        return training_flops(self.model.config, sentences, source_length, inputs["labels"].shape[1])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add speed, padding and likelihood to the loss; see the class."""
        if "loss" in logs:
            seconds = max(time.monotonic() - self._interval_began, 1e-9)  # two readings of a coarse clock may be equal
            logs["target_tokens_per_second"] = (int(self.totals.target_tokens) - self._tokens_before) / seconds
            logs["padding_share"] = self.batch_sampler.padding_share
            logs |= self.mean_losses()
            self.start_interval()
        super().log(logs, start_time)

    def mean_losses(self) -> dict[str, float]:
        """Losses to log of the steps since the last log, in addition to or instead of their `loss`."""
        likelihood = self.accelerator.gather(self.compute_loss_func.take_likelihood()).sum().item()
        return {"nll_loss": likelihood / max(1, self.state.global_step - self._steps_before)}

    def start_interval(self) -> None:
        """Begin the interval whose speed and losses are logged next."""
        self.compute_loss_func.take_likelihood()
        self._tokens_before = int(self.totals.target_tokens)
        self._steps_before = self.state.global_step
        self._interval_began = time.monotonic()

    # Training, from a verified checkpoint to its end.

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as `Seq2SeqTrainer.train` does; a checkpoint of the last step is not trained further.

        `resume_from_checkpoint` is a checkpoint, or True for the newest complete one in `output_dir`.

        Raises:
            ValueError: The checkpoint is incomplete, damaged or missing; or as the class says.
        """
        if self.train_dataset is None:
            raise ValueError("train_dataset: there is none to train on; give one to the trainer")
        if isinstance(self.model, PreTrainedModel):  # with PEFT's adapters, none is saved
            with errors_begin_with("generation_config"):
                self.model.generation_config.validate(strict=True)  # as saving does after a change of an option
        checkpoint = None
        if resume_from_checkpoint is True:
            checkpoint = newest_complete_checkpoint(self.args.output_dir)
            if checkpoint is None:
                raise ValueError(f"output_dir: {self.args.output_dir} holds no complete checkpoint to resume from")
        elif resume_from_checkpoint:
            checkpoint = Path(resume_from_checkpoint)
            verify_checkpoint(checkpoint)
        if self.is_local_process_zero():
            remove_incomplete(self.args.output_dir)
        with self._loader_signals:
            return super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)

    def _run_epoch(self, *, epoch: int, epochs_trained: int, **kwargs: Any) -> None:
        """End a training that is resumed at its end; the base class would train one more step."""
        self.control.should_training_stop |= self.state.global_step >= self.state.max_steps
        if self.control.should_training_stop:
            return
        if epoch == epochs_trained:
            self.state.compute_steps(self.args, self.state.max_steps)  # the checkpoint has the earlier options
            self.start_interval()
        self.batch_sampler.set_epoch(epoch)  # accelerate's loaders set it late, or, on several processes, never
        super()._run_epoch(epoch=epoch, epochs_trained=epochs_trained, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """Average the loss over tokens, and compute the BLEU, without any effect on later training steps.

        `compute_metrics` has no model to translate with.
        """
        device = self.args.device
        training_loss, likelihood = self.compute_loss_func, CorpusLikelihood(self.accelerator)
        self.compute_loss_func = likelihood  # type: ignore[assignment]  # for this evaluation alone
        try:
            # Every iteration over a `DataLoader`, shuffled or not, draws a seed from dropout's generator.
            with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
                output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
                if self.validation_bleu is not None and metric_key_prefix == "eval":
                    output.metrics["eval_bleu"] = self.validation_bleu(self.model)
        finally:
            self.compute_loss_func = training_loss
        if (mean := likelihood.mean()) is not None:
            output.metrics[f"{metric_key_prefix}_loss"] = mean
        return output

    def prediction_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute the loss even where the base class translates, and takes another loss."""
        if self.args.predict_with_generate and not prediction_loss_only and "labels" in inputs:
            super().prediction_step(model, dict(inputs), True)
        return super().prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)

    # Checkpoints: staged, given a manifest, and published by one rename when all ranks have written theirs.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as `Seq2SeqTrainer.save_model` does, each file atomically, the weights last, with a manifest.

        Raises:
            DivergenceError: A weight is not finite.
            OSError: A file could not be written.
        """
        self._divergence.check_weights(self.model, self.args, self.state)
        directory = Path(output_dir or self.args.output_dir)
        if self._staging is not None:
            with all_ranks_or_none(f"{directory}: could not be written"):  # transformers may wait for all ranks next
                super().save_model(str(directory), _internal_call=True)
            return
        staged = directory / STAGING_NAME / "model"
        with file_errors_as_os_error(f"{directory}: the model could not be written"):
            try:
                super().save_model(str(staged), _internal_call=True)
                if self.args.should_save:
                    Manifest.from_files(staged, MODEL_FILES).save(staged)
                    publish_files(staged, directory)
            finally:
                if self.args.should_save:  # a full disk needs the space
                    shutil.rmtree(staged.parent, ignore_errors=True)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Stage the checkpoint, `save_model` included, and publish it when all ranks have written theirs."""
        parent, name = Path(self._get_output_dir(trial)), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        staged, directory = parent / STAGING_NAME / name, parent / name
        self._staging, failed = staged.parent, f"{directory}: could not be written"
        try:
            # Every rank writes its own random state: a checkpoint is complete when all ranks have done so.
            with all_ranks_or_none(failed):
                super()._save_checkpoint(model, trial)
            with all_ranks_or_none(failed):
                if self.args.should_save:
                    self._publish(staged, directory)
        finally:
            self._staging = None
            if self.is_local_process_zero():
                shutil.rmtree(staged.parent, ignore_errors=True)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(directory))

    def _publish(self, staged: Path, directory: Path) -> None:
        state = self.state
        if state.best_model_checkpoint == str(staged):
            state.best_model_checkpoint = str(directory)
            state.save_to_json(str(staged / TRAINER_STATE_NAME))
        Manifest.from_files(staged).save(staged)
        publish(staged, directory)  # replaces a damaged checkpoint of this step
        best = Path(state.best_model_checkpoint or "").name
        needed = {step for step, each in list_checkpoints(directory.parent).items() if each.name == best}
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, CheckpointAveraging):
                needed |= callback.needed_steps(state.global_step)
        if (limit := self.args.save_total_limit) and limit > 0:
            remove_surplus(directory.parent, limit, state.global_step, needed)

    def _get_output_dir(self, trial: Any) -> str:
        """The staging directory while a checkpoint is written; another `args.output_dir` would be stored in it."""
        return super()._get_output_dir(trial) if self._staging is None else str(self._staging)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push only published checkpoints: the upload runs in the background, and needs files that stay."""
        if self._staging is None:
            super()._push_from_checkpoint(checkpoint_folder)


def _training_rows(rows: Any) -> Dataset:
    """Convert a dataset with a length to `datasets.Dataset`; batches are planned by the lengths of all its rows.

    Raises:
        ValueError: The dataset has no length, no rows, or no columns of token ids.
    """
    if not hasattr(rows, "__len__") or isinstance(rows, Mapping):
        raise ValueError(
            f"train_dataset: {type(rows).__name__} has no length or no integer indices, which batch planning needs; "
            "pass a datasets.Dataset, such as Dataset.from_generator makes, or a torch Dataset with a length"
        )
    if not isinstance(rows, Dataset):
        rows = Dataset.from_list([rows[index] for index in range(len(rows))])
    if not len(rows) or not {*rows.column_names} >= {"input_ids", "labels"}:
        raise ValueError(
            f"train_dataset: must have rows with the columns input_ids and labels, has {len(rows)} rows with "
            f"{', '.join(rows.column_names) or 'none'}; tokenizer(sources, text_target=targets) makes them"
        )
    return rows


def _forget_tied_keys(model: Any, keys: Any) -> None:
    """A hook of `load_state_dict`: tied weights are saved once, and not missing."""
    keys.missing_keys[:] = [name for name in keys.missing_keys if name not in model.all_tied_weights_keys]
