"""Table 3 of the paper (6.2): train its rows, score them, and set them beside the paper's.

All rows have the same data and budget. The report also has the cost of each training by the accounting of Table 2.

Six rows, scaled down, with five seeds each, two at once; and all rows in the paper's sizes, one on each GPU:

    python recipes/reproduce_table3.py --config recipes/configs/tatoeba_sweep.yaml --width 0.25 --depth 0.5 --heads 4 \
        --rows base A-h1 A-h16 B-dk16 C-N2 D-drop0.0 --seeds 1 2 3 4 5 --parallel 2
    python recipes/reproduce_table3.py --config recipes/configs/wmt14_en_de_base.yaml --output_dir runs/table3

Data and training options of `recipes/train_wmt.py` apply to every row. As in the paper, the last step is scored, not an
average, on the validation set; a test set is not used. The corpora are prepared once, in `--prepared` or
`<output_dir>/data`. Each training is a process of `train_wmt.py`, which writes to `<output_dir>/<row>/seed-<seed>` and
prints to `train.log` there. After an interruption, or with more rows or seeds, the same command trains the missing
ones. The report, `report.md`, `table3.json` and `table3.png`, covers all finished trainings.
"""

import json
import signal
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FrameType

import yaml

from vaswani_transformer.data.preparation import load_corpora, with_languages
from vaswani_transformer.experiments.comparison import Scale, summarize_sweep
from vaswani_transformer.experiments.reports import cost_table, score_table, write_report
from vaswani_transformer.experiments.sweep import Job, shares, train_all
from vaswani_transformer.model.configuration_vaswani import PAPER_VARIANTS, VaswaniConfig
from vaswani_transformer.options.arguments import COUNT, POSITIVE, SEED, Precision, as_json, decisive_values, option
from vaswani_transformer.options.data import DataArguments
from vaswani_transformer.options.parser import RecipeParser
from vaswani_transformer.options.training import ModelArguments, RecipeTrainingArguments
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.runs.run_directory import RECORD_NAME
from vaswani_transformer.system.console import PlainConsole
from vaswani_transformer.system.faults import Interrupted, exit_on_error
from vaswani_transformer.system.files import Json, atomic_write, locked, read_json
from vaswani_transformer.system.manifests import require_same_origin


TRAIN = Path(__file__).with_name("train_wmt.py")
MANIFEST = "sweep.json"

# Options that all trainings share; the sweep sets the others itself.
KINDS = (DataArguments, ModelArguments, RecipeTrainingArguments)
SHARED = {field.name for kind in KINDS for field in fields(kind)} - {"output_dir", "precision", "test", "average_last"}

# Sizes that `width` and `depth` multiply.
WIDTHS, DEPTHS = ("d_model", "d_ff", "d_k", "d_v"), ("encoder_layers", "decoder_layers")

# Options that contradict a sweep, and what to do instead.
REFUSED = {
    "seed": "a sweep has several; give --seeds",
    "resume": "a sweep always resumes; leave it out",
    **dict.fromkeys(("push_to_hub", "hub_token"), "a sweep pushes nothing; push the model that you choose"),
    **dict.fromkeys(vars(ModelArguments()), "the rows of Table 3 decide this; give --rows, --width, --depth, --heads"),
}


@dataclass
class SweepArguments(RecipeTrainingArguments):
    """Options of reproduce_table3.py, and all of transformers' `Seq2SeqTrainingArguments`."""

    output_dir: str | None = option("runs/table3", "Directory for all results.", is_first=True)
    precision: Precision = option("auto", "Precision of all rows; 'auto' is float32, because the fastest may differ.")
    rows: list[str] | None = option(None, "Rows of Table 3; by default all.")
    seeds: list[int] = option([1], "Seeds with which each row is trained.", SEED)
    width: float = option(1.0, "Multiplies d_model, d_ff, d_k and d_v of each row.", POSITIVE)
    depth: float = option(1.0, "Multiplies the numbers of layers of each row.", POSITIVE)
    heads: int = option(
        8,
        "Heads of rows with 8 heads in the paper. Where the paper has d_k = d_v = 64, they become d_model / heads.",
        COUNT,
    )
    parallel: int | None = option(None, "Trainings at once; by default one on each GPU, or one on the CPU.", COUNT)

    def __post_init__(self) -> None:
        self.rows = self.rows or list(PAPER_VARIANTS)
        if unknown := [row for row in self.rows if row not in PAPER_VARIANTS]:
            raise ValueError(f"rows: there is no {unknown[0]!r} in Table 3; choose from {', '.join(PAPER_VARIANTS)}")
        for row in self.rows:
            scaled_sizes(row, self.scale)
        super().__post_init__()
        if self.precision == "auto":
            self.set_precision("float32")

    @property
    def scale(self) -> Scale:
        return Scale(self.width, self.depth, self.heads)


def main() -> None:
    shown = {field.name for field in fields(SweepArguments)} | SHARED
    parser = RecipeParser((SweepArguments, DataArguments, ModelArguments), shown - {"average_last", *REFUSED})
    given = parser.read()
    args, data_args, _ = parser.fill(given)
    if not data_args.validation:
        parser.error("validation: Table 3 is scored on it; give one")
    options, changed = training_options(parser, given, args)
    directory = Path(args.output_dir)
    data_args = replace(data_args, test=None, prepared=data_args.prepared or str(directory / "data"))
    manifest = {**vars(args.scale), "precision": args.precision, **options}
    signal.signal(signal.SIGTERM, interrupt)
    with exit_on_error("repeat the command to continue"), open_sweep(directory, manifest):
        load_corpora(with_languages(data_args), data_args.prepared)
        # Written after preparing the corpora, so that wrong data options are not recorded.
        atomic_write(directory / "training.yaml", yaml.safe_dump(changed, allow_unicode=True))
        atomic_write(directory / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        try:
            train_rows(args, data_args.prepared)
        finally:
            report(directory, args)


@contextmanager
def open_sweep(directory: Path, manifest: dict[str, Json]) -> Iterator[None]:
    """Lock the directory of a sweep; raises a ValueError if it holds one that differs."""
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / MANIFEST):
        if (directory / MANIFEST).exists():
            what = f"output_dir: {directory} holds a sweep that differs in"
            advice = "repeat the command that began it to continue it, or choose another directory"
            require_same_origin(read_json(directory / MANIFEST), manifest, what, advice)
        yield


def interrupt(number: int, frame: FrameType | None) -> None:
    """End all trainings, as Ctrl-C does."""
    raise Interrupted(number)


def scaled_sizes(row: str, scale: Scale) -> dict[str, int]:
    """Scaled sizes of a row of Table 3, for `VaswaniConfig.from_variant`; whole numbers, or a ValueError."""
    config = VaswaniConfig.from_variant(row)
    sizes = {"num_heads": PAPER_VARIANTS[row].get("num_heads", scale.heads)}
    for direction, factor, names in (("width", scale.width, WIDTHS), ("depth", scale.depth, DEPTHS)):
        for name in names:
            size = getattr(config, name) * factor
            if size < 1 or not size.is_integer():
                raise ValueError(f"{direction}: {factor} makes {name} of row {row} {size}; it must be a whole number")
            sizes[name] = int(size)
    for name in ("d_k", "d_v"):
        if getattr(config, name) * config.num_heads == config.d_model:
            size, rest = divmod(sizes["d_model"], sizes["num_heads"])
            if rest:
                raise ValueError(f"heads: {scale.heads} do not divide d_model of row {row}, {sizes['d_model']}")
            sizes[name] = size
    return sizes


def training_options(
    parser: RecipeParser, given: Namespace, args: SweepArguments
) -> tuple[dict[str, Json], dict[str, Json]]:
    """The options that all trainings share, and the subset that was given and differs from the defaults."""
    shared = {name: as_json(value) for name, value in vars(given).items() if name in SHARED}
    defaults = vars(parser.read([]))
    changed = {name: value for name, value in shared.items() if value != as_json(defaults[name])}
    for name in changed.keys() & REFUSED.keys():
        parser.error(f"{name}: {REFUSED[name]}")
    # argparse converts the default "no" of an option to False, and earlier records have either; it decides nothing.
    options = {
        name: value for name, value in shared.items() if name in changed or value == as_json(parser.get_default(name))
    }
    options |= {name: value for name, value in decisive_values(args, "weights").items() if options[name] is None}
    return options, changed


def train_rows(args: SweepArguments, prepared: str) -> None:
    """Train all jobs that are not finished; raises a ValueError that names the jobs that failed."""
    directory = Path(args.output_dir)

    def command(job: Job) -> list[str]:
        options: dict[str, object] = {
            "config": directory / "training.yaml",
            "prepared": prepared,
            "average_last": 1,
            "variant": job.row,
            **scaled_sizes(job.row, args.scale),
            "precision": args.precision,
            "output_dir": job.directory,
            "seed": job.seed,
            "resume": (job.directory / RECORD_NAME).exists(),
        }
        return [str(TRAIN), *(word for name, value in options.items() for word in (f"--{name}", str(value)))]

    # Each once, also if it is named twice.
    jobs = [Job(row, seed, directory) for seed in dict.fromkeys(args.seeds) for row in dict.fromkeys(args.rows)]
    if failed := train_all(jobs, shares(args.use_cpu, args.parallel), command):
        raise ValueError("; ".join(f"{job.name} failed, see {job.log}" for job in failed))


def finished_runs(directory: Path, row: str) -> dict[int, RunRecord]:
    """The records of a row's finished trainings, by seed."""
    names = [path.name.removeprefix("seed-") for path in (directory / row).glob("seed-*")]
    seeds = [int(name) for name in names if name.isdecimal()]  # ignores others, such as "seed-1.bak"
    return {seed: results for seed in seeds if (results := Job(row, seed, directory).load_results()) is not None}


def report(directory: Path, args: SweepArguments) -> None:
    """Write and print the report of all finished trainings."""
    runs = {row: finished_runs(directory, row) for row in PAPER_VARIANTS}
    if not any(runs.values()):
        return
    sweep = summarize_sweep(runs, describe_run(), args.scale)
    write_report(sweep, directory)
    console = PlainConsole()
    brief = [[line[0], *line[4:]] for line in score_table(sweep)]  # the rest would not fit
    for title, (header, *rows) in (("Table 3", brief), ("Table 2", cost_table(sweep))):
        console.print_table(header, rows, title=title)
    console.print(f"Report: {directory / 'report.md'}")


if __name__ == "__main__":
    main()
