"""Word alignments beside people's: the error rates of our attention heads and of statistical aligners.

    python recipes/benchmarks/alignment.py --name eflomal --gold gold.gz --forward a.links --backward b.links

Both alignments are in Pharaoh format, source before target, and have a line for each pair, or more before these lines.
The gold has the places of words from 1: "1-2" is a sure link, "1p2" a possible one; sure links are possible, too. The
error rate is that of Och and Ney (2003), 1 - (|A & S| + |A & P|) / (|A| + |S|). Each call adds a line to `alignment.md`
and `alignment.json`, or replaces that of its name. `alignment.sh` makes and measures all alignments of the table.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field
from itertools import product
from pathlib import Path

from benchmark import BenchmarkArguments, add_entry, run_benchmark

from vaswani_transformer.data.text_files import read_lines
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.options.arguments import option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


Links = set[tuple[int, int]]  # places of a source word and a target word, from 0, for each link of a sentence pair


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    name: str = option(MISSING, "Name of the aligner, for the table.")
    gold: str = option(MISSING, "The links that people have found.")
    forward: str = option(MISSING, "Alignment of the aligner's model from source to target.")
    backward: str = option(MISSING, "Alignment of its model from target to source, with the source first, too.")


@dataclass(frozen=True)
class Entry:
    """The alignment error rates of an aligner, by how the links of both directions are combined."""

    name: str
    run: Provenance
    pairs: int
    error_rates: dict[str, float]


@dataclass(frozen=True)
class AlignmentRecord(Record):
    """`alignment.json`, in the order of time."""

    entries: list[Entry] = field(default_factory=list)


def read_links(path: str) -> list[Links]:
    """The links of each line, in Pharaoh format."""
    return [{(int(i), int(j)) for i, j in re.findall(r"(\d+)-(\d+)", line)} for line in read_lines(Path(path))]


def read_gold(path: str) -> tuple[list[Links], list[Links]]:
    """The sure and the possible links of each line."""
    lines = [re.findall(r"(\d+)([-p])(\d+)", line) for line in read_lines(Path(path))]
    kinds = ("-", "-p")
    sure, possible = (
        [{(int(i) - 1, int(j) - 1) for i, kind, j in links if kind in kinds} for links in lines] for kinds in kinds
    )
    return sure, possible


def error_rate(links: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links]) -> float:
    """Alignment error rate of Och and Ney."""
    right = sum(len(a & s) + len(a & p) for a, s, p in zip(links, sure, possible, strict=True))
    return 1 - right / (sum(map(len, links)) + sum(map(len, sure)))


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """Links of both directions, and some of one (Koehn et al., 2005).

    Neighbours of links, with a word that has no link yet, are added as long as there are any; then links between two
    words without any.
    """
    links = forward & backward

    def add(candidates: Links, condition: Callable[[Iterable[bool]], bool]) -> None:
        for source, target in sorted(candidates - links):
            if condition((all(source != i for i, _ in links), all(target != j for _, j in links))):
                links.add((source, target))

    before = -1
    while before < len(links):
        before = len(links)
        near = {(i + row, j + column) for i, j in links for row, column in product((-1, 0, 1), repeat=2)}
        add(near & (forward | backward), any)
    add(forward, all)
    add(backward, all)
    return links


def make_entry(args: Arguments) -> Entry:
    sure, possible = read_gold(args.gold)
    forward, backward = (read_links(path)[-len(sure) :] for path in (args.forward, args.backward))
    pairs = [*zip(forward, backward, strict=True)]
    combined = {
        "forward": forward,
        "backward": backward,
        "links of both": [a & b for a, b in pairs],
        "grow-diag-final-and": [grow_diag_final_and(*both) for both in pairs],
    }
    rates = {kind: error_rate(links, sure, possible) for kind, links in combined.items()}
    return Entry(args.name, describe_run(), len(sure), rates)


def measure(args: Arguments) -> Iterator[AlignmentRecord]:
    yield AlignmentRecord(add_entry(AlignmentRecord.load, Path(args.output, "alignment.json"), make_entry(args)))


def as_markdown(record: AlignmentRecord) -> str:
    rows = [["aligner", *record.entries[0].error_rates]]
    rows += [[entry.name, *(f"{100 * rate:.1f}" for rate in entry.error_rates.values())] for entry in record.entries]
    last = record.entries[-1]
    runs = [f"- {entry.name}: `{entry.run.command}`, commit `{entry.run.commit}`" for entry in record.entries]
    parts = [
        "# Word alignments beside people's",
        f"{last.run.hardware}.",
        f"Alignment error rate in %, of {last.pairs:,} pairs; less is better:",
        markdown_table(rows),
        "\n".join(runs),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    run_benchmark("alignment", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
