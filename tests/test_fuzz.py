"""Mutated configurations, corpora, tokenizers and model directories: one line that refuses them, or the right result.

A few fixed cases by default; `make fuzz` draws 1,000 anew (FUZZ_CASES of each kind). A case that goes on for a minute
hangs. What a recipe accepts is compared with what an independent reader makes of the same files; a value that is
valid, such as another number of beams or another finite weight, makes another model, which it must then translate with.
"""

import gzip
import json
import lzma
import os
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import yaml
from corpus_folder import COMPRESS, Folder
from helpers import REPOSITORY, recipe_module
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.options.arguments import RecipeParser


CASES = int(os.environ.get("FUZZ_CASES", "6"))
FUZZ = settings(
    max_examples=CASES,
    derandomize="FUZZ_CASES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LINES = ["A man reads a book.", "", "Two dogs are running.", "The old woman sees [/INST] the house."]


class Hang(BaseException):
    """A case that went on for a minute; no handler of a recipe catches it."""


@contextmanager
def bounded() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refusal(run: Callable[[], object]) -> str | None:
    """The one line with which a recipe ends; None if it succeeds. Anything else fails the test."""
    with bounded():
        try:
            run()
        except SystemExit as stop:
            message = stop.code
        else:
            return None
    assert isinstance(message, str), message
    assert len(message.splitlines()) == 1, message
    assert len(message) < 5000, message[:200]
    return message


def run_recipe(module: object, name: str, *options: str) -> str | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *options])
        return refusal(module.main)


# Mutations

HOSTILE = [None, True, False, -1, 0, 1, 2, 3.5, 1e308, float("nan"), float("inf"), 2**31, 2**65, 10**400]
HOSTILE += ["", "x", "no", "\0", "\u2028", "[/INST]", "\x1b[2J", "a" * 5000, [], {}, [1, 2], {"a": 1}, [[[[]]]]]

positions = st.floats(0, 1, exclude_max=True)
byte_edits = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "delete", "insert", "double", "zero"]), positions, st.binary(max_size=8)),
    min_size=1,
    max_size=3,
)
value_edits = st.lists(
    st.tuples(
        st.sampled_from(["replace", "remove", "add"]),
        st.lists(positions, min_size=1, max_size=6),
        st.sampled_from(HOSTILE),
    ),
    min_size=1,
    max_size=2,
)


def edit_bytes(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    for kind, position, extra in edits:
        place = int(position * len(content))
        rest = content[place:]
        if kind == "flip" and rest:
            content = content[:place] + bytes([rest[0] ^ (extra[0] if extra and extra[0] else 1)]) + rest[1:]
        elif kind == "cut":
            content = content[:place]
        elif kind == "delete":
            content = content[:place] + rest[1 + len(extra) :]
        elif kind == "insert":
            content = content[:place] + extra + rest
        elif kind == "double":
            content = content[:place] + rest[:50] + rest
        elif kind == "zero":
            content = content[:place] + bytes(len(rest[:20])) + rest[20:]
    return content


def edit_values(tree: object, edits: list[tuple[str, list[float], object]]) -> object:
    """A tree of JSON with some values replaced, removed or added, each found by a path of positions."""
    for kind, path, shared in edits:
        value = deepcopy(shared)  # a value that stood in itself would be no JSON
        parent, key, node = None, None, tree
        for position in path:
            if not isinstance(node, dict | list) or not node:
                break
            keys = list(node) if isinstance(node, dict) else range(len(node))
            parent, key = node, keys[int(position * len(keys))]
            node = parent[key]
        if parent is None:
            continue
        if kind == "replace":
            parent[key] = value
        elif kind == "remove":
            del parent[key]
        elif isinstance(parent, dict):
            parent[f"{key}_"] = value
        else:
            parent.append(value)
    return tree


# Configurations


@pytest.fixture(scope="module")
def train_wmt():
    return recipe_module("train_wmt.py")


def parse(module: object, *argv: str) -> tuple[object, ...]:
    classes = (module.DataArguments, module.ModelArguments, module.RecipeTrainingArguments)
    return RecipeParser(classes, prog="train_wmt.py").parse(argv)


@FUZZ
@given(data=st.data())
def test_configurations(train_wmt, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "c.yaml"
    classes = (train_wmt.DataArguments, train_wmt.ModelArguments, train_wmt.RecipeTrainingArguments)
    names = st.sampled_from(sorted({field for kind in classes for field in kind.__dataclass_fields__}))
    text = (REPOSITORY / "recipes" / "configs" / "demo.yaml").read_text(encoding="utf-8")
    values = st.sampled_from(HOSTILE) | st.text(max_size=10) | st.integers()
    chosen = data.draw(st.dictionaries(names, values, max_size=3))
    text += "".join(f"{name}: {value}\n" for name, value in chosen.items() if f"\n{name}: " not in text)
    content = text.encode("utf-8", "surrogatepass")
    if data.draw(st.booleans()):
        content = edit_bytes(content, data.draw(byte_edits))
    path.write_bytes(content)
    if refusal(lambda: parse(train_wmt, "--config", str(path))) is None:
        # PyYAML's own reading, with every scalar as text, given as options, is understood in the same way.
        options = []
        for name, value in yaml.load(content, Loader=yaml.BaseLoader).items():
            if isinstance(value, list):
                options += [f"--{name}", *value]
            elif isinstance(value, str) and value not in ("", "~", "null", "Null", "NULL"):
                options.append(f"--{name}={value}")
        assert repr(parse(train_wmt, *options)) == repr(parse(train_wmt, "--config", str(path)))


# Corpora


@pytest.fixture(scope="module")
def score():
    return recipe_module("score.py")


UNPACK = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
TEXT = "".join(f"{line}\n" for line in [*LINES, "Ünï\u2028cödé \u0085 東京"]).encode()


@FUZZ
@given(
    suffix=st.sampled_from(sorted(PACK)),
    edits=byte_edits,
    is_inside=st.booleans(),
    option=st.sampled_from(["reference", "hypotheses"]),
)
def test_corpora(score, tmp_path_factory, suffix, edits, is_inside, option):
    folder = tmp_path_factory.mktemp("fuzz")
    files = {name: folder / f"{name}.txt{suffix if name == option else ''}" for name in ("reference", "hypotheses")}
    for name, file in files.items():
        file.write_bytes(TEXT if name != option else b"")
    content = PACK[suffix](edit_bytes(TEXT, edits)) if is_inside else edit_bytes(PACK[suffix](TEXT), edits)
    files[option].write_bytes(content)
    out = folder / "out"
    options = [*(f"--{name}={file}" for name, file in files.items()), "--target_language=de", f"--output_dir={out}"]
    message = run_recipe(score, "score.py", *options)
    try:
        text = UNPACK[suffix](content).decode("utf-8")
        lines = text.removesuffix("\n").split("\n") if text else []
    except Exception:
        lines = []
    if message is None:
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        assert results["test_set"]["lines"] == len(lines) == 5
        if lines == TEXT.decode().split("\n")[:5]:
            assert results["systems"][0]["sacrebleu"]["score"] == pytest.approx(100)
    else:
        assert len(lines) != 5, message
        assert str(files[option]) in message


@FUZZ
@given(
    kind=st.sampled_from(["csv", "tsv", "jsonl", "tmx"]),
    suffix=st.sampled_from(["", *COMPRESS]),
    edits=byte_edits,
    is_inside=st.booleans(),
)
def test_tables(tmp_path_factory, kind, suffix, edits, is_inside):
    folder = Folder(tmp_path_factory.mktemp("fuzz"))
    rows = [{"en": line, "de": f'"{line}", {number}'} for number, line in enumerate(LINES)]
    name = {
        "csv": lambda: folder.csv("a", [["en", "de"], *(row.values() for row in rows)]),
        "tsv": lambda: folder.lines("a", ["en\tde", *("\t".join(row.values()) for row in rows)]),
        "jsonl": lambda: folder.json("a", rows),
        "tmx": lambda: folder.tmx("a", rows),
    }[kind]()
    pack, whole = COMPRESS.get(suffix, bytes), Path(name).read_bytes()
    content = pack(edit_bytes(whole, edits)) if is_inside else edit_bytes(pack(whole), edits)
    name = folder.raw(f"a.{kind}{suffix}", content)
    message, pairs = "", 0
    try:
        with bounded():
            pairs = len(load_parallel_corpus(name, "en", "de", cache_dir=folder.path / "cache"))
    except ValueError as error:
        message = str(error)
    if message:
        assert message.startswith(name)
        assert len(message.splitlines()) == 1
    else:
        assert 0 < pairs <= 2 * len(rows)


# Models and tokenizers


@pytest.fixture(scope="module")
def translate():
    return recipe_module("translate.py")


def translated(translate: object, model: Path, folder: Path) -> str | list[str]:
    """The translations of LINES, or the line that refuses the model."""
    source, output = folder / "source.txt", folder / "output.txt"
    source.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    options = (f"--model={model}", f"--input={source}", f"--output={output}", "--num_beams=2", "--max_new_tokens=10")
    message = run_recipe(translate, "translate.py", *options)
    assert (message is None) == output.exists()
    return message or output.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Safetensors by their definition: a length, a JSON header, and the bytes at its offsets."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    assert all(entry["dtype"] == "F32" for entry in header.values())
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
        for name, entry in header.items()
    }


def check_model(translate: object, original: Path, file: str, edits: list[tuple], folder: Path) -> None:
    model = folder / "model"
    shutil.copytree(original, model)
    content = (model / file).read_bytes()
    if isinstance(edits[0][1], list):
        content = json.dumps(edit_values(json.loads(content), edits)).encode()
    else:
        content = edit_bytes(content, edits)
    (model / file).write_bytes(content)
    found = translated(translate, model, folder)
    if isinstance(found, str):
        # Weights that are finite, but too large, are noticed by the search, which knows no file.
        assert str(model) in found or "the model's logits are NaN or infinite: its weights are damaged" in found
        return
    assert len(found) == len(LINES)
    assert found[1] == ""
    weights, own = read_weights(model / "model.safetensors"), read_weights(original / "model.safetensors")
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: weight.shape for name, weight in own.items()
    }
    assert all(np.isfinite(weight).all() for weight in weights.values())
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    assert max(tokenizer.get_vocab().values()) < len(own["model.shared.weight"])
    loaded = AutoModelForSeq2SeqLM.from_pretrained(model, trust_remote_code=False).eval()
    for line, translation in zip(LINES, found, strict=True):
        if line:
            ids = loaded.generate(**tokenizer(line, return_tensors="pt"), num_beams=2, max_new_tokens=10)
            assert " ".join(tokenizer.decode(ids[0], skip_special_tokens=True).splitlines()) == translation


@FUZZ
@given(file=st.sampled_from(["config.json", "generation_config.json", "model.safetensors"]), edits=byte_edits)
def test_model_directories_with_other_bytes(translate, lively_model, tmp_path_factory, file, edits):
    check_model(translate, lively_model, file, edits, tmp_path_factory.mktemp("fuzz"))


@FUZZ
@given(file=st.sampled_from(["config.json", "generation_config.json"]), edits=value_edits)
def test_model_directories_with_other_values(translate, lively_model, tmp_path_factory, file, edits):
    check_model(translate, lively_model, file, edits, tmp_path_factory.mktemp("fuzz"))


@FUZZ
@given(file=st.sampled_from(["tokenizer.json", "tokenizer_config.json"]), edits=byte_edits | value_edits)
def test_tokenizers(translate, lively_model, tmp_path_factory, file, edits):
    check_model(translate, lively_model, file, edits, tmp_path_factory.mktemp("fuzz"))
