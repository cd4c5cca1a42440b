"""The steps of a training run, in order: `load`, `make_trainer`, `train`, `write_results`."""

import math
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import concatenate_datasets
from transformers import (
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    ProgressCallback,
    TrainerCallback,
    TrainerState,
    set_seed,
)
from transformers.trainer import TRAINER_STATE_NAME

from ..data.overlap import describe_in_train
from ..data.preparation import identify_inputs, load_corpora
from ..data.prepared_directory import TrainingData
from ..decoding.saved_model import SavedModel
from ..model.configuration_vaswani import VaswaniConfig
from ..options.arguments import decisive_values
from ..options.data import DataArguments
from ..options.training import RecipeTrainingArguments
from ..system.faults import exit_on_error
from ..system.files import Json
from ..system.manifests import content_digest
from ..system.messages import program_name
from ..system.processes import leave_process_group, main_process_first, on_each_machine, on_main_process
from ..system.processor import keep_freed_memory, warn_of_slow_bfloat16
from ..system.typed_json import from_json
from ..training.averaging import CheckpointAveraging
from ..training.callbacks import EarlyStopping, TimeLimit, TrainingProgress
from ..training.cooccurrence import cooccurrence_embeddings, set_embeddings
from ..training.costs import measure_cost
from ..training.elastic import ElasticTrainer, fixed_threads
from ..training.precision import DTYPES, fastest_precision, relative_speeds
from ..training.schedule import NoamSchedule, WarmupCheck, WarmupCooldown, steps_of_warmup
from ..training.signals import SignalCheckpoint
from ..training.trainer import VaswaniTrainer
from .plots import plot_learning_curve
from .provenance import describe_data, describe_model, describe_run
from .push import prepare_repository, push_run
from .records import ParentModel, RunSettings, RunTraining, TrainingResults, loss_by_tenth
from .run_directory import load_record, open_run, record_settings, training_settings
from .validation import choose_length_penalty, held_out, validation_bleu


@contextmanager
def training_run(args: RecipeTrainingArguments) -> Iterator["TrainingRun"]:
    """Supervise a training: a fault, a lost process or a signal ends all processes with one line.

    On exit, the process group is destroyed, then the run is pushed (also a finished run, whose push may have been
    interrupted). Keep the trainer local to a function called inside the context: a trainer that is still referenced
    keeps the group's threads alive.
    """
    with (
        exit_on_error("continue with --resume"),
        SignalCheckpoint() as signal_checkpoint,
        ExitStack() as exit_stack,
    ):
        try:
            averaging = CheckpointAveraging(args.average_last, args.save_minutes)
            yield TrainingRun(args, Path(args.output_dir), averaging, signal_checkpoint, exit_stack)
        except AlreadyTrainedError as error:  # with status 0, so that a scheduler does not start it again
            if PartialState().is_main_process:
                print(f"{program_name()}: {error}", file=sys.stderr)
        PartialState().wait_for_everyone()
        leave_process_group()  # an upload may take longer than the others would wait
        if args.push_to_hub and PartialState().is_main_process:
            push_run(args.hub_model_id, args.output_dir, args.hub_revision)


class AlreadyTrainedError(RuntimeError):
    """The training to resume has already ended and been scored."""


@dataclass
class TrainingRun:
    """A training in an output directory.

    Attributes:
        args: Options of the training.
        directory: The output directory.
        averaging: Callback that averages the last checkpoints (6.1).
        signal_checkpoint: Callback that ends the training with a checkpoint after a signal.
        exit_stack: Releases the output directory's lock at the end.
        checkpoint: Checkpoint to resume from; None to start from the beginning.
    """

    args: RecipeTrainingArguments
    directory: Path
    averaging: CheckpointAveraging
    signal_checkpoint: SignalCheckpoint
    exit_stack: ExitStack
    checkpoint: Path | None = None

    def load(self, data: DataArguments, config: VaswaniConfig, parent: ParentModel | None = None) -> TrainingData:
        """Check the options, lock the output directory, find the checkpoint to resume from, load the data. Collective.

        With a `parent`, training starts from it instead of random weights.

        Raises:
            ValueError: Options contradict each other or the corpora, the directory cannot be used, or the Hub cannot be
                written; also as from `load_corpora`.
        """
        args, directory = self.args, self.directory
        if not data.validation and (args.eval_strategy != "no" or len(args.length_penalties or ()) > 1):
            raise ValueError(
                "validation: evaluations and the choice among length_penalties need a validation corpus; give one, or "
                "--eval_strategy no and a single length penalty"
            )
        self.averaging.check(args)
        if args.resume and args.precision == "auto":  # a resumed training keeps the choice
            args.set_precision(on_main_process(lambda: str(load_record(directory).get("precision", "auto"))))
        inputs = on_each_machine(lambda: identify_inputs(data))
        settings = training_settings(data, config, args, inputs, parent)
        opened = open_run(directory, settings, args.resume, args.save_on_each_node)
        self.checkpoint = self.exit_stack.enter_context(opened)
        if args.push_to_hub:
            name = args.hub_model_id or directory.resolve().name
            args.hub_model_id = on_main_process(lambda: prepare_repository(name, args.hub_private_repo))
        with main_process_first():
            return load_corpora(data, data.prepared, inputs)

    def make_trainer(
        self, config: VaswaniConfig, data: TrainingData, model: PreTrainedModel | None = None
    ) -> VaswaniTrainer:
        """Create a model with the vocabulary of the data, and a trainer with planned batches. Collective.

        A `model` to start from has `config` as its configuration; by default the weights are random.

        Raises:
            AlreadyTrainedError: The training has all requested steps, and its results are complete.
            ValueError: The training was begun with other data; a sentence is too long for the token budget; or a batch
                has fewer sentences than parts.
        """
        if self.args.use_cpu:
            keep_freed_memory()
        config.language_tags = data.language_tags
        if model is None or config.longest_source is not None:  # unknown for a converted parent
            config.longest_source = max(config.longest_source or 1, max(data.train["source_length"][:]))
        if model is None:
            model = self._new_model(config, data)
        if self.args.precision == "auto":
            self.args.set_precision(on_main_process(lambda: _fastest_precision(config, self.args)))
        elif self.args.bf16 and self.args.device.type == "cpu":
            on_main_process(warn_of_slow_bfloat16)
        settings: dict[str, Json] = {
            "precision": self.args.precision,
            "vocabulary": content_digest(data.tokenizer.get_vocab()),
            "training pairs": len(data.train),
        }
        record_settings(self.directory, settings, self.args.save_on_each_node)
        trainer = self._trainer(model, data)
        if self.checkpoint is not None:
            self._require_steps_left(trainer, self.checkpoint)
        return trainer

    def _new_model(self, config: VaswaniConfig, data: TrainingData) -> PreTrainedModel:
        """Create a model with random weights, and the tokenizer's size and special tokens."""
        args, tokenizer = self.args, data.tokenizer
        if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
            raise ValueError("tokenizer: it has no token for padding or EOS; choose another")
        config.vocab_size = len(tokenizer)
        config.pad_token_id = config.decoder_start_token_id = tokenizer.pad_token_id
        config.eos_token_id = tokenizer.eos_token_id
        set_seed(args.seed)
        model = AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=False)
        if args.cooccurrence_embeddings and self.checkpoint is None:
            began = time.monotonic()
            with fixed_threads(args):
                directions = cooccurrence_embeddings(data.train, config.vocab_size, config.d_model, args.seed)
            set_embeddings(model, directions)
            if PartialState().is_main_process:
                print(f"embeddings from co-occurrence: {time.monotonic() - began:.1f} s", flush=True)
        return model

    def _trainer(self, model: PreTrainedModel, data: TrainingData) -> VaswaniTrainer:
        args, config = self.args, model.config
        evaluated = [data.encoded[split] for split in ("validation", "validation_reverse") if split in data.encoded]
        bleu = None
        if args.eval_bleu is not None:
            sample = held_out(data, "validation", (config.source_language, config.target_language), args.eval_bleu)
            bleu = partial(
                validation_bleu, tokenizer=data.tokenizer, sample=sample, num_beams=args.generation_num_beams
            )
        trainer_class = VaswaniTrainer if args.virtual_ranks is None else ElasticTrainer
        trainer = trainer_class(
            model,
            args,
            mixed=list(data.mixed.values()),
            train_dataset=data.train,
            eval_dataset=concatenate_datasets(evaluated) if evaluated else None,
            processing_class=data.tokenizer,
            validation_bleu=bleu,
            callbacks=[*self._schedule(), self.averaging, self.signal_checkpoint],
        )
        if not args.disable_tqdm:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(TrainingProgress(args.max_minutes))
        return trainer

    @property
    def _warmup_steps(self) -> int:
        """Number of steps during which the learning rate rises; 0 if it is constant."""
        return 0 if self.args.lr_scheduler_type == "constant" else self.args.warmup_steps

    def _schedule(self) -> Iterator[TrainerCallback]:
        """Callbacks that set the learning rate (5.3), and end the training early."""
        args = self.args
        if args.max_minutes is not None:
            yield TimeLimit(args.max_minutes)
        is_papers = args.lr_scheduler_type == "inverse_sqrt"
        if is_papers:
            yield NoamSchedule(args.warmup_steps, args.learning_rate_factor)
        elif self._warmup_steps:
            yield WarmupCheck(self._warmup_steps)
        if self._warmup_steps or args.cooldown:  # without minutes, too: a resumed warm-up may have been cut before
            yield WarmupCooldown(self._warmup_steps, is_papers, args.cooldown, args.max_minutes)
        if args.early_stopping_patience is not None:
            yield EarlyStopping(args.early_stopping_patience)

    def _require_steps_left(self, trainer: VaswaniTrainer, checkpoint: Path) -> None:
        """Raise an AlreadyTrainedError if nothing is left to train or score after the checkpoint."""
        args, state = self.args, TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        steps = args.max_steps
        if steps <= 0:
            steps = math.ceil(args.num_train_epochs * trainer.batch_sampler.batches)
        is_time_over = args.max_minutes is not None and TimeLimit(args.max_minutes).is_over(state)
        if state.global_step < steps and not is_time_over:
            return
        results: TrainingResults | None = on_main_process(lambda: TrainingResults.from_directory(self.directory))
        is_scored = results is not None and results.training.steps >= state.global_step
        if is_scored or state.global_step > steps:
            longer = "to continue it, raise max_steps, num_train_epochs or max_minutes"
            if args.cooldown:
                longer = "its learning rate has fallen to zero; to train on, start another with --model"
            raise AlreadyTrainedError(
                f"output_dir: the training in {self.directory} has ended, after {state.global_step} steps; {longer}"
            )

    def train(self, trainer: VaswaniTrainer, options: Mapping[str, object], data: TrainingData) -> TrainingResults:
        """Train, and save the model with the averaged weights; returns the results without scores. Collective."""
        args, search = self.args, trainer.model.generation_config
        provenance = describe_run(args.hub_model_id if args.push_to_hub else None)
        if args.length_penalties:
            search.length_penalty = args.length_penalties[0]
        if trainer.is_world_process_zero():
            _show_plan(trainer, data)
        trainer.train(resume_from_checkpoint=self.checkpoint)
        training = self._describe_training(trainer)
        trainer.model.config.use_cache = True  # the trainer has disabled it, but the saved model needs it
        if args.length_penalties:
            search.length_penalty = choose_length_penalty(trainer.model, args.length_penalties, data)
        trainer.save_model(_internal_call=True)  # a public call would push it before it is scored
        PartialState().wait_for_everyone()
        return TrainingResults(
            run=provenance,
            data=describe_data(options, data),
            model=describe_model(trainer.model),
            settings=from_json(
                RunSettings,
                {**decisive_values(args, "weights"), "average_last": args.average_last, "alpha": search.length_penalty},
            ),
            training=training,
        )

    def _describe_training(self, trainer: VaswaniTrainer) -> RunTraining:
        """Describe a training that has ended, and measure its cost. Collective."""
        args, state, totals = self.args, trainer.state, trainer.totals
        return RunTraining(
            seconds=totals.seconds,
            processor_seconds=totals.processor_seconds,
            cost=measure_cost(state.total_flos, totals.device_seconds, args.device, DTYPES[args.precision]),
            steps=state.global_step,
            warmup_steps=steps_of_warmup(state, self._warmup_steps),
            limits=self._limits(trainer),
            loss_by_tenth=loss_by_tenth(state.log_history),
            epochs=state.epoch,
            target_tokens=int(totals.target_tokens),
            padding_share=trainer.batch_sampler.padding_share,
            processes=args.world_size,
            averaged=[directory.name for directory in self.averaging.averaged],
            resumed_from=self.checkpoint.name if self.checkpoint else None,
        )

    def _limits(self, trainer: VaswaniTrainer) -> dict[str, float]:
        """The options that ended the training, and their values."""
        args, state, callbacks = self.args, trainer.state, trainer.callback_handler.callbacks
        has_ended = {
            "max_steps" if args.max_steps > 0 else "num_train_epochs": state.global_step >= state.max_steps,
            "max_minutes": args.max_minutes is not None and trainer.totals.seconds >= 60 * args.max_minutes,
            "early_stopping_patience": any(isinstance(each, EarlyStopping) and each.has_stopped for each in callbacks),
        }
        return {name: getattr(args, name) for name, is_limit in has_ended.items() if is_limit}

    def models_to_score(self, splits: Container[str], parent: SavedModel | None = None) -> dict[str, tuple[str, Path]]:
        """Split and directory of each saved model to score, by the field of its scores in the recipe's results."""
        names = ("validation", "validation_reverse", "test", "test_reverse", "replay_test")
        models = {split: (split, self.directory) for split in names}
        if len(self.averaging.averaged) > 1:  # a single checkpoint is the final model
            models["test_last_checkpoint"] = ("test", self.averaging.averaged[-1])
        if parent is not None:
            models |= {f"{split}_parent": (split, parent.directory) for split in ("test", "replay_test")}
        return {name: model for name, model in models.items() if model[0] in splits}

    def write_results(
        self,
        trainer: VaswaniTrainer,
        record: TrainingResults,
        texts: Mapping[str, Sequence[str]],
        write_card: Callable[[Path, Any, str | None], None],
    ) -> None:
        """Write files of lines (by name), the learning curve, the model card and the record, and log the scores."""
        for name, lines in texts.items():
            (self.directory / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        picture = plot_learning_curve(trainer.state.log_history, self.directory / "learning_curve.png")
        write_card(self.directory / "README.md", record, picture)
        record.save(self.directory / "all_results.json")  # last, since it marks the run as finished
        trainer.log(record.metrics)


def _show_plan(trainer: VaswaniTrainer, data: TrainingData) -> None:
    """Print the sizes of corpora, model and epoch."""
    args, sampler = trainer.args, trainer.batch_sampler
    print(data.describe_cleaning("train"))
    for name, corpus in data.mixed.items():
        print(f"{name}: {data.describe_cleaning(name)}; {corpus.drawn:,} drawn per epoch")
    if data.in_train:
        print(f"also in the training corpus: {describe_in_train(data.in_train)}")
    print(
        f"{trainer.model.num_parameters():,} parameters\n"
        f"{sampler.batches:,} steps an epoch, of at most {args.source_tokens:,} source and "
        f"{args.target_tokens:,} target tokens, {sampler.padding_share:.1%} of them padding",
        flush=True,
    )


def _fastest_precision(config: VaswaniConfig, args: RecipeTrainingArguments) -> str:
    """Measure which precision trains a model fastest on this machine, and print the relative speeds."""
    parts = args.virtual_ranks or args.world_size * args.gradient_accumulation_steps
    with fixed_threads(args):
        speeds = relative_speeds(config, args.device, args.target_tokens // parts)
    fastest = fastest_precision(speeds)
    measured = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
    print(f"precision {fastest}; measured speed of a layer on each side: {measured}", flush=True)
    return fastest
