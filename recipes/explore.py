"""Write a page that shows how a model translates one sentence: its attention, its beam search, its alternatives.

    python recipes/explore.py --model runs/demo --source "The old man reads a book." --output explorer.html
    python recipes/explore.py --model runs/demo --source "Who sleeps?" --target "Wer schläft?" --num_beams 8

The page is one HTML file that needs no network. It shows words, made of the model's tokens. Point at a word to see its
attention, choose one to see the alternatives to it, and follow the hypotheses of the search. With `--target`, attention
and alternatives belong to that translation; the search is always the model's own. Of a text of several sentences, the
page shows the first, and says so.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path

from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.options.arguments import COUNT, Interval, option
from vaswani_transformer.options.decoding import ShownSearchArguments
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.system.files import require_new_file
from vaswani_transformer.visualization.explorer import explore


@dataclass
class ExplorerArguments(ShownSearchArguments):
    """A sentence, and the limits of its page."""

    source: str = option(MISSING, "The sentence; of a text of several, the page shows the first.")
    target: str | None = option(None, "A translation to show, instead of the model's.")
    output: str = option("explorer.html", "HTML file to write.")
    overwrite: bool = option(False, "Replace an output file that exists.")
    alternatives: int = option(4, "Alternatives to each token; each takes a search.", Interval(minimum=0, maximum=100))
    max_tokens: int = option(
        128, "Refuse sentences with more tokens; each token takes `--alternatives` searches.", COUNT
    )

    def __post_init__(self) -> None:
        require_new_file("output", self.output, self.overwrite)


def main() -> None:
    with recipe_options(ExplorerArguments) as args:
        saved = open_model(args.model, model_type="vaswani")
        source = saved.tagged(args.source, args.target_language)
        options = {"alternatives": args.alternatives, "max_tokens": args.max_tokens, **args.generate_kwargs}
        explore(saved.load(), saved.tokenizer, source, args.target, show_progress=True, **options).save(args.output)
        print(f"{args.output}: {Path(args.output).stat().st_size / 1000:.0f} kB; open it in a browser")


if __name__ == "__main__":
    main()
