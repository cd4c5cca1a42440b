"""Draw a model's attention as in the paper's Figures 3 to 5, and other pictures.

    python recipes/visualize_attention.py --model runs/demo --source "The old man reads a book." --output attention.svg
    python recipes/visualize_attention.py --model runs/demo --source "The old man reads a book." --kind cross \
        --layer 2 --heads 1 3 --words Mann --merge_words --output cross.png
    python recipes/visualize_attention.py --model runs/demo --source "He sleeps." --picture entropy --output entropy.svg
    python recipes/visualize_attention.py --picture positions --d_model 128 --output positions.png

Layers and heads are counted from 1. The target is the model's own translation, unless `--target` gives another.
"""

from dataclasses import MISSING, dataclass, fields
from typing import Literal

from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.model.languages_vaswani import Directions
from vaswani_transformer.options.arguments import COUNT, option, refuse_unused
from vaswani_transformer.options.parser import RecipeParser
from vaswani_transformer.system.faults import exit_on_error
from vaswani_transformer.system.files import require_new_file
from vaswani_transformer.visualization.figures import Picture, attention_view, entropy_view, positions_view


@dataclass
class SentenceArguments:
    """A model, a sentence and its translation."""

    model: str | None = option(None, "Directory of a saved model, or its name on the Hub.")
    source: str | None = option(None, "A sentence.")
    target: str | None = option(None, "Its translation; by default the model's own.")
    target_language: str | None = option(None, "Language of the translation, of a model of both directions.")
    trust_remote_code: bool = option(False, "Run code that comes with a model; only if you trust its author.")


@dataclass
class AttentionArguments:
    """The part of the attention to draw."""

    kind: Literal["encoder", "decoder", "cross"] = option(
        "encoder", "Self-attention of the encoder or the decoder, or from the target to the source."
    )
    layer: int | None = option(None, "The layer, from 1; by default the last.", COUNT)
    heads: list[int] | None = option(None, "The heads, from 1; by default all with --words, else their mean.", COUNT)
    words: list[str] | None = option(None, "The words whose lines to draw; by default all.")
    merge_words: bool = option(False, "Draw words instead of the tokens that they are divided into.")


@dataclass
class PictureArguments(AttentionArguments, SentenceArguments):
    """A picture, and its file."""

    picture: Literal["attention", "entropy", "positions"] = option(
        "attention", "Attention between words; its entropy in each head; the positional encoding."
    )
    output: str = option(MISSING, "The picture to write, such as attention.svg or attention.png.")
    overwrite: bool = option(False, "Replace a picture that exists.")
    d_model: int = option(512, "Width of the positional encoding.", COUNT)

    def __post_init__(self) -> None:
        require_new_file("output", self.output, self.overwrite)
        unused = {
            "attention": (),
            "entropy": (AttentionArguments,),
            "positions": (SentenceArguments, AttentionArguments),
        }
        names = [field.name for kind in unused[self.picture] for field in fields(kind)]
        refuse_unused(self, dict.fromkeys(names, f"leave it out, or draw another picture than {self.picture}"))
        if self.picture != "positions" and None in (self.model, self.source):
            raise ValueError(f"model, source: give both for --picture {self.picture}")


def main() -> None:
    (args,) = RecipeParser((PictureArguments,)).parse()
    with exit_on_error():
        draw(args).save(args.output)


def draw(args: PictureArguments) -> Picture:
    if args.picture == "positions":
        return positions_view(args.d_model)
    saved = open_model(args.model, trust_remote_code=args.trust_remote_code)
    directions = Directions(saved.config)
    source = directions.tagged(args.source, directions.tag(None, args.target_language))
    read = (saved.load(), saved.tokenizer, source, args.target)
    if args.picture == "entropy":
        return entropy_view(*read)
    return attention_view(
        *read, merge=args.merge_words, kind=args.kind, layer=args.layer, heads=args.heads, words=args.words
    )


if __name__ == "__main__":
    main()
