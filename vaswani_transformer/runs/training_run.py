"""The steps that training recipes share: checks, corpora, trainer, training, models to score, results."""

import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import concatenate_datasets
from sacrebleu.metrics import BLEU
from transformers import (
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    TrainerCallback,
    TrainerState,
    set_seed,
)
from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations
from transformers.trainer import TRAINER_STATE_NAME

from ..data.corpora import sentences, spread
from ..data.preparation import identify_inputs, load_corpora
from ..data.prepared_directory import PreparedDirectory
from ..data.training_data import TrainingData
from ..evaluation.scores import sacrebleu_score, sacrebleu_tokenizer, two_sided_bootstrap
from ..io.files import Json, require_directory
from ..io.typed_json import from_json
from ..launch.faults import ExitReporter, exit_on_fault
from ..launch.memory import keep_freed_memory
from ..launch.processes import leave_process_group, main_process_first, on_each_machine, on_main_process
from ..launch.signals import SignalCheckpoint
from ..model.configuration_vaswani import VaswaniConfig
from ..model.saved_model import SavedModel
from ..training.averaging import CheckpointAveraging
from ..training.callbacks import EarlyStopping, TimeLimit
from ..training.cooccurrence import cooccurrence_embeddings, set_embeddings
from ..training.elastic import cpu_threads
from ..training.precision import DTYPES, fastest_precision, relative_speeds
from ..training.progress import TrainingProgress
from ..training.schedule import NoamSchedule, Ramps, noam_learning_rate, warn_of_short_training
from ..training.trainer import VaswaniTrainer
from .costs import TrainingCost, sustained_rate, training_cost
from .fine_tuning import fit_batches
from .plots import plot_learning_curve
from .provenance import describe_run, published
from .push import push_run, repository_of_training
from .records import ParentModel, RunData, RunModel, RunSettings, RunTraining, TrainingResults
from .run_arguments import DataArguments, ModelArguments, RecipeTrainingArguments
from .run_directory import (
    TrainingSettings,
    check_data,
    open_run,
    recorded_precision,
    require_same_on_all_ranks,
    require_usable,
)
from .validation_bleu import ValidationBleu


# Trackers that transformers does not list as available even if they are installed.
_UNLISTED_TRACKERS = ("azure_ml", "flyte")


@contextmanager
def training_run(
    program: str, args: RecipeTrainingArguments, results: type[TrainingResults]
) -> Iterator["TrainingRun"]:
    """Supervise a training: a fault, a lost process or a signal ends all processes with one line.

    At its end the process group is destroyed. Its threads end only if nothing refers to it any longer, and a trainer
    does: the trainer must be a local variable of a function called in the context. Then the run is pushed, also if it
    had ended before: that push may have been interrupted.

    Args:
        program: Name of the recipe, the start of the line.
        args: Options of the training.
        results: As in `TrainingRun`.
    """
    reporter = ExitReporter(program)
    with exit_on_fault(reporter), SignalCheckpoint() as signal_checkpoint, ExitStack() as exit_stack:
        run = TrainingRun(args, results, signal_checkpoint, exit_stack)
        try:
            yield run
        except AlreadyTrainedError as error:  # with status 0, so that a scheduler does not start it again
            reporter.report(str(error))
        PartialState().wait_for_everyone()
        leave_process_group()  # an upload may last longer than others would wait
        if args.push_to_hub and PartialState().is_main_process:
            push_run(args.hub_model_id, args.output_dir, args.hub_revision)


class AlreadyTrainedError(RuntimeError):
    """A training to resume has ended and is scored."""


@dataclass
class TrainingRun:
    """A training in an output directory: the methods in their order, from `load` to `write_results`.

    Attributes:
        args: Options of the training.
        results: Class of `all_results.json`, which the recipe writes after scoring.
        signal_checkpoint: Callback that ends the training with a checkpoint after a signal.
        exit_stack: Releases the output directory's lock at the end.
        averaging: Callback that averages the last checkpoints (6.1).
        checkpoint: Checkpoint to resume from; None to start from the beginning.
    """

    args: RecipeTrainingArguments
    results: type[TrainingResults]
    signal_checkpoint: SignalCheckpoint
    exit_stack: ExitStack
    checkpoint: Path | None = None

    def __post_init__(self) -> None:
        self.averaging = CheckpointAveraging(self.args.average_last, self.args.save_minutes)

    def load(self, data: DataArguments, config: VaswaniConfig, parent: ParentModel | None = None) -> TrainingData:
        """Check the options, lock the output directory, find the checkpoint to resume from, load the data. Collective.

        Args:
            data: Corpora, cleaning and vocabulary.
            config: Of the model.
            parent: The saved model to start from, instead of random weights.

        Raises:
            ValueError: A tracker is not installed, checkpoints cannot be averaged, nothing can be evaluated, or the
                directory cannot be used; also as from `repository_of_training` and `load_corpora`.
        """
        if self.args.eval_strategy != "no" and not data.validation:
            raise ValueError("eval_strategy: there is no validation corpus; give --validation, or --eval_strategy no")
        if len(self.args.length_penalties or ()) > 1 and not data.validation:
            raise ValueError(
                "length_penalties: there is no validation corpus to decide among them; give --validation, or a single "
                "value, such as 0.6"
            )
        if self.args.cooccurrence_embeddings and parent is not None:
            raise ValueError("cooccurrence_embeddings: the model to start from has its own; leave it out")
        directory = Path(self.args.output_dir)
        _require_trackers(self.args.report_to)
        self.averaging.check(self.args)
        require_directory("output_dir", directory)
        of_main = on_main_process(lambda: self._identify_inputs(data))
        inputs = on_each_machine(lambda: identify_inputs(data, of_main))
        if self.args.resume and self.args.precision == "auto":
            self.args.set_precision(on_main_process(lambda: recorded_precision(directory)))
        settings = TrainingSettings.of(data, config, self.args, inputs, parent)
        require_same_on_all_ranks({**settings.values, **inputs})
        opened = open_run(directory, settings, self.args.resume, self.args.save_on_each_node)
        self.checkpoint = self.exit_stack.enter_context(opened)
        self.args.hub_model_id = repository_of_training(self.args)
        with main_process_first():
            return load_corpora(data, data.prepared, inputs)

    def _identify_inputs(self, data: DataArguments) -> dict[str, Json]:
        """Identify corpora and tokenizer. Unchanged files of an earlier record are not read."""
        record = require_usable(Path(self.args.output_dir), self.args.resume)
        known = {} if record is None else record.settings
        prepared = {} if data.prepared is None else PreparedDirectory.open(data.prepared).inputs
        return identify_inputs(data, {**known, **prepared})

    def make_trainer(
        self, config: VaswaniConfig, data: TrainingData, model: PreTrainedModel | None = None
    ) -> VaswaniTrainer:
        """Create a model with the vocabulary of the data, and a trainer with planned batches. Collective.

        Args:
            config: Of the model.
            data: To train on.
            model: To start from; its configuration is `config`. By default its weights are random.

        Raises:
            AlreadyTrainedError: It has all requested steps, and its results are complete.
            ValueError: The training was begun with other data, is beyond `max_steps`, or ends within its warm-up and
                `warmup_steps` was left out; a sentence is too long for the model or the token budget; or a batch has
                fewer sentences than parts.
        """
        args = self.args
        if args.use_cpu:
            keep_freed_memory()
        fit_batches(args, data)
        if model is None:
            complete_config(config, data.tokenizer)
        require_positions(config, data)
        if args.precision == "auto":
            args.set_precision(on_main_process(lambda: choose_precision(config, args)))
        check_data(Path(args.output_dir), data, args)
        config.language_tags = data.language_tags
        if model is None or config.longest_source is not None:  # what a converted parent was trained on is unknown
            config.longest_source = max(config.longest_source or 1, max(data.train["source_length"][:]))
        held_out = [data.encoded[split] for split in ("validation", "validation_reverse") if split in data.encoded]
        callbacks: list[TrainerCallback] = [TimeLimit(args.max_minutes)] if args.max_minutes is not None else []
        warmup_steps, factor, highest = int(args.warmup_steps), args.learning_rate_factor, args.constant_learning_rate
        if highest is None:
            callbacks.append(NoamSchedule(warmup_steps, factor))
            highest = noam_learning_rate(warmup_steps, config.d_model, warmup_steps, factor)
        callbacks.append(Ramps(warmup_steps, highest, args.cooldown, args.max_minutes))
        if args.early_stopping_patience is not None:
            callbacks.append(EarlyStopping(args.early_stopping_patience))
        validation_bleu = None
        if args.eval_bleu is not None:
            validation_bleu = _validation_bleu(config, data, args.eval_bleu, args.generation_num_beams)
        set_seed(args.seed)
        if model is None:
            model = AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=False)
            if args.cooccurrence_embeddings and self.checkpoint is None:
                _set_cooccurrence_embeddings(model, data, args)
        trainer = VaswaniTrainer(
            model,
            args,
            mixed=list(data.mixed.values()),
            train_dataset=data.train,
            eval_dataset=concatenate_datasets(held_out) if held_out else None,
            processing_class=data.tokenizer,
            validation_bleu=validation_bleu,
            callbacks=[*callbacks, self.averaging, self.signal_checkpoint],
        )
        if not args.disable_tqdm:
            trainer.remove_callback(ProgressCallback)
            trainer.add_callback(TrainingProgress(args.max_minutes))
        self._keep_trackers_open(trainer)
        trainer.get_train_dataloader()
        self._require_more_steps(trainer)
        _require_end_of_warmup(trainer)
        return trainer

    def train(self, trainer: VaswaniTrainer, arguments: DataArguments, data: TrainingData) -> TrainingResults:
        """Train, and save the model with the averaged weights; returns the results without scores. Collective."""
        provenance = describe_run(self.args.hub_model_id)
        _show_plan(trainer, data)
        search = trainer.model.generation_config
        search.validate(strict=True)  # as saving does
        if self.args.length_penalties and (search.num_beams or 1) == 1:
            raise ValueError("length_penalties: the model to start from searches greedily; leave them out")
        trainer.train(resume_from_checkpoint=self.checkpoint)
        training = RunTraining(
            seconds=trainer.totals.seconds,
            processor_seconds=trainer.totals.processor_seconds,
            cost=_cost(trainer),
            steps=trainer.state.global_step,
            epochs=trainer.state.epoch,
            target_tokens=trainer.total_target_tokens,
            padding_share=trainer.padding_share,
            processes=self.args.world_size,
            averaged=[directory.name for directory in self.averaging.averaged],
            resumed_from=self.checkpoint.name if self.checkpoint else None,
        )
        trainer.model.config.use_cache = True  # the trainer has disabled it, but the saved model needs it
        self._choose_length_penalty(trainer, data)
        trainer.save_model(_internal_call=True)  # a public call would push it before it is scored
        PartialState().wait_for_everyone()
        return TrainingResults(
            run=provenance,
            data=_describe_data(arguments, data),
            model=_describe_model(trainer.model),
            settings=RunSettings.of(self.args, trainer.model.generation_config.length_penalty),
            training=training,
        )

    def _choose_length_penalty(self, trainer: VaswaniTrainer, data: TrainingData) -> None:
        """Choose the alpha of the model: the first of the options, unless another has a better BLEU. Collective.

        Better by more than noise: p < 0.05 on the validation set, divided by the number of the others (Bonferroni).
        """
        model, penalties = trainer.model, self.args.length_penalties or []
        if len(penalties) == 1:
            model.generation_config.length_penalty = penalties[0]
        if len(penalties) < 2:
            return
        measure = _validation_bleu(model.config, data, len(data.text["validation"]))
        language = model.config.target_language
        found = {alpha: replace(measure, length_penalty=alpha).translate(model) for alpha in penalties}
        scores = {alpha: sacrebleu_score(lines, measure.references, language).score for alpha, lines in found.items()}
        first, best = penalties[0], max(scores, key=scores.__getitem__)
        references = [[line] for line in measure.references]
        metric = BLEU(tokenize=sacrebleu_tokenizer(language))
        p_value = (len(found) - 1) * two_sided_bootstrap(metric, found[first], found[best], references, 1000)
        chosen = model.generation_config.length_penalty = best if p_value < 0.05 else first
        if trainer.is_world_process_zero():
            measured = ", ".join(f"{alpha:g}: {bleu:.2f}" for alpha, bleu in scores.items())
            against = f"{best:g} against {first:g}: p = {min(1.0, p_value):.3f}"
            print(f"length_penalty {chosen:g}; validation BLEU by length_penalty: {measured}; {against}", flush=True)

    def models_to_score(self, splits: Container[str], parent: SavedModel | None = None) -> dict[str, tuple[str, Path]]:
        """Split and directory of each saved model to score, by the field of its scores in the recipe's results."""
        final = Path(self.args.output_dir)
        models = {split: (split, final) for split in ("validation", "validation_reverse", "test", "test_reverse")}
        if len(self.averaging.averaged) > 1:  # of one, the last checkpoint is the final model
            models["test_last_checkpoint"] = ("test", self.averaging.averaged[-1])
        models["replay_test"] = ("replay_test", final)
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
        """Write files of lines, by name, the learning curve, the model card and the record, and log the scores."""
        directory = Path(self.args.output_dir)
        for name, lines in texts.items():
            one_each = (line.replace("\n", " ") + "\n" for line in lines)
            (directory / name).write_text("".join(one_each), encoding="utf-8")
        picture = plot_learning_curve(trainer.state.log_history, directory / "learning_curve.png")
        write_card(directory / "README.md", record, picture)
        record.save(directory / "all_results.json")  # last, since it marks the run as finished
        trainer.log(record.metrics)

    def _keep_trackers_open(self, trainer: VaswaniTrainer) -> None:
        """Let trackers end with the run instead of the training, so that they take the scores."""

        def end_with_run(end: Callable, *event: object, **kwargs: object) -> None:
            self.exit_stack.callback(end, *event, **kwargs)

        for tracker in trainer.callback_handler.callbacks:
            if isinstance(tracker, tuple(INTEGRATION_TO_CALLBACK.values())):
                tracker.on_train_end = partial(end_with_run, tracker.on_train_end)  # type: ignore[attr-defined]

    def _require_more_steps(self, trainer: VaswaniTrainer) -> None:
        """Compare the checkpoint with the length of the training.

        Raises:
            ValueError: It is beyond `max_steps`.
            AlreadyTrainedError: It has all requested steps, and its results are complete.
        """
        if self.checkpoint is None:
            return
        state, directory = TrainerState.load_from_json(str(self.checkpoint / TRAINER_STATE_NAME)), self.args.output_dir
        steps = state.global_step
        if 0 < self.args.max_steps < steps:
            raise ValueError(f"max_steps: {directory} has {steps} steps already; give at least as many")
        is_over = self.args.max_minutes is not None and TimeLimit(self.args.max_minutes).is_over(state)
        if steps < _total_steps(trainer) and not is_over:
            return
        scored = on_main_process(lambda: self.results.of_training(Path(directory)))  # which alone writes them
        if scored is not None and scored.training.steps >= steps:
            longer = "to continue it, raise max_steps, num_train_epochs or max_minutes"
            if self.args.cooldown:
                longer = "its learning rate has fallen to zero; to train longer, choose another directory"
            raise AlreadyTrainedError(
                f"output_dir: the training in {directory} has ended, after {steps} steps; {longer}"
            )


def _set_cooccurrence_embeddings(model: PreTrainedModel, data: TrainingData, args: RecipeTrainingArguments) -> None:
    began = time.monotonic()
    config = model.config
    with cpu_threads(args.elastic_threads):
        directions = cooccurrence_embeddings(data.train, config.vocab_size, config.d_model, args.seed)
    set_embeddings(model, directions)
    if PartialState().is_main_process:
        print(f"embeddings from co-occurrence: {time.monotonic() - began:.1f} s", flush=True)


def _require_end_of_warmup(trainer: VaswaniTrainer) -> None:
    """Raise a ValueError if the learning rate would not reach its highest value, and nobody asked for that.

    A constant rate is only warned of; `NoamSchedule` warns itself.
    """
    args, steps = trainer.args, _total_steps(trainer)
    if "warmup_steps" in args.left_out and args.lr_scheduler_type != "constant" and steps < args.warmup_steps:
        raise ValueError(
            f"warmup_steps: the learning rate would rise for {args.warmup_steps:,} steps (5.3), but the training has "
            f"{steps:,}; train longer (max_steps), or give --warmup_steps, such as {-(-steps // 10)}"
        )
    if args.lr_scheduler_type == "constant_with_warmup" and steps < args.warmup_steps and args.process_index == 0:
        warn_of_short_training(steps, int(args.warmup_steps))


def _validation_bleu(
    config: VaswaniConfig, data: TrainingData, count: int, num_beams: int | None = None
) -> ValidationBleu:
    """BLEU of evenly spaced sentences of the validation corpus."""
    corpus = data.text["validation"]
    part = corpus.select(spread(len(corpus), count))
    source, reference = (
        list(sentences(part, [language])) for language in (config.source_language, config.target_language)
    )
    return ValidationBleu(source, reference, data.tokenizer, num_beams)


def _require_trackers(names: list[str]) -> None:
    installed = {*get_available_reporting_integrations(), *_UNLISTED_TRACKERS}
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            raise ValueError(f"report_to: there is no tracker {name!r}; choose from {known}, or none")
        if name not in installed:
            raise ValueError(f"report_to: {name} is not installed; install it, or choose another tracker, or none")


def _steps_an_epoch(trainer: VaswaniTrainer) -> int:
    return len(trainer.batch_sampler) // trainer.batch_sampler.num_parts


def _total_steps(trainer: VaswaniTrainer) -> int:
    args = trainer.args
    return args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * _steps_an_epoch(trainer))


def _cost(trainer: VaswaniTrainer) -> TrainingCost:
    """Cost of a training (Table 2). Collective: all processes measure at the same time, as they trained."""
    dtype = DTYPES[trainer.args.precision]
    rate = sustained_rate(trainer.args.device, dtype)
    # Device-seconds on one device, because the number of devices may change when a training resumes.
    dtype_name = str(dtype).removeprefix("torch.")
    return training_cost(trainer.totals.device_seconds, 1, rate, trainer.state.total_flos, dtype_name)


def choose_precision(config: VaswaniConfig, args: RecipeTrainingArguments) -> str:
    """The precision that trains a model fastest on this machine, measured; it is printed with the relative speeds."""
    parts = args.virtual_ranks or args.world_size * args.gradient_accumulation_steps
    with cpu_threads(args.elastic_threads):
        speeds = relative_speeds(config, args.device, args.target_tokens // parts)
    chosen = fastest_precision(speeds)
    measured = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
    print(f"precision {chosen}; measured speed of a layer on each side: {measured}", flush=True)
    return chosen


def configure_model(
    args: ModelArguments,
    source_language: str,
    target_language: str,
    config_class: type[VaswaniConfig] = VaswaniConfig,
) -> VaswaniConfig:
    """The chosen row of Table 3 with changed fields; the vocabulary size is set later, by `complete_config`."""
    changes = {name: value for name, value in vars(args).items() if value is not None}
    languages = {"source_language": source_language, "target_language": target_language}
    return config_class.from_variant(changes.pop("variant"), **changes, **languages)


def _describe_data(arguments: DataArguments, data: TrainingData) -> RunData:
    """The corpora and their options, without paths outside the working directory."""
    options = {name: published(value) for name, value in vars(arguments).items()}
    mixed = {
        name: {"corpus": options[name], "ratio": ratio, "cleaning": data.mixed[name].cleaning}
        for name, ratio in arguments.ratios.items()
    }
    return from_json(RunData, {**options, "cleaning": data.cleaning, "mixed": mixed or None})


def _describe_model(model: PreTrainedModel) -> RunModel:
    """The size and the configuration of a model, without references to remote code, and paths to its parent."""
    config = {name: published(value) for name, value in model.config.to_dict().items()}
    for name in ("auto_map", "custom_pipelines"):
        config.pop(name, None)
    return from_json(RunModel, {"parameters": model.num_parameters(), **config})


def complete_config(config: VaswaniConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the vocabulary size and special ids from the tokenizer.

    Raises:
        ValueError: It has no padding or EOS token.
    """
    for token in ("pad_token_id", "eos_token_id"):
        if getattr(tokenizer, token) is None:
            raise ValueError(f"tokenizer: it has no {token}; choose one with tokens for padding and EOS")
    config.vocab_size = len(tokenizer)
    config.pad_token_id = config.decoder_start_token_id = tokenizer.pad_token_id
    config.eos_token_id = tokenizer.eos_token_id


def require_positions(config: VaswaniConfig, data: TrainingData) -> None:
    """Raise a ValueError if a sentence is longer than a learned position table."""
    table = config.max_positions
    if table is None:
        return
    for split, encoded in {"train": data.train, **data.encoded}.items():
        longest = max(max(encoded[column][:]) for column in ("source_length", "target_length"))
        if longest > table:
            advice = f"lower max_length to {table}" if split == "train" else "shorten it"
            raise ValueError(
                f"position_encoding: {split} has a sentence of {longest} tokens, but the learned table has "
                f"{table} positions; {advice}"
            )


def _show_plan(trainer: VaswaniTrainer, data: TrainingData) -> None:
    """Print the sizes of corpora, model and epoch."""
    if not trainer.is_world_process_zero():
        return
    args = trainer.args
    mixed = [
        f"{name}: {_cleaned(corpus.cleaning)}, of which {corpus.drawn:,} are drawn for each epoch\n"
        for name, corpus in data.mixed.items()
    ]
    print(
        f"{_cleaned(data.cleaning)}\n{''.join(mixed)}"
        f"{trainer.model.num_parameters():,} parameters\n"
        f"{_steps_an_epoch(trainer):,} steps an epoch, of at most {args.source_tokens:,} source and "
        f"{args.target_tokens:,} target tokens, {trainer.padding_share:.1%} of them padding",
        flush=True,
    )


def show_model(directory: str, log: Sequence[Mapping[str, float]], commands: Sequence[str]) -> None:
    """Print where a trained model is, its best evaluation, and commands that use it.

    Args:
        directory: Of the model.
        log: `log_history` of the training.
        commands: For a shell, with RECIPES/ before the names of recipes.
    """
    best = ""
    for name, choose in (("eval_bleu", max), ("eval_loss", min)):
        if not best and (found := [entry for entry in log if name in entry]):
            entry = choose(found, key=lambda each: each[name])
            best = f"; its best {name} was {entry[name]:.4g}, at step {int(entry['step'])}"
    here, python = Path.cwd(), Path(sys.executable)
    if shutil.which("python") == sys.executable:
        python = Path("python")
    elif python.is_relative_to(here):
        python = python.relative_to(here)
    program = f"{shlex.quote(str(python))} {shlex.quote(str(Path(sys.argv[0]).parent))}/"
    print(
        f"The model is in {directory}{best}. Next:",
        *(each.replace("RECIPES/", program) for each in commands),
        sep="\n  ",
    )


def _cleaned(cleaning: dict[str, int]) -> str:
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in cleaning.items() if reason != "kept")
    return f"{cleaning['kept']:,} sentence pairs (dropped: {dropped})"
