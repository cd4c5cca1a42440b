"""Parse sentences with a saved model (6.3), one tree a line; score the trees.

    python recipes/parse.py --model runs/craft_parsing --input sentences.txt --output trees.mrg
    python recipes/parse.py --model runs/craft_parsing --gold dev.mrg.gz --output trees.mrg --constrained

A line of `--input` is a sentence, divided into words as in the Penn Treebank, or with `--is_split_into_words` at white
space; an empty line gives an empty line. Instead, `--gold` names a treebank, whose sentences are parsed: the scores are
printed, and written as JSON beside the output; with `--train train.mrg.gz`, also those of the trees that are not in
training. Parsed text can serve train_parsing.py as silver trees. With `accelerate launch`, several processes share the
sentences.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path

from accelerate import PartialState

from vaswani_transformer.data.text_files import read_lines
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.model.parsing_vaswani import VaswaniParsingConfig, split_words
from vaswani_transformer.options.arguments import option, refuse_unused
from vaswani_transformer.options.decoding import DecodingArguments, SearchArguments
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.parsing.scoring import F1_DEFINITIONS, ParserScores, parse_corpus, score_parser
from vaswani_transformer.parsing.treebank import read_treebank
from vaswani_transformer.parsing.trees import tree_in_one_line
from vaswani_transformer.system.console import PlainConsole
from vaswani_transformer.system.files import atomic_write, require_new_file


@dataclass
class ParsingArguments(DecodingArguments, SearchArguments):
    """A parser, its input, its search, and the output."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    input: str | None = option(None, "UTF-8 text (plain, .gz, .bz2, .xz, .zst), a sentence a line.")
    gold: str | None = option(None, "Instead of input: trees in brackets, whose words are parsed and scored.")
    train: list[str] | None = option(
        None, "With --gold: the training treebanks; trees that do not occur in them are also scored separately."
    )
    output: str = option(MISSING, "File of trees to write.")
    overwrite: bool = option(False, "Replace an output file that exists.")
    is_split_into_words: bool = option(False, "Divide sentences of input at white space only.")
    constrained: bool = option(False, "Search only among well-formed parses, which need no repair.")

    def __post_init__(self) -> None:
        if (self.input is None) == (self.gold is None):
            raise ValueError("input, gold: give exactly one")
        require_new_file("output", self.output, self.overwrite)
        if self.gold is None:
            refuse_unused(self, {"train": "without gold trees there are no scores; leave it out"})
            return
        if self.record == Path(self.output):
            raise ValueError(f"output: {self.output} would hold the scores; give the trees another suffix, as .mrg")
        require_new_file("output", self.record, self.overwrite)

    @property
    def record(self) -> Path:
        """Where the scores go."""
        return Path(self.output).with_suffix(".json")


def main() -> None:
    with recipe_options(ParsingArguments, "repeat the command") as args:
        gold, seen = None, None
        if args.gold is None:
            divide = str.split if args.is_split_into_words else split_words
            sentences = [divide(line) for line in read_lines(Path(args.input))]
        else:
            gold = [*read_treebank(args.gold, "gold")]
            sentences = [tree.leaves() for tree in gold]
            if args.train is not None:
                seen = {tree_in_one_line(tree) for file in args.train for tree in read_treebank(file, "train")}
        saved = open_model(args.model, task=VaswaniParsingConfig.task, trust_remote_code=args.trust_remote_code)
        filled = [words for words in sentences if words]
        model = saved.load_to_decode(args.precision)
        options = {"tokens_per_batch": args.tokens_per_batch, "constrained": args.constrained, **args.generate_kwargs}
        parses = parse_corpus(model, saved.tokenizer, filled, **options)
        if PartialState().is_main_process:
            trees = iter([parse.tree for parse in parses])
            lines = [next(trees) if words else "" for words in sentences]
            atomic_write(args.output, "".join(line + "\n" for line in lines))
            if gold is not None:
                scores = score_parser([tree_in_one_line(tree) for tree in gold], parses, seen)
                scores.save(args.record)
                show(scores)


def show(scores: ParserScores) -> None:
    counted = {
        "all": scores.all_sentences,
        "up to 40 words": scores.up_to_40_words,
        "unseen": scores.unseen,
        "EVALB": scores.evalb,
        "EVALB, unseen": scores.unseen_evalb,
    }
    rows = []
    for name, score in counted.items():
        if score is not None:
            numbers = (score.recall, score.precision, score.f1, score.complete_match, score.tagging_accuracy)
            counts = (str(score.sentences), str(score.errors + score.skipped))
            rows.append([name, *counts, *(f"{number:.2f}" for number in numbers)])
    header = ("counted", "sentences", "left out", "recall", "precision", "F1", "complete", "tags")
    title = f"Scores, in percent; {scores.repaired} parses repaired"
    PlainConsole().print_table(header, rows, title=title, caption=F1_DEFINITIONS)


if __name__ == "__main__":
    main()
