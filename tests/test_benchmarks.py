"""The benchmarks: what they refuse, the tables that they write, and the published ones."""

import dataclasses
import gzip
import json
import lzma
import os
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers import REPOSITORY, call_recipe, recipe_module, write_pairs

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.translation import translate_corpus
from vaswani_transformer.model.saved_model import open_model
from vaswani_transformer.parsing.demo_treebank import demo_treebank


FOLDER = REPOSITORY / "recipes" / "benchmarks"


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.en"
    path.write_text("".join(english + "\n" for english, _ in phrasebook("validation")[:20]), encoding="utf-8")
    (tmp_path / "short.de").write_text("Ein Satz.\n", encoding="utf-8")
    (tmp_path / "empty.en").write_text("\n \n", encoding="utf-8")
    return path


DECODE = "decode --text {folder}/text.en --output {folder}/out"
SCALING = "scaling --source {folder}/text.en --output {folder}/out"
SIZES = "sizes --name a --work {folder}/out/w --corpus a a --validation b b --test c c --output {folder}/out"
SIZES += " --source_language en --target_language de"
SPEEDRUN = "speedrun --output {folder}/out --change a --runs {folder} --validation v v"
TRAIN = "train --source {folder}/text.en --target {folder}/text.en --output {folder}/out"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (DECODE, "model: name the directory of a trained model"),
        (f"{DECODE} --model {{model}} --references {{folder}}/short.de", r"short\.de has 1 lines but .*en has 20"),
        (f"{DECODE} --model {{model}} --device cuda", "device: there is no CUDA device"),
        (f"{DECODE} --model {{folder}}", r"model: .* has no (config\.json|weights)"),
        (f"{DECODE} --model {{model}} --text {{folder}}/empty.en", "text: there is nothing in .* to translate"),
        (f"{TRAIN} --target {{folder}}/short.de", r"text\.en has 20 lines but .*short\.de has 1"),
        (f"{TRAIN} --source {{folder}}/no.en", r"no\.en"),
        (f"{TRAIN} --sizes small huge", "sizes: must be of tiny, small, base, is huge"),
        (f"{TRAIN} --release {{folder}}", "release: .* is no checkout of this package"),
        (f"{TRAIN} --device cuda", "device: there is no CUDA device"),
        (f"{SPEEDRUN} --track fast", "track: must be 'paper' or 'open'"),
        (SPEEDRUN, r"all_results\.json"),
        (f"{SPEEDRUN} --test a", "test: give two files"),
        (f"{SIZES} --name a/b", "name: .* cannot have a /"),
        (f"{SIZES} --options max_steps", "options: must be name=value, such as d_model=64, is 'max_steps'"),
        (f"{SIZES} --corpus {{folder}}/no.en {{folder}}/no.de", r"no\.en"),
        ("table1 --output {folder}/text.en/below", "output: cannot write into .*below"),
        ("table1 --max_length 16", "max_length, max_width: must be at least 32 and 64"),
        (f"{SCALING} --target {{folder}}/short.de", r"text\.en has 20 lines but .*short\.de has 1"),
        (f"{SCALING} --target {{folder}}/text.en", r"vocab_size: the corpus supports only \d+ entries, not 8000"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(command, message, text, saved_model, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    name, *options = (word.format(folder=tmp_path, model=saved_model) for word in command.split())
    with pytest.raises(SystemExit, match=message) as caught:
        call_recipe(f"benchmarks/{name}.py", *options)
    assert str(caught.value.code).startswith(f"{name}.py: ")
    assert len(str(caught.value.code).splitlines()) == 1
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("corpus", "CorpusRecord"),
        ("decode", "DecodeRecord"),
        ("edge", "EdgeRecord"),
        ("elastic", "ElasticRecord"),
        ("noise", "NoiseRecord"),
        ("scaling", "ScalingRecord"),
        ("sizes", "SizesRecord"),
        ("speedrun", "SpeedrunRecord"),
        ("table1", "Table1Record"),
        ("train", "TrainRecord"),
        ("train_epyc", "TrainRecord"),
        ("trust", "TrustRecord"),
    ],
)
def test_a_published_chapter_is_made_of_the_record_beside_it(name, record):
    module = recipe_module(f"benchmarks/{name.removesuffix('_epyc')}.py")
    found = getattr(module, record).load(FOLDER / f"{name}.json")
    assert module.as_markdown(found) == (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    parts = found.corpora if name == "sizes" else found.entries if name in ("speedrun", "trust") else [found]
    for run in [part.run for part in parts]:
        if run is not None:  # as of an earlier record of scaling.py
            assert re.fullmatch(r"[0-9a-f]{40}", run.commit)


@pytest.mark.parametrize(
    ("is_sorted", "lengths"), [(False, [[5, 2, 9], [2, 7, 1], [3]]), (True, [[9, 7, 5], [3, 2, 2], [1]])]
)
def test_every_sentence_is_in_one_batch_and_sorted_ones_are_of_similar_length(is_sorted, lengths):
    sources = [[1] * length for length in (5, 2, 9, 2, 7, 1, 3)]
    batches = []

    def search(batch: list[list[int]]) -> list[list[int]]:
        batches.append([len(source) for source in batch])
        return [[len(source)] for source in batch]

    found = recipe_module("benchmarks/frame.py").in_batches(search, 3, is_sorted)(sources)
    assert batches == lengths
    assert found == [[len(source)] for source in sources]


def test_the_table_of_decode_has_each_system_at_its_fastest_batch_size():
    decode = recipe_module("benchmarks/decode.py")
    peer = "CTranslate2 float32"
    speeds = [("a", 16, 5.0), ("a", 32, 4.0), (peer, 16, 1.0), (peer, 32, 10.0)]
    rows = [
        decode.Speed(system=name, batch=size, sentences_per_second=speed, ratio_to_first=1.0, same_as_ours=1.0)
        for name, size, speed in speeds
    ]
    found = [" ".join(line.split()) for line in decode.table(decode.SpeedTable("t", 7, rows)).splitlines()]
    assert [line.split(" | ")[:5] for line in found[-2:]] == [
        ["| a", "16", "16, 32", "5.0", "0.50"],
        [f"| {peer}", "32", "16, 32", "10.0", "1.00"],
    ]


@pytest.mark.system
def test_decode_measures_each_system_in_batches_of_each_size(saved_model, text, tmp_path):
    pytest.importorskip("ctranslate2")
    options = ("--sentences", 5, "--rounds", 1, "--batch_sizes", 2, 3, "--output", tmp_path / "out")
    call_recipe("benchmarks/decode.py", "--text", text, "--model", saved_model, *options)
    record = recipe_module("benchmarks/decode.py").DecodeRecord.load(tmp_path / "out" / "decode.json")
    assert [found.beams for found in record.results] == [1, 4]
    for found, systems in zip(record.results, (7, 8), strict=True):
        names = dict.fromkeys(row.system for row in found.rows)
        assert len(names) == systems
        assert [(row.system, row.batch) for row in found.rows] == [(name, size) for name in names for size in (2, 3)]


@pytest.mark.system
def test_elastic_compares_the_processor_time_of_three_trainings(tmp_path):
    options = {"rounds": 1, "steps": 1, "tokens": 1500, "d_model": 16, "virtual_ranks": 2, "output": tmp_path}
    call_recipe("benchmarks/elastic.py", *(word for name, value in options.items() for word in (f"--{name}", value)))
    seconds = recipe_module("benchmarks/elastic.py").ElasticRecord.load(tmp_path / "elastic.json").seconds
    report = " ".join((tmp_path / "elastic.md").read_text(encoding="utf-8").split())
    (elastic,) = seconds["elastic"]
    assert seconds.keys() == {"elastic", "accumulated", "undivided"}
    for kind, (found,) in seconds.items():
        assert found > 0
        assert f"| {kind} | {found:.2f} | {elastic / found:.2f} | {found:.2f} |" in report


@pytest.mark.system
def test_train_measures_each_system_on_whole_batches_of_the_corpus(tmp_path):
    files = write_pairs(phrasebook("validation")[:200], tmp_path / "text.en", tmp_path / "text.de")
    options = {"sizes": "tiny", "precisions": "float32", "vocab_size": 300, "tokens": 200, "release": REPOSITORY}
    options |= {"seconds": 0.01, "rounds": 2, "output": tmp_path / "out"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    call_recipe("benchmarks/train.py", "--source", files[0], "--target", files[1], *words)
    train = recipe_module("benchmarks/train.py")
    (found,) = train.TrainRecord.load(tmp_path / "out" / "train.json").results
    systems = [name for name in train.SYSTEMS if name != "ours, compiled"]  # needs a compiler, and is slower on a CPU
    assert [row.system for row in found.rows] == [*systems, "the other checkout"]
    shown = " ".join((tmp_path / "out" / "train.md").read_text(encoding="utf-8").split())
    for row in found.rows:
        assert len(row.target_tokens_per_second) == 2 <= row.steps
        assert min(row.target_tokens_per_second) > 0
        assert 0 <= row.padding_share < 0.5
        assert row.peak_bytes > 4 * 8000 * 128 * 4  # weights, gradients and moments of the embeddings alone
        assert f"| {row.system} | {statistics.median(row.target_tokens_per_second):,.0f} |" in shown


def test_a_speed_counts_tokens_without_padding_and_products_with_it():
    train = recipe_module("benchmarks/train.py")
    turns = [train.Turn(seconds=2.0, tokens=60, target_tokens=20, shapes=[(4, 10, 5), (2, 10, 10)])]
    config = VaswaniConfig.from_variant("base", vocab_size=1000)
    found = train.speed("a", turns, config)
    assert found.target_tokens_per_second == [10]
    assert found.padding_share == pytest.approx(1 - 60 / (4 * 15 + 2 * 20))
    linear = [module for module in VaswaniForConditionalGeneration(config).modules() if type(module) is torch.nn.Linear]
    assert found.operations_per_second[0] > 3 * 2 * 20 / 2 * linear[-1].weight.numel()  # of the logits alone


@pytest.mark.parametrize("power", [0, 2, 0.5])
def test_exponent_of_a_power_is_the_power(power):
    exponent = recipe_module("benchmarks/table1.py").exponent
    sizes = [32, 64, 128, 256, 512]
    assert exponent(sizes, [3e-4 * size**power for size in sizes]) == pytest.approx(power)
    assert exponent([1, 2, 4, 8], [100, 50, 16, 64]) == pytest.approx(2)  # what small sizes cost does not count


def test_table1_has_a_row_for_each_kind_of_layer_and_compares_equal_attentions(tmp_path):
    options = ("--max_length", 64, "--max_width", 64, "--neighborhood", 8, "--repeats", 1, "--output", tmp_path / "out")
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


def test_the_excess_published_is_at_most_three_percent_where_a_rank_has_enough_pairs():
    scaling = recipe_module("benchmarks/scaling.py")
    record = scaling.ScalingRecord.load(FOLDER / "scaling.json")
    assert all(row.excess <= 0.03 for row in record.balances if row.ranks == 8 or row.tokens >= 100_000)


def test_a_step_of_the_paper_takes_what_its_products_and_messages_take():
    """By counting: each token of a side meets the weights of its side, and here both sides have as many."""
    scaling = recipe_module("benchmarks/scaling.py")
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(VaswaniConfig.from_variant("base", vocab_size=37_000))
    assert model.num_parameters() / 1e6 == pytest.approx(65, rel=0.04)  # Table 3
    products = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    compute = 6 * products * 25_000 / 8 / (0.35 * 10.6e12)  # without scores
    sent = sum(4 * model.num_parameters() / 8 for _ in range(2 * (8 - 1)))  # a chunk in each round of a ring
    row = next(row for row in scaling.step_table() if row[1] == "8 P100, fp32")
    assert [float(cell) / 1000 for cell in row[-3:-1]] == pytest.approx([compute, sent / (0.8 * 80e9)], rel=0.03)


def test_a_balance_is_that_of_the_loop_over_ranks():
    scaling = recipe_module("benchmarks/scaling.py")
    lengths = np.random.default_rng(0).integers(2, 30, size=(2, 900))
    found = scaling.balance("a", lengths, tokens=1500, ranks=4)
    sampler = scaling.TokenBudgetBatchSampler(*lengths, 1500, 1500, num_parts=4)
    slowest, mean, read = 0, 0.0, [0] * 4
    parts = list(sampler)
    for first in range(0, len(parts), 4):
        costs = []
        for rank, part in enumerate(parts[first : first + 4]):
            source, target = (len(part) * max(side[index] for index in part) for side in lengths)
            costs.append(source + 2 * target)
            read[rank] += source + target
        slowest, mean = slowest + max(costs), mean + sum(costs) / 4
    assert found.steps == len(parts) // 4
    assert found.excess == pytest.approx(slowest / mean - 1)
    assert found.excess_of_epoch == pytest.approx(max(read) / (sum(read) / 4) - 1)
    assert found.excess < found.excess_of_equal_counts


def test_scaling_measures_a_corpus_and_writes_a_report(tmp_path):
    scaling = recipe_module("benchmarks/scaling.py")
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("".join(f"word number {number} here\n" for number in range(600)), encoding="utf-8")
    files = ("--source", tmp_path / "a.en", "--target", tmp_path / "a.de")
    call_recipe("benchmarks/scaling.py", *files, "--vocab_size", 300, "--output", tmp_path / "out")
    rows = scaling.ScalingRecord.load(tmp_path / "out" / "scaling.json").balances
    assert [(row.pairs, row.tokens, row.ranks) for row in rows[:2]] == [(600, 25_000, 8), (600, 25_000, 64)]
    shown = " ".join((tmp_path / "out" / "scaling.md").read_text(encoding="utf-8").split())
    assert f"| {tmp_path.name} | 25,000 | 8 |" in shown


def test_a_speedrun_is_a_record_if_it_is_as_good_and_faster_by_the_rules():
    speedrun = recipe_module("benchmarks/speedrun.py")
    first, *_ = speedrun.SpeedrunRecord.load(FOLDER / "speedrun.json").entries
    elsewhere = dataclasses.replace(first.run, hardware="elsewhere")
    lines = [
        ("**record**", {"minutes": [41.0, 42.0, 42.0]}),
        ("", {"minutes": [10.0] * 3, "validation": [41.0, 41.0, 35.0]}),
        ("unknown", {"minutes": [10.0] * 2, "validation": [41.0] * 2}),
        ("unknown", {"minutes": [10.0] * 3, "alphas": [0.6]}),
        ("unknown", {"minutes": [10.0] * 3, "alphas": [0.6, 1.0]}),
        ("**record**", {"minutes": [30.0] * 3, "run": elsewhere}),
        ("", {"minutes": [42.0] * 3}),
        ("**record**", {"minutes": [35.0] * 3, "validation": [39.0, 39.3, 40.0]}),
    ]
    rules = {"alphas": [1.0], "validation": [39.27] * 3}
    entries = [dataclasses.replace(first, change=str(row), **rules | each) for row, (_, each) in enumerate(lines)]
    report = speedrun.as_markdown(speedrun.SpeedrunRecord(entries))
    cells = [[cell.strip() for cell in line.split("|")[1:]] for line in report.splitlines() if line.startswith("| ")]
    assert [row[:2] for row in cells[1:]] == [[mark, str(row)] for row, (mark, _) in enumerate(lines)]
    assert cells[-1][3:6] == ["35.0 (35.0 to 35.0)", "-", "39.43 (39.00 to 40.00)"]


@pytest.mark.parametrize("together", [1, 2])
def test_speedruns_are_scored_with_one_alpha(together, tmp_path, lively_model, monkeypatch):
    translate = Mock(wraps=translate_corpus)
    monkeypatch.setattr("vaswani_transformer.decoding.translation.translate_corpus", translate)
    saved = open_model(lively_model)
    sources = ["The old man buys a book.", "Two cats sleep there.", "Today the child sleeps."]
    found = translate_corpus(saved.load(), saved.tokenizer, sources)
    for name, lines in (("sources", sources), ("references", [*found[:-1], found[-1].lower()])):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    published = json.loads((REPOSITORY / "model_cards" / "multi30k-en-de.json").read_text(encoding="utf-8"))
    files = [str(tmp_path / name) for name in ("sources", "references")]
    names = [str(tmp_path / f"run{number}") for number in range(4)]
    for number, name in enumerate(names):
        shutil.copytree(lively_model, name)
        published["settings"]["seed"] = number
        published["training"] |= {"seconds": 60 * (10 + number), "processor_seconds": 60 * 9, "processes": 1}
        Path(name, "all_results.json").write_text(json.dumps(published), encoding="utf-8")
    options = ["--change", "two", "--output", str(tmp_path / "out"), "--together", together, "--validation", *files]
    call_recipe("benchmarks/speedrun.py", "--runs", *names, *options)
    call_recipe("benchmarks/speedrun.py", "--runs", *names, *options, "--test", *files)
    record = recipe_module("benchmarks/speedrun.py").SpeedrunRecord
    untested, entry = record.load(tmp_path / "out" / "speedrun.json").entries
    assert (untested.validation, untested.test, untested.lowercased) == (entry.validation, [], [])
    assert (entry.alphas, entry.seeds) == ([1.0], [0, 1, 2, 3])
    assert [call.kwargs["length_penalty"] for call in translate.call_args_list] == [1.0] * (12 // together)
    assert {1 + len(call.kwargs.get("ensemble", ())) for call in translate.call_args_list} == {together}
    assert entry.minutes == ([10, 11, 12, 13] if together == 1 else [11, 13])
    assert entry.processor_minutes == [9 * together] * (4 // together)
    assert entry.validation == entry.test == [entry.test[0]] * (4 // together)
    assert 50 < entry.test[0] < 99.9
    assert [*map(round, entry.lowercased)] == [100] * (4 // together)
    assert entry.machine == (f"2 x {entry.run.hardware}" if together == 2 else entry.run.hardware)
    assert (tmp_path / "out" / "speedrun.png").stat().st_size > 1000
    if together == 2:
        with pytest.raises(SystemExit, match="together: 3 runs are no groups of 2"):
            call_recipe("benchmarks/speedrun.py", "--runs", *names[:3], *options)


def test_sizes_chooses_the_best_configuration_by_validation_and_trains_none_twice(tmp_path, capsys):
    sizes = recipe_module("benchmarks/sizes.py")
    published = json.loads((REPOSITORY / "model_cards" / "multi30k-en-de.json").read_text(encoding="utf-8"))
    for side in ("en", "de"):
        (tmp_path / f"all.{side}").write_text("".join(f"{side} {row}\n" for row in range(10)), encoding="utf-8")
    corpus = [str(tmp_path / f"all.{side}") for side in ("en", "de")]
    scores = dict(zip(sizes.CONFIGURATIONS, [(30.0, 31.0), (30.5, 30.0), *[(20.0, 40.0)] * 4], strict=True))
    for name, (validation, test) in scores.items():
        published["validation"]["bleu"]["score"], published["test"]["bleu"]["score"] = validation, test
        published["training"]["processor_seconds"] = 600
        directory = tmp_path / "work" / "numbers-5" / name / "seed-1"
        directory.mkdir(parents=True)
        (directory / "all_results.json").write_text(json.dumps(published), encoding="utf-8")
    files = ["--corpus", *corpus, "--validation", *corpus, "--test", *corpus]
    options = ["--name", "numbers", "--pairs", "5", "--work", str(tmp_path / "work"), "--output", str(tmp_path), *files]
    call_recipe("benchmarks/sizes.py", *options, "--minutes", "10")  # as long as nothing has begun, options may change
    call_recipe("benchmarks/sizes.py", *options)  # its result replaces the first
    (directory / "_run.json").touch()
    (found,) = sizes.SizesRecord.load(tmp_path / "sizes.json").corpora
    assert (found.pairs, found.best, found.trainings["dropout 0.2"].processor_minutes) == (5, "dropout 0.2", 10)
    kept = (tmp_path / "work" / "numbers-5" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in kept] == [{"en": f"en {row}", "de": f"de {row}"} for row in (0, 2, 4, 6, 8)]
    report = (tmp_path / "sizes.md").read_text(encoding="utf-8")
    assert "## numbers, 5 pairs" in report
    assert "**30.50**" in report
    assert "small.yaml: -0.50 validation and +1.00 test BLEU from the best." in report
    assert "training, see" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"sizes\.py: work: .* was begun with other options, minutes"):
        call_recipe("benchmarks/sizes.py", *options, "--minutes", "15")


def test_statistical_alignment_learns_which_words_stand_for_which():
    """Words are translated one by one, and each sentence of three or more is turned around: the diagonal misleads."""
    links = recipe_module("benchmarks/trust.py").statistical_links
    numbers = random.Random(0)
    sentences = [[numbers.randrange(30) for _ in range(numbers.randrange(1, 9))] for _ in range(400)]
    sources = [" ".join(f"s{number}" for number in sentence) for sentence in sentences]
    targets = [" ".join(f"T{number}," for number in reversed(sentence)) for sentence in sentences]
    found = links([*sources, "s1 s2", ""], [*targets, "", "T1"])
    assert found[-2:] == [set(), set()]
    right = total = 0
    for sentence, pairs in zip(sentences, found, strict=False):
        right += sum(sentence[source] == sentence[::-1][target] for source, target in pairs)
        total += max(len(sentence), len(pairs))
    assert right / total > 0.9


def test_the_error_rate_counts_sure_links_twice():
    error_rate = recipe_module("benchmarks/trust.py").error_rate
    sure, possible = [{(0, 0), (1, 1)}], [{(0, 0), (1, 1), (2, 1)}]
    assert error_rate(sure, sure, possible) == 0
    assert error_rate([{(0, 0), (2, 1), (5, 5)}], sure, possible) == pytest.approx(1 - (1 + 2) / (3 + 2))


def test_noise_exchanges_translations_and_shortens_others_and_leaves_the_rest():
    noise = recipe_module("benchmarks/noise.py")
    sources, targets = ([f"{word} {number} a b c" for number in range(50)] for word in ("source", "target"))
    pairs = noise.make_noise(sources, targets, 0.4)
    assert [pair.source for pair in pairs] == sources
    of_kind = {kind: [row for row, pair in enumerate(pairs) if pair.kind == kind] for kind in noise.KINDS}
    assert [len(rows) for rows in of_kind.values()] == [30, 10, 10]
    assert all(pairs[row].target == targets[row] for row in of_kind["clean"])
    assert all(pairs[row].target == " ".join(targets[row].split()[:2]) for row in of_kind["shortened"])
    exchanged = of_kind["exchanged"]
    assert sorted(pairs[row].target for row in exchanged) == sorted(targets[row] for row in exchanged)
    assert not any(pairs[row].target == targets[row] for row in exchanged)
    with pytest.raises(ValueError, match="too few to exchange"):
        noise.make_noise(sources[:5], targets[:5], 0.4)


def test_a_document_that_is_there_twice_or_changed_is_seen(tmp_path):
    corpus = recipe_module("benchmarks/corpus.py")

    def write(name: str, rows: list[tuple[int, str]]) -> None:
        with gzip.open(tmp_path / name, "wt", encoding="utf-8") as file:
            for number, text in rows:
                file.write(json.dumps({"id": str(number), "metadata": {"translation": text}}) + "\n")

    write("0.jsonl.gz", [(2, "c"), (0, "a")])
    write("1.jsonl.gz", [(1, "b")])
    assert corpus.documents(tmp_path) == corpus.digest(iter(["a\n", "b\n", "c\n"]))
    write("1.jsonl.gz", [(1, "d")])
    assert corpus.documents(tmp_path) != corpus.digest(iter(["a\n", "b\n", "c\n"]))
    write("2.jsonl.gz", [(1, "b")])
    with pytest.raises(ValueError, match="document 1 is there twice"):
        corpus.documents(tmp_path)


# What programs of the script are told beside their own options, to need no GPU and little time: the first match.
_TINY = "--d_model 16 --d_ff 32 --num_heads 2 --encoder_layers 1 --decoder_layers 1 --vocab_size 300 --max_steps 2 "
_TINY += "--save_steps 1 --eval_steps 2 --logging_steps 1 --use_cpu true"
MORE = {
    "-c import": "",
    "-m pytest": "-k memory -p no:cacheprovider",
    "recipes/benchmarks/train.py": "--device cpu --sizes tiny --precisions float32 --vocab_size 300 --tokens 300 "
    "--seconds 0.01 --rounds 1",
    "recipes/benchmarks/decode.py": "--device cpu --sentences 5 --batch_sizes 5 --rounds 1",
    "recipes/score.py": "",
    "recipes/train_parsing.py": f"{_TINY} --curve_sentences 5",
    "configs/demo.yaml": "--use_cpu true",
    "recipes/train_wmt.py": _TINY,
}
STAND_IN = f"""
import os, sys
line = " ".join(sys.argv[1:])
more = next(more for part, more in {MORE}.items() if part in line)
os.execv(sys.executable, [sys.executable, *sys.argv[1:], *more.split()])
"""


def write_data_of_the_script(folder: Path) -> None:
    def write(name: str, lines: Iterable[str]) -> None:
        opened = lzma.open if name.endswith(".xz") else gzip.open
        with opened(folder / name, "wt", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)

    names = {"train": ("train", "canlaws.train"), "validation": ("val", "canlaws.valid")}
    names["test"] = ("test_2016_flickr", "canlaws.test", "newstest2014")
    for split, (captions, *others) in names.items():
        for side, sentences in enumerate(zip(*phrasebook(split)[: 400 if split == "train" else 20], strict=True)):
            write(f"{captions}.{('en', 'de')[side]}.gz", sentences)
            for name in others:
                compression = "xz" if name == "canlaws.train" else "gz"
                write(f"{name}.{('en', 'fr')[side]}.{compression}", sentences)
    for split, name in (("train", "train"), ("validation", "dev")):
        trees = islice(demo_treebank(split), 300 if split == "train" else 10)
        write(f"craft.{name}.mrg.gz", (" ".join(str(tree).split()) for tree in trees))


@pytest.mark.system
@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ("search train multi30k decode", ["out/train.md", "out/multi30k.README.md", "out/decode.md"]),
        ("canlaws parsing", ["out/canlaws_newstest2014.json", "out/canlaws_en_fr.README.md", "out/craft.README.md"]),
        ("faults", ["out/diverging.txt", "runs/gpu/resumed/checkpoint-20"]),
    ],
)
def test_the_script_for_a_gpu_is_rehearsed_on_a_cpu(parts, left, tmp_path):
    pytest.importorskip("ctranslate2")
    for name in ("vaswani_transformer", "tests", "pyproject.toml"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    # A copy: the script works in the folder two above its own.
    shutil.copytree(REPOSITORY / "recipes", tmp_path / "recipes")
    for name in ("bin", "data"):
        (tmp_path / name).mkdir()
    stand_in, program = tmp_path / "stand_in.py", tmp_path / "bin" / "python3"
    stand_in.write_text(STAND_IN, encoding="utf-8")
    called = shlex.join([sys.executable, str(stand_in)])
    program.write_text(f'#!/bin/sh\nexec {called} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    write_data_of_the_script(tmp_path / "data")
    script = [tmp_path / "recipes" / "benchmarks" / "gpu.sh", tmp_path / "data", tmp_path / "out", *parts.split()]
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    with subprocess.Popen(["bash", *script], env=environment, start_new_session=True) as process:
        try:
            assert process.wait(timeout=300) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert [name for name in left if not (tmp_path / name).exists()] == []


def test_models_of_a_benchmark_have_its_options_and_killed_ones_are_resumed(tmp_path, monkeypatch):
    frame = recipe_module("benchmarks/frame.py")
    files = {"work": "w", "corpus": ["c.en", "c.de"], "validation": ["v.en", "v.de"], "test": ["t.en", "t.de"]}
    commands = {}

    def train_all(jobs: list, environments: list[dict[str, str]], command: Callable) -> list:
        commands.update({job.row: command(job)[1:] for job in jobs})
        assert environments == [{"OMP_NUM_THREADS": "1"}] * 2
        return []

    monkeypatch.setattr(frame, "train_all", train_all)
    (tmp_path / "b" / "seed-1").mkdir(parents=True)
    (tmp_path / "b" / "seed-1" / "_run.json").touch()
    models = {"a": {"train": "c", "dropout": 0.5}, "b": {"train": "c"}}
    args = frame.TrainingArguments(**files, options=["dropout=0.2", "d_ff=8"], parallel=2)
    assert frame.train_models(tmp_path, args, models) == {"a": None, "b": None}
    for name, dropout, is_resumed in (("a", "0.5", "False"), ("b", "0.2", "True")):
        options = commands[name]
        assert options[-6:] == ["--validation", "v.en", "v.de", "--test", "t.en", "t.de"]
        assert dict(zip(options[:-6:2], options[1:-6:2], strict=True)) == {
            **{"--train": "c", "--dropout": dropout, "--d_ff": "8", "--use_cpu": "True", "--seed": "1"},
            **{"--source_language": "en", "--target_language": "de", "--resume": is_resumed},
            "--output_dir": str(tmp_path / name / "seed-1"),
        }
    for name in ("train", "seed", "use_cpu"):
        with pytest.raises(ValueError, match=f"options: the benchmark sets {name}; leave it out"):
            frame.train_models(tmp_path, frame.TrainingArguments(**files, options=[f"{name}=1"]), models)
