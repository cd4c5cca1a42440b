"""The recipe that translates files: each line once and in order, whatever it holds and whenever it is killed."""

import functools
import gzip
import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import REPOSITORY, call_recipe, change_json, recipe_module, refusal, run_ranks, start_ranks
from models import translate_alone
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding import line_translation
from vaswani_transformer.decoding.ensemble import Ensemble
from vaswani_transformer.decoding.saved_model import SavedModel, open_model
from vaswani_transformer.model.languages_vaswani import has_words
from vaswani_transformer.model.translation_vaswani import Translation
from vaswani_transformer.system.files import locked


RECIPE = REPOSITORY / "recipes" / "translate.py"
LINES = [english for english, _ in phrasebook("test")[:9]]
LINES[2:2] = ["", "  \t "]
LINES += ["one\u2028line", "two\x85dogs", "three\rbirds", "four\tcakes\x0c"]
LINES += ["  spaces around  ", "Ünïcödé 漢字 🙂", LINES[0], ""]


@pytest.fixture
def recipe():
    return recipe_module("translate.py")


@pytest.fixture(scope="module")
def oracle(loaded_model, tokenizer):
    """The bytes to expect for some lines: one sentence at a time, through the model and tokenizer themselves."""
    translations = {line: translate_alone(loaded_model, tokenizer, line, max_new_tokens=6) for line in LINES}
    assert all(len(text.splitlines()) <= 1 for text in translations.values())
    assert len(set(translations.values())) >= len(translations) - 3  # else a mix-up might go unseen
    return lambda lines: as_bytes([translations[line] for line in lines])


def options(lively_model: Path, *arguments: object) -> list[str]:
    defaults = ["--model", lively_model, "--max_new_tokens", 6, "--lines_per_shard", 4]
    return [str(word) for word in (*defaults, *arguments)]  # the last of several values counts


@pytest.fixture
def run(recipe, monkeypatch, lively_model):
    """Run the recipe's `main` in this process."""

    def run(*arguments: object, stdin: bytes | io.BytesIO = b"", call: Callable[..., Any] = call_recipe) -> Any:
        source = io.BytesIO(stdin) if isinstance(stdin, bytes) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source))
        return call(recipe, *options(lively_model, *arguments))

    return run


def as_bytes(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(as_bytes(LINES))
    return path


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.txt"


@pytest.mark.parametrize("tokens_per_batch", [40, 4096])
def test_each_line_has_its_translation_for_any_batches(
    run, source, output, oracle, tokens_per_batch, capsys, monkeypatch
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run("--input", source, "--output", output, "--tokens_per_batch", tokens_per_batch)
    assert output.read_bytes() == oracle(LINES)
    assert sorted(path.name for path in output.parent.iterdir()) == ["in.txt", "out.txt"]
    shown = capsys.readouterr()
    assert f"{len(LINES)}/{len(LINES)}" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"\xef\xbb\xbf" + "\r\n".join(LINES[1:6]).encode(), LINES[1:6]), (b"\n" * 9, [""] * 9)],
    ids=["windows", "blank"],
)
def test_compressed_windows_and_blank_files_are_translated(run, output, oracle, tmp_path, content, lines):
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(content))
    run("--input", path, "--output", output)
    assert output.read_bytes() == oracle(lines)


def test_standard_input_to_a_file_and_a_file_to_standard_output(run, source, output, oracle, capsysbinary):
    run("--input", source)
    assert capsysbinary.readouterr().out == oracle(LINES)
    run("--output", output, stdin=source.read_bytes())
    assert output.read_bytes() == oracle(LINES)
    assert sorted(path.name for path in output.parent.iterdir()) == ["in.txt", "out.txt"]
    assert capsysbinary.readouterr().out == b""


def test_standard_input_is_translated_as_it_comes(run, oracle, capsysbinary):
    """When the first line of the second shard is read, all of the first has been written."""
    written = []

    class Pipe(io.BytesIO):
        def __next__(self):
            if self.tell() == len(as_bytes(LINES[:4])):
                written.append(capsysbinary.readouterr().out)
            return super().__next__()

    run(stdin=Pipe(as_bytes(LINES)))
    assert written == [oracle(LINES[:4])]
    shown = capsysbinary.readouterr()
    assert shown.out == oracle(LINES[4:])
    assert b"Translating" not in shown.err  # a bar is for a terminal


@pytest.fixture
def second(lively_model, tmp_path):
    """Another model with the tokenizer of the first, and other translations."""
    torch.manual_seed(8)
    model = AutoModelForSeq2SeqLM.from_pretrained(lively_model)
    for weight in model.parameters():
        weight.data += 0.2 * torch.randn_like(weight)
    directory = shutil.copytree(lively_model, tmp_path / "second")
    model.save_pretrained(directory)
    return directory


def test_models_translate_a_file_together(run, output, source, loaded_model, tokenizer, second, oracle):
    run("--input", source, "--output", output, "--ensemble", second)
    together = Ensemble([AutoModelForSeq2SeqLM.from_pretrained(second).eval()])
    options = {"max_new_tokens": 6, "custom_generate": together}
    texts = [translate_alone(loaded_model, tokenizer, line, **options) for line in LINES]
    assert output.read_bytes() == as_bytes(texts) != oracle(LINES)


def test_models_that_cannot_translate_together_are_refused(error, output, source, second, tmp_path):
    files = ("--input", source, "--output", output)
    assert "do_sample: has no effect here; it takes one model" in error(*files, "--ensemble", second, "--do_sample")
    shouted = [english.upper() for english, _ in phrasebook("test")]
    tokenizer = AutoTokenizer.from_pretrained(second)
    VaswaniTokenizer.train(shouted, len(tokenizer), show_progress=False).save_pretrained(second)
    (second / "manifest.json").unlink(missing_ok=True)
    assert f"ensemble: {second}: has another tokenizer than --model" in error(*files, "--ensemble", second)
    assert not output.exists()


class Killed(BaseException):
    """Stands for SIGKILL."""


class Killer:
    """Ends the program before or after one of the calls that change the disk; nothing is changed from then on."""

    def __init__(self, monkeypatch) -> None:
        self.moment, self.last = 0, None
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink"), (Path, "rmdir"), (Path, "mkdir")):
            monkeypatch.setattr(owner, name, self.wrap(getattr(owner, name)))

    def wrap(self, change):
        def changed(*args, **kwargs):
            is_lock = str(args[0]).endswith(".lock")  # the system releases locks of a process that is killed
            if not is_lock:
                self.tick()
            result = change(*args, **kwargs)
            if not is_lock:
                self.tick()
            return result

        return changed

    def tick(self) -> None:
        self.moment += 1
        if self.last is not None and self.moment >= self.last:
            raise Killed


@pytest.fixture
def translated(monkeypatch):
    """Lines that were translated, by a stand-in for the model, which is checked once, that reverses them."""
    lines = []

    def translate(model, tokenizer, sentences, *args, **kwargs):
        lines.extend(sentences)
        yield list(range(len(sentences))), [[Translation(sentence[::-1], [])] for sentence in sentences]

    monkeypatch.setattr(line_translation, "open_model", functools.cache(line_translation.open_model))
    monkeypatch.setattr(SavedModel, "load_to_decode", lambda self, precision: SimpleNamespace(config=self.config))
    monkeypatch.setattr(line_translation, "translate_in_batches", translate)
    return lines


@pytest.mark.system
@pytest.mark.parametrize("older", [None, b"older\n"], ids=["new", "replaced"])
def test_a_translation_killed_at_any_moment_goes_on(run, translated, output, source, older, monkeypatch):
    lines = [f"line {number}" for number in range(6)]
    source.write_bytes(as_bytes(lines))
    expected = as_bytes([line[::-1] for line in lines])
    arguments = ["--input", source, "--output", output, *(["--overwrite"] if older else [])]
    killer = Killer(monkeypatch)
    run(*arguments)
    assert output.read_bytes() == expected
    moments = killer.moment
    assert moments > 20
    for moment in range(1, moments + 1):
        output.unlink(missing_ok=True)
        if older:
            output.write_bytes(older)
        translated.clear()
        killer.moment, killer.last = 0, moment
        with pytest.raises(Killed):
            run(*arguments)
        killer.last = None
        was_written = output.exists() and output.read_bytes() == expected
        assert was_written or not output.exists() or output.read_bytes() == older
        try:
            run(*arguments)
        except SystemExit as stop:
            if "exists already" not in str(stop):  # it was killed when all was done
                raise
        assert output.read_bytes() == expected
        assert not [*output.with_name("out.txt.shards").glob("*")]
        # No more than the shard that was being written is translated twice; a finished output may be replaced again.
        assert was_written or len(translated) <= 6 + 4


def test_a_folder_of_shards_replaces_no_output_that_it_does_not_belong_to(error, translated, source, output):
    files = ("--input", source, "--output", output)
    output.write_bytes(b"mine\n")
    output.with_name("out.txt.shards").mkdir()
    assert "out.txt exists already" in error(*files)
    assert "out.txt exists already" in error(*files, "--shard", "0/3")
    assert "would hold lines of text" in error(*files[:3], output.with_suffix(".gz"), "--shard", "0/3")
    assert output.read_bytes() == b"mine\n"


def test_two_commands_cannot_write_one_output(error, source, output):
    with locked(output, "output"):
        assert "another process is at work" in error("--input", source, "--output", output)
        assert "another process is at work" in error("--output", output, stdin=b"One.\n")


@pytest.fixture
def error(run, monkeypatch):
    """The one line that the recipe ends with, before the model is loaded."""

    def error(*arguments: object, **keywords) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(SavedModel, "load_to_decode", lambda *_: pytest.fail("the model was loaded"))
            return run(*arguments, call=refusal, **keywords)

    return error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--input {folder}/none", "there is no file or directory {folder}/none"),
        ("--input {folder}/latin-1.txt --output {folder}/out", "{folder}/latin-1.txt, line 10: not UTF-8"),
        ("--input {folder}/latin-1.txt --output {folder}/latin-1.txt --overwrite", "latin-1.txt is the input too"),
        ("--input {folder}/latin-1.txt --column en", "column: {folder}/latin-1.txt is text"),
        ("--input {folder}/latin-1.txt --output {folder}/out --shard 3/3", "shard: must be NUMBER/COUNT"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_model_is_loaded(error, tmp_path, options, message):
    (tmp_path / "latin-1.txt").write_bytes(b"One.\n" * 9 + b"F\xfcnf.\n")
    before = {path.name for path in tmp_path.iterdir()}
    given = [option.format(folder=tmp_path) for option in options.split(" ")]
    assert message.format(folder=tmp_path) in error(*given)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_stream_with_a_damaged_line_is_translated_up_to_its_shard(run, oracle, capsysbinary):
    with pytest.raises(SystemExit, match=r"translate\.py: standard input, line 6: not UTF-8"):
        run(stdin=as_bytes(LINES[:5]) + b"F\xfcnf.\n")
    assert capsysbinary.readouterr().out == oracle(LINES[:4])


def test_another_translation_does_not_go_on(run, translated, error, source, output, lively_model, tmp_path):
    files = ("--input", source, "--output", output)
    run(*files, "--shard", "1/5")
    folder = output.with_name("out.txt.shards")
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    difference = f"{folder} holds part of another translation, which differs in num_beams (None then, 2 now); repeat"
    assert difference in error(*files, "--num_beams", 2)
    assert "differs in shards (5 then, 4 now)" in error(*files, "--shard", "1/4")
    other = shutil.copytree(lively_model, tmp_path / "other")
    change_json(other / "generation_config.json", num_beams=2)
    assert "differs in models (" in error(*files, "--model", other)
    source.write_bytes(source.read_bytes().replace(b"one", b"two"))
    assert f"differs in input ({len(LINES)} lines, " in error(*files)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept


def test_the_same_input_and_model_elsewhere_go_on(run, translated, output, source, lively_model, tmp_path):
    run("--input", source, "--output", output, "--shard", "1/5")
    other = shutil.copytree(lively_model, tmp_path / "other")
    copy = tmp_path / "copy.gz"
    copy.write_bytes(gzip.compress(source.read_bytes()))
    run("--input", copy, "--output", output, "--model", other, "--tokens_per_batch", 7)
    assert translated == [line.strip() for line in (*LINES[3:7], *LINES[:3], *LINES[7:])]  # each once
    assert len(output.read_bytes().split(b"\n")) == len(LINES) + 1


def test_the_fastest_precision_translates_and_is_kept(recipe, run, source, output, monkeypatch, capsys):
    def translate(*options):
        run("--input", source, "--output", output, *options)
        return output.read_bytes()

    monkeypatch.setattr(recipe, "WORTH_MEASURING", len(LINES) + 1)
    monkeypatch.setattr(recipe, "compare", lambda *_, **__: pytest.fail("measured"))
    assert translate() != translate("--overwrite", "--precision", "bf16")
    expected = output.read_bytes()

    def measured(precisions, work, seconds):
        work(precisions[-1])
        return {"float32": 1.0, "bf16": 1.2}

    monkeypatch.setattr(recipe, "WORTH_MEASURING", sum(map(has_words, LINES)))
    monkeypatch.setattr(recipe, "usable_precisions", lambda device: ["float32", "bf16"])  # on any processor
    with monkeypatch.context() as patch:
        patch.setattr(recipe, "compare", measured)
        assert translate("--overwrite") == expected
    assert "precision bf16; measured speed: float32 1.00, bf16 1.20\n" in capsys.readouterr().err
    run("--input", source, "--output", output, "--shard", "1/5", "--precision", "bf16", "--overwrite")
    assert translate("--overwrite") == expected  # nothing is measured


def test_precisions_are_compared_on_lines_with_words_from_the_whole_file(recipe, output, monkeypatch):
    measured = []

    class Translator:
        model = SimpleNamespace(dtype=torch.float32)

        def __init__(self, models, options):
            self.precision = options.precision

        def translate(self, number, lines):
            measured.append((self.precision, lines))

    monkeypatch.setattr(recipe, "LineTranslator", Translator)
    monkeypatch.setattr(recipe, "usable_precisions", lambda device: ["float32", "bf16"])
    monkeypatch.setattr(recipe, "MEASURED_LINES", 3)
    monkeypatch.setattr(recipe, "WORTH_MEASURING", 6)
    monkeypatch.setattr(recipe, "compare", lambda names, work, seconds: dict.fromkeys(names, work("bf16") or 1.0))
    args = recipe.TranslateArguments(model="model", input="in.txt", output=str(output))
    lines = ["", "12.50 | 7", *"abc", "%s", *"def"]
    recipe.choose_precision(args, SimpleNamespace(lines=lines, models=[]))
    assert measured == [("bf16", ["a", "c", "e"])]
    recipe.choose_precision(args, SimpleNamespace(lines=lines[:-1], models=[]))
    assert len(measured) == 1  # five lines with words are too few


@pytest.mark.system
def test_a_process_that_stops_ends_the_other_and_two_go_on(lively_model, source, output, oracle):
    lines = LINES * 20
    source.write_bytes(as_bytes(lines))
    arguments = ["--input", source, "--output", output, "--lines_per_shard", 2, "--timeout_minutes", 0.1]
    command = [RECIPE, *options(lively_model, *arguments)]
    ranks = start_ranks(command, 2)
    folder = output.with_name("out.txt.shards")
    try:
        while all(rank.poll() is None for rank in ranks) and len(list(folder.glob("*-of-?????.gz"))) < 4:
            time.sleep(0.01)
        ranks[0].send_signal(signal.SIGSTOP)
        _, errors = ranks[1].communicate(timeout=120)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[1].returncode == 1
    assert "translate.py: another process has ended" in errors
    assert "repeat the command to continue" in errors
    assert "Traceback" not in errors
    assert not output.exists()

    finished = sorted(folder.glob("*-of-?????.gz"))
    for path in finished:
        number = int(path.name[:5])
        assert gzip.decompress(path.read_bytes()) == oracle(lines[2 * number : 2 * number + 2])
    first = 2 * int(finished[0].name[:5])
    finished[0].write_bytes(gzip.compress(b"kept\nkept\n"))  # so that the output shows who wrote it
    again = run_ranks(command, 2)
    messages = "".join(rank.stderr for rank in again)
    assert [rank.returncode for rank in again] == [0, 0], messages
    assert f"{len(finished)} of {len(lines) // 2} shards are finished already" in messages
    assert output.read_bytes() == oracle(lines[:first]) + b"kept\nkept\n" + oracle(lines[first + 2 :])
    assert not folder.exists()


@pytest.fixture
def bilingual(lively_model, tmp_path):
    """The lively model, which states its languages."""
    directory = shutil.copytree(lively_model, tmp_path / "bilingual")
    open_model(directory).update_config(source_language="en", target_language="de")
    return directory


def test_hypotheses_are_those_of_generate_and_pairs_are_a_corpus(
    run, source, output, lively_model, loaded_model, tokenizer, bilingual, tmp_path
):
    pairs = []
    for line in map(str.strip, LINES):
        texts = [""] * 3
        if line:
            inputs = tokenizer(line, return_tensors="pt")
            ids = loaded_model.generate(**inputs, num_beams=5, num_return_sequences=3, max_new_tokens=6)
            texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
            assert len(set(texts)) > 1
        pairs += [(" ".join(line.splitlines()), text) for text in texts]
    search = ["--input", source, "--num_beams", 5, "--num_return_sequences", 3]
    run(*search, "--output", output)
    assert output.read_bytes() == as_bytes([target for _, target in pairs])
    for model_directory, languages in ((lively_model, ("source", "target")), (bilingual, ("en", "de"))):
        run(*search, "--output", tmp_path / "pairs.jsonl", "--model", model_directory, "--overwrite")
        corpus = load_parallel_corpus([str(tmp_path / "pairs.jsonl")], *languages)
        assert [tuple(row["translation"][language] for language in languages) for row in corpus] == pairs


def test_each_sentence_of_a_line_is_translated(run, output, oracle, tmp_path):
    sentences = [line.strip() for line in LINES[4:10]]
    lines = ["  ".join(sentences[first : first + 3]) for first in range(4)]
    lines = [*lines, "", f" {sentences[0]} ", *lines, *lines]
    translations = {sentence: oracle([sentence]).decode().strip("\n") for sentence in sentences}
    expected = [line.strip() for line in lines]
    for sentence, translation in translations.items():
        expected = [line.replace(sentence, translation) for line in expected]
    source = tmp_path / "paragraphs.txt"
    source.write_bytes(as_bytes(lines))
    options = ["--input", source, "--output", output]
    run(*options)
    assert output.read_bytes() == as_bytes(expected)
    run(*options, "--overwrite", "--split_sentences", "false")
    whole = output.read_text(encoding="utf-8").split("\n")
    assert whole != [*expected, ""]
    run(*options, "--overwrite", "--num_return_sequences", 2)  # the best of the beam are of whole lines
    assert output.read_text(encoding="utf-8").split("\n")[::2] == whole


def test_samples_depend_on_the_seed_and_the_line_alone(run, error, source, output):
    def sampled(*options: object) -> list[str]:
        run("--input", source, "--output", output, "--do_sample", "--overwrite", *options)
        return output.read_text(encoding="utf-8").split("\n")

    torch.manual_seed(1)
    samples = sampled()
    torch.manual_seed(2)
    assert sampled() == samples  # whatever was drawn before
    assert sampled("--seed", 1) != samples
    assert samples[4] != samples[17]  # one sentence, in two shards
    pairs = sampled("--num_return_sequences", 2)[:-1]
    different = [first != second for first, second in zip(pairs[::2], pairs[1::2], strict=True)]
    assert different == [line.strip() != "" for line in LINES]
    output.unlink()
    # A shard of another process, which sampled no other before it.
    options = ["--input", source, "--output", output, "--do_sample"]
    run(*options, "--shard", "3/5")
    for other in (["--tokens_per_batch", 7], ["--seed", 3], ["--temperature", 2], ["--top_k", 9]):
        assert f"differs in {other[0][2:]} (" in error(*options, *other)
    run(*options)
    assert output.read_text(encoding="utf-8").split("\n") == samples


def test_samples_come_from_the_k_most_probable_tokens(run, source, output):
    run("--input", source, "--output", output, "--num_beams", 1)
    greedy = output.read_bytes()
    run("--input", source, "--output", output, "--do_sample", "--top_k", 1, "--overwrite")
    assert output.read_bytes() == greedy
