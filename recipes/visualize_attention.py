"""Draw a model's attention as in the paper's Figures 3 to 5.

    python recipes/visualize_attention.py --model runs/demo --source "The old man reads a book." --output attention.svg
    python recipes/visualize_attention.py --model runs/demo --source "The old man reads a book." --kind cross \
        --layer 2 --heads 1 3 --words Mann --merge_words --output cross.png

Layers and heads are counted from 1. The target is the model's own translation, unless `--target` gives another.
"""

from dataclasses import MISSING, dataclass
from typing import Literal

from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.system.files import require_new_file
from vaswani_transformer.visualization.figures import attention_view


@dataclass
class AttentionArguments:
    """A model, a sentence, and the part of the attention to draw."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    source: str = option(MISSING, "A sentence.")
    target: str | None = option(None, "Its translation; by default the model's own.")
    target_language: str | None = option(None, "Language of the translation, of a model of both directions.")
    trust_remote_code: bool = option(False, "Run code that comes with a model; only if you trust its author.")
    kind: Literal["encoder", "decoder", "cross"] = option(
        "encoder", "Self-attention of the encoder or the decoder, or from the target to the source."
    )
    layer: int | None = option(None, "The layer, from 1; by default the last.", COUNT)
    heads: list[int] | None = option(None, "The heads, from 1; by default all with --words, else their mean.", COUNT)
    words: list[str] | None = option(None, "The words whose lines to draw; by default all.")
    merge_words: bool = option(False, "Draw words instead of the tokens that they are divided into.")
    output: str = option(MISSING, "The picture to write, such as attention.svg or attention.png.")
    overwrite: bool = option(False, "Replace a picture that exists.")

    def __post_init__(self) -> None:
        require_new_file("output", self.output, self.overwrite)


def main() -> None:
    with recipe_options(AttentionArguments) as args:
        saved = open_model(args.model, trust_remote_code=args.trust_remote_code)
        source = saved.tagged(args.source, args.target_language)
        chosen = {"kind": args.kind, "layer": args.layer, "heads": args.heads, "words": args.words}
        picture = attention_view(saved.load(), saved.tokenizer, source, args.target, merge=args.merge_words, **chosen)
        picture.save(args.output)


if __name__ == "__main__":
    main()
