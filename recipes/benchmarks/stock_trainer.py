"""Train `MarianMTModel` in `Seq2SeqTrainer`, to compare with `recipes/train_wmt.py` in equal time.

    python recipes/benchmarks/stock_trainer.py --like recipes/configs/canlaws_en_fr.yaml --ours runs/canlaws_en_fr \
        --output runs/canlaws_en_fr_marian

It reads the corpora, the lengths and the minutes from the configuration that ours was trained with, and the vocabulary
and the sizes of the model from ours. The trainer is configured as its users do: batches of a fixed number of sentences
of similar length, label smoothing, the paper's optimizer, and its own scheduler with the paper's learning rate; no
averaging. `MarianMTModel.generate` translates with 4 beams.

Writes target tokens a second, steps, and sacreBLEU of the test set as `stock_trainer.md` and `stock_trainer.json`.
"""

import time
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from typing import Literal

import torch
from datasets import Dataset
from frame import BenchmarkArguments, headline, run_benchmark
from transformers import (
    DataCollatorForSeq2Seq,
    MarianMTModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.convert.marian import marian_config
from vaswani_transformer.data.cleaning import CleaningRules, clean_corpus, encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus, sentences
from vaswani_transformer.decoding.translation import translate_corpus
from vaswani_transformer.evaluation.scores import BleuScore, sacrebleu_score
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.model.saved_model import open_model
from vaswani_transformer.options.arguments import COUNT, POSITIVE, RecipeParser, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.runs.run_arguments import DataArguments, ModelArguments, RecipeTrainingArguments
from vaswani_transformer.training.callbacks import TimeLimit


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    settings: str = option(MISSING, "Configuration that ours was trained with.", alias="--like")
    ours: str = option(MISSING, "Directory of our trained model, for its vocabulary and sizes.")
    output: str = option("runs/stock_trainer", "Where checkpoints and results go.")
    batch_size: int = option(256, "Sentences of a batch.", COUNT)
    minutes: float | None = option(None, "Minutes to train; by default ours's max_minutes.", POSITIVE)
    bf16: bool = option(True, "Compute in bfloat16.")


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


def corpus(data: DataArguments, split: Literal["train", "test"]) -> Dataset:
    files = getattr(data, split)
    if files is None:
        raise ValueError(f"like: the configuration has no {split}; name that of a training")
    return load_parallel_corpus(files, *data.languages, split, data.dataset_config, columns=data.columns)


def untrained(ours: VaswaniConfig) -> MarianMTModel:
    """Marian with the same sizes and tied weights, initialised by transformers."""
    config = marian_config(ours, positions=1024)
    config.init_std = ours.d_model**-0.5  # for embeddings of our scale; the default is for other models
    return MarianMTModel(config)


def trainer_of(
    args: Arguments,
    settings: RecipeTrainingArguments,
    model: MarianMTModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Dataset,
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


def measure(args: Arguments) -> Iterator[StockTrainerRecord]:
    """Train, translate the test set, and score."""
    set_seed(42)
    options = (DataArguments, ModelArguments, RecipeTrainingArguments)
    data, _, settings = RecipeParser(options).parse(["--config", args.settings])
    ours = open_model(args.ours, option="ours", model_type="vaswani")
    tokenizer, test = ours.tokenizer, corpus(data, "test")
    encoded = encode_corpus(corpus(data, "train"), tokenizer, data.source_language, data.target_language, data.num_proc)
    rows, _ = clean_corpus(encoded, CleaningRules.of(data))
    model = untrained(ours.config)
    trainer = trainer_of(args, settings, model, tokenizer, rows.select_columns(["input_ids", "labels"]))
    started = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - started
    steps = trainer.state.global_step
    tokens = steps * args.batch_size * sum(rows["target_length"]) / len(rows)  # of whole epochs and a part of one

    source, references = (list(sentences(test, [language])) for language in data.languages)
    model.generation_config.update(num_beams=4, max_length=512)
    started = time.monotonic()
    translations = translate_corpus(model, tokenizer, source)
    yield StockTrainerRecord(
        run=describe_run(),
        settings=dict(vars(args)),
        steps=steps,
        seconds=seconds,
        target_tokens_per_second=tokens / seconds,
        translation_seconds=time.monotonic() - started,
        bleu=sacrebleu_score(translations, references),
    )


def as_markdown(record: StockTrainerRecord) -> str:
    rate = f"{record.target_tokens_per_second:,.0f} target tokens a second"
    found = f"{record.steps} steps in {record.seconds / 60:.1f} minutes, {rate}, sacreBLEU {record.bleu.score:.2f}"
    return f"{headline('MarianMTModel in Seq2SeqTrainer', record.run)}\n\n{found}\n"


def main() -> None:
    run_benchmark("stock_trainer", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
