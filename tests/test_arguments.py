"""Options of the recipes, from the command line and from YAML: values, help, and one line for a mistake."""

import dataclasses
import math
import re
import typing
from pathlib import Path

import pytest
from helpers import REPOSITORY, recipe_module
from reference import FOLDER, page
from transformers import HfArgumentParser

from vaswani_transformer.__main__ import recipes
from vaswani_transformer.options.arguments import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, option
from vaswani_transformer.options.data import DataArguments
from vaswani_transformer.options.parser import RecipeParser
from vaswani_transformer.options.training import ModelArguments, VaswaniTrainingArguments


RECIPES = [
    str(path.relative_to(REPOSITORY / "recipes"))
    for path in sorted((REPOSITORY / "recipes").rglob("*.py"))
    if re.search("RecipeParser|recipe_options|read_training_options", text := path.read_text(encoding="utf-8"))
    and "def main(" in text
]


def parser_of(name: str, patch: pytest.MonkeyPatch) -> RecipeParser:
    """The first parser that `main` of a recipe makes; it requires no option."""
    made: list[RecipeParser] = []

    def read(parser: RecipeParser, argv: object = None) -> None:
        made.append(parser)
        raise SystemExit

    with patch.context() as patched:
        patched.setattr(RecipeParser, "read", read)
        with pytest.raises(SystemExit):
            recipe_module(name).main()
    for action in made[0]._actions:
        action.required = False
    return made[0]


def refusal(parser: RecipeParser, *argv: str) -> str:
    """The line that refuses these options."""
    with pytest.raises(SystemExit) as stop:
        parser.read(argv)
    message = stop.value.code
    assert isinstance(message, str)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{parser.prog}: ")
    return message


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_option_with_an_interval_refuses_numbers_outside_it(recipe, monkeypatch):
    parser = parser_of(recipe, monkeypatch)
    for kind in parser.dataclass_types:
        for field in dataclasses.fields(kind):
            if field.init and "interval" in field.metadata:
                assert field.name in refusal(parser, f"--{field.name}=-200")


def test_the_help_has_one_line_of_usage_and_defaults_and_rare_options_on_request(monkeypatch):
    rare = ("--push_to_hub", "--neftune_noise_alpha")
    text = parser_of("train_wmt.py", monkeypatch).format_help()
    assert len(text.partition("\n\n")[0].splitlines()) == 1  # the usage
    joined = " ".join(text.split())  # lines break where the terminal ends
    assert "(default: 37000)" in joined
    assert "(default: None)" not in joined
    assert not any(name in re.findall(r"^  (--\w+)", text, re.M) for name in rare)
    monkeypatch.setattr("sys.argv", ["train_wmt.py", "--help_all"])
    text = parser_of("train_wmt.py", monkeypatch).format_help()
    assert all(name in text for name in rare)


@pytest.mark.parametrize("command", recipes())
def test_a_page_of_reference_is_the_help_of_its_command(command):
    assert {path.stem for path in FOLDER.iterdir()} == {*recipes()}
    assert (FOLDER / f"{command}.md").read_text(encoding="utf-8") == page(command, recipes()[command])


def test_options_have_one_spelling_which_the_error_for_a_dashed_one_names(monkeypatch, tmp_path):
    parser = parser_of("train_wmt.py", monkeypatch)
    assert not [name for name in parser._option_string_actions if "-" in name.lstrip("-")]
    options = [name for name in parser._option_string_actions if "_" in name]
    assert "--no_dataloader_pin_memory" not in options  # it is --dataloader_pin_memory false
    assert {"--d_k", "--hub_token", "--dataloader_pin_memory"} <= {*options}
    for name in options:
        dashed = name.replace("_", "-")
        for words in ((dashed, "1"), (f"{dashed}=/a/long/path/to/some/file",)):
            assert refusal(parser, *words).endswith(f"there is no option {words[0]}; is it {name}?")
    (tmp_path / "c.yaml").write_text("save-steps: 5", encoding="utf-8")
    message = refusal(parser, "--config", str(tmp_path / "c.yaml"))
    assert message.endswith("c.yaml: there is no option 'save-steps'; is it --save_steps?")


def test_the_parser_of_transformers_takes_the_same_options(tmp_path):
    words = ["--output_dir", str(tmp_path), "--source_tokens", "77", "--muon", "--use_cpu"]
    (args,) = HfArgumentParser(VaswaniTrainingArguments).parse_args_into_dataclasses(words)
    assert (args.source_tokens, args.muon, args.adam_beta2) == (77, True, 0.98)
    assert "Source tokens of a batch" in HfArgumentParser(VaswaniTrainingArguments).format_help()
    HfArgumentParser((Options, DataArguments, ModelArguments))


@dataclasses.dataclass
class Options:
    language: str = dataclasses.field(default="en", metadata={"help": "A language."})
    names: list[str] | None = option(None, "Some.")
    counts: list[int] | None = option(None, "Some.", COUNT)
    share: float = option(0.5, "Some.", SHARE)
    strategy: typing.Literal["no", "steps"] = option("steps", "When.")
    switch: bool = option(True, "Whether.")
    extra: dict | str | None = option(None, "Extra.")


def read(tmp_path: Path, text: str | bytes, *argv: str) -> Options:
    """Parse the options that a YAML file sets."""
    (tmp_path / "c.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    (options,) = RecipeParser([Options], prog="recipe.py").parse(["--config", str(tmp_path / "c.yaml"), *argv])
    return options


@pytest.mark.parametrize("word", ["no", "1:30", "2001-01-01", "1e3"])
def test_a_text_stays_what_the_file_shows(tmp_path, word):
    assert read(tmp_path, f"language: {word}").language == word
    assert read(tmp_path, f"names: [{word}, '{word}']").names == [word, word]


def test_values_are_converted_as_on_the_command_line_which_overrides_the_file(tmp_path):
    text = "\ufeffcounts: [1, 2]\nshare: 1e-1\nstrategy: no\nswitch: no\nnames: one\nextra: '{\"a\": 1}'"
    options = read(tmp_path, text)
    assert (options.counts, options.share, options.strategy) == ([1, 2], 0.1, "no")
    assert (options.switch, options.names, options.extra) == (False, ["one"], '{"a": 1}')
    overridden = read(tmp_path, text, "--share", "0.2", "--names", "two", "three")
    assert (overridden.share, overridden.names) == (0.2, ["two", "three"])


def test_an_option_that_must_be_given_may_stand_in_the_file(tmp_path):
    kind = dataclasses.make_dataclass("Needed", [("model", str)])
    (tmp_path / "c.yaml").write_text("model: runs/demo")
    (options,) = RecipeParser([kind]).parse(["--config", str(tmp_path / "c.yaml")])
    assert options.model == "runs/demo"
    assert "required: --model" in refusal(RecipeParser([kind], prog="recipe.py"))


@pytest.mark.parametrize("null", ["", "~", "null"])
def test_a_null_leaves_the_default(tmp_path, null):
    assert read(tmp_path, f"language: {null}").language == "en"
    assert read(tmp_path, 'language: "null"').language == "null"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("share: 1\nlanguage: a\nshare: 2", "line 3: share: is set twice"),
        ("names: [[a]]", "line 1: names: takes texts and numbers"),
        ("counts: [1, x]", "--counts: invalid int value: 'x'"),
        ("counts: [1, 0]", "counts: must be at least 1"),
        ('language: ""', "language: is empty"),
        ("? [a]\n: b", "takes texts and numbers"),
        ("a: b: c", "not YAML"),
        ("config: x.yaml", "there is no option 'config'"),
        ("shar: 0.1", "there is no option 'shar'"),
        ("", "must hold lines of the form `name: value`"),
        (b"share: 0\nlanguage: \xff", "not YAML: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(tmp_path, text, complaint):
    (tmp_path / "c.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    assert complaint in refusal(RecipeParser([Options], prog="recipe.py"), "--config", str(tmp_path / "c.yaml"))


def test_a_mistake_on_the_command_line_is_one_line():
    parser = RecipeParser([Options], prog="recipe.py")
    assert "there is no option --shar" in refusal(parser, "--shar", "0.1")
    assert "share: must be at least 0 and below 1, is nan" in refusal(parser, "--share", "nan")
    assert "there is no file no/c.yaml; the package has canlaws_en_fr, " in refusal(parser, "--config", "no/c.yaml")


@pytest.mark.parametrize(
    ("interval", "inside", "outside", "text"),
    [
        (COUNT, [1, 2**31 - 1], [0, -1, 2**31, math.nan], "at least 1 and at most 2,147,483,647"),
        (POSITIVE, [1e-300, 1e12], [0, -1, math.inf, math.nan], "above 0"),
        (SHARE, [0, 0.999], [1, -0.1, math.nan], "at least 0 and below 1"),
        (NOT_NEGATIVE, [0, 1.5], [-1, math.inf], "at least 0"),
    ],
)
def test_an_interval_is_what_it_says(interval, inside, outside, text):
    assert str(interval) == text
    assert all(number in interval for number in inside)
    assert not any(number in interval for number in outside)
