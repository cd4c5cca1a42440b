"""Serve a page to try a model on: sentences with their search and attention, and whole files.

    python recipes/demo_app.py --model runs/demo
    python recipes/demo_app.py --model user/en-de --push_to_space space

It needs `pip install -e ".[demo]"`. The page shows a translation while it is decoded, the hypotheses of
the beam with their scores, an alignment, and the explorer of explore.py; it translates files of a sentence a line. Only
this machine reaches it, unless `--host` names another address, such as 0.0.0.0. `--push_to_space` writes the folder of
a Space that shows the same page, and serves nothing.
"""

import dataclasses
import importlib.util
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from vaswani_transformer.arguments import Interval, RecipeParser, option
from vaswani_transformer.console import exit_on_error
from vaswani_transformer.decoding import DecodingArguments, ShownSearchArguments
from vaswani_transformer.demo import DemoTranslator, Limits, write_space
from vaswani_transformer.model.languages_vaswani import required_tag
from vaswani_transformer.saved_model import SavedModel


@dataclass
class DemoArguments(ShownSearchArguments):
    """Which model the page shows, where, and how it decodes."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 is all of this machine's.", alias="--server_name")
    port: int = option(7860, "Port to listen on.", Interval(minimum=1, maximum=65535))
    push_to_space: str | None = option(None, "Folder of a Space to write, instead of serving the page.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.push_to_space is None and importlib.util.find_spec("gradio") is None:
            raise ValueError("gradio is not installed; run `pip install gradio`")
        if self.host != "localhost":
            try:
                ipaddress.ip_address(self.host)
            except ValueError:
                raise ValueError(f"host: {self.host!r} is neither an IP address nor localhost") from None
        if self.push_to_space is not None and Path(self.push_to_space).exists():
            raise ValueError(f"push_to_space: {self.push_to_space} exists already; name another folder, or remove it")


def main() -> None:
    args, limits = RecipeParser((DemoArguments, Limits)).parse()
    with exit_on_error("demo_app.py"):
        if args.push_to_space is None:
            require_free_port(args)
        saved = args.open()
        required_tag(saved.config, args.target_language)
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
        raise ValueError(f"port: cannot listen on port {args.port} of {args.host}: {error.strerror}") from None


def make_space(args: DemoArguments, limits: Limits) -> None:
    """Write the folder of a Space, with the options that differ from their defaults."""
    settings = {**args.generate_kwargs, **changed(limits)}
    if args.target_language is not None:
        settings["target_language"] = args.target_language
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    write_space(args.push_to_space, Path(__file__), args.model, options)
    print(f"{args.push_to_space}: push it with `hf upload USER/NAME {args.push_to_space} . --repo-type space`")


def changed(limits: Limits) -> dict[str, int]:
    found = {field.name: (getattr(limits, field.name), field.default) for field in dataclasses.fields(limits)}
    return {name: value for name, (value, default) in found.items() if value != default}


def serve_model(args: DemoArguments, limits: Limits, saved: SavedModel) -> None:
    from vaswani_transformer.demo.page import build_page, serve  # gradio is optional, and imports for seconds

    model = DecodingArguments().load(saved)
    print(f"http://{args.host}:{args.port}")
    translator = DemoTranslator(model, saved.tokenizer, limits, args.target_language, **args.generate_kwargs)
    serve(build_page(translator, Path(args.model).name), translator, args.host, args.port)


if __name__ == "__main__":
    main()
