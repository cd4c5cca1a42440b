"""Export a model to another engine, and compare the translations of both.

To CTranslate2; and with 8-bit weights and a parity report on a test set; and to a MarianMT model of transformers, which
`AutoModelForSeq2SeqLM` and `AutoTokenizer` load where this package is not installed:

    python recipes/export.py --model runs/demo --to ctranslate2 --output runs/demo-ctranslate2
    python recipes/export.py --model runs/demo --to ctranslate2 --output runs/demo-int8 --quantization int8 \
        --text news.en.gz --references news.de.gz
    python recipes/export.py --model runs/demo --to marian --output runs/demo-marian --text news.en.gz

To ONNX graphs that onnxruntime, optimum and, in a browser, transformers.js run; the latter searches greedily:

    python recipes/export.py --model runs/demo --to onnx --output runs/demo-onnx --num_beams 1 --text news.en.gz

The output directory then has the engine's model, the vocabulary, the tokenizer, the generation_config, a manifest, so
that `--force` replaces nothing else, and, with `--text`, `parity.json`. MarianMT is exact for models trained with
`--layer_norm_eps 1e-5`; ONNX always is. CTranslate2 searches by rules of its own, the others as transformers does; the
report counts differences that these rules cause as "rule". It also counts the lines with the same token ids by
`tokenizers` and the exported `tokenizer.json` alone. CTranslate2 needs `pip install -e ".[export]"`, ONNX
`pip install -e ".[onnx]"`.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedTokenizerBase

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.engines.exported_model import import_exporter, open_engine
from vaswani_transformer.engines.parity import ParityReport, parity_report
from vaswani_transformer.engines.shortlist import learn_shortlist
from vaswani_transformer.evaluation.test_sets import read_text
from vaswani_transformer.model.languages_vaswani import language_tag, with_tag
from vaswani_transformer.options.arguments import BEAMS, option, refuse_unused
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.system.console import PlainConsole


@dataclass
class ExportArguments:
    """Options of export.py."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    output: str = option(MISSING, "Directory to create.")
    to: Literal["ctranslate2", "marian", "onnx"] = option("ctranslate2", "Engine to export to.")
    quantization: str | None = option(None, "CTranslate2: dtype of the weights, such as int8; float32 by default.")
    shortlist: list[str] | None = option(
        None,
        "CTranslate2: training corpus, as for --train, from which to learn which target tokens each source token "
        "allows.",
    )
    num_beams: int | None = option(None, "Beams of the exported search; by default the model's.", BEAMS)
    text: str | None = option(None, "Source sentences on which to compare both models.")
    references: str | None = option(None, "Their translations, for BLEU.")
    target_language: str | None = option(
        None, "Language to translate --text into, of a model of both directions; by default its lines begin with tags."
    )
    force: bool = option(False, "Replace an earlier export.")

    def __post_init__(self) -> None:
        if self.text is None:
            refuse_unused(self, dict.fromkeys(("references", "target_language"), "it needs --text"))
        if self.to != "ctranslate2":
            refuse_unused(self, dict.fromkeys(("quantization", "shortlist"), "it needs --to ctranslate2"))


def main() -> None:
    with recipe_options(ExportArguments, "repeat the command with --force") as args:
        exporter = import_exporter(args.to)
        sentences, references = read_text(args.text, args.references) if args.text else ([], None)
        saved = open_model(args.model, model_type="vaswani")
        sentences = [saved.tagged(sentence, args.target_language) for sentence in sentences]
        require_short(saved.tokenizer, sentences, saved.config.max_positions or exporter.POSITIONS)
        model, tokenizer = saved.load(torch.float32), saved.tokenizer
        if args.num_beams is not None:
            model.generation_config.num_beams = args.num_beams
        if args.num_beams == 1:  # transformers saves no fields that greedy search ignores
            model.generation_config.length_penalty = model.generation_config.early_stopping = None
        options: dict[str, object] = {}
        if args.to == "ctranslate2":
            options["quantization"] = args.quantization
            options["shortlist"] = shortlist(args.shortlist, saved.config, tokenizer) if args.shortlist else None
        output, report = exporter.export(model, tokenizer, args.output, force=args.force, **options), None
        if sentences:
            engine = open_engine(output, torch.device("cpu"))
            file = next(output.glob("tokenizer.json"), None)
            language = args.target_language or saved.config.target_language
            report = parity_report(model, tokenizer, engine, sentences, references, file, language)
            report.save(output / "parity.json")
        show(args, output, report)


def require_short(tokenizer: PreTrainedTokenizerBase, sentences: list[str], positions: int) -> None:
    """Refuse sentences that are too long for the exported model, before it is exported."""
    for number, ids in enumerate(tokenizer(sentences).input_ids if sentences else [], start=1):
        if len(ids) > positions:
            raise ValueError(f"text: line {number} has {len(ids)} tokens, and the export takes {positions}; split it")


def shortlist(corpus: list[str], config: VaswaniConfig, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[str]]:
    """The shortlist of a corpus, in each direction of the model; its columns are the model's languages."""
    languages = (config.source_language or "source", config.target_language or "target")
    directions = (languages, languages[::-1]) if config.language_tags else (languages,)
    pairs = (
        (with_tag(row[source], language_tag(target) if config.language_tags else None), row[target])
        for row in load_parallel_corpus(corpus, *languages)["translation"]
        for source, target in directions
    )
    return learn_shortlist(tokenizer, pairs)


def show(args: ExportArguments, output: Path, report: ParityReport | None) -> None:
    """Print a summary of the export and of the parity report."""
    console = PlainConsole()
    console.print(f"{args.model} for {args.to}: {output}", soft_wrap=True)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    rows = {"weights": args.quantization or "float32", "size on disk": f"{size / 1e6:.1f} MB"}
    if report is not None:
        if report.same_tokens is not None:
            rows["same tokens by tokenizer.json"] = f"{report.same_tokens} of {report.lines}"
        rows["same hypotheses"] = f"{report.identical} of {report.lines} ({report.identical / report.lines:.2%})"
        rows |= {f"differences: {kind.replace('_', ' ')}": str(count) for kind, count in report.kinds.items()}
        rows |= {f"sacreBLEU, {name}": f"{bleu.score:.2f}" for name, bleu in (report.bleu or {}).items()}
        rows["all differences"] = str(output / "parity.json")
    console.print_table(("", ""), rows.items(), show_header=False)


if __name__ == "__main__":
    main()
