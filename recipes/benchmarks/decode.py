"""Compares the speed of beam search, beam 4, on the same weights and the same sentences, side by side in one run.

    python recipes/benchmarks/decode.py --text ../shared/data/newstest/en-de/newstest2013.en.gz \
        --references ../shared/data/newstest/en-de/newstest2013.de.gz --model runs/multi30k_en_de

Two models: the base model with random weights, each of whose translations is as long as its source (nothing ends a
sentence but its limit); and the trained one of `--model`, whose sentences end when they end, at most 50 tokens behind
their source. The peers are `MarianMTModel.generate`, in input order and in batches of similar length, and CTranslate2,
in batches of similar length; each with 32 sentences a batch and with the batch size that is its best on a sample.

Writes `decode.md` and `decode.json` beside this script, or into `--output`; speeds are sentences a second, the best of
`--rounds` rounds, through all systems in turn. On a GPU the peers run in its half-precision types.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.arguments import RecipeParser
from vaswani_transformer.data.corpora import read_lines
from vaswani_transformer.evaluation import Bleu
from vaswani_transformer.export.ctranslate2 import export_ctranslate2
from vaswani_transformer.hub import describe_run
from vaswani_transformer.incremental_vaswani import IncrementalDecoder, joined_projection
from vaswani_transformer.modeling_vaswani import sinusoidal_positions
from vaswani_transformer.training.memory import keep_freed_memory


BEAMS, ALPHA = 4, 0.6
BATCH_SIZES = (16, 32, 64, 128)
SAMPLE = 128  # sentences on which the best batch size is found

Batches = list[list[int]]
Search = Callable[[list[list[int]]], list[list[int]]]


@dataclass
class Arguments:
    text: str = field(metadata={"help": "Source sentences, one a line."})
    references: str | None = field(default=None, metadata={"help": "Their translations, for BLEU."})
    model: str | None = field(default=None, metadata={"help": "Directory of a trained model."})
    output: str = field(default=str(Path(__file__).parent), metadata={"help": "Where decode.md and decode.json go."})
    device: str = field(default="cpu", metadata={"help": '"cpu" or "cuda".'})
    random_sentences: int = field(default=384, metadata={"help": "Sentences of the text for the base model."})
    rounds: int = field(default=2, metadata={"help": "How often each system translates everything."})


@dataclass
class System:
    """One row of the table."""

    name: str
    search: Search
    is_sorted: bool
    batch_size: int = 32
    seconds: float = float("inf")
    outputs: list[list[int]] = field(default_factory=list)

    def run(self, sources: list[list[int]]) -> None:
        """Translate everything, and keep the time if it is the best so far."""
        outputs: list[list[int]] = [[] for _ in sources]
        start = time.perf_counter()
        for batch in batches(sources, self.batch_size, self.is_sorted):
            for index, output in zip(batch, self.search([sources[index] for index in batch]), strict=True):
                outputs[index] = output
        self.seconds, self.outputs = min(self.seconds, time.perf_counter() - start), outputs


def batches(sources: list[list[int]], size: int, is_sorted: bool) -> Batches:
    order = list(range(len(sources)))
    if is_sorted:
        order.sort(key=lambda index: -len(sources[index]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def padded(sources: list[list[int]], device: str) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sources], batch_first=True).to(device)


def until_end(row: list[int], end: int) -> list[int]:
    return row[: row.index(end)] if end in row else row


def as_marian(model: VaswaniForConditionalGeneration) -> MarianMTModel:
    """The same model as transformers' own class for it, weight by weight."""
    config = model.config
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            forced_eos_token_id=None,
            max_position_embeddings=1024,
        )
    ).eval()
    names = {
        "self_attn_residual.norm": "self_attn_layer_norm",
        "encoder_attn_residual.norm": "encoder_attn_layer_norm",
        "feed_forward_residual.norm": "final_layer_norm",
        "feed_forward.fc": "fc",
    }
    weights = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        weights[name] = weight
    marian.load_state_dict(weights, strict=False)
    table = sinusoidal_positions(torch.arange(1024), config.d_model, config.position_encoding == "sinusoidal")
    for stack in (marian.model.encoder, marian.model.decoder):
        stack.embed_positions.weight.data = table.clone()
        stack.embed_tokens.weight.data[config.pad_token_id] = 0  # Marian has no other way to start from zero
    return marian


def peers(
    model: VaswaniForConditionalGeneration, tokenizer: VaswaniTokenizer, over_source: int, device: str, folder: Path
) -> Iterator[System]:
    """The systems to compare, each with the weights of `model`."""
    import ctranslate2

    end = model.config.eos_token_id

    def ours(precision: torch.dtype) -> Search:
        copy = VaswaniForConditionalGeneration(model.config).eval()
        copy.load_state_dict(model.state_dict())
        copy.generation_config.max_new_tokens_over_source = over_source
        copy.to(device, precision)

        def search(sources: list[list[int]]) -> list[list[int]]:
            rows = copy.generate(padded(sources, device))[:, 1:].tolist()
            return [until_end(row, end)[: len(source) + over_source] for row, source in zip(rows, sources, strict=True)]

        return search

    def theirs(precision: torch.dtype) -> Search:
        marian = as_marian(model).to(device, precision)

        def search(sources: list[list[int]]) -> list[list[int]]:
            ids = padded(sources, device)
            longest = ids.shape[1] + over_source
            settings = {"num_beams": BEAMS, "length_penalty": ALPHA, "max_new_tokens": longest}
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
                max_decoding_length=max(map(len, sources)) + over_source,
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


def with_best_batch(systems: list[System], sources: list[list[int]]) -> list[System]:
    """Each system as it is, and with the batch size that is fastest on a sample if that is another."""
    sample = sources[:: max(1, len(sources) // SAMPLE)]
    found = []
    for system in track(systems, description="Finding batch sizes"):
        seconds = {}
        for size in BATCH_SIZES:
            trial = System(system.name, system.search, system.is_sorted, size)
            trial.run(sample)
            seconds[size] = trial.seconds
        best = min(seconds, key=seconds.__getitem__)
        found.append(system)
        if best != system.batch_size:
            found.append(System(system.name, system.search, system.is_sorted, best))
    return found


def product_limit(model: VaswaniForConditionalGeneration, sources: list[list[int]], ours: System) -> float:
    """Sentences a second if nothing were done but the matrix products of our search, on 128 rows at a time.

    Counts the rows that the search feeds to the decoder, and times each product of one layer, and the softmax's, with
    the weights packed as the search has them.
    """
    rows = 0
    step = IncrementalDecoder.step

    def counting(decoder: IncrementalDecoder, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        nonlocal rows
        rows += tokens.numel()
        return step(decoder, tokens, parents)

    IncrementalDecoder.step = counting  # type: ignore[method-assign, assignment]  # to count
    try:
        ours.run(sources)
    finally:
        IncrementalDecoder.step = step  # type: ignore[method-assign]
    encoder: Any = model.model.encoder.layers[0]
    decoder: Any = model.model.decoder.layers[0]
    attention, cross = decoder.self_attn, decoder.encoder_attn
    feed_forward = [[decoder.feed_forward.fc1], [decoder.feed_forward.fc2]]
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    of_decoder = [qkv, [attention.out_proj], [cross.q_proj], [cross.out_proj], *feed_forward]
    own = encoder.self_attn
    of_encoder = [[own.q_proj], [own.k_proj], [own.v_proj], [own.out_proj], *feed_forward]
    of_source = [[cross.k_proj], [cross.v_proj]]
    config = model.config
    each_row = config.decoder_layers * seconds_per_row(of_decoder) + seconds_per_row([[model.lm_head]])
    each_source = config.encoder_layers * seconds_per_row(of_encoder) + config.decoder_layers * seconds_per_row(
        of_source
    )
    return len(sources) / (rows * each_row + sum(map(len, sources)) * each_source)


@torch.no_grad()
def seconds_per_row(products: list[list[torch.nn.Linear]]) -> float:
    total = 0.0
    for linears in products:
        multiply = joined_projection(linears)
        rows = torch.randn(128, linears[0].in_features, device=linears[0].weight.device)
        multiply(rows)
        times = []
        for _ in range(10):
            start = time.perf_counter()
            multiply(rows)
            times.append(time.perf_counter() - start)
        total += min(times) / 128
    return total


KINDS = {
    "matrix products": ("linear", "addmm", "mm", "bmm", "baddbmm", "matmul"),
    "copies": ("copy", "index", "gather", "cat", "clone", "contiguous", "reshape", "repeat", "scatter", "fill", "zero"),
    "softmax, top-k": ("softmax", "topk", "sort", "amax", "log", "max"),
}


def where_time_goes(system: System, sources: list[list[int]]) -> dict[str, float]:
    """Shares of the time of one typical batch, by kind of operation; the rest is Python and all else."""
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
    over_source: int,
    args: Arguments,
    references: list[str] | None = None,
) -> dict[str, Any]:
    """One table: every system on the same sentences."""
    with tempfile.TemporaryDirectory() as folder:
        systems = list(peers(model, tokenizer, over_source, args.device, Path(folder)))
        systems = with_best_batch(systems, sources)
        for _ in range(args.rounds):
            for system in track(systems, description=title):
                system.run(sources)
        exact = next(system for system in systems if system.name.startswith("ours"))
        first = systems[0].seconds
        rows = []
        for system in systems:
            row: dict[str, Any] = {"system": system.name, "batch": system.batch_size}
            row["sentences_per_second"] = len(sources) / system.seconds
            row["ratio_to_first"] = first / system.seconds
            same = sum(a == b for a, b in zip(system.outputs, exact.outputs, strict=True))
            row["same_as_ours"] = same / len(sources)
            if references is not None:
                hypotheses = tokenizer.batch_decode(system.outputs, skip_special_tokens=True)
                row["bleu"] = Bleu().compute(predictions=hypotheses, references=references)["score"]
            if not system.name.startswith("CTranslate2"):
                row["time"] = where_time_goes(system, sources)
            rows.append(row)
        limit = product_limit(model, sources, exact) if args.device == "cpu" else None
    return {"title": title, "sentences": len(sources), "product_limit": limit, "rows": rows}


def as_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    limit = result["product_limit"]
    head = ["system", "batch", "sentences/s", "ratio", "of the product limit", "same as ours", "BLEU", *KINDS, "rest"]
    body = []
    for row in result["rows"]:
        speed = row["sentences_per_second"]
        cells = [row["system"], str(row["batch"]), f"{speed:.1f}", f"{row['ratio_to_first']:.2f}"]
        cells.append("-" if limit is None else f"{speed / limit:.0%}")
        cells.append(f"{row['same_as_ours']:.1%}")
        cells.append(f"{row['bleu']:.2f}" if "bleu" in row else "-")
        cells += [f"{row['time'][kind]:.0%}" if "time" in row else "-" for kind in (*KINDS, "rest")]
        body.append(cells)
    return head, body


def write(results: list[dict[str, Any]], run: dict[str, Any], output: Path) -> None:
    (output / "decode.json").write_text(json.dumps({"run": run, "results": results}, indent=2) + "\n", encoding="utf-8")
    lines = ["# Speed of beam search", "", f"`{run['command']}`, commit `{run['commit']}`, {run['hardware']}.", ""]
    for result in results:
        head, body = as_table(result)
        limit = result["product_limit"]
        lines += [f"## {result['title']}", "", f"{result['sentences']} sentences, beam {BEAMS}, alpha {ALPHA}."]
        if limit is not None:
            lines.append(f"The matrix products of our search alone, in float32: {limit:.1f} sentences/s.")
        lines += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(cells) + " |" for cells in body]
        lines.append("")
        table = Table(*head, title=result["title"])
        for cells in body:
            table.add_row(*cells)
        Console(width=200).print(table)
    (output / "decode.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    (args,) = RecipeParser([Arguments]).parse()
    if args.device == "cpu":
        keep_freed_memory()
    torch.manual_seed(0)
    lines = list(read_lines(Path(args.text)))
    results = []
    tokenizer = VaswaniTokenizer.train(iter(lines), vocab_size=12000, show_progress=False)
    model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=37000)).eval()
    model.model.shared.weight.data[model.config.eos_token_id] = 0  # no sentence ends before its limit
    sources = [
        ids for ids in tokenizer(lines[:: max(1, len(lines) // args.random_sentences)]).input_ids if len(ids) > 1
    ]
    results.append(compare("base model, random weights", model, tokenizer, sources, 0, args))
    if args.model is not None:
        model = AutoModelForSeq2SeqLM.from_pretrained(args.model).eval()
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        references = None if args.references is None else list(read_lines(Path(args.references)))
        results.append(compare("trained model", model, tokenizer, tokenizer(lines).input_ids, 50, args, references))
    write(results, describe_run(), Path(args.output))


if __name__ == "__main__":
    main()
