"""Serve a page to try a model on: translations with alternatives to their words, and the explorer of explore.py.

    python recipes/demo_app.py --model runs/demo
    python recipes/demo_app.py --model runs/demo --server_name 0.0.0.0 --server_port 8000

It needs `pip install -e ".[demo]"`. The model's configuration names the heads that align words, and sentences are rated
after `score.py --confidence`. The examples are the card's. By default, only this machine reaches the page.
"""

from dataclasses import dataclass
from pathlib import Path

from accelerate import PartialState

from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.options.arguments import Interval, option
from vaswani_transformer.options.decoding import ShownSearchArguments
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.runs.records import RunRecord


@dataclass
class DemoArguments(ShownSearchArguments):
    """Which model the page shows, where, and how it decodes; addresses as in gradio's `launch`."""

    server_name: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 listens on all interfaces.")
    server_port: int | None = option(None, "Port; by default the first free one from 7860.", Interval(1, 65535))
    share: bool = option(False, "Also make a public link, through gradio's servers.")


def card(record: RunRecord | None, target_language: str | None) -> tuple[str, list[str]]:
    """A sentence about the training text, and examples of the test set, the best translated first."""
    if record is None:
        return "", []
    domain, is_back = record.data.domain, target_language == record.data.source_language
    about = f"Trained on {domain}: expect errors in other text, and check names and numbers." if domain else ""
    examples = [each.reference if is_back else each.source for each in record.examples or []]
    return about, examples[::-1]


def main() -> None:
    with recipe_options(DemoArguments) as args:
        saved = open_model(args.model, model_type="vaswani")
        from vaswani_transformer.visualization.demo import LOOK, demo_page  # optional, and imports for seconds

        model, name = saved.load().to(PartialState().device), Path(args.model).name
        about, examples = card(RunRecord.from_directory(saved.directory), args.target_language)
        page = demo_page(model, saved.tokenizer, name, args.target_language, about, examples, **args.generate_kwargs)
        page.launch(server_name=args.server_name, server_port=args.server_port, share=args.share, **LOOK)


if __name__ == "__main__":
    main()
