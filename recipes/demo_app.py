"""Serve a page to try a model on: texts with their search and attention, and whole files.

    python recipes/demo_app.py --model runs/demo
    python recipes/demo_app.py --model user/en-de --push_to_space space

It needs `pip install -e ".[demo]"`. The page translates texts sentence by sentence, and files line by line. It shows a
translation while it is decoded, the hypotheses of the beam with their scores, an alignment, and the explorer of
explore.py. Examples are sentences of the test set, which the training wrote to the model's `all_results.json`.
Only this machine reaches the page, unless `--host` names another address, such as 0.0.0.0. `--push_to_space` writes the
folder of a Space that shows the same page, and serves nothing.
"""

import importlib.util
import socket
from dataclasses import dataclass
from pathlib import Path

from vaswani_transformer.decoding.decoding_arguments import DecodingArguments, ShownSearchArguments
from vaswani_transformer.io.console import exit_on_error, printable
from vaswani_transformer.model.languages_vaswani import direction, required_tag
from vaswani_transformer.model.saved_model import SavedModel
from vaswani_transformer.options.arguments import Interval, RecipeParser, option
from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.visualization.demo.space import write_space
from vaswani_transformer.visualization.demo.translator import DemoTranslator, Limits


@dataclass
class DemoArguments(ShownSearchArguments):
    """Which model the page shows, where, and how it decodes."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 is all of this machine's.", alias="--server_name")
    port: int = option(7860, "Port to listen on.", Interval(minimum=1, maximum=65535))
    examples: list[str] | None = option(
        None, "Texts to try; by default sentences of the test set, from the model's all_results.json."
    )
    push_to_space: str | None = option(None, "Folder of a Space to write, instead of serving the page.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.push_to_space is None:
            if importlib.util.find_spec("gradio") is None:
                raise ValueError("gradio is not installed; run `pip install gradio`")
        elif Path(self.push_to_space).exists():
            raise ValueError(f"push_to_space: {self.push_to_space} exists already; name another folder, or remove it")


def main() -> None:
    args, limits = RecipeParser((DemoArguments, Limits)).parse()
    with exit_on_error("demo_app.py"):
        if args.push_to_space is None:
            require_free_port(args)
        saved = args.open()
        source, _ = direction(saved.config, required_tag(saved.config, args.target_language))
        args.examples = args.examples or recorded_examples(saved.directory, source)
        if args.push_to_space is not None:
            make_space(args, limits)
        else:
            serve_model(args, limits, saved)


def require_free_port(args: DemoArguments) -> None:
    """Refuse an address that cannot be listened on, before the model is loaded."""
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    try:
        socket.create_server((args.host, args.port), family=family).close()
    except OSError as error:
        raise ValueError(f"host, port: cannot listen on port {args.port} of {args.host}: {error.strerror}") from None


def make_space(args: DemoArguments, limits: Limits) -> None:
    """Write the folder of a Space, with the options that differ from their defaults."""
    defaults = vars(Limits())
    changed = {name: value for name, value in vars(limits).items() if value != defaults[name]}
    settings = {**args.generate_kwargs, **changed}
    if args.target_language is not None:
        settings["target_language"] = args.target_language
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    options += ["--examples", *args.examples] if args.examples else []
    write_space(args.push_to_space, Path(__file__), args.model, options)
    print(f"{args.push_to_space}: push it with `hf upload USER/NAME {args.push_to_space} . --repo-type space`")


def serve_model(args: DemoArguments, limits: Limits, saved: SavedModel) -> None:
    from vaswani_transformer.visualization.demo.page import (  # gradio is optional, and imports for seconds
        build_page,
        serve,
    )

    model = DecodingArguments().load(saved)
    print(f"http://{args.host}:{args.port}")
    translator = DemoTranslator(model, saved.tokenizer, limits, args.target_language, **args.generate_kwargs)
    serve(build_page(translator, Path(args.model).name, args.examples), translator, args.host, args.port)


def recorded_examples(directory: Path, language: str | None) -> list[str]:
    """Sentences of the test set in a language, from the record of the training; none without it."""
    try:
        record = RunRecord.load(directory / "all_results.json")
    except (ValueError, OSError):  # the file of another program, or of a parser
        return []
    side = "reference" if language == record.data.target_language else "source"
    texts = [" ".join(getattr(example, side).split()) for example in record.examples or ()]
    return [text for text in texts if printable(text) == text and not text.startswith("-")]  # values of an option


if __name__ == "__main__":
    main()
