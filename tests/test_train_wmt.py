"""The recipe from end to end on the embedded corpus, and one clear error for each mistake, before any training."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from helpers import REPOSITORY, TINY, TRAIN_WMT, call_recipe, option_words, refusal, run_python, run_recipe
from huggingface_hub import ModelCard
from runs import training_options
from sacrebleu.metrics import BLEU, CHRF
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vaswani_transformer import VaswaniConfig, VaswaniTrainer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.options.training import RecipeTrainingArguments
from vaswani_transformer.runs import training_run, validation
from vaswani_transformer.runs.scoring import Translations


CONFIGS = sorted(
    {*(REPOSITORY / "recipes" / "configs").glob("*.yaml")} - {*REPOSITORY.rglob("configs/*_parsing*.yaml")}
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Aligned text files, some of them compressed, and rows that cleaning must drop."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, size, opener, suffix in (("train", 300, open, ""), ("test", 12, gzip.open, ".gz")):
        pairs = [*phrasebook(split)[:size]]
        if split == "train":
            pairs += [("", "Leer."), ("Yes.", "Ja " * 60), ("A " * 400, "Ein " * 400)]
        for side, language in enumerate(("en", "de")):
            with opener(folder / f"{split}.{language}{suffix}", "wt", encoding="utf-8") as file:
                file.writelines(pair[side] + "\n" for pair in pairs)
    return folder


@pytest.fixture
def settings(corpus, tmp_path) -> dict:
    test = [str(corpus / "test.en.gz"), str(corpus / "test.de.gz")]
    train = [str(corpus / "train.en"), str(corpus / "train.de")]
    return {**TINY, "train": train, "validation": test, "test": test, "output_dir": str(tmp_path / "run")}


def run(settings: dict, *overrides: str) -> subprocess.CompletedProcess:
    return run_recipe("train_wmt.py", *option_words(settings), *overrides)


def results_of(directory: Path) -> dict:
    return json.loads((directory / "all_results.json").read_text(encoding="utf-8"))


def log_of(directory: Path) -> list[dict]:
    state = (directory / "checkpoint-4" / "trainer_state.json").read_text(encoding="utf-8")
    return json.loads(state)["log_history"]


@pytest.mark.system
def test_text_files_become_a_scored_documented_translating_model(settings):
    result = run(settings, "--report_to", "tensorboard", "--eval_bleu", "5", "--generation_num_beams", "2")
    assert result.returncode == 0, result.stderr
    directory = Path(settings["output_dir"])
    (folder,) = (directory / "runs").iterdir()
    tracked = EventAccumulator(str(folder)).Reload()
    losses = [entry["loss"] for entry in log_of(directory) if "loss" in entry]
    assert [event.value for event in tracked.Scalars("train/loss")] == pytest.approx(losses, rel=1e-6)
    assert [event.step for event in tracked.Scalars("eval/bleu")] == [2, 4]
    results = results_of(directory)
    (event,) = tracked.Scalars("test/averaged_bleu")
    assert (event.step, event.value) == (4, pytest.approx(results["test"]["bleu"]["score"], rel=1e-6))
    for name in ("all_results.json", "README.md"):  # the corpus was given by its full name
        assert str(Path(settings["train"][0]).parent) not in (directory / name).read_text(encoding="utf-8")
    assert results["data"]["train"] == ["train.en", "train.de"]
    assert results["data"]["cleaning"] == {"empty": 1, "too_long": 1, "ratio": 1, "kept": 300}
    assert results["training"]["averaged"] == ["checkpoint-2", "checkpoint-4"]
    for name in ("learning_curve.png", "bleu_by_source_length.png", "robustness.png"):
        assert (directory / name).read_bytes().startswith(b"\x89PNG")
    assert sum(group["sentences"] for group in results["test"]["by_source_length"]) == results["test"]["sentences"]

    # what is reported is what the saved model does
    translations = (directory / "translations.test.txt").read_text(encoding="utf-8").splitlines()
    sources = [english for english, _ in phrasebook("test")[:12]]
    translator = pipeline("translation", model=str(directory))
    assert [output["translation_text"] for output in translator(sources)] == translations
    references = [german for _, german in phrasebook("test")[:12]]
    pairs = zip(translations, references, strict=True)
    scores = sorted(CHRF().sentence_score(text, [reference]).score for text, reference in pairs)
    shown = [scores[place] for place in (0, 1, 2, 5, 8, 11)]
    assert [each["chrf"] for each in results["examples"]] == pytest.approx(shown)
    copy = BLEU().corpus_score(sources, [references])
    assert results["test_copy"]["bleu"]["score"] == pytest.approx(copy.score)
    chrf = CHRF().corpus_score(translations, [references])
    card = ModelCard.load(directory / "README.md")
    assert f"| {results['test']['bleu']['score']:.2f} | {chrf.score:.2f} |" in card.text
    assert results["test"]["bleu"]["score"] < copy.score
    changed = results["robustness"]["changes"]["a tab"]
    assert (changed["lines"], changed["plain_bleu"]) == (12, pytest.approx(results["test"]["bleu"]["score"]))
    assert f"| a tab | 12 | {changed['bleu']:.2f} |" in card.text
    *_, verdict, place, following = re.split(r"\n(?=Verdict|The model|Next)", result.stdout)
    assert "\n- No better than a copy of the source by sacreBLEU and chrF on the test set: " in verdict
    assert place == f"The model is in {directory}."
    assert following == "Next: repeat the command with --resume --max_steps 8\n"


@pytest.mark.system
def test_embeddings_of_cooccurrence_muon_a_warm_up_a_cooldown_and_a_length_penalty(settings, capsys, monkeypatch):
    settings |= {"muon": True, "cooldown": 0.5, "lr_scheduler_type": "constant_with_warmup", "learning_rate": 1e-3}
    settings |= {"length_penalties": [0.0, 50.0], "cooccurrence_embeddings": True}
    call_recipe("train_wmt.py", *option_words(settings))
    directory = Path(settings["output_dir"])
    rates = [entry["learning_rate"] for entry in log_of(directory) if "learning_rate" in entry]
    assert rates == pytest.approx([0, 5e-4, 1e-3, 5e-4])  # transformers' warm-up begins with a step at 0
    card = (directory / "README.md").read_text(encoding="utf-8")
    output = capsys.readouterr().out
    assert re.search(r"^embeddings from co-occurrence: \d+\.\d s$", output, re.M)
    assert re.search(r"^translating \d+ validation sentences with each length_penalty: 0, 50$", output, re.M)
    assert re.search(r"^length_penalty 50: [\d.]+ validation BLEU$", output, re.M)
    shown = re.search(
        r"^length_penalty (\d+); validation BLEU by length_penalty: 0: ([\d.]+), 50: ([\d.]+)"
        r"(?:; 50 against 0: p = ([\d.]+))?$",
        output,
        re.M,
    )
    chosen, *found, p_value = (float(group or 1) for group in shown.groups())  # no p: the first is the best
    assert chosen == (50.0 if p_value < 0.05 else 0.0)
    assert AutoModelForSeq2SeqLM.from_pretrained(directory).generation_config.length_penalty == chosen
    assert results_of(directory)["validation"]["bleu"]["score"] == pytest.approx(found[chosen > 0], abs=0.006)
    assert f"decoding as in section 6.1, with a length penalty of {chosen}." in card
    for row in ("cooccurrence_embeddings | true | false", "muon | true | false", "cooldown | 0.5 | 0"):
        assert f"\n| {row} |\n" in card
    for better, expected in ((1, 0.0), (12, 50.0)):  # sentences of twelve

        def translate(model, tokenizer, test_set, search, count=better):
            right = count if search["length_penalty"] == 50 else 0
            lines = [line + " und so weiter" * (row >= right) for row, (line,) in enumerate(test_set.references)]
            return Translations(lines)

        monkeypatch.setattr(validation, "translate_test_set", translate)
        (directory / "all_results.json").unlink()
        call_recipe("train_wmt.py", *option_words(settings), "--resume")
        assert AutoModelForSeq2SeqLM.from_pretrained(directory).generation_config.length_penalty == expected
    assert "co-occurrence" not in capsys.readouterr().out  # the checkpoint has them


@pytest.mark.system
def test_one_model_of_both_directions(settings):
    result = run(settings, "--both_directions", "true", "--max_steps", "2", "--test", *settings["test"])
    assert result.returncode == 0, result.stderr
    directory = Path(settings["output_dir"])
    results = results_of(directory)
    config = AutoModelForSeq2SeqLM.from_pretrained(directory).config
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert config.language_tags == {code: tokenizer.convert_tokens_to_ids(f"<2{code}>") for code in ("en", "de")}
    assert len(tokenizer) == 320
    pairs = phrasebook("train")[:2000]
    sources = [f"<2de> {english}" for english, _ in pairs] + [f"<2en> {german}" for _, german in pairs]
    assert 10 < config.longest_source <= max(map(len, tokenizer(sources).input_ids))
    for split, pair in (("test", "en_to_de"), ("test_reverse", "de_to_en")):
        lines = (directory / f"translations.{split}.txt").read_text(encoding="utf-8").splitlines()
        translator = pipeline(f"translation_{pair}", model=str(directory))
        texts = [each[pair.startswith("de")] for each in phrasebook("test")[: len(lines)]]
        assert [each["translation_text"] for each in translator(texts)] == lines
        assert results[split]["sentences"] == len(lines)
    card = (directory / "README.md").read_text(encoding="utf-8")
    assert "translate from English (`en`) to German (`de`) and back" in card


@pytest.mark.system
def test_a_run_resumes_after_each_kind_of_end(settings):
    assert run(settings, "--max_steps", "2", "--test", *settings["test"]).returncode == 0
    directory = Path(settings["output_dir"])
    vocabulary = (directory / "tokenizer.json").read_bytes()
    (directory / "tokenizer.json").write_bytes(vocabulary[:99])
    resumed = run(settings, "--resume", "--logging_steps", "2")
    assert resumed.returncode == 0, resumed.stderr
    assert "missing" not in resumed.stderr  # tied weights, which are saved once
    results = results_of(directory)
    assert results["training"]["resumed_from"] == "checkpoint-2"
    assert (directory / "tokenizer.json").read_bytes() == vocabulary

    # Killed while it was scored, when there are results of the first two steps only, it is scored.
    results["training"]["steps"] = 2
    (directory / "all_results.json").write_text(json.dumps(results), encoding="utf-8")
    results["training"]["steps"] = 4
    (directory / "model.safetensors").unlink()
    scored = run(settings, "--resume")
    assert scored.returncode == 0, scored.stderr
    again = results_of(directory)
    assert again["training"].pop("resumed_from") == "checkpoint-4"
    changing = {"seconds", "processor_seconds", "cost"}  # are measured
    for split in ("test", "validation", "test_last_checkpoint"):
        assert again[split].pop("seconds") > 0
        assert again[split] == {name: value for name, value in results[split].items() if name != "seconds"}
    for name in again["training"].keys() - changing:
        assert again["training"][name] == results["training"][name], name
    assert again["training"]["cost"]["counted"] == results["training"]["cost"]["counted"]

    again = run(settings, "--resume")
    assert (again.returncode, again.stdout) == (0, "")
    assert f"output_dir: the training in {directory} has ended, after 4 steps; to continue it" in again.stderr


@pytest.mark.system
def test_two_processes_of_accelerate_prepare_once_share_the_work_and_agree_with_one(settings, tmp_path):
    settings |= {"save_strategy": "steps", "dropout": 0.0, "max_steps": 3, "save_steps": 1, "eval_bleu": 7}
    alone = run(settings)
    assert alone.returncode == 0, alone.stderr
    changes = {"output_dir": f"{settings['output_dir']}-2", "prepared": str(tmp_path / "prepared")}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings | changes), encoding="utf-8")
    launch = ["-m", "accelerate.commands.launch", "--config_file", REPOSITORY / "recipes" / "launch" / "2cpu.yaml"]
    together = run_python([*launch, TRAIN_WMT, "--config", "config.yaml"], folder=tmp_path)
    assert together.returncode == 0, together.stderr
    results = [results_of(Path(directory)) for directory in (settings["output_dir"], changes["output_dir"])]
    assert results[1]["run"]["command"] == "python train_wmt.py --config config.yaml"
    assert results[0]["data"]["cleaning"] == results[1]["data"]["cleaning"]
    assert [result["training"]["processes"] for result in results] == [1, 2]
    for quantity in ("target_tokens", "steps", "averaged"):
        assert results[0]["training"][quantity] == results[1]["training"][quantity]
    for split in ("validation", "test"):
        one, two = (result[split]["perplexity"] for result in results)
        assert one["tokens"] == two["tokens"]
        assert one["nats_per_token"] == pytest.approx(two["nats_per_token"], rel=1e-4)
        lines = (Path(changes["output_dir"]) / f"translations.{split}.txt").read_text(encoding="utf-8").splitlines()
        assert len(lines) == results[1][split]["sentences"]
    assert together.stdout.count("Scores") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--train {corpus}/train.en no-such-file.de", "there is no file or directory no-such-file.de"),
        ("--length_penalties 0.6 101", "length_penalties: must be at least -100 and at most 100, is 101"),
        ("--precision fp16 --use_cpu", "precision: fp16 needs a GPU"),
        ("--learning_rate 0.1", "learning_rate: has no effect here; set learning_rate_factor and warmup_steps"),
        ("--early_stopping_patience 2 --metric_for_best_model bleu", "bleu needs eval_bleu"),
        ("--early_stopping_patience 2 --cooldown 0.5", "early_stopping_patience: would end the training before its"),
        ("--num_train_epochs 2", "num_train_epochs: has no effect here; max_steps decides"),
        ("--max_steps -1 --num_train_epochs 0", "num_train_epochs: must be above 0, is 0"),
        ("--max_steps -1 --max_minutes 1 --save_steps 0.5", "save_steps: is a share of steps, whose number max_"),
        ("--source_tokens 3", "source_tokens: a budget of 3 tokens cannot hold the longest sentence"),
        ("--source_language fr --test phrasebook", "source_language: is fr, but {corpus}/train.en is in en"),
        ("--resume", "holds no training to resume; leave out --resume"),
    ],
)
def test_mistakes_are_errors_before_training(settings, corpus, monkeypatch, options, message):
    monkeypatch.setattr(VaswaniTrainer, "train", lambda *_, **__: pytest.fail("training began"))
    words = [option.format(corpus=corpus) for option in options.split(" ")]
    assert message.format(corpus=corpus) in refusal("train_wmt.py", *option_words(settings), *words)


@pytest.mark.parametrize(
    ("launcher", "precision", "expected"),
    [("no", "auto", "auto"), ("bf16", "auto", "bf16"), ("bf16", "float32", "float32"), ("no", "bf16", "bf16")],
)
def test_the_launchers_precision_is_that_of_the_run_unless_it_names_another(
    monkeypatch, tmp_path, launcher, precision, expected
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    args = RecipeTrainingArguments(str(tmp_path), precision=precision, use_cpu=True)
    assert (args.precision, args.bf16, args.fp16) == (expected, expected == "bf16", False)


@pytest.mark.parametrize(
    ("options", "epochs", "steps"),
    [
        ({}, 3.0, -1),
        ({"max_minutes": 1}, 3.0, 1_000_000_000),  # the minutes end it
        ({"max_minutes": 1, "num_train_epochs": 9}, 9, -1),
        ({"max_minutes": 1, "max_steps": 7}, 3.0, 7),
    ],
)
def test_three_epochs_are_the_length_unless_another_is_given(tmp_path, options, epochs, steps):
    args = RecipeTrainingArguments(str(tmp_path), use_cpu=True, **options)
    assert (args.num_train_epochs, args.max_steps) == (epochs, steps)


@pytest.mark.system
def test_the_fastest_precision_is_printed_recorded_and_kept(settings, tmp_path, monkeypatch, capsys):
    del settings["precision"]

    def train(directory, *options):
        call_recipe("train_wmt.py", *option_words(settings), "--output_dir", tmp_path / directory, *options)
        return (tmp_path / directory / "model.safetensors").read_bytes()

    def measured(config, device, tokens):
        assert (config.vocab_size, config.d_model, tokens) == (320, 16, 400)
        return {"float32": 1.0, "bf16": 1.5}

    monkeypatch.setattr(training_run, "relative_speeds", measured)
    train("run", "--max_steps", 2)
    assert "precision bf16; measured speed" in capsys.readouterr().out
    monkeypatch.setattr(training_run, "relative_speeds", lambda *_: pytest.fail("measured again"))
    weights = train("run", "--resume")
    assert "- Precision: bf16\n" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert train("explicit", "--precision", "bf16") == weights


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_understood_and_describes_a_model(path, monkeypatch):
    data, model, args = training_options(["--config", str(path), "--precision", "float32"])
    if path.stem in ("small", "student"):  # for a corpus of one's own
        assert (data.train, data.validation, data.test) == (None, None, None)
    else:
        assert data.train
        assert data.validation
        # speedrun.py scores it, once; a sweep scores the validation set.
        assert data.test or path.stem in ("multi30k_speedrun", "tatoeba_sweep")
    if model.model is None:
        config = model.configure(data.source_language, data.target_language, VaswaniConfig)
        assert config.d_model == (model.d_model or {"big": 1024}.get(model.variant, 512))
    assert args.max_steps > 0
    if path.stem.startswith("wmt14"):
        big = path.stem.endswith("big")
        assert model.variant == ("big" if big else "base")
        assert args.max_steps == (300_000 if big else 100_000)
        assert args.average_last == (20 if big else 5)
        assert (args.save_minutes, args.warmup_steps) == (None, 4000)
        seconds = 1.0 if big else 0.4  # a step's on the paper's machine (5.2)
        assert args.save_strategy == "steps"
        assert args.save_steps * seconds == pytest.approx(10 * 60, rel=0.2)  # of the paper's machine (6.1)
        assert args.max_steps % args.save_steps == 0  # averaged checkpoints are equally far apart
        assert (args.source_tokens, args.target_tokens) == (25_000, 25_000)
        french = "en_fr" in path.stem
        assert (data.vocab_size, data.tokenizer_model) == ((32_000, "wordpiece") if french else (37_000, "bpe"))
        assert model.dropout == (0.1 if big and french else None)
