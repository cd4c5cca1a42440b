"""Convert a translation model of another toolkit into one of this package.

The sources are OPUS-MT (`MarianMTModel`) and WMT19 (`FSMTForConditionalGeneration`) models of transformers, by
directory or by name on the Hub, and checkpoints of fairseq's `transformer`, without fairseq:

    python recipes/convert.py --toolkit marian --model Helsinki-NLP/opus-mt-en-de --output runs/opus-en-de
    python recipes/convert.py --toolkit fsmt --model facebook/wmt19-en-de --output runs/wmt19-en-de
    python recipes/convert.py --toolkit fairseq --model checkpoints/checkpoint_best.pt --dictionaries data-bin/en-de \
        --output runs/fairseq-en-de

The output directory then has the model, a generation_config with the original's search options, and the original's
tokenizer. The recipe needs `pip install -e ".[convert]"`.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoTokenizer, FSMTTokenizer, PreTrainedTokenizerBase

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.convert.fairseq import fairseq_tokenizer, from_fairseq, read_checkpoint
from vaswani_transformer.convert.from_transformers import from_fsmt, from_marian
from vaswani_transformer.decoding.saved_model import open_model, require_finite
from vaswani_transformer.options.arguments import option, refuse_unused
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.system.console import PlainConsole
from vaswani_transformer.system.files import atomic_directory
from vaswani_transformer.system.manifests import MODEL_FILES, Manifest


@dataclass
class ConvertArguments:
    """Options of convert.py."""

    toolkit: Literal["marian", "fsmt", "fairseq"] = option(MISSING, "Toolkit that trained or saved the model.")
    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub; fairseq: the checkpoint.")
    output: str = option(MISSING, "Directory to create.")
    dictionaries: str | None = option(
        None, "fairseq: directory of dict.*.txt and bpecodes; by default the checkpoint's own."
    )

    def __post_init__(self) -> None:
        if self.toolkit != "fairseq":
            refuse_unused(self, {"dictionaries": "it is for --toolkit fairseq"})


# Tokenizer class and conversion for each `model_type` of transformers. To add one, add it here, in
# `ConvertArguments.toolkit`, and as a function of `convert/from_transformers.py`.
TRANSFORMERS: dict[str, tuple[type, Callable[[Any], VaswaniForConditionalGeneration]]] = {
    "marian": (AutoTokenizer, from_marian),
    "fsmt": (FSMTTokenizer, from_fsmt),
}


def main() -> None:
    with recipe_options(ConvertArguments) as args:
        with atomic_directory(args.output) as directory:
            model, tokenizer = converted(args)
            model.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
            Manifest.from_files(directory, MODEL_FILES).save(directory)
        show(args, model, tokenizer)


def converted(args: ConvertArguments) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerBase]:
    """The converted model and its tokenizer; raises a ValueError for a model of another type or damaged files."""
    if args.toolkit in TRANSFORMERS:
        tokenizer_class, convert = TRANSFORMERS[args.toolkit]
        saved = open_model(args.model, model_type=args.toolkit, tokenizer_class=tokenizer_class, to_convert=True)
        return convert(saved.load(torch.float32)), saved.tokenizer
    checkpoint = read_checkpoint(args.model)
    model = from_fairseq(checkpoint)
    require_finite(model.state_dict().items(), f"model: {args.model}")
    longest = checkpoint.settings.get("max_source_positions") or 1024
    return model, fairseq_tokenizer(args.dictionaries or Path(args.model).parent, model.config, longest)


def show(args: ConvertArguments, model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
    """Print a summary of the converted model."""
    config, search = model.config, model.generation_config
    console = PlainConsole()
    console.print(f"{args.model} as a model of this package: {args.output}", soft_wrap=True)
    rows = {
        "parameters": f"{model.num_parameters():,}",
        "layers": f"{config.encoder_layers} + {config.decoder_layers}, d_model {config.d_model}",
        "vocabulary": f"{config.vocab_size:,} source, {config.output_vocab_size:,} target",
        "tokenizer": type(tokenizer).__name__,
        "search": f"{search.num_beams or 1} beams",
    }
    console.print_table(("", ""), rows.items(), show_header=False)


if __name__ == "__main__":
    main()
