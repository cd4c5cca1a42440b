"""Train `MarianMTModel` in `Seq2SeqTrainer`, to compare with `recipes/train_wmt.py` in equal time.

    python recipes/benchmarks/stock_trainer.py --like recipes/configs/canlaws_en_fr.yaml --ours runs/canlaws_en_fr \
        --output runs/canlaws_en_fr_marian

It reads the corpora, the lengths and the minutes from the configuration that ours was trained with, and the vocabulary
and the sizes of the model from ours. The trainer is configured as its users do: batches of a fixed number of sentences
of similar length, label smoothing, the paper's optimizer, and its own scheduler with the paper's learning rate; no
averaging. `MarianMTModel.generate` translates with 4 beams.

Prints, and writes as `stock_trainer.json`, target tokens a second, steps, and sacreBLEU of the test set.
"""

import json
import time
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Literal

import torch
from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.cleaning import CleaningRules, clean_corpus, encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus, sentences
from vaswani_transformer.decoding.translation import translate_corpus
from vaswani_transformer.evaluation.scores import BleuScore, sacrebleu_score
from vaswani_transformer.io.console import exit_on_error
from vaswani_transformer.io.files import make_directory
from vaswani_transformer.io.typed_json import Record, from_json
from vaswani_transformer.model.saved_model import open_model
from vaswani_transformer.options.arguments import COUNT, POSITIVE, RecipeParser, option
from vaswani_transformer.options.config_file import read_config
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.training.callbacks import TimeLimit


# The options that are numbers.
NUMBERS = ("max_steps", "warmup_steps", "max_minutes", "dataloader_num_workers", "num_proc", *vars(CleaningRules()))


@dataclass
class Arguments:
    """Options of the benchmark."""

    settings: str = option(MISSING, "Configuration that ours was trained with.", alias="--like")
    ours: str = option(MISSING, "Directory of our trained model, for its vocabulary and sizes.")
    output: str = option("runs/stock_trainer", "Where checkpoints and results go.")
    batch_size: int = option(256, "Sentences of a batch.", COUNT)
    minutes: float | None = option(None, "Minutes to train; by default ours's max_minutes.", POSITIVE)
    bf16: bool = option(True, "Compute in bfloat16.")


@dataclass(frozen=True, kw_only=True)
class Configuration(CleaningRules):
    """The options of a training's configuration file that the benchmark reads."""

    train: list[str]
    test: list[str]
    source_language: str
    target_language: str
    max_steps: int
    max_minutes: float | None = None
    warmup_steps: float = 4000
    columns: list[str] | None = None
    dataset_config: str | None = None
    num_proc: int | None = None
    dataloader_num_workers: int = 0


@dataclass(frozen=True)
class StockTrainerRecord(Record):
    """`stock_trainer.json`."""

    run: Provenance
    settings: dict[str, object]
    steps: int
    seconds: float
    target_tokens_per_second: float
    translation_seconds: float
    bleu: BleuScore


def corpus(settings: Configuration, split: Literal["train", "test"]) -> Dataset:
    return load_parallel_corpus(
        getattr(settings, split),
        settings.source_language,
        settings.target_language,
        split,
        settings.dataset_config,
        columns=settings.columns,
    )


def untrained(ours: VaswaniConfig, longest: int) -> MarianMTModel:
    """Marian with the same sizes and tied weights, initialised by transformers."""
    stacks = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (("ffn_dim", ours.d_ff), ("attention_heads", ours.num_heads))
    }
    return MarianMTModel(
        MarianConfig(
            vocab_size=ours.vocab_size,
            d_model=ours.d_model,
            encoder_layers=ours.encoder_layers,
            decoder_layers=ours.decoder_layers,
            dropout=ours.dropout,
            activation_function="relu",
            scale_embedding=True,
            init_std=ours.d_model**-0.5,  # for embeddings of our scale; the default is for other models
            pad_token_id=ours.pad_token_id,
            eos_token_id=ours.eos_token_id,
            decoder_start_token_id=ours.decoder_start_token_id,
            forced_eos_token_id=None,
            max_position_embeddings=longest,
            **stacks,
        )
    )


def trainer_of(
    args: Arguments, settings: Configuration, model: MarianMTModel, tokenizer: PreTrainedTokenizerBase, rows: Dataset
) -> Seq2SeqTrainer:
    warmup = settings.warmup_steps
    minutes = args.minutes or settings.max_minutes
    arguments = Seq2SeqTrainingArguments(
        args.output,
        max_steps=settings.max_steps,
        per_device_train_batch_size=args.batch_size,
        train_sampling_strategy="group_by_length",
        label_smoothing_factor=0.1,
        lr_scheduler_type="inverse_sqrt",
        learning_rate=(model.config.d_model * warmup) ** -0.5,
        warmup_steps=warmup,
        adam_beta2=0.98,
        adam_epsilon=1e-9,
        max_grad_norm=0.0,
        bf16=args.bf16,
        use_cpu=not torch.accelerator.is_available(),
        save_strategy="no",
        logging_steps=100,
        dataloader_num_workers=settings.dataloader_num_workers,
        report_to="none",
    )
    return Seq2SeqTrainer(
        model,
        arguments,
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        callbacks=[] if minutes is None else [TimeLimit(minutes)],
    )


def read_configuration(path: Path) -> Configuration:
    """The configuration of a training, from a YAML file.

    Raises:
        ValueError: An option is missing or of a wrong type, or the file is not YAML.
        OSError: There is no such file.
    """
    try:
        settings = read_config(path)
        settings |= {name: json.loads(str(settings[name])) for name in NUMBERS if name in settings}
        needed = [each.name for each in fields(Configuration) if each.default is MISSING]
        if missing := [name for name in needed if name not in settings]:
            raise ValueError(f"{path} has no {', '.join(missing)}; name the configuration of a training")
        corpora = {name: [files] if isinstance(files := settings[name], str) else files for name in ("train", "test")}
        return from_json(Configuration, {**settings, **corpora})
    except ValueError as error:
        raise ValueError(f"like: {error}") from None


def main() -> None:
    (args,) = RecipeParser((Arguments,)).parse()
    set_seed(42)
    with exit_on_error("stock_trainer.py"):
        settings = read_configuration(Path(args.settings))
        languages = settings.source_language, settings.target_language
        ours = open_model(args.ours, option="ours", model_type="vaswani")
        output, tokenizer = make_directory("output", args.output), ours.tokenizer
        test = corpus(settings, "test")
        encoded = encode_corpus(corpus(settings, "train"), tokenizer, *languages, settings.num_proc)
        rows, _ = clean_corpus(encoded, CleaningRules.of(settings))
    model = untrained(ours.config, longest=1024)
    trainer = trainer_of(args, settings, model, tokenizer, rows.select_columns(["input_ids", "labels"]))
    started = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - started
    steps = trainer.state.global_step
    tokens = steps * args.batch_size * sum(rows["target_length"]) / len(rows)  # of whole epochs and a part of one

    source, references = (list(sentences(test, [language])) for language in languages)
    model.generation_config.update(num_beams=4, max_length=512)
    started = time.monotonic()
    translations = translate_corpus(model, tokenizer, source)
    record = StockTrainerRecord(
        run=describe_run(),
        settings=vars(args),
        steps=steps,
        seconds=seconds,
        target_tokens_per_second=tokens / seconds,
        translation_seconds=time.monotonic() - started,
        bleu=sacrebleu_score(translations, references),
    )
    record.save(output / "stock_trainer.json")
    rate = f"{tokens / seconds:,.0f} target tokens a second"
    print(f"{steps} steps in {seconds / 60:.1f} minutes, {rate}, sacreBLEU {record.bleu.score:.2f}")


if __name__ == "__main__":
    main()
