"""Train the model to parse English (6.3), from treebanks to a saved, scored model.

    python recipes/train_parsing.py --config recipes/configs/craft_parsing.yaml
    accelerate launch --config_file recipes/launch/8gpu.yaml recipes/train_parsing.py \
        --config recipes/configs/wsj_parsing.yaml --train wsj-02-21.mrg --validation wsj-22.mrg --test wsj-23.mrg

Treebanks are files of trees in brackets (plain, .gz, .bz2, .xz, .zst). The output directory then holds the averaged
model, its tokenizer and model card, `all_results.json`, `parses.test.txt` and a picture of the learning curve. Faults,
signals and `--resume` are handled as in train_wmt.py.
"""

from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from accelerate import PartialState
from transformers import GenerationConfig

from vaswani_transformer.data.prepared_directory import TrainingData
from vaswani_transformer.evaluation.perplexity import perplexity
from vaswani_transformer.model.parse_sequence_vaswani import PARSE, Parse, ParseLabels
from vaswani_transformer.model.parsing_vaswani import VaswaniForConstituencyParsing, VaswaniParsingConfig
from vaswani_transformer.options.arguments import (
    ALPHA,
    BEAMS,
    COUNT,
    Interval,
    decisive_values,
    option,
    refuse_unused,
)
from vaswani_transformer.options.data import DataArguments, PreparationOptions, TreebankOptions
from vaswani_transformer.options.parser import RecipeParser
from vaswani_transformer.options.training import ModelArguments, RecipeTrainingArguments
from vaswani_transformer.parsing.model_card import write_parsing_card
from vaswani_transformer.parsing.scoring import F1_DEFINITIONS, ParsingRecord, ParsingSplit, parse_corpus, score_parser
from vaswani_transformer.parsing.treebank import GoldTrees, prepare_treebank
from vaswani_transformer.runs.run_directory import record_settings
from vaswani_transformer.runs.training_run import TrainingRun, training_run
from vaswani_transformer.system.console import PlainConsole
from vaswani_transformer.system.launcher import start_processes
from vaswani_transformer.system.processes import main_process_first


@dataclass(frozen=True)
class ParsingArguments(PreparationOptions, TreebankOptions):
    """Treebanks, vocabulary, and the search."""

    shared_vocabulary: bool = option(
        False, "Share one matrix by words and labels, as for translation (3.4).", decides="weights"
    )
    max_length: int = option(1000, "Longest sequence trained on, in pieces of words or labels.", COUNT, decides="data")
    max_ratio: float = option(
        50.0, "Longest side over shortest side of a pair trained on.", Interval(minimum=1), decides="data"
    )
    num_beams: int = option(21, "Beams of the search (6.3).", BEAMS, decides=None)
    length_penalty: float = option(0.3, "Alpha of the search (6.3).", ALPHA, decides=None)
    max_new_tokens_over_source: int = option(
        300, "Longest parse: sub-words of the sentence plus this many labels.", COUNT, decides=None
    )


KINDS = (ParsingArguments, ModelArguments, RecipeTrainingArguments)

# Options of translation that parsers lack, and what to do instead.
REFUSED = {
    "model": "parsers are trained from random weights; leave it out",
    **dict.fromkeys(("eval_bleu", "length_penalties"), "parsers are scored by F1; leave it out"),
}


def main() -> None:
    parser = RecipeParser(KINDS, shown={field.name for kind in KINDS for field in fields(kind)} - REFUSED.keys())
    options = parser.read()
    start_processes(options)
    data_args, model_args, args = parser.fill(options)
    with training_run(args) as run:
        train_and_score(data_args, model_args, args, run)


def train_and_score(
    data_args: ParsingArguments, model_args: ModelArguments, args: RecipeTrainingArguments, run: TrainingRun
) -> None:
    refuse_unused_options(data_args, model_args, args)
    config = model_args.configure(data_args.source_language, PARSE, VaswaniParsingConfig)
    with main_process_first():
        corpora = parallel_corpora(data_args)
    data = run.load(corpora, config)
    record_settings(run.directory, decisive_values(data_args, "weights"), args.save_on_each_node)
    if not data_args.shared_vocabulary:
        config.target_vocab_size = 3 + len(ParseLabels.from_vocabulary(data.tokenizer.get_vocab()).names)
    trainer = run.make_trainer(config, data)
    load = partial(GoldTrees.load, language=data_args.source_language, train=corpora.sources["train"])
    gold = {split: load(corpora.sources[split][0]) for split in data.text}
    set_search(trainer.model.generation_config, data_args)

    options = {**vars(data_args), "target_language": PARSE, "dataset_config": None}  # every record has these two
    results = run.train(trainer, options, data)
    scores: dict[str, ParsingSplit] = {}
    parses: dict[str, list[Parse]] = {}
    for name, (split, directory) in run.models_to_score(data.text).items():
        scores[name], parses[name] = score_split(directory, data, split, gold[split])
    if trainer.is_world_process_zero():
        record = ParsingRecord(**{**vars(results), **scores})
        texts = {f"parses.{name}.txt": [parse.tree for parse in each] for name, each in parses.items()}
        run.write_results(trainer, record, texts, write_parsing_card)
        with suppress(OSError):  # standard output may be full or closed; all results are in files
            show_results(record)
            print(f"The model is in {args.output_dir}.")


def refuse_unused_options(
    data_args: ParsingArguments, model_args: ModelArguments, args: RecipeTrainingArguments
) -> None:
    """Refuse options of translation that have no effect here, and those that lack another."""
    if not data_args.train:
        raise ValueError("train: give a treebank to train on, such as `train: [wsj-02-21.mrg]`")
    for arguments in (model_args, args):
        refuse_unused(arguments, REFUSED)


def parallel_corpora(data_args: ParsingArguments) -> DataArguments:
    """The treebanks as parallel corpora, with their vocabulary."""
    prepared = Path(data_args.prepared) if data_args.prepared else None
    corpora = prepare_treebank(prepared and prepared / "treebank", data_args)
    shared = {field.name: getattr(data_args, field.name) for field in fields(PreparationOptions)}
    shared["prepared"] = str(prepared / "encoded") if prepared else None
    return DataArguments(
        **shared,
        source_language=data_args.source_language,
        target_language=PARSE,
        train=corpora["train"],
        validation=corpora.get("validation"),
        test=corpora.get("test"),
        tokenizer=str(Path(corpora["train"][0]).with_name("tokenizer")),
        vocab_size=data_args.vocab_size,  # not used, but earlier records of corpora and runs have it
    )


def set_search(search: GenerationConfig, data_args: ParsingArguments) -> None:
    """Set the options of the search, which the model is saved with."""
    for name in ("num_beams", "length_penalty", "max_new_tokens_over_source"):
        setattr(search, name, getattr(data_args, name))
    if search.num_beams == 1:  # transformers saves no options of beams then
        search.length_penalty = search.early_stopping = None


def score_split(directory: Path, data: TrainingData, split: str, gold: GoldTrees) -> tuple[ParsingSplit, list[Parse]]:
    """Scores of a saved model, free and constrained, and its constrained parses. Collective."""
    model = VaswaniForConstituencyParsing.from_pretrained(directory, trust_remote_code=False).to(PartialState().device)
    tokenizer = data.tokenizer
    free = parse_corpus(model, tokenizer, gold.sentences)
    constrained = parse_corpus(model, tokenizer, gold.sentences, constrained=True)
    scores = ParsingSplit(
        perplexity=perplexity(model, tokenizer, data.encoded[split]),
        free=score_parser(gold.trees, free, gold.seen),
        constrained=score_parser(gold.trees, constrained, gold.seen),
    )
    return scores, constrained


def show_results(record: ParsingRecord) -> None:
    rows = []
    for split, scores in record.scores.items():
        for name in ("free", "constrained"):
            parser = getattr(scores, name)
            whole, left_out = parser.all_sentences, parser.evalb.errors + parser.evalb.skipped
            row = [f"{whole.f1:.2f}", f"{parser.evalb.f1:.2f}", str(left_out), f"{parser.unseen.f1:.2f}"]
            rows.append([f"{split}, {name}", *row, f"{whole.complete_match:.2f}", str(parser.repaired)])
    header = ("set, parser", "F1", "EVALB's", "left out", "F1 of unseen", "complete", "repaired")
    PlainConsole().print_table(header, rows, title="Scores, in percent", caption=F1_DEFINITIONS)


if __name__ == "__main__":
    main()
