"""Train the model of "Attention Is All You Need" on parallel text, score it, and write its model card.

On one device; on the 8 GPUs of a machine; with options that override the configuration file:

    python recipes/train_wmt.py --config recipes/configs/demo.yaml
    accelerate launch --config_file recipes/launch/8gpu.yaml recipes/train_wmt.py \
        --config recipes/configs/wmt14_en_de_base.yaml
    python recipes/train_wmt.py --config recipes/configs/demo.yaml --max_steps 100 --output_dir runs/short
    python recipes/train_wmt.py --config recipes/configs/multi30k_tuned.yaml  # fine-tunes model_cards/tatoeba-de-en

After the run, the output directory has the averaged model, its tokenizer, its model card, `all_results.json`,
`translations.test.txt`, and plots of the learning curve, of BLEU by source length and of robustness to small changes of
the source. With `--push_to_hub --hub_model_id user/name` it is also pushed to the Hub. The last lines printed are a
verdict on the model and the training, and what to do next. `--prepared DIRECTORY` keeps the encoded corpora for other
runs; prepare_data.py can make it beforehand.

SIGTERM and SIGINT save a complete checkpoint on all processes and end the run with status 128 + the signal's number. A
second signal, more than three seconds after the first, ends it without one. All processes end if one dies, if one
keeps the others waiting for `--ddp_timeout` seconds, or if the disk is full. Complete checkpoints are kept: repeat the
command with `--resume`.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from accelerate import PartialState

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.prepared_directory import TrainingData
from vaswani_transformer.data.sources import HubDataset, find_source
from vaswani_transformer.evaluation.perplexity import perplexity
from vaswani_transformer.evaluation.scores import Scores, sentence_chrf
from vaswani_transformer.options.data import DataArguments
from vaswani_transformer.options.training import ModelArguments, RecipeTrainingArguments
from vaswani_transformer.runs.fine_tuning import (
    FineTuningArguments,
    describe_parent,
    open_parent,
    read_training_options,
)
from vaswani_transformer.runs.model_card import write_model_card
from vaswani_transformer.runs.plots import plot_bleu_by_source_length, plot_robustness
from vaswani_transformer.runs.provenance import published
from vaswani_transformer.runs.records import Example, RunRecord
from vaswani_transformer.runs.scoring import (
    Translations,
    measure_robustness,
    show_robustness,
    show_scores,
    translate_test_set,
)
from vaswani_transformer.runs.training_run import TrainingRun, training_run
from vaswani_transformer.runs.validation import held_out
from vaswani_transformer.runs.verdict import judge, next_step
from vaswani_transformer.system.console import PlainConsole
from vaswani_transformer.system.launcher import start_processes
from vaswani_transformer.system.processes import on_main_process


def main() -> None:
    parser, options = read_training_options()
    start_processes(options)
    data_args, model_args, args = parser.fill(options)
    with training_run(args) as run:
        train_and_score(data_args, model_args, args, run)


def train_and_score(
    data_args: DataArguments, model_args: ModelArguments, args: RecipeTrainingArguments, run: TrainingRun
) -> None:
    parent, data_args = open_parent(model_args, data_args)
    model = parent.load("float32") if parent else None  # also refuses weights that are not finite
    config = model.config if model else model_args.configure(*data_args.languages, VaswaniConfig)
    origin = describe_parent(model_args.model, parent) if parent else None
    data = run.load(data_args, config, origin)
    if isinstance(args, FineTuningArguments):
        args.fit(config.d_model, data)
    trainer = run.make_trainer(config, data, model)

    results = run.train(trainer, {**vars(data_args), "datasets": hub_datasets(data_args)}, data)
    scores, translations, robustness = {}, {}, None
    for name, (split, directory) in run.models_to_score(data.text, parent).items():
        languages = data_args.languages[::-1] if split.endswith("_reverse") else data_args.languages
        saved = VaswaniForConditionalGeneration.from_pretrained(directory, dtype="float32", trust_remote_code=False)
        saved.to(PartialState().device)
        scores[name], translations[name] = score(saved, data, split, languages)
        if name == "test":
            robustness = measure_robustness(saved, data.tokenizer, held_out(data, split, languages), lines=40)
    if trainer.is_world_process_zero():
        scores |= score_copy(data, data_args.languages)
        examples = choose_examples(data, data_args.languages, translations["test"]) if "test" in translations else None
        named = origin and replace(origin, name=str(published(origin.name)))
        others = {"parent": named, "examples": examples, "robustness": robustness}
        record = RunRecord(**{**vars(results), **others, **scores})
        plot_lengths(record, Path(args.output_dir, "bleu_by_source_length.png"))
        if robustness:
            plot_robustness(robustness, Path(args.output_dir, "robustness.png"))
        texts = {f"translations.{name}.txt": lines for name, lines in translations.items()}
        run.write_results(trainer, record, texts, write_model_card)
        with suppress(OSError):  # standard output may be a full disk or a closed pipe; all results are in files
            show_results(record)
            show_verdict(record, args.output_dir)


def hub_datasets(data_args: DataArguments) -> list[str]:
    """Datasets for the card: from `--datasets`, or the loaded corpora that are datasets on the Hub."""
    sources = map(find_source, data_args.sources.values())
    return data_args.datasets or list(dict.fromkeys(each.name for each in sources if isinstance(each, HubDataset)))


def score(
    model: VaswaniForConditionalGeneration, data: TrainingData, split: str, languages: tuple[str, str]
) -> tuple[Scores, list[str]]:
    """Translate a corpus, and score it. Collective."""
    corpus = held_out(data, split, languages)
    translations = translate_test_set(model, data.tokenizer, corpus)
    reference_perplexity = perplexity(model, data.tokenizer, data.encoded[split])
    scores = on_main_process(lambda: translations.score(corpus, reference_perplexity))
    return scores, translations.lines


def score_copy(data: TrainingData, languages: tuple[str, str]) -> dict[str, Scores]:
    """Score a copy of the source, a baseline, on the test set, or on the validation set if there is no test set."""
    split = "test" if "test" in data.text else "validation"
    if split not in data.text:
        return {}
    corpus = held_out(data, split, languages)
    return {f"{split}_copy": Translations(corpus.sources).score(replace(corpus, sources=None))}


def choose_examples(data: TrainingData, languages: tuple[str, str], translations: list[str]) -> list[Example]:
    """The three worst translations of the test set by chrF, the quartiles, and the best."""
    corpus = held_out(data, "test", languages)
    quality = sentence_chrf(translations, corpus.references).tolist()
    examples = [
        Example(source, translation, reference, chrf)
        for source, translation, (reference,), chrf in zip(
            corpus.sources, translations, corpus.references, quality, strict=True
        )
    ]
    examples.sort(key=lambda example: example.chrf)  # stable: equal ones stay in the order of the test set
    quartiles = (quarter * (len(examples) - 1) // 4 for quarter in range(5))
    return [examples[place] for place in sorted({*range(min(3, len(examples))), *quartiles})]


def plot_lengths(record: RunRecord, path: Path) -> None:
    """Plot BLEU on the test set by the length of the source, for the final model and the last checkpoint."""
    final = "averaged" if record.training.is_average else "last step"
    tested = {final: record.test, "last checkpoint": record.test_last_checkpoint}
    if groups := {name: each.by_source_length for name, each in tested.items() if each is not None}:
        plot_bleu_by_source_length(groups, path)


def show_results(record: RunRecord) -> None:
    if record.scores:
        show_scores(record.titled_scores)
    if record.test:
        title = f"{len(record.examples)} sentences of the test set, from the worst by chrF to the best"
        rows = [(example.source, example.translation, example.reference) for example in record.examples]
        PlainConsole().print_table(("source", "translation", "reference"), rows, title=title)
    if record.robustness:
        show_robustness(record.robustness)


def show_verdict(record: RunRecord, directory: str) -> None:
    findings = judge(record)
    print("\nVerdict")
    for finding in findings:
        print(f"- {finding.text}")
    print(f"The model is in {directory}.\nNext: {next_step(record, findings, directory)}")


if __name__ == "__main__":
    main()
