"""Compare the speed of beam search in three packages, with the same weights, sentences and beam.

    python recipes/benchmarks/decode.py --text ../shared/data/multi30k_en-de-fr/test_2016_flickr.en.gz \
        --references ../shared/data/multi30k_en-de-fr/test_2016_flickr.de.gz --model runs/multi30k_en_de

The models are trained ones, since models with random weights never generate EOS, and the text is of the kind that they
were trained on. Translations have at most 50 tokens more than their source; for the peers, more than the longest source
of the batch. The peers are `MarianMTModel.generate`, in input order and in batches of similar length, and CTranslate2,
in batches of similar length. Each system translates everything in batches of each size of `--batch_sizes`; the table
has its fastest, `decode.json` all. Each searches by its own rule: ours until no live hypothesis can still win,
normalised as in section 6.1; CTranslate2 until as many hypotheses as beams are finished, transformers until live ones
look worse, both normalised by |Y|^alpha.

Writes `decode.md` and `decode.json` beside this script, or into `--output`; speeds are sentences a second, the best of
`--rounds` rounds, through all systems in turn. On a GPU the peers run in its half-precision types.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import track

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.convert.ctranslate2 import export_ctranslate2
from vaswani_transformer.convert.marian import to_marian
from vaswani_transformer.data.corpora import spread
from vaswani_transformer.data.text_files import read_lines
from vaswani_transformer.evaluation.scores import sacrebleu_score
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.console import exit_on_error, printable
from vaswani_transformer.io.files import atomic_write, make_directory
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.launch.memory import keep_freed_memory
from vaswani_transformer.model.saved_model import open_model
from vaswani_transformer.model.step_decoder_vaswani import IncrementalDecoder, joined_projection
from vaswani_transformer.options.arguments import COUNT, RecipeParser, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


BEAMS, ALPHA, OVER_SOURCE = 4, 0.6, 50

Search = Callable[[list[list[int]]], list[list[int]]]


@dataclass
class Arguments:
    text: str = option(MISSING, "Source sentences, one a line.")
    references: str | None = option(None, "Their translations, for BLEU.")
    model: list[str] = option([], "Directories of trained models, a table each.")
    output: str = option(str(Path(__file__).parent), "Where decode.md and decode.json go.")
    device: Literal["cpu", "cuda"] = option("cpu", "Where to translate.")
    sentences: int = option(500, "Sentences to translate, from all over the text.", COUNT)
    batch_sizes: list[int] = option(
        [16, 32, 64, 128, 256], "Numbers of sentences a batch, each for all systems.", COUNT
    )
    rounds: int = option(2, "How often each system translates everything in batches of each size.", COUNT)

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: name the directory of a trained model")
        if find_spec("ctranslate2") is None:
            raise ValueError("ctranslate2 is not installed; run `pip install ctranslate2`")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: there is no CUDA device; leave it out")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of a system at one batch size: a row of a table."""

    system: str
    batch: int
    sentences_per_second: float
    ratio_to_first: float
    same_as_ours: float  # share of the sentences
    bleu: float | None = None
    time: dict[str, float] | None = None  # shares by kind of operation


@dataclass(frozen=True)
class SpeedTable:
    """All systems on the same sentences."""

    title: str
    sentences: int
    product_limit: float | None  # sentences a second; None on a GPU
    rows: list[Speed]


@dataclass(frozen=True)
class DecodeRecord(Record):
    """`decode.json`."""

    run: Provenance
    results: list[SpeedTable]


@dataclass
class System:
    """One row of the table."""

    name: str
    search: Search
    is_sorted: bool
    batch_size: int = 0
    seconds: float = float("inf")
    outputs: list[list[int]] = field(default_factory=list)

    def run(self, sources: list[list[int]]) -> None:
        """Translate all sentences, and keep the time if it is the best so far."""
        outputs: list[list[int]] = [[] for _ in sources]
        start = time.perf_counter()
        for batch in batches(sources, self.batch_size, self.is_sorted):
            for index, output in zip(batch, self.search([sources[index] for index in batch]), strict=True):
                outputs[index] = output
        self.seconds, self.outputs = min(self.seconds, time.perf_counter() - start), outputs


def batches(sources: list[list[int]], size: int, is_sorted: bool) -> list[list[int]]:
    order = list(range(len(sources)))
    if is_sorted:
        order.sort(key=lambda index: -len(sources[index]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def padded(sources: list[list[int]], device: str) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sources], batch_first=True).to(device)


def until_end(row: list[int], end: int) -> list[int]:
    return row[: row.index(end)] if end in row else row


def peers(
    model: VaswaniForConditionalGeneration, tokenizer: VaswaniTokenizer, device: str, folder: Path
) -> Iterator[System]:
    """Systems to compare, all with the weights of `model`."""
    import ctranslate2

    end = model.config.eos_token_id

    def ours(precision: torch.dtype, early_stopping: bool | str = "never") -> Search:
        copy = VaswaniForConditionalGeneration(model.config).eval()
        copy.load_state_dict(model.state_dict())
        copy.to(device, precision)

        def search(sources: list[list[int]]) -> list[list[int]]:
            rows = copy.generate(padded(sources, device), early_stopping=early_stopping)[:, 1:].tolist()
            return [until_end(row, end)[: len(source) + OVER_SOURCE] for row, source in zip(rows, sources, strict=True)]

        return search

    def theirs(precision: torch.dtype) -> Search:
        marian = to_marian(model).to(device, precision)

        def search(sources: list[list[int]]) -> list[list[int]]:
            ids = padded(sources, device)
            settings = {"num_beams": BEAMS, "length_penalty": ALPHA, "max_new_tokens": ids.shape[1] + OVER_SOURCE}
            rows = marian.generate(ids, attention_mask=ids.ne(0).long(), **settings)[:, 1:].tolist()
            return [until_end(row, end) for row in rows]

        return search

    def engine(compute_type: str, quantization: str | None) -> Search:
        directory = export_ctranslate2(model, tokenizer, folder / compute_type, quantization)
        threads = {"intra_threads": torch.get_num_threads(), "inter_threads": 1} if device == "cpu" else {}
        translator = ctranslate2.Translator(str(directory), device=device, compute_type=compute_type, **threads)
        vocabulary = json.loads(next(directory.glob("*vocabulary.json")).read_text(encoding="utf-8"))
        numbers = {token: number for number, token in enumerate(vocabulary)}

        def search(sources: list[list[int]]) -> list[list[int]]:
            results = translator.translate_batch(
                [[vocabulary[token] for token in source] for source in sources],
                beam_size=BEAMS,
                length_penalty=ALPHA,
                max_decoding_length=max(map(len, sources)) + OVER_SOURCE,
            )
            return [[numbers[token] for token in result.hypotheses[0]] for result in results]

        return search

    half = torch.bfloat16
    precision = torch.float32 if device == "cpu" else half
    yield System("MarianMTModel.generate, input order", theirs(precision), False)
    yield System("MarianMTModel.generate, sorted", theirs(precision), True)
    if device == "cpu":
        yield System("CTranslate2 float32, sorted", engine("float32", None), True)
        yield System("CTranslate2 int8, sorted", engine("int8", "int8"), True)
        yield System("ours, float32, sorted", ours(torch.float32), True)
    else:
        yield System("CTranslate2 float16, sorted", engine("float16", "float16"), True)
        yield System("ours, float16, sorted", ours(torch.float16), True)
    yield System("ours, bfloat16, sorted", ours(half), True)
    yield System(f"ours, {str(precision)[6:]}, sorted, stopping as CTranslate2", ours(precision, True), True)


def product_limit(model: VaswaniForConditionalGeneration, sources: list[list[int]], ours: System) -> float:
    """Upper bound of sentences per second: only the products with weights, in float32, 128 rows each.

    Counts the rows that the search feeds to the decoder, and times the products of all layers in sequence. Weights of
    decoder and softmax are packed, as in the search.
    """
    rows = 0
    step = IncrementalDecoder.step

    def counting(decoder: IncrementalDecoder, tokens: torch.Tensor, parents: torch.Tensor) -> Iterable[torch.Tensor]:
        nonlocal rows
        rows += tokens.numel()
        return step(decoder, tokens, parents)

    IncrementalDecoder.step = counting  # type: ignore[method-assign, assignment]  # to count
    try:
        ours.run(sources)
    finally:
        IncrementalDecoder.step = step  # type: ignore[method-assign]
    of_decoder: list[list[Any]] = []
    of_source: list[Any] = []
    layer: Any
    for layer in model.model.decoder.layers:
        own, cross, inner = layer.self_attn, layer.encoder_attn, layer.feed_forward
        of_decoder += [[own.q_proj, own.k_proj, own.v_proj], [own.out_proj], [cross.q_proj], [cross.out_proj]]
        of_decoder += [[inner.fc1], [inner.fc2]]
        of_source += [cross.k_proj, cross.v_proj]
    for layer in model.model.encoder.layers:
        own, inner = layer.self_attn, layer.feed_forward
        of_source += [own.q_proj, own.k_proj, own.v_proj, own.out_proj, inner.fc1, inner.fc2]
    of_decoder.append([model.lm_head])
    packed = [(joined_projection(linears), linears[0].in_features) for linears in of_decoder]
    each_row = seconds_per_row(packed)
    each_source = seconds_per_row([(linear, linear.in_features) for linear in of_source])
    return len(sources) / (rows * each_row + sum(map(len, sources)) * each_source)


@torch.no_grad()
def seconds_per_row(products: list[tuple[Callable[[torch.Tensor], torch.Tensor], int]]) -> float:
    """Seconds per row of all products in sequence, on 128 rows; each product comes with its input's width."""
    inputs = {width: torch.randn(128, width) for _, width in products}
    times = []
    for _ in range(10):
        start = time.perf_counter()
        for multiply, width in products:
            multiply(inputs[width])
        times.append(time.perf_counter() - start)
    return min(times) / 128


KINDS = {  # by words in the names of operations; the first match counts
    "attention": ("bmm", "scaled_dot_product"),
    "products with weights": ("linear", "addmm", "mm", "mv"),
    "copies": ("copy", "index", "gather", "cat", "clone", "repeat", "fill", "zero"),
    "softmax, top-k": ("softmax", "topk", "sort", "amax", "max"),
}


def where_time_goes(system: System, sources: list[list[int]]) -> dict[str, float]:
    """Shares of the time of one typical batch by kind of operation; the rest is mostly Python."""
    middle = batches(sources, system.batch_size, system.is_sorted)
    batch = [sources[index] for index in middle[len(middle) // 2]]
    system.search(batch)
    start = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        system.search(batch)
    whole = (time.perf_counter() - start) * 1e6
    shares = dict.fromkeys(KINDS, 0.0)
    for event in profile.key_averages():
        name = event.key.split("::")[-1].lower()
        kind = next((kind for kind, words in KINDS.items() if any(word in name for word in words)), None)
        if kind is not None and "::" in event.key:
            shares[kind] += event.self_cpu_time_total / whole
    return {**shares, "rest": max(0.0, 1 - sum(shares.values()))}


def compare(
    title: str,
    model: VaswaniForConditionalGeneration,
    tokenizer: VaswaniTokenizer,
    sources: list[list[int]],
    args: Arguments,
    references: list[str] | None = None,
) -> SpeedTable:
    """One table: every system on the same sentences."""
    with tempfile.TemporaryDirectory() as folder:
        kinds = list(peers(model, tokenizer, args.device, Path(folder)))
        for system in kinds:
            system.search(sources[:4])  # the first call includes one-time work
        systems = [replace(system, batch_size=size) for system in kinds for size in args.batch_sizes]
        for _ in range(args.rounds):
            for system in track(systems, description=title):
                system.run(sources)
        exact = next(system for system in systems if system.name.startswith("ours"))
        rows = []
        for system in systems:
            same = sum(a == b for a, b in zip(system.outputs, exact.outputs, strict=True))
            hypotheses = tokenizer.batch_decode(system.outputs, skip_special_tokens=True)
            is_profiled = args.device == "cpu" and not system.name.startswith("CTranslate2")
            row = Speed(
                system=system.name,
                batch=system.batch_size,
                sentences_per_second=len(sources) / system.seconds,
                ratio_to_first=systems[0].seconds / system.seconds,
                same_as_ours=same / len(sources),
                bleu=None if references is None else sacrebleu_score(hypotheses, references).score,
                time=where_time_goes(system, sources) if is_profiled else None,
            )
            rows.append(row)
        limit = product_limit(model, sources, exact) if args.device == "cpu" else None
    return SpeedTable(title, len(sources), limit, rows)


def table(result: SpeedTable) -> str:
    """A table with its title, hardware and data."""
    limit = result.product_limit
    sizes: dict[str, list[int]] = {}
    fastest: dict[str, Speed] = {}
    for row in sorted(result.rows, key=lambda row: row.sentences_per_second):
        sizes.setdefault(row.system, []).append(row.batch)
        fastest[row.system] = row
    facts = [
        f"{result.sentences} sentences, beam {BEAMS}, alpha {ALPHA}. Each system in the fastest of the batch sizes "
        f"that were tried, over all sentences. The ratio is to the first system."
    ]
    if limit is not None:
        facts.append(f"The matrix products of our search alone, in float32: {limit:.1f} sentences/s.")
    kinds = (*KINDS, "rest")
    lines = [
        ["system", "batch", "tried", "sentences/s", "ratio", "of the product limit", "same as ours", "BLEU", *kinds]
    ]
    for name in dict.fromkeys(row.system for row in result.rows):
        row = fastest[name]
        speed = row.sentences_per_second
        is_exact = limit is not None and "int8" not in row.system and "bfloat16" not in row.system
        cells = [name, str(row.batch), ", ".join(map(str, sorted(sizes[name]))), f"{speed:.1f}"]
        cells.append(f"{speed / fastest[result.rows[0].system].sentences_per_second:.2f}")
        cells += [f"{speed / limit:.0%}" if is_exact else "-", f"{row.same_as_ours:.1%}"]
        cells.append("-" if row.bleu is None else f"{row.bleu:.2f}")
        lines.append(cells + ["-" if row.time is None else f"{row.time[kind]:.0%}" for kind in kinds])
    return "\n\n".join([f"## {result.title}", "\n".join(facts), markdown_table(lines)])


def as_markdown(record: DecodeRecord) -> str:
    run = record.run
    head = ["# Speed of beam search", f"`{run.command}`, commit `{run.commit}`, {run.hardware}."]
    return "\n\n".join([*head, *map(table, record.results)]) + "\n"


def write(results: list[SpeedTable], output: Path) -> None:
    """Write the tables so far, and show the last."""
    record = DecodeRecord(describe_run(), results)
    record.save(output / "decode.json")
    atomic_write(output / "decode.md", as_markdown(record))
    print(printable(table(results[-1])))


def read_texts(args: Arguments) -> tuple[list[str], list[str] | None]:
    """The sentences and their references, if they are given.

    Raises:
        ValueError: The text is empty, or the references are not as many.
        OSError: There is no such file.
    """
    lines = list(read_lines(Path(args.text)))
    if not any(map(str.strip, lines)):
        raise ValueError(f"text: there is nothing in {args.text} to translate")
    if args.references is None:
        return lines, None
    references = list(read_lines(Path(args.references)))
    if len(references) != len(lines):
        raise ValueError(f"references: {args.references} has {len(references)} lines, but {args.text} has {len(lines)}")
    return lines, references


def main() -> None:
    (args,) = RecipeParser([Arguments]).parse()
    if args.device == "cpu":
        keep_freed_memory()
    torch.manual_seed(0)
    with exit_on_error("decode.py"):
        lines, references = read_texts(args)
        models = [open_model(name, model_type="vaswani") for name in args.model]
        output = make_directory("output", args.output)
    chosen = spread(len(lines), args.sentences)
    references = references and [references[line] for line in chosen]
    results = []
    for name, saved in zip(args.model, models, strict=True):
        model, tokenizer = saved.load(), saved.tokenizer
        sources = tokenizer([lines[line] for line in chosen]).input_ids
        results.append(compare(name, model, tokenizer, sources, args, references))
        write(results, output)


if __name__ == "__main__":
    main()
