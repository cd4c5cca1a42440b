"""F1 of a probabilistic context-free grammar, to compare a parsing model (6.3) of the same treebanks with.

    python recipes/benchmarks/pcfg.py --train train.mrg --test dev.mrg

Where `--horizontal`, `--vertical` or `--rare` have several values, grammars of all their combinations are made of the
training trees but the last, and parse those; the highest F1 chooses. A sentence that is too long, or has no tree in the
grammar, gets the right-branching tree.

The search of `vaswani_transformer.parsing.pcfg` is exact. On sentences of six to eight words of CRAFT, nltk's
`ViterbiParser` finds the same trees about two thousand times more slowly.

Writes `pcfg.md` and `pcfg.json` beside this script, or into `--output`.
"""

import time
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from itertools import product
from pathlib import Path

from nltk import Tree
from rich.progress import track

from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.console import exit_on_error
from vaswani_transformer.io.files import atomic_write, make_directory
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.model.parse_sequence_vaswani import Parse
from vaswani_transformer.options.arguments import COUNT, Interval, RecipeParser, option
from vaswani_transformer.parsing.pcfg import GrammarOptions, TreebankGrammar
from vaswani_transformer.parsing.scoring import F1_DEFINITIONS, ParserScores, right_branching, score_parser
from vaswani_transformer.parsing.trees import normalized_trees, tree_in_one_line, words_of_tree
from vaswani_transformer.runs.provenance import describe_run, published
from vaswani_transformer.runs.records import Provenance


LONGEST_TO_TUNE = 40  # words


@dataclass(frozen=True, kw_only=True)
class Result:
    """A grammar's parses of some sentences.

    Attributes:
        grammar: How the grammar was made.
        binary_rules: Its rules with two labels.
        seconds: Processor time of the parses.
        too_long: Sentences that were not parsed.
        no_parse: Sentences without a tree in the grammar.
        scores: The scores; the right-branching tree stands for sentences of both kinds.
    """

    grammar: GrammarOptions
    binary_rules: int
    seconds: float
    too_long: int
    no_parse: int
    scores: ParserScores


@dataclass(frozen=True)
class PcfgRecord(Record):
    """`pcfg.json`."""

    run: Provenance
    settings: dict[str, object]
    tuning: list[Result]
    test: Result
    right_branching: ParserScores


@dataclass
class Arguments:
    """Treebanks, and how grammars are made of them."""

    train: list[str] = option(MISSING, "Files of gold trees in brackets (plain, .gz, .xz).")
    test: list[str] = option(MISSING, "As train.")
    horizontal: list[int] = option([1, 2], "Siblings to come that a binarised label names.", Interval(0, 9))
    vertical: list[int] = option([1, 2], "Ancestors that a label names: 1 is its parent.", Interval(0, 9))
    rare: list[int] = option([2, 5], "Words seen less often are replaced by classes of words.", Interval(2))
    tuning: int = option(500, "The last training trees, to choose among the above on.", COUNT)
    longest: int = option(150, "Longest sentence parsed, in words; its square is the memory.", Interval(1, 300))
    output: str = option(str(Path(__file__).parent), "Where the results go.")


def read_treebanks(files: Sequence[str]) -> list[Tree]:
    """The normalised trees of some files.

    Raises:
        ValueError: There are none, or one is malformed.
        OSError: There is no such file.
    """
    trees = [tree for file in files for tree in normalized_trees(file)]
    if not trees:
        raise ValueError(f"{', '.join(files)}: there are no trees; give a treebank in brackets")
    return trees


def measure(train: Sequence[Tree], test: Sequence[Tree], options: GrammarOptions, longest: int) -> Result:
    """Make a grammar of some trees, and score its parses of the words of others."""
    name = ", ".join(f"{name} {value}" for name, value in vars(options).items())
    grammar = TreebankGrammar(train, options)
    sentences = [words_of_tree(tree) for tree in test]
    began = time.process_time()
    found = [grammar.parse(words) if len(words) <= longest else None for words in track(sentences, name)]
    seconds = time.process_time() - began
    too_long = sum(len(words) > longest for words in sentences)
    parses = [
        right_branching(words) if tree is None else Parse(tree_in_one_line(tree), 0)
        for tree, words in zip(found, sentences, strict=True)
    ]
    return Result(
        grammar=options,
        binary_rules=len(grammar.parser.parent),
        seconds=seconds,
        too_long=too_long,
        no_parse=found.count(None) - too_long,
        scores=score_parser([*map(tree_in_one_line, test)], parses, {*map(tree_in_one_line, train)}),
    )


def grammars(args: Arguments) -> list[GrammarOptions]:
    """The combinations of the options."""
    return [GrammarOptions(*values) for values in product(args.horizontal, args.vertical, args.rare)]


def compare(args: Arguments, train: Sequence[Tree], test: Sequence[Tree]) -> PcfgRecord:
    """Choose the best grammar, if there are several, and measure it."""
    run = describe_run()
    options = grammars(args)
    tuning: list[Result] = []
    if len(options) > 1:
        rest, last = train[: -args.tuning], train[-args.tuning :]
        short = [tree for tree in last if len(words_of_tree(tree)) <= LONGEST_TO_TUNE]
        tuning = [measure(rest, short, each, LONGEST_TO_TUNE) for each in options]
        options = [max(tuning, key=lambda result: result.scores.all_sentences.f1).grammar]
    trivial = [right_branching(words_of_tree(tree)) for tree in test]
    return PcfgRecord(
        run=run,
        settings={name: published(value) for name, value in vars(args).items()},
        tuning=tuning,
        test=measure(train, test, options[0], args.longest),
        right_branching=score_parser([*map(tree_in_one_line, test)], trivial, {*map(tree_in_one_line, train)}),
    )


def score_table(record: PcfgRecord) -> list[list[str]]:
    columns = ["recall", "precision", "F1", "complete", "tags", "F1, up to 40 words", "EVALB's F1", "left out"]
    columns += ["unseen", "F1 of unseen", "EVALB's F1 of unseen"]
    lines = [["parser", *columns]]
    for name, scores in (("PCFG", record.test.scores), ("right-branching", record.right_branching)):
        whole = scores.all_sentences
        numbers = [whole.recall, whole.precision, whole.f1, whole.complete_match, whole.tagging_accuracy]
        numbers += [scores.up_to_40_words.f1, scores.evalb.f1]
        row = [f"{number:.2f}" for number in numbers] + [str(scores.evalb.errors + scores.evalb.skipped)]
        if scores.unseen and scores.unseen_evalb:
            row += [str(scores.unseen.sentences), f"{scores.unseen.f1:.2f}", f"{scores.unseen_evalb.f1:.2f}"]
        lines.append([name, *row])
    return lines


def tuning_table(results: Sequence[Result]) -> list[list[str]]:
    lines = [["horizontal", "vertical", "rare", "binary rules", "F1", "no parse", "seconds"]]
    for result in results:
        numbers = [*map(str, vars(result.grammar).values()), f"{result.binary_rules:,}"]
        f1 = f"{result.scores.all_sentences.f1:.2f}"
        lines.append([*numbers, f1, str(result.no_parse), f"{result.seconds:.0f}"])
    return lines


def as_markdown(record: PcfgRecord) -> str:
    run, test = record.run, record.test
    grammar = ", ".join(f"{name} {value}" for name, value in vars(test.grammar).items())
    sections = [
        "# A probabilistic context-free grammar",
        f"`{run.command}`, commit `{run.commit}`, {run.date}, {run.hardware}.",
        f"{test.scores.sentences:,} sentences, parsed in {test.seconds:.0f} seconds of processor time; {grammar}; "
        f"{test.binary_rules:,} binary rules. The right-branching tree stands for {test.too_long} sentences of more "
        f"than {record.settings['longest']} words, and for {test.no_parse} without a tree in the grammar.",
        markdown_table(score_table(record)),
        F1_DEFINITIONS,
    ]
    if record.tuning:
        sentences = record.tuning[0].scores.sentences
        sections += [
            f"Choice of the grammar, on {sentences:,} of the last training trees, of at most {LONGEST_TO_TUNE} words, "
            "after those before them:",
            markdown_table(tuning_table(record.tuning)),
        ]
    return "\n\n".join(sections) + "\n"


def main() -> None:
    (args,) = RecipeParser((Arguments,)).parse()
    with exit_on_error("pcfg.py"):
        train, test = read_treebanks(args.train), read_treebanks(args.test)
        if len(grammars(args)) > 1 and len(train) <= args.tuning:
            raise ValueError(f"tuning: there are only {len(train)} training trees; leave some to train on")
        output = make_directory("output", args.output)
    record = compare(args, train, test)
    record.save(output / "pcfg.json")
    atomic_write(output / "pcfg.md", as_markdown(record))
    print(as_markdown(record))


if __name__ == "__main__":
    main()
