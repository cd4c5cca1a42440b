"""Train the model of "Attention Is All You Need" on parallel text, from files to a saved, scored, documented model.

On one device, on a machine's 8 GPUs, and with any setting of the configuration changed on the command line:

    python recipes/train_wmt.py --config recipes/configs/demo.yaml
    accelerate launch --config_file recipes/accelerate/8gpu.yaml recipes/train_wmt.py \
        --config recipes/configs/wmt14_en_de_base.yaml
    python recipes/train_wmt.py --config recipes/configs/demo.yaml --max_steps 100 --output_dir runs/short

The output directory then holds the averaged model, its tokenizer, its model card, `all_results.json`,
`translations.test.txt`, and pictures of the learning curve and of BLEU by source length. With `--push_to_hub
--hub_model_id user/name` it is also pushed to the Hub. With `--prepared DIRECTORY` the corpora are encoded once for all
runs, ahead of time if you like: see prepare_data.py.

SIGTERM and SIGINT save a complete checkpoint on all processes and end the run with status 128 + the signal's number; a
second signal, three seconds later, ends it at once. All processes end when one dies or is silent for `--ddp_timeout`
seconds, and when the disk is full. Complete checkpoints stay: repeat the command with `--resume`.
"""

import math
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from rich.table import Table
from transformers import ProgressCallback, TrainerCallback, set_seed
from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from vaswani_transformer import (
    CheckpointAveraging,
    NoamSchedule,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniTrainer,
)
from vaswani_transformer.arguments import RecipeParser
from vaswani_transformer.console import PlainConsole, one_line
from vaswani_transformer.data import (
    TrainingData,
    load_corpora,
    sentences,
)
from vaswani_transformer.evaluation import bleu_by_source_length, perplexity, sacrebleu_score, translate_corpus
from vaswani_transformer.experiments import (
    RunRecord,
    TrainingCost,
    plot_bleu_by_source_length,
    plot_learning_curve,
    sustained_rate,
    training_cost,
)
from vaswani_transformer.experiments.records import (
    Example,
    RunData,
    RunModel,
    RunSettings,
    RunTraining,
    SplitScores,
)
from vaswani_transformer.files import require_directory
from vaswani_transformer.hub import describe_run, prepare_repository, published, push_run, write_model_card
from vaswani_transformer.training import (
    Interruption,
    TimeLimit,
    TrainingProgress,
    Watchdog,
    faults_in_one_line,
    keep_freed_memory,
    leave_process_group,
)
from vaswani_transformer.training.run_arguments import DataArguments, ModelArguments, RecipeTrainingArguments
from vaswani_transformer.training.run_directory import check_data, describe_settings, open_run
from vaswani_transformer.typed_json import from_json


MODEL_SETTINGS = [each.name for each in fields(ModelArguments) if each.name != "variant"]
# Trackers that transformers does not list as available even if they are installed.
UNLISTED_TRACKERS = ("azure_ml", "flyte")


def main() -> None:
    data_args, model_args, args = RecipeParser((DataArguments, ModelArguments, RecipeTrainingArguments)).parse()
    with (
        Watchdog("train_wmt.py", args.ddp_timeout) as watchdog,
        faults_in_one_line(watchdog),
        Interruption(watchdog) as interruption,
        ExitStack() as until_the_end,
    ):
        run(data_args, model_args, args, watchdog, [watchdog, interruption], until_the_end)
    leave_process_group()


def run(
    data_args: DataArguments,
    model_args: ModelArguments,
    args: RecipeTrainingArguments,
    watchdog: Watchdog,
    guards: list[TrainerCallback],
    until_the_end: ExitStack,
) -> None:
    try:
        require_trackers(args)
        config = configure_model(model_args)
        config.source_language, config.target_language = data_args.source_language, data_args.target_language
        schedule = NoamSchedule(int(args.warmup_steps), args.learning_rate_factor)
        averaging = CheckpointAveraging(args.average_last, args.save_minutes)
        averaging.check(args)
        limits = [] if args.max_minutes is None else [TimeLimit(args.max_minutes)]
        output_dir, model = Path(args.output_dir), {name: getattr(config, name) for name in MODEL_SETTINGS}
        describe = partial(describe_settings, data_args, model, args)
        require_directory("output_dir", output_dir)
        checkpoint = until_the_end.enter_context(open_run(output_dir, describe, args.resume))
        require_more_steps(args, checkpoint)
        if args.push_to_hub:
            args.hub_model_id = repository(args)
        set_seed(args.seed)
        with args.main_process_first(local=False, desc="preparing the data"):
            data = load_corpora(data_args, data_args.prepared)
        check_data(output_dir, data)
        fit_to_data(config, data)
        trainer = VaswaniTrainer(
            VaswaniForConditionalGeneration(config),
            args,
            train_dataset=data.train,
            eval_dataset=data.encoded.get("validation"),
            processing_class=data.tokenizer,
            callbacks=[schedule, *limits, averaging, *guards],
        )
        trainer.get_train_dataloader()  # a token budget that cannot work fails here, before training
        require_more_epochs(trainer, checkpoint)
    except (ValueError, OSError, StrictDataclassError) as error:
        watchdog.exit(one_line(error))

    run_facts, model_facts = describe_run(args.hub_model_id if args.push_to_hub else None), describe_model(trainer)
    show_plan(trainer, data.cleaning)
    training = train(trainer, averaging, checkpoint)
    config.use_cache = True  # the trainer has switched it off, but the saved model needs it
    trainer.save_model(_internal_call=True)  # otherwise the trainer pushes it, before it is scored
    PartialState().wait_for_everyone()

    scores: dict[str, SplitScores] = {}
    translations: dict[str, list[str]] = {}
    models: dict[str, str | Path] = {"validation": args.output_dir, "test": args.output_dir}
    if averaging.averaged:
        models["test_last_checkpoint"] = averaging.averaged[-1]
    for name, directory in models.items():
        split = name.split("_")[0]
        if split in data.text:
            scores[name], translations[name] = score(directory, data, split, data_args)
    if trainer.is_world_process_zero():
        record = RunRecord(
            run=run_facts,
            data=describe_data(data_args, data.cleaning),
            model=model_facts,
            settings=RunSettings(**{each.name: getattr(args, each.name) for each in fields(RunSettings)}),
            training=training,
            examples=choose_examples(data.text["test"], translations["test"], data_args) if "test" in scores else None,
            **scores,
        )
        write_results(Path(args.output_dir), record, translations, trainer.state.log_history)
        with suppress(OSError):  # standard output may be full or closed; all results are in files
            show_results(record)
    if args.push_to_hub and trainer.is_world_process_zero():
        try:
            push_run(args.hub_model_id, args.output_dir, args.hub_revision)
        except OSError as error:
            watchdog.exit(one_line(error))


def repository(args: RecipeTrainingArguments) -> str:
    """Full name of the repository to push to; the main process creates it."""
    name = args.hub_model_id or Path(args.output_dir).resolve().name
    return prepare_repository(name, args.hub_private_repo) if PartialState().is_main_process else name


def require_trackers(args: RecipeTrainingArguments) -> None:
    installed = {*get_available_reporting_integrations(), *UNLISTED_TRACKERS}
    for name in args.report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            raise ValueError(f"report_to: there is no tracker {name!r}; choose from {known}, or none")
        if name not in installed:
            raise ValueError(f"report_to: {name} is not installed; install it, or choose another tracker, or none")


def require_more_steps(args: RecipeTrainingArguments, checkpoint: Path | None) -> None:
    directory, steps = Path(args.output_dir), steps_of(checkpoint)
    if 0 < args.max_steps < steps:
        raise ValueError(f"max_steps: {directory} has {steps} steps already; give at least as many")
    if 0 < args.max_steps == steps <= scored_steps(directory):
        raise ValueError(f"max_steps: {directory} has {steps} steps already; give more than those to train on")


def require_more_epochs(trainer: VaswaniTrainer, checkpoint: Path | None) -> None:
    """Like `require_more_steps`, for a training measured in epochs: their steps are known once batches are planned."""
    if trainer.args.max_steps > 0 or checkpoint is None:
        return
    directory, steps, epochs = Path(trainer.args.output_dir), steps_of(checkpoint), trainer.args.num_train_epochs
    total = math.ceil(epochs * steps_an_epoch(trainer))
    if total <= steps <= scored_steps(directory):
        raise ValueError(
            f"num_train_epochs: {directory} has {steps} steps already, and {epochs:g} epochs have {total}; "
            f"give more to train on"
        )


def steps_of(checkpoint: Path | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def steps_an_epoch(trainer: VaswaniTrainer) -> int:
    return len(trainer.batch_sampler) // trainer.batch_sampler.num_parts


def scored_steps(directory: Path) -> int:
    """Steps of the training whose results a directory holds; 0 if there are none."""
    results = RunRecord.of_training(directory)
    return 0 if results is None else results.training.steps


def hub_datasets(data_args: DataArguments) -> list[str]:
    """Datasets for the card: those that the options name, or the loaded corpora that are datasets on the Hub."""
    names = dict.fromkeys(source[0] for source in data_args.sources.values() if len(source) == 1)
    return data_args.datasets or [name for name in names if name != "phrasebook" and not Path(name).exists()]


def configure_model(model_args: ModelArguments) -> VaswaniConfig:
    """The row of Table 3 with the changes to it; the size of the vocabulary follows later, from the tokenizer."""
    overrides = {name: value for name, value in vars(model_args).items() if value is not None}
    return VaswaniConfig.from_variant(overrides.pop("variant"), **overrides)


def describe_data(data_args: DataArguments, cleaning: dict[str, int]) -> RunData:
    options = {name: published(value) for name, value in vars(data_args).items()}
    return from_json(RunData, {**options, "datasets": hub_datasets(data_args), "cleaning": cleaning})


def describe_model(trainer: VaswaniTrainer) -> RunModel:
    """The size and the configuration of the model, without references to remote code."""
    config = trainer.model.config.to_dict()
    settings = {name: value for name, value in config.items() if name not in ("auto_map", "custom_pipelines")}
    return from_json(RunModel, {"parameters": trainer.model.num_parameters(), **settings})


def fit_to_data(config: VaswaniConfig, data: TrainingData) -> None:
    """Take the vocabulary from the tokenizer, and refuse sentences that a learned position table cannot hold."""
    tokenizer = data.tokenizer
    for token in ("pad_token_id", "eos_token_id"):
        if getattr(tokenizer, token) is None:
            raise ValueError(f"tokenizer: it has no {token}; give one that pads, and ends sentences")
    config.vocab_size = len(tokenizer)
    config.pad_token_id = config.decoder_start_token_id = tokenizer.pad_token_id
    config.eos_token_id = tokenizer.eos_token_id
    if config.position_encoding != "learned":
        return
    table = config.max_position_embeddings
    for split, encoded in {"train": data.train, **data.encoded}.items():
        longest = max(max(encoded[column][:]) for column in ("source_length", "target_length"))
        if longest > table:
            advice = f"lower max_length to {table}" if split == "train" else "shorten it"
            raise ValueError(
                f"position_encoding: {split} has a sentence of {longest} tokens, a learned table {table}; {advice}"
            )


def show_plan(trainer: VaswaniTrainer, cleaning: dict[str, int]) -> None:
    if not trainer.is_world_process_zero():
        return
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in cleaning.items() if reason != "kept")
    sampler, args, steps = trainer.batch_sampler, trainer.args, steps_an_epoch(trainer)
    print(
        f"{cleaning['kept']:,} sentence pairs (dropped: {dropped})\n"
        f"{trainer.model.num_parameters():,} parameters\n"
        f"{steps:,} steps an epoch, of at most {args.source_tokens:,} source and {args.target_tokens:,} target tokens, "
        f"{sampler.padding_share:.1%} of them padding",
        flush=True,
    )


def train(trainer: VaswaniTrainer, averaging: CheckpointAveraging, checkpoint: Path | None) -> RunTraining:
    """Train, leave the average in the trainer's model, and return how the training went."""
    if not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(TrainingProgress())
    if trainer.args.use_cpu:
        keep_freed_memory()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return RunTraining(
        seconds=trainer.totals.seconds,
        cost=cost(trainer),
        steps=trainer.state.global_step,
        epochs=trainer.state.epoch,
        target_tokens=trainer.total_target_tokens,
        padding_share=trainer.batch_sampler.padding_share,
        processes=trainer.args.world_size,
        averaged=[directory.name for directory in averaging.averaged],
        resumed_from=None if checkpoint is None else checkpoint.name,
    )


def cost(trainer: VaswaniTrainer) -> TrainingCost:
    """Cost of this run by the accounting of Table 2, and counted. Collective.

    All processes measure at once, since they share the machine.
    """
    dtype = torch.bfloat16 if trainer.args.bf16 else torch.float16 if trainer.args.fp16 else torch.float32
    rate = sustained_rate(trainer.args.device, dtype)
    # Device-seconds of one device, since a resumed training may have had another number of devices before.
    counted = trainer.state.total_flos - trainer.totals.operations_before
    return training_cost(trainer.totals.device_seconds, 1, rate, counted, str(dtype).removeprefix("torch."))


def score(
    directory: str | Path, data: TrainingData, split: str, data_args: DataArguments
) -> tuple[SplitScores | None, list[str]]:
    """Load a saved model, translate a corpus with it, and score it. Collective; only the main process has scores."""
    model = VaswaniForConditionalGeneration.from_pretrained(directory, trust_remote_code=False)
    model.to(PartialState().device)
    corpus, tokenizer = data.text[split], data.tokenizer
    source = list(sentences(corpus, [data_args.source_language]))
    references = list(sentences(corpus, [data_args.target_language]))
    translations = translate_corpus(model, tokenizer, source)
    reference_perplexity = perplexity(model, tokenizer, data.encoded[split])
    if not PartialState().is_main_process:
        return None, translations
    scores = SplitScores(
        sentences=len(source),
        perplexity=reference_perplexity,
        bleu=sacrebleu_score(translations, references),
        by_source_length=bleu_by_source_length(source, translations, [[text] for text in references]),
    )
    return scores, translations


def choose_examples(corpus: Dataset, translations: list[str], data_args: DataArguments) -> list[Example]:
    """Five sentences from evenly spaced places of the test set."""
    indices = [len(corpus) * tenth // 10 for tenth in (1, 3, 5, 7, 9)]
    pairs = [corpus[index]["translation"] for index in indices]
    return [
        Example(pair[data_args.source_language], translations[index], pair[data_args.target_language])
        for index, pair in zip(indices, pairs, strict=True)
    ]


def write_results(
    directory: Path, record: RunRecord, translations: dict[str, list[str]], log_history: list[dict[str, float]]
) -> None:
    for split, lines in translations.items():
        text = "".join(
            line.replace("\n", " ") + "\n" for line in lines
        )  # one line for each sentence, even if it has line feeds
        (directory / f"translations.{split}.txt").write_text(text, encoding="utf-8")
    plot_learning_curve(log_history, directory / "learning_curve.png")
    tested = {"averaged": record.test, "last checkpoint": record.test_last_checkpoint}
    groups = {name: scores.by_source_length for name, scores in tested.items() if scores is not None}
    if groups:
        plot_bleu_by_source_length(groups, directory / "bleu_by_source_length.png")
    write_model_card(directory / "README.md", record)
    record.save(directory / "all_results.json")  # last, since it marks the run as finished


def show_results(record: RunRecord) -> None:
    console = PlainConsole()
    table = Table("set, model", "sentences", "sacreBLEU", "perplexity", title="Scores")
    models = {"test_last_checkpoint": "test, last checkpoint"}
    for split, scores in record.scores.items():
        bleu, ppl = f"{scores.bleu.score:.2f}", f"{scores.perplexity.perplexity:.3f}"
        table.add_row(models.get(split, f"{split}, averaged"), str(scores.sentences), bleu, ppl)
    if table.row_count:
        console.print(table)
    if record.test:
        console.print("signature:", record.test.bleu.signature)
        examples = Table("source", "translation", "reference", title="Five sentences of the test set")
        for example in record.examples:
            examples.add_row(example.source, example.translation, example.reference)
        console.print(examples)


if __name__ == "__main__":
    main()
