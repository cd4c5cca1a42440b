"""Options of every recipe, with values that cannot work: one line that names the option, before any work."""

import dataclasses
import inspect
import math
import os
import re
import typing
from pathlib import Path

import pytest
import yaml
from helpers import REPOSITORY, recipe_module, run_python

from vaswani_transformer.options.arguments import COUNT, POSITIVE, SHARE, Interval, RecipeParser, check_values, option


LANGUAGES = ["--source_language=en", "--target_language=de"]
# Each recipe, and the options without which it does not start.
RECIPES = {
    "train_wmt.py": [],
    "train_parsing.py": [],
    "parse.py": ["--model=m", "--input=i", "--output=o"],
    "reproduce_table3.py": [],
    "translate.py": ["--model=m"],
    "visualize_attention.py": ["--model=m", "--source=s", "--output=o.svg"],
    "explore.py": ["--model=m", "--source=s"],
    "demo_app.py": ["--model=m"],
    "score.py": ["--model=m", "--source=s", "--reference=r"],
    "export.py": ["--model=m", "--output=o"],
    "filter.py": ["--model=m", "--corpus=c", "--output=o"],
    "align.py": ["--model=m", "--corpus=c", "--output=o"],
    "average.py": ["--run=r", "--last=1", "--output=o"],
    "convert.py": ["--from=marian", "--model=m", "--output=o"],
    "benchmarks/decode.py": ["--text=t", "--model=m"],
    "benchmarks/edge.py": ["--model=m", "--text=t"],
    "benchmarks/table1.py": [],
    "benchmarks/corpus.py": ["--model=m"],
    "benchmarks/elastic.py": [],
    "benchmarks/noise.py": ["--work=w", "--corpus=c", "--validation=v", "--test=t", *LANGUAGES],
    "benchmarks/scaling.py": ["--source=s", "--target=t"],
    "benchmarks/sizes.py": ["--name=n", "--work=w", "--corpus=c", "--validation=v", "--test=t", *LANGUAGES],
    "benchmarks/speedrun.py": ["--runs=r", "--change=c", "--validation", "v", "v"],
    "benchmarks/train.py": ["--source=s", "--target=t"],
    "benchmarks/trust.py": ["--name=n", "--scores=s", "--model=m", "--corpus=c", "--statistics=t"],
}

NUMBERS_NO_OPTION_TAKES = ("nan", "inf", "-inf", "-2", str(2**65), "1e308", "x", "")
TAKE_ZERO = {
    *("dropout", "attention_dropout", "label_smoothing", "label_smoothing_factor", "adam_beta1", "adam_beta2"),
    *("weight_decay", "max_grad_norm", "eval_delay", "neftune_noise_alpha", "seed", "seeds", "data_seed"),
    *("save_total_limit", "dataloader_num_workers", "local_rank", "length_penalty", "curve_sentences"),
    *(
        "horizontal",
        "vertical",
        "alternatives",
        "recombined_copies",
        "bpe_dropout",
        "cooldown",
        "length_penalties",
        "remove",
        "kills",
        "seconds_to_a_kill",
    ),
}
TAKE_MINUS_ONE = {"max_steps", "local_rank", "length_penalty"}
TAKE_A_FRACTION = {  # whole numbers of steps, as floats, are no less whole
    *("max_ratio", "num_train_epochs", "weight_decay", "adam_epsilon", "max_grad_norm"),
    *("neftune_noise_alpha", "eval_delay", "eval_steps", "width", "depth", "length_penalty", "length_penalties"),
    *(
        "learning_rate_factor",
        "save_minutes",
        "max_minutes",
        "minutes",
        "timeout_minutes",
        "seconds",
        "seconds_to_a_kill",
    ),
    "layer_norm_eps",
}
TEXTS_NO_OPTION_TAKES = ("", " ", "a\x1b[31mb", "a\nb", "a\0b", "\ud800", "a" * 256, "a/" * 2001)
OTHER_VALUES = ("{", "[]", "{}", '{"a":' * 2000, "[" * 10_000, "/", "/dev/null", "[/INST]", "9" * 6000)
SENTENCES = ("source", "target")  # may be longer than a name
PROSE = {"explore.py": SENTENCES, "visualize_attention.py": SENTENCES}
CONVERTED = ("generation_config", "liger_kernel_config")  # a path and a mapping, which are never empty


def parser_of(name: str, patch: pytest.MonkeyPatch) -> RecipeParser:
    """The parser that `main` of a recipe makes."""
    made: list[RecipeParser] = []

    def parse(parser: RecipeParser, argv: object = None) -> None:
        made.append(parser)
        raise SystemExit

    module = recipe_module(name)
    patch.setattr(RecipeParser, "parse", parse)
    with pytest.raises(SystemExit):
        module.main()
    return made[0]


@pytest.fixture(scope="module")
def parsers():
    with pytest.MonkeyPatch.context() as patch:
        return {name: parser_of(name, patch) for name in RECIPES}


def outcome(parser: RecipeParser, *argv: str) -> str | None:
    """The line that refuses these options; None if they are accepted."""
    try:
        parser.parse(argv)
    except SystemExit as stop:
        message = stop.code
    else:
        return None
    assert isinstance(message, str), message
    assert len(message.splitlines()) == 1, message
    assert message.isprintable(), message
    assert message.startswith(f"{parser.prog}: ")
    return message


def options(parser: RecipeParser, *kinds: type) -> list[str]:
    """Names of the options whose values are of one of these types."""
    found = {}
    for dataclass_type in parser.dataclass_types:
        for name, hint in typing.get_type_hints(dataclass_type).items():
            arguments = typing.get_args(hint)
            inner = [part for argument in arguments for part in typing.get_args(argument)]
            found[name] = bool({hint, *arguments, *inner} & set(kinds)) and bool not in arguments
    fields = {field.name for kind in parser.dataclass_types for field in dataclasses.fields(kind) if field.init}
    return sorted(name for name, is_one in found.items() if is_one and name in fields)


@pytest.mark.system
def test_help_has_the_examples_and_our_options_first():
    recipe = REPOSITORY / "recipes" / "train_wmt.py"
    environment = {**os.environ, "COLUMNS": "80"}
    short, long = (run_python([recipe, option], environment=environment).stdout for option in ("--help", "--help_all"))
    example = "python recipes/train_wmt.py --config recipes/configs/demo.yaml\n"
    lines = short.splitlines()
    assert len(lines) < 250 < len(long.splitlines())
    assert all(text.index(example) < text.index("--source_language") for text in (short, long))
    listed = [{line.split()[0] for line in text.splitlines() if line.startswith("  --")} for text in (short, long)]
    assert {"--train", "--max_minutes", "--warmup_steps", "--help_all", "--config"} <= listed[0]
    assert listed[1] - listed[0] >= {"--max_steps", "--gradient_checkpointing", "--push_to_hub"}
    assert "(default: None)" not in short
    assert long.index("--max_minutes") < long.index("--gradient_checkpointing")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_option_of_ours_is_in_the_help(parsers, recipe):
    text = parsers[recipe].format_help()
    for kind in parsers[recipe].dataclass_types:
        own = [base for base in kind.__mro__ if not base.__module__.startswith("transformers")]
        for name in (name for base in own for name in inspect.get_annotations(base)):
            assert re.search(rf"^  --{name}\b", text, re.M), name


@pytest.mark.parametrize("recipe", RECIPES)
def test_numbers_that_no_option_takes_are_refused(parsers, recipe):
    parser = parsers[recipe]
    for name in options(parser, int, float):
        for value in NUMBERS_NO_OPTION_TAKES:
            if (name, value) == ("length_penalty", "-2"):
                continue
            message = outcome(parser, *RECIPES[recipe], f"--{name}={value}")
            assert message is not None, f"--{name}={value}"
            assert name in message, message


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("value", "exceptions"), [("0", TAKE_ZERO), ("-1", TAKE_MINUS_ONE), ("1.5", TAKE_A_FRACTION)])
def test_zero_negative_and_fractional_numbers_are_accepted_where_they_make_sense(parsers, recipe, value, exceptions):
    parser = parsers[recipe]
    for name in options(parser, int, float):
        message = outcome(parser, *RECIPES[recipe], f"--{name}={value}")
        assert (message is None) == (name in exceptions), f"--{name}={value}: {message}"
        assert message is None or name in message


@pytest.mark.parametrize("recipe", RECIPES)
def test_texts_that_no_option_takes_are_refused(parsers, recipe):
    parser = parsers[recipe]
    for name in options(parser, str):
        for value in TEXTS_NO_OPTION_TAKES if name not in CONVERTED else ():
            if value == "a" * 256 and name in PROSE.get(recipe, ()):
                continue
            message = outcome(parser, *RECIPES[recipe], f"--{name}={value}")
            assert message is not None, f"--{name}={value!r}"
            assert name in message, message


@pytest.mark.parametrize("recipe", RECIPES)
def test_other_values_never_end_in_a_traceback(parsers, recipe):
    parser = parsers[recipe]
    for action in parser._actions:
        if action.dest not in ("help", "config"):
            for value in OTHER_VALUES:
                message = outcome(parser, *RECIPES[recipe], f"--{action.dest}={value}")
                assert message is None or action.dest in message, message


def test_errors_of_other_types_are_one_line(parsers):
    assert "unexpected keyword argument 'a'" in outcome(parsers["train_wmt.py"], '--accelerator_config={"a": 1}')


def test_every_recipe_is_tried():
    names = {
        str(path.relative_to(REPOSITORY / "recipes"))
        for path in (REPOSITORY / "recipes").rglob("*.py")
        if "def main(" in path.read_text(encoding="utf-8")
        and path.parent.name != "cluster"  # tests/clients tries these
    }
    assert names - {"prepare_data.py"} == set(RECIPES)  # it has the options of train_wmt.py


def test_float16_on_a_cpu_is_refused(parsers):
    message = outcome(parsers["train_wmt.py"], "--fp16", "--use_cpu")
    assert message.endswith("fp16: the CPU would train in float32 instead; leave it out, or choose bf16")


# YAML


@dataclasses.dataclass
class Options:
    language: str = dataclasses.field(default="en", metadata={"help": "A language."})
    names: list[str] | None = dataclasses.field(default=None, metadata={"help": "Some."})
    counts: list[int] | None = dataclasses.field(default=None, metadata={"interval": COUNT, "help": "Some."})
    share: float = option(0.5, "Some.", SHARE, alias="--portion")
    strategy: typing.Literal["no", "steps"] = dataclasses.field(default="steps", metadata={"help": "When."})
    switch: bool = dataclasses.field(default=True, metadata={"help": "Whether."})
    extra: dict | str | None = dataclasses.field(default=None, metadata={"help": "Extra."})


def read(tmp_path: Path, text: str | bytes, *argv: str) -> Options | str:
    """What a YAML file sets, or the line that refuses it."""
    path = tmp_path / "c.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    parser = RecipeParser([Options], prog="recipe.py")
    message = outcome(parser, "--config", str(path), *argv)
    if message is not None:
        assert str(path) in message or not message.startswith("recipe.py: /")
        return message
    (found,) = RecipeParser([Options], prog="recipe.py").parse(["--config", str(path), *argv])
    return found


@pytest.mark.parametrize("word", ["no", "1:30", "2001-01-01", "1e3", "<<"])
def test_a_text_stays_what_the_file_shows(tmp_path, word):
    assert read(tmp_path, f"language: {word}").language == word
    assert read(tmp_path, f"names: [{word}, '{word}']").names == [word, word]


def test_values_are_converted_as_on_the_command_line(tmp_path):
    text = "counts: [1, 2]\nshare: 1e-1\nstrategy: no\nswitch: no\nnames: one\nextra: '{\"a\": 1}'"
    found = read(tmp_path, text)
    assert (found.counts, found.share, found.strategy, found.switch, found.names) == ([1, 2], 0.1, "no", False, ["one"])
    assert found.extra == '{"a": 1}'
    assert read(tmp_path, "share: 0.1", "--share", "0.2").share == 0.2


def test_an_option_that_must_be_given_may_stand_in_the_file(tmp_path):
    kind = dataclasses.make_dataclass("Needed", [("model", str)])
    (tmp_path / "c.yaml").write_text("model: runs/demo")
    (found,) = RecipeParser([kind]).parse(["--config", str(tmp_path / "c.yaml")])
    assert found.model == "runs/demo"
    assert "required: --model" in outcome(RecipeParser([kind], prog="recipe.py"))


def test_an_alias_repeats_a_value(tmp_path):
    assert read(tmp_path, yaml.safe_dump({"names": (same := ["1", "2"]), "counts": same})).counts == [1, 2]


@pytest.mark.parametrize("null", ["", "~", "null", "Null"])
def test_a_null_leaves_the_default(tmp_path, null):
    assert read(tmp_path, f"language: {null}").language == "en"
    assert "language: is empty" in read(tmp_path, 'language: ""')
    assert read(tmp_path, 'language: "null"').language == "null"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("share: 1\nlanguage: a\nshare: 2", "line 3: 'share' is set already in line 1"),
        ("language: [a]", "language: takes one value"),
        ("names: []", "names: takes at least one value"),
        ("names: [[a]]", "names: takes texts and numbers"),
        ("counts: [1, x]", "--counts: invalid int value: 'x'"),
        ("counts: [1, 0]", "counts: must be at least 1"),
        ("? [a]\n: b", "not YAML"),
        ("config: x.yaml", "there is no setting 'config'"),
        ("no_switch: true", "there is no setting 'no_switch'; did you mean switch?"),
        ("share: 0.1\nportion: 0.2", "portion: is share by another name; keep one of the two"),
        ("extra: {a: b}", "extra: takes texts and numbers; put a JSON object in quotes"),
        ("names: " + "[" * 100_000, "nested too deeply"),
        ("", "must hold lines of the form `name: value`"),
        ('language: "a\\0b"', "language: 'a\\x00b' has control characters"),
        (b"share: 0\nlanguage: \xff", "line 2 is not UTF-8"),
        (b"#" * (1 << 21), "it has more than 1048576 bytes; is it another file?"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(tmp_path, text, complaint):
    message = read(tmp_path, text)
    assert isinstance(message, str), message
    assert complaint in message


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert read(tmp_path, "\ufefflanguage: fr").language == "fr"


@pytest.mark.parametrize("option", ["--config", "--config=/", "--config=/dev/zero", "--config=a\0b"])
def test_a_configuration_that_is_no_file_is_one_line(option):
    assert outcome(RecipeParser([Options], prog="recipe.py"), option) is not None


# Intervals


@pytest.mark.parametrize(
    ("interval", "inside", "outside", "text"),
    [
        (COUNT, [1, 2**31 - 1], [0, -1, 2**31, math.nan], "at least 1 and at most 2,147,483,647"),
        (POSITIVE, [1e-300, 1e12], [0, -1, math.inf, 1e13], "above 0"),
        (SHARE, [0, 0.999], [1, -0.1, math.nan], "at least 0 and below 1"),
        (Interval(minimum=1, whole=True), [1.0, 2], [1.5, 0.5, math.nan, math.inf], "whole and at least 1"),
        (Interval(minimum=1, also=-1), [-1, 1], [0, -2], "at least 1, or -1"),
        (Interval(), [0, -1.5, 1e12], [math.nan, math.inf, -math.inf, 1e13], "a finite number up to 1e+12"),
    ],
)
def test_an_interval_is_what_it_says(interval, inside, outside, text):
    assert str(interval) == text
    assert all(number in interval for number in inside)
    assert not any(number in interval for number in outside)


def test_a_dataclass_checks_its_own_values():
    check_values(Options(share=0.9))
    with pytest.raises(ValueError, match=r"^share: must be at least 0 and below 1, is nan$"):
        check_values(Options(share=math.nan))
    check_values(Options(counts=[1, 2]))
    with pytest.raises(ValueError, match=r"^counts: must be at least 1 and at most [\d,]+, is 0$"):
        check_values(Options(counts=[1, 0]))


@pytest.mark.parametrize("option", ["d_model=1000000000", "d_k=70000", "encoder_layers=100000"])
def test_a_model_that_no_memory_holds_is_refused(parsers, option):
    assert f"{option.split('=')[0]}: must be at least 1 and at most" in outcome(parsers["train_wmt.py"], f"--{option}")
