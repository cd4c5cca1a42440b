"""README, its chapters and the model cards: commands and snippets run, numbers have records, links resolve."""

import ast
import gzip
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from foreign_models import marian_tokenizer, untrained
from helpers import BOX, REPOSITORY, call_recipe, save_model, write_pairs
from hub_server import Repository
from models import make_parser
from transformers import Seq2SeqTrainingArguments

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.phrasebook import phrasebook


DEMO = REPOSITORY / "runs" / "demo"
BOX_NAME = str(BOX.relative_to(REPOSITORY))
ROOMS = [REPOSITORY / name for name in ("recipes", "vaswani_transformer", "model_cards")]
CARDS = sorted((REPOSITORY / "model_cards").glob("*/README.md"))
CARDS.remove(REPOSITORY / "model_cards" / "benchmarks" / "README.md")
CHAPTERS = {path for room in ROOMS for path in room.rglob("README.md")} - {*CARDS} | {*ROOMS[0].glob("*.md")}
CHAPTERS = [REPOSITORY / "README.md", *sorted(CHAPTERS)]
TABLES = sorted((REPOSITORY / "model_cards").rglob("[a-z]*.md"))
PAGES = [REPOSITORY / "CONTRIBUTING.md", *CHAPTERS, *CARDS, *TABLES]


CORPUS = {"train": "train.en train.de", "validation": "test.en test.de", "test": "test.en test.de", "num_proc": "1"}
CORPUS |= {"target_language": "de", "tokenizer_model": "bpe", "vocab_size": "320"}
TREES = {**dict.fromkeys(("train", "validation", "test"), "trees.mrg"), "prepared": "data", "vocab_size": "278"}
STEPS = {"max_steps": "2", "save_strategy": "steps", "save_steps": "1", "eval_strategy": "no", "output_dir": "out"}
STEPS |= {"precision": "float32", "processes": "1"}
SIZES = {"encoder_layers": "1", "decoder_layers": "1", "d_model": "16", "d_ff": "16", "num_heads": "2"}
SWEEP = {"rows": "C-N2", "seeds": "1", "width": "0.0625", "prepared": "data"}
# What each recipe is run with instead, so that it takes seconds, and a file that it must make, in the output that the
# command names if it begins with {output}. None is that output; then only options of the command are replaced.
CHANGES = {
    "train_wmt.py": (
        {**CORPUS, **SIZES, **STEPS, "source_language": "en", "push_to_hub": "false"},
        "out/model.safetensors",
    ),
    "prepare_data.py": ({**CORPUS, "prepared": "out"}, "out/train/manifest.json"),
    "reproduce_table3.py": ({**CORPUS, **SWEEP, **STEPS, "source_language": "en"}, "out/report.md"),
    "train_parsing.py": ({**TREES, **SIZES, **STEPS, "max_new_tokens_over_source": "20"}, "out/model.safetensors"),
    "average.py": ({"run": "runs/checkpoints", "last": "1"}, "{output}/model.safetensors"),
    "parse.py": ({"model": "runs/demo_parsing", "output": "trees.parsed.mrg"}, "trees.parsed.mrg"),
    "translate.py": ({"input": "news.en"}, "{output}"),
    "export.py": ({}, "{output}/parity.json"),
    "score.py": ({"output_dir": "runs/scores"}, "runs/scores/results.json"),
    "filter.py": ({"source_language": "en", "target_language": "de"}, "{output}/kept.jsonl"),
    "explore.py": ({"alternatives": "1"}, "explorer.html"),
    "visualize_attention.py": ({"layer": "1"}, None),
    "convert.py": ({"model": "opus-mt"}, "runs/opus-mt-en-de/model.safetensors"),
}


# Words of commands that are not run here.
NOT_RUN = {
    "make",  # test_make_has_the_target
    "venv",  # the environment that the tests run in
    "pip",  # needs a network; test_command.py installs the wheel
    "recipes/get_data.py",  # needs a network; test_public_corpora.py reads files
    "recipes/demo_app.py",  # serves until it is stopped; test_demo_app.py serves the same page
    "onnx",  # takes long, and the model that test_onnx.py examines is made by this command
}

# Recipes and options that only the commits of a card's results have.
OF_EARLIER_COMMITS = {"recipes/benchmarks/pcfg.py", "--curve_sentences"}

# What a model to fine-tune decides, so that the command must not.
OF_THE_MODEL = {"tokenizer_model", "vocab_size", "encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads"}


def name_of(document: Path) -> str:
    return document.relative_to(REPOSITORY).with_suffix("").as_posix()


def blocks(language: str) -> list:
    """Fenced blocks of a language in all documents, as test parameters."""
    parameters = []
    for document in (*CHAPTERS, *CARDS):
        text = document.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S), start=1):
            parameters.append(pytest.param(block, id=f"{name_of(document)}-{number}"))
    return parameters


def commands() -> list[str]:
    """All commands; where one has the words of another and more, that one alone."""
    texts = [block.values[0].replace("\\\n", " ") for block in blocks("bash")]
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    for document in CARDS:
        lines += re.findall(r"^- Command: `(.+)`$", document.read_text(encoding="utf-8"), re.M)
    words = {line: set(line.split()) for line in lines}
    words = {line: used for line, used in words.items() if not used & OF_EARLIER_COMMITS}
    return sorted(line for line, used in words.items() if not any(used < others for others in words.values()))


@pytest.fixture
def workspace(tmp_path, saved_model, monkeypatch) -> Path:
    """A folder where the paths that the documents name exist."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    for name in ("demo", "mine", "reverse", "seed-2", "student", "tuned"):
        shutil.copytree(saved_model, tmp_path / "runs" / name)  # some commands change the model
    (tmp_path / "runs" / "checkpoints").mkdir()
    (tmp_path / "runs" / "checkpoints" / "checkpoint-1").symlink_to(saved_model)
    make_parser(tmp_path / "runs" / "demo_parsing")
    (tmp_path / "trees.mrg").write_text("((S (NP (DT The) (NN cat)) (VP (VBD sat)) (. .)))\n" * 9, encoding="utf-8")
    for half in ("first_half.mrg", "second_half.mrg", "second_half.silver.mrg"):
        (tmp_path / "runs" / half).symlink_to(tmp_path / "trees.mrg")
    for packed in ("train.mrg.gz", "dev.mrg.gz", "runs/recombined.mrg.gz"):
        (tmp_path / packed).write_bytes(gzip.compress((tmp_path / "trees.mrg").read_bytes()))
    (tmp_path / "sentences.txt").write_text("The cat sat on the mat.\n", encoding="utf-8")
    (tmp_path / "path" / "to" / "this").mkdir(parents=True)
    shutil.copytree(BOX, tmp_path / BOX_NAME)
    for name, split, size in (("train", "train", 300), ("valid", "validation", 200), ("test", "test", 2)):
        write_pairs(phrasebook(split)[:size], tmp_path / f"{name}.en", tmp_path / f"{name}.de")
    for name in ("distilled.jsonl", "back_translated.jsonl"):
        texts = ("The old man reads a book.", "Der alte Mann liest ein Buch.")
        pair = dict(zip(("en", "de", "source", "target"), 2 * texts, strict=True))  # some models name no languages
        (tmp_path / name).write_text(json.dumps(pair) + "\n", encoding="utf-8")
    (tmp_path / "news.en").write_text("The old man reads a book.\n\nDogs!\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.system
@pytest.mark.parametrize("snippet", blocks("python"))
def test_python_snippet_runs(snippet, workspace, saved_model, hub, monkeypatch):
    model = workspace / "runs" / ("demo_parsing" if "constituency-parsing" in snippet else "demo")
    is_box = BOX_NAME in snippet or "tgt_lang" in snippet
    (workspace / "path" / "to" / "this" / "directory").symlink_to(BOX if is_box else model)  # of older cards
    if 'model="."' in snippet:
        monkeypatch.chdir(BOX if is_box else model)
    if not is_box:
        snippet = snippet.replace("translation_de_to_en", "translation_en_to_de")  # as the model at hand
    if "runs/demo_ct2" in snippet:
        call_recipe("export.py", "--model", "runs/demo", "--output", "runs/demo_ct2")
    snippet = snippet.replace(".launch()", ".launch(prevent_thread_lock=True)")  # else it serves without end
    if "user/en-de" not in snippet:
        exec(compile(snippet, "README.md", "exec"), {})
        return
    files = {path.name: path.read_bytes() for path in saved_model.iterdir()}
    hub.repositories["user/en-de"] = Repository("user/en-de", files=files)
    if "vaswani_transformer" not in snippet:
        snippet = f"import sys; sys.modules['vaswani_transformer'] = None\n{snippet}"  # as where it is not installed
    result = hub.run(snippet, folder=workspace)
    assert result.returncode == 0, result.stderr


def examples() -> list:
    """The snippets for `make demo`'s and the repository's model that end in comments, with what they print."""
    parameters = []
    for block in blocks("python"):
        code, lines = block.values[0], []
        while code.splitlines()[-1].startswith("# "):
            code, _, last = code.rstrip("\n").rpartition("\n")
            lines.insert(0, f"{last[2:]}\n")
        model = next((path for path in (BOX, DEMO) if f'"{path.relative_to(REPOSITORY)}"' in code), None)
        if lines and model:
            is_there = os.access(model / "model.safetensors", os.R_OK)
            marks = pytest.mark.skipif(not is_there, reason=f"{model} has no weights; `make demo` trains runs/demo")
            parameters.append(pytest.param(code, "".join(lines), id=block.id, marks=marks))
    return parameters


@pytest.mark.parametrize(("code", "printed"), examples())
def test_models_translate_as_printed(code, printed, monkeypatch, capsys):
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, object] = {}
    *statements, last = ast.parse(code).body
    exec(compile(ast.Module(statements, []), "README.md", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "README.md", "eval"), names)
    if value is not None:
        print(repr(value))
    assert capsys.readouterr().out == printed
    assert len(examples()) == 4


def save_marian(directory: Path) -> None:
    """An untrained model in the place of OPUS-MT's."""
    tokenizer = marian_tokenizer(directory, separate_vocabs=False)
    pad = tokenizer.pad_token_id
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": pad, "decoder_start_token_id": pad}
    model = untrained("marian", **sizes)
    model.generation_config.max_length = 512
    save_model(directory, model, tokenizer)


def in_seconds(command: str, words: list[str]) -> tuple[list[str], str]:
    """Arguments of a command for another corpus and size, and a file that it must make."""
    recipe, *arguments = [word for word in words if word != "--resume"]  # there is no run to continue
    changes, product = CHANGES[Path(recipe).name]
    if recipe == "recipes/train_wmt.py" and ("--model" in words or "multi30k_tuned" in command):
        changes = {name: value for name, value in changes.items() if name not in OF_THE_MODEL}
        changes |= {"model": "runs/demo", "replay": "train.en train.de", "replay_test": "test.en test.de"}
        changes |= {"both_directions": "false"}  # as the model at hand
    if product is None:
        product = words[words.index("--output") + 1]
        changes = {name: value for name, value in changes.items() if f"--{name}" in words}
    if product.startswith("{output}"):
        product = product.format(output=words[words.index("--output") + 1])
    if "--shard" in words:
        product = f"{product}.shards/{'-of-'.join(part.zfill(5) for part in words[-1].split('/'))}.gz"
    return [*arguments, *(word for name, value in changes.items() for word in (f"--{name}", *value.split()))], product


@pytest.mark.system
@pytest.mark.parametrize("command", [command for command in commands() if not NOT_RUN & {*command.split()}])
def test_command_runs(command, workspace, monkeypatch):
    words = shlex.split(command)
    if words[0] == "source":
        assert words[1:] == [".venv/bin/activate"]  # which the Makefile makes
        return
    script = next(place for place, word in enumerate(words) if word.endswith(".py"))
    if words[0] == "accelerate":  # which understands the command; that it starts programs is its own affair
        launched = launch_command_parser().parse_args(words[2:])
        assert (words[1], launched.training_script) == ("launch", words[script])
        assert all((REPOSITORY / word).exists() for word in words[:script] if "/" in word)
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    else:
        assert words[:script] == ["python"]
    if words[script] == "recipes/convert.py":
        save_marian(workspace / "opus-mt")
    monkeypatch.setattr("vaswani_transformer.evaluation.confidence.LEAST_CORRELATION", -1.0)  # weights are random
    arguments, product = in_seconds(command, words[script:])
    if words[script] == "recipes/translate.py":
        (workspace / product).unlink(missing_ok=True)  # which other commands read
    call_recipe(words[script].removeprefix("recipes/"), *arguments)
    assert (workspace / product).is_file()


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("make ")])
def test_make_has_the_target(command):
    dry = subprocess.run(["make", "-n", *command.split()[1:]], cwd=REPOSITORY, capture_output=True, check=False)
    assert dry.returncode == 0, dry.stderr


# A field of a dataclass of options.
OPTION = re.compile(r"^    (\w+): .*?=", re.M)

# Digits with a point, a comma or two places, and what they count, if it is written in several ways.
NUMBER = re.compile(r"(?<![\w.,])(?<!\d-)(\d+(?:,\d{3})+|\d+\.\d+|\d\d+)(?![\d.,]*\d)(?: (%|percent\b|minutes\b))?")
# Years, sections of the paper, releases, sizes, and what is required.
NAME = re.compile(
    r"(?:[\w.]+,?|\() 20\d\d\b|^\| \d\.\d(?= [A-Z])|"
    r"(?:section|Python|transformers|d_model|\bn =|needs|least) [\d.,]*\d",
    re.M,
)
# A ratio has digits and a decimal point: in words, it cannot be looked up.
RATIO = re.compile(
    r"\b(?:twice|[a-z]+ times|(?<!\.)\d times) as\b|\b(?:half|third|quarter|fifth|tenth) (?:faster|slower)\b"
)


def numbers_in(value: object) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(item)
    elif isinstance(value, str):
        yield from (float(number.replace(",", "")) for number, _ in NUMBER.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield abs(float(value))


def sections() -> list:
    """Sections without blocks of code and pictures, and the chapters that they are in, as test parameters."""
    parameters = []
    for chapter in CHAPTERS:
        text = chapter.read_text(encoding="utf-8")
        text = re.sub(r"^```.*?^```|<img[^>]*>", "", text, flags=re.M | re.S)
        for part in re.split(r"^#+ ", text, flags=re.M):
            if chapter.parent.name != "vaswani_transformer":  # which has the paper's numbers
                parameters.append(pytest.param(chapter, part, id=f"{name_of(chapter)}-{part.partition(chr(10))[0]}"))
    return parameters


def unrecorded(chapter: Path, section: str) -> list[str]:
    """Numbers of a section that are in no record that it links, nor in the tables made of it, and ratios in words.

    The values of options, which the section has in code, are no measurements.
    """
    recorded = [*numbers_in(re.findall(r"`[^`\n]*`", section))]
    for link in re.findall(r"\]\(([^):]+\.(?:md|json))\)", section):
        page = chapter.parent / link
        record = page.with_suffix(".json") if page.name != "README.md" else page.with_name("all_results.json")
        if record.exists():
            tables = re.findall(r"^\|.*", page.read_text(encoding="utf-8"), re.M)
            recorded += numbers_in([json.loads(record.read_text(encoding="utf-8")), tables])
    percents = [100 * value for value in recorded if value < 2]
    values = {"minutes": recorded + [value / 60 for value in recorded], "%": percents, "percent": percents}
    prose = NAME.sub("", re.sub(r"\]\([^)]*\)|`[^`\n]*`", "]", section))
    missing = [match[0] for match in RATIO.finditer(prose)]
    for match in NUMBER.finditer(prose):
        number, digits = float(match[1].replace(",", "")), len(match[1].partition(".")[2])
        if all(round(value, digits) != number for value in values.get(match[2], recorded)):
            missing.append(match[0])
    return missing


@pytest.mark.parametrize(("chapter", "section"), sections())
def test_every_number_is_in_a_record_that_its_section_links(chapter, section):
    assert unrecorded(chapter, section) == []


@pytest.mark.parametrize(
    ("claim", "numbers"),
    [
        ("a small model was a fifth faster ([it](model_cards/benchmarks/decode_amx.md))", ["fifth faster"]),
        ("of these 87,000 pairs, 40 % were removed ([it](model_cards/benchmarks/decode_amx.md))", ["87,000", "40 %"]),
        ("41 minutes, 39.27 BLEU, 39.4 on the test set ([it](model_cards/multi30k-en-de/README.md)), d_model 512", []),
        ("85 % and 32 % of 2,900 ([it](model_cards/benchmarks/noise.md)), 20.1 of 99.8", ["20.1", "99.8"]),
    ],
)
def test_numbers_without_a_record_are_noticed(claim, numbers):
    assert unrecorded(REPOSITORY / "README.md", claim) == numbers


def test_parameters_that_departures_state_are_those_of_the_model():
    readme = (REPOSITORY / "vaswani_transformer" / "README.md").read_text(encoding="utf-8")
    counts = []
    for rows in (37_000, 40_960):
        with torch.device("meta"):
            model = VaswaniForConditionalGeneration(VaswaniConfig.from_variant("base", vocab_size=rows))
        counts.append(model.num_parameters() / 1e6)
    assert f"base with 37,000 has {counts[0]:.1f} million parameters" in readme
    assert f"the {counts[1]:.0f} million of Table 3" in readme


def anchors(page: Path) -> set[str]:
    """Fragments of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_paths_resolve(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)]+)\)|<img src=\"([^\"]+)\"", text):
        target, _, fragment = "".join(link).partition("#")
        if not target.startswith("https://"):
            linked = (page.parent / target).resolve() if target else page
            assert linked.exists(), link
            assert not fragment or fragment in anchors(linked), link
    if page not in (REPOSITORY / "CONTRIBUTING.md", *CHAPTERS):
        return  # written by runs, of the paths that these had
    for path in re.findall(r"`([\w/]+(?:\.(?:py|yaml|sh|jinja)|/))`(?! of commit)", text):
        bases = (page.parent, REPOSITORY, REPOSITORY / "vaswani_transformer", REPOSITORY / "recipes")
        assert path.startswith("runs/") or any((base / path).exists() for base in bases), path
    for name in re.findall(r"`(vaswani_transformer(?:\.\w+)+)", text):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("chapter", [*CHAPTERS, REPOSITORY / "recipes" / "benchmarks" / "gpu.sh"], ids=name_of)
def test_options_exist(chapter):
    sources = [path.read_text(encoding="utf-8") for room in ROOMS for path in room.rglob("*.py")]
    ours = {name for text in sources for name in OPTION.findall(text)}
    others = {field.name for field in fields(Seq2SeqTrainingArguments)}
    of_the_launcher = {"config", "config_file", "help", "machine_rank", "main_process_ip", "num_processes"}
    text = chapter.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w-])--([a-z]\w*)", text)) <= ours | others | of_the_launcher


FILE = r"`([\w/]+\.\w+)`"


def rows(page: str) -> list:
    """Cells of tables that name files, as test parameters: "`path`: `name`, a field of `name`; `path`"."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*?) \| (.*) \|$", text, re.M)
    return [pytest.param(files, id=f"{page}-{title}") for title, files in cells if re.search(FILE, files)]


@pytest.mark.parametrize("files", rows("README.md") + rows("CONTRIBUTING.md"))
def test_names_are_in_the_files_before_them(files):
    for path, names in re.findall(rf"{FILE}(?: \([^)]*\))?: ([^;]*)", files):
        bases = (REPOSITORY, REPOSITORY / "vaswani_transformer")
        source = next(base / path for base in bases if (base / path).exists()).read_text(encoding="utf-8")
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            assert re.search(rf"\b{name}\b", source), f"{path} has no {name}"


@pytest.mark.parametrize("files", rows("CONTRIBUTING.md"))
def test_a_newcomer_opens_three_files_at_most(files):
    assert len(set(re.findall(FILE, files))) <= 3
