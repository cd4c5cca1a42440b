"""Serve a page to try a model on: translations with confidence and alignment, and the explorer of explore.py.

    python recipes/demo_app.py --model runs/demo
    python recipes/demo_app.py --model runs/demo --server_name 0.0.0.0 --server_port 8000

It needs `pip install -e ".[demo]"`. The model's configuration names the heads that align words, and confidence is what
`score.py --confidence` measured. By default, only this machine reaches the page.
"""

from dataclasses import dataclass
from pathlib import Path

from accelerate import PartialState

from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.options.arguments import Interval, option
from vaswani_transformer.options.decoding import ShownSearchArguments
from vaswani_transformer.options.parser import RecipeParser
from vaswani_transformer.system.faults import exit_on_error


@dataclass
class DemoArguments(ShownSearchArguments):
    """Which model the page shows, where, and how it decodes; addresses as in gradio's `launch`."""

    server_name: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 listens on all interfaces.")
    server_port: int | None = option(
        None, "Port to listen on; by default the first free one from 7860.", Interval(minimum=1, maximum=65535)
    )
    share: bool = option(False, "Also make a public link, through gradio's servers.")


def main() -> None:
    (args,) = RecipeParser((DemoArguments,)).parse()
    with exit_on_error("demo_app.py"):
        saved = open_model(args.model, model_type="vaswani")
        from vaswani_transformer.visualization.demo import LOOK, demo_page  # optional, and imports for seconds

        model, name = saved.load().to(PartialState().device), Path(args.model).name
        page = demo_page(model, saved.tokenizer, name, args.target_language, **args.generate_kwargs)
        page.launch(server_name=args.server_name, server_port=args.server_port, share=args.share, **LOOK)


if __name__ == "__main__":
    main()
