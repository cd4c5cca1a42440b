"""Compare the speed of the search, greedy and with four beams, with the same weights and sentences.

    python recipes/benchmarks/decode.py --model runs/multi30k_en_de --exports ctranslate2 ctranslate2:int8 \
        --text data/multi30k/test_2016_flickr.en.gz \
        --references data/multi30k/test_2016_flickr.de.gz

Use a trained model, since models with random weights never generate EOS, and text of the kind that it was trained on.
The peers are `MarianMTModel.generate`, in input order and in batches of similar length, and CTranslate2 with each
export, with and without its shortlist. Translations have at most 50 tokens more than their source; for the peers, more
than the longest source of the batch.

Each system translates everything with each of `--batch_sizes`; a table for each number of beams shows its fastest
result, `decode.json` all. With beams, each system searches by its own rule. Ours stops when no live hypothesis can
still win, and normalises as in section 6.1. CTranslate2 stops when as many hypotheses as beams are finished.
transformers stops when live hypotheses look worse. These two normalise by |Y|^alpha. Speeds are in sentences per
second; all systems translate in turn for `--seconds`, and the fastest time of each counts. On a GPU the peers run in
half precision.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmark import DeviceArguments, headline, run_benchmark
from transformers import PreTrainedModel

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.corpora import evenly_spaced
from vaswani_transformer.decoding.saved_model import SavedModel, open_model
from vaswani_transformer.engines.exported_model import exported, is_engine_name
from vaswani_transformer.engines.marian import to_marian
from vaswani_transformer.evaluation.scores import sacrebleu_score
from vaswani_transformer.evaluation.test_sets import read_text
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.options.arguments import COUNT, POSITIVE, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.system.processor import keep_freed_memory
from vaswani_transformer.system.typed_json import Record
from vaswani_transformer.training.precision import shortest_times


ALPHA = 0.6
OVER_SOURCE = 50  # tokens that a translation may have more than its source (6.1)
PEER = "CTranslate2"  # the first system whose name begins with it has the ratio 1

Tokens = list[list[int]]
# Maps token ids of sources to token ids of translations, without EOS.
Search = Callable[[Tokens], Tokens]


@dataclass
class Arguments(DeviceArguments):
    """Options of the benchmark."""

    model: str = option(MISSING, "Directory of a trained model.")
    exports: list[str] = option([], "Exports to CTranslate2, as --engine of translate.py.")
    target_language: str | None = option(None, "Code of the language to translate into, of a model of several.")
    text: str = option(MISSING, "Source sentences, one a line.")
    references: str | None = option(None, "Their translations, for BLEU.")
    sentences: int = option(500, "Sentences to translate, from all over the text.", COUNT)
    batch_sizes: list[int] = option([16, 32, 64, 128, 256], "Sentences a batch, each for all systems.", COUNT)
    beams: list[int] = option([1, 4], "Numbers of beams, a table each; 1 is greedy search.", COUNT)
    seconds: float = option(60.0, "Seconds to translate with all systems in turn; the fastest time counts.", POSITIVE)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of a system at one batch size: a row of a table."""

    system: str
    batch: int
    sentences_per_second: float
    same_as_ours: float  # share of the sentences
    bleu: float | None = None


@dataclass(frozen=True)
class SpeedTable:
    """All systems on the same sentences."""

    title: str
    sentences: int
    rows: list[Speed]
    beams: int


@dataclass(frozen=True)
class DecodeRecord(Record):
    """`decode.json`."""

    run: Provenance
    results: list[SpeedTable]


@dataclass(frozen=True)
class System:
    """A search to measure, and whether its batches have sentences of similar length."""

    name: str
    search: Search
    is_sorted: bool = True


def all_systems(model: PreTrainedModel, tokenizer: VaswaniTokenizer, args: Arguments, beams: int) -> Iterator[System]:
    """The peers with the same weights; our search in each type, in the peers' type also with their stopping rule."""
    is_cpu, options = args.device == "cpu", {"num_beams": beams, "length_penalty": ALPHA}
    peers_dtype = torch.float32 if is_cpu else torch.bfloat16
    marian = generate_search(to_marian(model).to(args.device, peers_dtype), **options)
    yield System("MarianMTModel.generate, input order", marian, is_sorted=False)
    yield System("MarianMTModel.generate, sorted", marian)
    for name in args.exports:
        directory = exported(name, model, tokenizer) if is_engine_name(name) else Path(name)
        search = partial(export_search, directory, tokenizer, args.device, beam_size=beams, length_penalty=ALPHA)
        yield System(f"{PEER}, {Path(name).name}", search(use_vmap=False))
        if (directory / "vmap.txt").exists():
            yield System(f"{PEER}, {Path(name).name}, shortlist", search(use_vmap=True))
    for dtype in (torch.float32 if is_cpu else torch.float16, torch.bfloat16):
        search = partial(generate_search, copy.deepcopy(model).to(args.device, dtype), **options)
        name = f"ours, {str(dtype).removeprefix('torch.')}, sorted"
        yield System(name, search())
        if dtype == peers_dtype and beams > 1:
            yield System(f"{name}, stopping as {PEER}", search(early_stopping=True))


def generate_search(model: PreTrainedModel, **settings: Any) -> Search:
    """The search of `generate`, with `settings`, in one batch. Peers have one limit for all sentences."""
    padding, end = model.config.pad_token_id, model.config.eos_token_id
    is_ours = isinstance(model, VaswaniForConditionalGeneration)

    def search(sources: Tokens) -> Tokens:
        rows = [torch.tensor(ids) for ids in sources]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)  # [batch, source]
        limit = {} if is_ours else {"max_new_tokens": ids.shape[1] + OVER_SOURCE}
        inputs = {"input_ids": ids.to(model.device), "attention_mask": ids.ne(padding).long().to(model.device)}
        outputs = model.generate(**inputs, **limit, **settings)[:, 1:].tolist()
        return [row[: row.index(end)] if end in row else row for row in outputs]

    return search


def export_search(directory: Path, tokenizer: VaswaniTokenizer, device: str, **settings: Any) -> Search:
    """The search of CTranslate2 in one call of `translate_batch`, with `settings`."""
    from vaswani_transformer.engines.ctranslate2 import CTranslate2Translator

    kind = {"intra_threads": torch.get_num_threads()} if device == "cpu" else {"compute_type": "float16"}
    translator = CTranslate2Translator(directory, device=device, inter_threads=1, **kind).engine

    def search(sources: Tokens) -> Tokens:
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(source) for source in sources],
            max_decoding_length=max(map(len, sources)) + OVER_SOURCE,
            **settings,
        )
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

    return search


def in_batches(search: Search, sources: Tokens, size: int, is_sorted: bool) -> Tokens:
    """Search in batches of `size` sentences, of similar length or in input order."""
    order = list(range(len(sources)))
    if is_sorted:
        order.sort(key=lambda index: -len(sources[index]))
    outputs: Tokens = [[] for _ in sources]
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        for index, output in zip(batch, search([sources[index] for index in batch]), strict=True):
            outputs[index] = output
    return outputs


def compare(
    saved: SavedModel, args: Arguments, beams: int, sentences: list[str], references: list[str] | None
) -> SpeedTable:
    """Make one table: every system on the same sentences, in batches of every size."""
    model, tokenizer = saved.load(), saved.tokenizer
    systems = all_systems(model, tokenizer, args, beams)
    compared = {f"{system.name}, {size}": (system, size) for system in systems for size in args.batch_sizes}
    sources = tokenizer([saved.tagged(sentence, args.target_language) for sentence in sentences]).input_ids
    language = args.target_language or saved.config.target_language
    outputs: dict[str, Tokens] = {}

    def translate(name: str) -> None:
        system, size = compared[name]
        outputs[name] = in_batches(system.search, sources, size, system.is_sorted)

    seconds = shortest_times([*compared], translate, args.seconds)
    expected = next(tokens for name, tokens in outputs.items() if name.startswith("ours"))
    texts = {name: tokenizer.batch_decode(tokens, skip_special_tokens=True) for name, tokens in outputs.items()}
    rows = [
        Speed(
            system=system.name,
            batch=size,
            sentences_per_second=len(sources) / seconds[name],
            same_as_ours=sum(map(list.__eq__, outputs[name], expected)) / len(expected),
            bleu=None if references is None else sacrebleu_score(texts[name], references, language).score,
        )
        for name, (system, size) in compared.items()
    ]
    return SpeedTable(args.model, len(sources), rows, beams)


def table(result: SpeedTable) -> str:
    """A table with its title and data."""
    systems: dict[str, list[Speed]] = {}
    for row in result.rows:
        systems.setdefault(row.system, []).append(row)
    fastest = {name: max(rows, key=lambda row: row.sentences_per_second) for name, rows in systems.items()}
    base = next((name for name in systems if name.startswith(PEER)), result.rows[0].system)
    search = "greedy search" if result.beams == 1 else f"beam {result.beams}, alpha {ALPHA}"
    facts = (
        f"{result.sentences} sentences, {search}. Each system in the fastest of the batch sizes that were tried, over "
        f"all sentences. The ratio is to {base}."
    )
    lines = [["system", "batch", "tried", "sentences/s", "ratio", "same as ours", "BLEU"]]
    for name, row in fastest.items():
        cells = [name, str(row.batch), ", ".join(str(tried.batch) for tried in systems[name])]
        ratio = row.sentences_per_second / fastest[base].sentences_per_second
        cells += [f"{row.sentences_per_second:.1f}", f"{ratio:.2f}"]
        cells += [f"{row.same_as_ours:.1%}", "-" if row.bleu is None else f"{row.bleu:.2f}"]
        lines.append(cells)
    return "\n\n".join([f"## {result.title}", facts, markdown_table(lines)])


def as_markdown(record: DecodeRecord) -> str:
    return "\n\n".join([f"{headline('Speed of the search', record.run)}.", *map(table, record.results)]) + "\n"


def measure(args: Arguments) -> Iterator[DecodeRecord]:
    """The tables so far, after each number of beams."""
    lines, translations = read_text(args.text, args.references)
    chosen = [index for index in evenly_spaced(len(lines), args.sentences) if lines[index].strip()]
    sentences = [lines[index].strip() for index in chosen]
    references = translations and [translations[index] for index in chosen]
    saved = open_model(args.model, model_type="vaswani")
    if args.device == "cpu":
        keep_freed_memory()
    results: list[SpeedTable] = []
    run = describe_run()  # now: files written later would change the working tree
    for beams in args.beams:
        results.append(compare(saved, args, beams, sentences, references))
        yield DecodeRecord(run, results)


def main() -> None:
    run_benchmark("decode", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()
