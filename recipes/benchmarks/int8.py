"""Compare ways to compute 8-bit weights by CTranslate2, with VNNI and with AVX2 alone.

    python recipes/benchmarks/int8.py --models model_cards/tatoeba-de-en runs/small --text test.de.gz \
        --references test.en.gz

The processor must have VNNI; environment variables emulate AVX2. A single-threaded process measures each way, all in
turn, in seconds of processor time, which other programs disturb less than wall-clock time.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, dataclass

from benchmark import BenchmarkArguments, headline, run_benchmark

from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.engines.ctranslate2 import export_ctranslate2
from vaswani_transformer.evaluation.scores import sacrebleu_score
from vaswani_transformer.evaluation.test_sets import read_text
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.model.languages_vaswani import Directions
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.system.typed_json import Record


NAMES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "CT2_FORCE_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
PROCESSORS = {"VNNI": {}, "AVX2, emulated": dict.fromkeys(NAMES, "AVX2") | {"ATEN_CPU_CAPABILITY": "avx2"}}
MKL = {"CT2_USE_MKL": "1"}
WAYS = {  # weights, compute_type, variables
    "float32": ("float32", "default", {}),
    "int8": ("int8", "default", {}),
    "int8, by MKL": ("int8", "default", MKL),
    "int8 weights, computed in float32": ("int8", "float32", {}),
}
WORKER = """
import json, sys, time
from vaswani_transformer.engines.ctranslate2 import CTranslate2Translator
sources = json.load(sys.stdin)
engine = CTranslate2Translator(sys.argv[1], compute_type=sys.argv[2], intra_threads=1)
engine.hypotheses(sources[:8])
start = time.process_time()
found = engine.hypotheses(sources)
print(json.dumps([time.process_time() - start, found]))
"""


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    models: list[str] = option(MISSING, "Directories of trained models, of the same languages.")
    text: str = option(MISSING, "Source sentences, one a line.")
    references: str = option(MISSING, "Their translations.")
    target_language: str | None = option(None, "Code of the language to translate into, of a model of several.")
    sentences: int = option(400, "Sentences to translate, the first of the text.", COUNT)
    rounds: int = option(2, "How often each way translates all sentences; the fastest counts.", COUNT)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A row of the table; `same_as_float32` is a share of the sentences."""

    model: str
    processor: str
    way: str
    sentences_per_second: float  # of processor time
    same_as_float32: float
    bleu: float


@dataclass(frozen=True)
class Int8Record(Record):
    """`int8.json`."""

    run: Provenance
    results: list[Way]


def compare(name: str, args: Arguments) -> Iterator[Way]:
    """Measure all ways with one model."""
    saved = open_model(name, model_type="vaswani")
    directions = Directions(saved.config)
    tag = directions.tag(None, args.target_language, is_required=True)
    lines, references = (side[: args.sentences] for side in read_text(args.text, args.references))
    sources = saved.tokenizer([directions.tagged(line, tag) for line in lines]).input_ids
    found: dict[tuple[str, str], tuple[float, list[list[int]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for weights in ("float32", "int8"):
            export_ctranslate2(saved.load("float32"), saved.tokenizer, f"{folder}/{weights}", weights)
        for _ in range(args.rounds):
            for processor, variables in PROCESSORS.items():
                for way, (weights, kind, more) in WAYS.items():
                    command = [sys.executable, "-c", WORKER, f"{folder}/{weights}", kind]
                    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables, **more}
                    done = subprocess.run(
                        command, env=environment, input=json.dumps(sources), capture_output=True, text=True, check=True
                    )
                    seconds, tokens = json.loads(done.stdout)
                    found[processor, way] = min(seconds, *found.get((processor, way), (seconds,))[:1]), tokens
    for (processor, way), (seconds, tokens) in found.items():
        texts = saved.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        yield Way(
            model=name.rstrip("/").rpartition("/")[2],
            processor=processor,
            way=way,
            sentences_per_second=len(sources) / seconds,
            same_as_float32=sum(map(list.__eq__, tokens, found[processor, "float32"][1])) / len(sources),
            bleu=sacrebleu_score(texts, references, directions.languages(tag)[1]).score,
        )


def as_markdown(record: Int8Record) -> str:
    lines = [["model", "processor", "way", "sentences/s", "same as float32", "BLEU"]]
    for row in record.results:
        numbers = (f"{row.sentences_per_second:.0f}", f"{row.same_as_float32:.1%}", f"{row.bleu:.2f}")
        lines.append([row.model, row.processor, row.way, *numbers])
    return f"{headline('Weights of 8 bits', record.run)}.\n\n{markdown_table(lines)}\n"


def measure(args: Arguments) -> Iterator[Int8Record]:
    """The ways so far, after each model."""
    run, results = describe_run(), list[Way]()
    for name in args.models:
        results += compare(name, args)
        yield Int8Record(run, results)


if __name__ == "__main__":
    run_benchmark("int8", Arguments, measure, as_markdown)
