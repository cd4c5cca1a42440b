"""The benchmarks: what they refuse, the tables that they write, and the published ones."""

import dataclasses
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from helpers import REPOSITORY, call_recipe, option_words, recipe_module, refusal, save_model, write_lines, write_pairs

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.decoding.translation import translate_corpus


PUBLISHED = REPOSITORY / "model_cards" / "benchmarks"


@pytest.fixture
def text(tmp_path) -> Path:
    write_lines(tmp_path / "short.de", ["Ein Satz."])
    return write_lines(tmp_path / "text.en", [english for english, _ in phrasebook("validation")[:20]])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("decode --references {folder}/short.de", r"short\.de has 1 lines but .*en has 20"),
        ("decode --device cuda", "device: there is no CUDA device"),
        ("train --source {folder}/text.en --target {folder}/text.en --sizes huge", "sizes: must be of .*, is huge"),
        ("train --source a --target a --release {folder}", "release: .* is no checkout of this package"),
        ("compiled --source a --target a --size huge", "size: invalid choice: 'huge'"),
        ("speedrun --training a --change a --seeds 1 2 1 --validation v v --test t t", "seeds: .*, got 1 2 1"),
        ("table1 --max_length 16", "max_length, max_width: must be at least 32 and 64"),
    ],
)
def test_a_mistake_ends_in_one_line_before_anything_is_measured(
    command, message, text, saved_model, tmp_path, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    name, *options = (word.format(folder=tmp_path, repository=REPOSITORY) for word in command.split())
    if name == "decode":
        options += ["--text", text, "--model", saved_model]
    line = refusal(f"benchmarks/{name}.py", *options, "--output", tmp_path / "out")
    assert re.match(rf"{name}\.py: .*{message}", line)
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("decode", "DecodeRecord"),
        ("decode_amx", "DecodeRecord"),
        ("train", "TrainRecord"),
        ("train_epyc", "TrainRecord"),
        ("compiled", "CompiledRecord"),
        ("speedrun", "SpeedrunRecord"),
        ("table1", "Table1Record"),
    ],
)
def test_a_published_table_is_made_of_the_record_beside_it(name, record):
    module = recipe_module(f"benchmarks/{name.partition('_')[0]}.py")
    published = getattr(module, record).load(PUBLISHED / f"{name}.json")
    assert module.as_markdown(published) == (PUBLISHED / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.system
def test_decode_measures_each_system_in_batches_of_each_size(trained, tokenizer, tmp_path):
    """The model knows its 16 sentences, so that greedy search finds the same in all systems."""
    pytest.importorskip("ctranslate2")
    model, output = save_model(tmp_path / "model", trained, tokenizer), tmp_path / "out"
    texts = write_pairs(phrasebook("validation")[:16], tmp_path / "text", tmp_path / "references")
    call_recipe("export.py", "--model", model, "--output", tmp_path / "exported", "--shortlist", *texts)
    options = ("--seconds", 0.01, "--batch_sizes", 3, 16, "--output", output, "--exports", tmp_path / "exported")
    call_recipe("benchmarks/decode.py", "--model", model, "--text", texts[0], "--references", texts[1], *options)
    greedy, beam = recipe_module("benchmarks/decode.py").DecodeRecord.load(output / "decode.json").results
    names = list(dict.fromkeys(row.system for row in greedy.rows))
    assert names[2:4] == ["CTranslate2, exported", "CTranslate2, exported, shortlist"]
    assert [(row.system, row.batch) for row in greedy.rows] == [(name, size) for name in names for size in (3, 16)]
    assert [row.bleu for row in greedy.rows] == pytest.approx([100.0] * len(greedy.rows))
    assert {row.same_as_ours for row in greedy.rows} == {1.0}
    assert {row.system for row in beam.rows} - {*names} == {"ours, float32, sorted, stopping as CTranslate2"}
    assert "| CTranslate2, exported, shortlist " in (output / "decode.md").read_text(encoding="utf-8")


@pytest.mark.system
def test_train_measures_each_system_on_whole_batches_of_the_corpus(tmp_path):
    files = write_pairs(phrasebook("validation")[:200], tmp_path / "text.en", tmp_path / "text.de")
    options = {"sizes": "tiny", "precisions": "float32", "vocab_size": 300, "tokens": 200}
    options |= {"seconds": 0.01, "rounds": 2, "output": tmp_path / "out"}
    call_recipe("benchmarks/train.py", "--source", files[0], "--target", files[1], *option_words(options))
    train = recipe_module("benchmarks/train.py")
    (measured,) = train.TrainRecord.load(tmp_path / "out" / "train.json").results
    systems = [name for name in train.SYSTEMS if name != "ours, compiled"]  # needs a compiler, and is slower on a CPU
    assert [row.system for row in measured.rows] == systems
    shown = " ".join((tmp_path / "out" / "train.md").read_text(encoding="utf-8").split())
    for row in measured.rows:
        assert len(row.target_tokens_per_second) == 2 <= row.steps
        assert min(row.target_tokens_per_second) > 0
        assert 0 <= row.padding_share < 0.5
        assert row.peak_bytes > 4 * 8000 * 128 * 4  # weights, gradients and moments of the embeddings alone
        assert f"| {row.system} | {statistics.median(row.target_tokens_per_second):,.0f} |" in shown


@pytest.mark.system
def test_parts_for_a_gpu_are_rehearsed_on_a_cpu(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    write_pairs(phrasebook("validation")[:100], data / "train.en", data / "train.de")
    for language in ("en", "de"):
        (data / f"train.{language}.gz").write_bytes(gzip.compress((data / f"train.{language}").read_bytes()))
    environment = {**os.environ, "REHEARSAL": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = REPOSITORY / "recipes" / "benchmarks" / "gpu.sh"
    subprocess.run(["bash", script, data, out, "curves"], env=environment, check=True)
    record = recipe_module("benchmarks/compiled.py").CompiledRecord.load(out / "compiled.json")
    assert record.compiled.graphs[-1] == 1
    assert 1 < record.compiled.shapes <= 24
    assert len(record.compiled.losses) == len(record.eager.losses) == 2
    assert (out / "compiled.png").stat().st_size > 10_000


def test_checkouts_in_folders_of_one_name_are_rows_of_their_own(tmp_path):
    train = recipe_module("benchmarks/train.py")
    releases = [str(tmp_path / name / "package") for name in ("new", "old")]
    for release in releases:
        Path(release, "vaswani_transformer").mkdir(parents=True)
    systems = train.Arguments(source="a", target="a", release=releases).systems()
    assert systems["ours"] == ("ours", train.HERE)
    assert [systems[f"ours of {release}"] for release in releases] == [("ours", Path(each)) for each in releases]


def test_a_speed_counts_tokens_without_padding_and_products_with_it():
    train = recipe_module("benchmarks/train.py")
    turns = [train.Turn(seconds=2.0, tokens=60, target_tokens=20, shapes=[(4, 10, 5), (2, 10, 10)])]
    config = VaswaniConfig.from_variant("base", vocab_size=1000)
    speed = train.speed("a", turns, config)
    assert speed.target_tokens_per_second == [10]
    assert speed.padding_share == pytest.approx(1 - 60 / (4 * 15 + 2 * 20))
    linear = [module for module in VaswaniForConditionalGeneration(config).modules() if type(module) is torch.nn.Linear]
    assert speed.operations_per_second[0] > 3 * 2 * 20 / 2 * linear[-1].weight.numel()  # of the logits alone


@pytest.mark.parametrize("power", [0, 2, 0.5])
def test_exponent_of_a_power_is_the_power(power):
    exponent = recipe_module("benchmarks/table1.py").exponent
    sizes = [32, 64, 128, 256, 512]
    assert exponent(sizes, [3e-4 * size**power for size in sizes]) == pytest.approx(power)
    assert exponent([1, 2, 4, 8], [100, 50, 16, 64]) == pytest.approx(2)  # what small sizes cost does not count


def test_table1_has_a_row_for_each_kind_of_layer_and_compares_equal_attentions(tmp_path):
    options = (
        "--max_length",
        64,
        "--max_width",
        64,
        "--neighborhood",
        8,
        "--seconds",
        0.01,
        "--output",
        tmp_path / "out",
    )
    call_recipe("benchmarks/table1.py", *options)
    results = recipe_module("benchmarks/table1.py").Table1Record.load(tmp_path / "out" / "table1.json")
    assert results.n.sizes == [4, 8, 16, 32, 64]
    assert results.d.sizes == [8, 16, 32, 64]
    assert results.restricted.largest_difference < 1e-5
    report = re.sub(" +", " ", (tmp_path / "out" / "table1.md").read_text(encoding="utf-8"))
    assert len(results.exponents) == 5
    for name, growth in results.exponents.items():
        assert f"| {name} | {growth['n'].predicted} | {growth['n'].measured:.4g} |" in report
    assert (tmp_path / "out" / "table1.png").stat().st_size > 10_000


def test_a_speedrun_is_a_record_if_it_is_good_within_the_budget_and_faster():
    speedrun = recipe_module("benchmarks/speedrun.py")
    run = recipe_module("benchmarks/decode.py").DecodeRecord.load(PUBLISHED / "decode.json").run
    elsewhere = dataclasses.replace(run, hardware="elsewhere")
    lines = [
        ("**A, record**", run, [21.0, 22.0, 22.0], [39.27] * 3),
        ("B", run, [10.0] * 3, [41.0, 41.0, 35.0]),
        ("**C, record**", elsewhere, [23.0] * 3, [39.27] * 3),
        ("D", elsewhere, [20.0, 20.0, 25.0], [40.0] * 3),
        ("E", run, [22.0] * 3, [39.27] * 3),
        ("F", run, [15.0] * 3, [39.3, 39.7, 40.5]),
        ("**G, record**", run, [15.0] * 3, [39.7, 40.0, 40.3]),
        ("**H, record**", run, [14.0] * 4, [39.3, 39.7, 40.2, 40.2]),
    ]
    entries = [
        speedrun.Entry(str(row), place, 1, [*range(len(minutes))], "logs", minutes, minutes, scores, scores)
        for row, (_, place, minutes, scores) in enumerate(lines)
    ]
    report = speedrun.as_markdown(speedrun.SpeedrunRecord(entries))
    cells = [[cell.strip() for cell in line.split("|")[1:]] for line in report.splitlines() if line.startswith("| ")]
    assert [row[:2] for row in cells[1:]] == [[mark, str(row)] for row, (mark, *_) in enumerate(lines)]
    assert [row[5] for row in cells[-3:-1]] == ["38.80", "39.49"]
    assert [letter for letter, *_ in speedrun.lettered(entries * 4)][25:27] == ["Z", "A1"]
    assert cells[-2][3:5] == ["15.0 (15.0 to 15.0)", "40.00 (39.70 to 40.30)"]


def test_a_speedrun_trains_each_seed_and_scores_with_one_alpha(tmp_path, lively_model, monkeypatch):
    translate = Mock(wraps=translate_corpus)
    monkeypatch.setattr("vaswani_transformer.decoding.translation.translate_corpus", translate)
    saved = open_model(lively_model)
    sources = ["The old man buys a book.", "Two cats sleep there.", "Today the child sleeps."]
    *others, last = translate_corpus(saved.load(), saved.tokenizer, sources)
    files = [write_lines(tmp_path / "sources", sources), write_lines(tmp_path / "references", [*others, last.lower()])]
    student = REPOSITORY / "model_cards" / "multi30k-student-en-de"
    published = json.loads((student / "all_results.json").read_text(encoding="utf-8"))
    commands = []

    def train_all(jobs, environments, command):
        for job in jobs:
            commands.append(" ".join(command(job)))
            shutil.copytree(lively_model, job.directory, dirs_exist_ok=True)
            seconds = 60 * (9 + job.seed)
            published["training"] |= {"seconds": seconds, "processor_seconds": seconds - 6, "processes": 2}
            (job.directory / "all_results.json").write_text(json.dumps(published), encoding="utf-8")
            write_lines(job.log, [f"log {job.seed}"])
        return []

    monkeypatch.setattr("vaswani_transformer.experiments.sweep.train_all", train_all)
    options = {"training": "multi30k_speedrun", "change": "Three seeds, fast", "runs": tmp_path / "runs"}
    words = option_words({**options, "output": tmp_path / "out", "validation": files, "test": files})
    for _ in range(2):  # the second line replaces the first
        call_recipe("benchmarks/speedrun.py", *words)
    with monkeypatch.context() as patch:
        patch.setattr("vaswani_transformer.experiments.sweep.train_all", lambda jobs, *_: jobs[:1])
        assert "training: failed for three-seeds-fast, seed 1; see " in refusal("benchmarks/speedrun.py", *words)
    (entry,) = recipe_module("benchmarks/speedrun.py").SpeedrunRecord.load(tmp_path / "out" / "speedrun.json").entries
    directory = tmp_path / "runs" / "three-seeds-fast" / "seed-2"
    assert commands[1].endswith(f"--seed 2 --output_dir {directory} --use_cpu --processes 2")
    assert [call.kwargs["length_penalty"] for call in translate.call_args_list] == [1.0] * 12
    assert (entry.minutes, entry.processor_minutes) == ([10, 11, 12], pytest.approx([19.8, 21.8, 23.8]))
    assert entry.validation == entry.test == [entry.test[0]] * 3
    assert 50 < entry.test[0] < 99.9
    assert (tmp_path / "out" / entry.logs / "seed-3.log").read_text(encoding="utf-8") == "log 3\n"
    assert entry.machine == f"2 x {entry.run.hardware}"
    assert (tmp_path / "out" / "speedrun.png").stat().st_size > 1000
