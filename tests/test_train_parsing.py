"""train_parsing.py from end to end on a few trees, and one clear error for each mistake."""

import dataclasses
import json

import pytest
from helpers import REPOSITORY, TINY, call_recipe, option_words, recipe_module, refusal, run_recipe, write_lines
from nltk import Tree
from transformers import pipeline

from vaswani_transformer.options.data import TreebankOptions
from vaswani_transformer.parsing.model_card import PAPER_PARSING_SETTINGS
from vaswani_transformer.parsing.scoring import ParsingRecord
from vaswani_transformer.parsing.treebank import GoldTrees, prepare_treebank


pytestmark = [pytest.mark.system, pytest.mark.usefixtures("unbroken_lines")]
RECIPE = "train_parsing.py"
NOUNS, VERBS = ("cat", "dog", "mouse", "bird"), ("sleeps", "purrs", "eats", "flies")
TREES = [
    f"((S (NP-SBJ (DT {determiner}) (NN {noun})) (VP (VBZ {verb})) (. .)))"
    for determiner in ("The", "A")
    for noun in NOUNS
    for verb in VERBS
]


@pytest.fixture
def settings(tmp_path) -> dict:
    for name, trees in (("train", TREES[4:]), ("dev", TREES[:4]), ("silver", TREES[8:12])):
        write_lines(tmp_path / f"{name}.mrg", trees)
    options = {name: value for name, value in TINY.items() if name not in ("source_language", "target_language")}
    return {
        **options,
        "train": str(tmp_path / "train.mrg"),
        "silver": str(tmp_path / "silver.mrg"),
        "validation": str(tmp_path / "dev.mrg"),
        "test": str(tmp_path / "dev.mrg"),
        "prepared": str(tmp_path / "prepared"),
        "vocab_size": 300,
        "num_beams": 2,
        "max_new_tokens_over_source": 20,
        "output_dir": str(tmp_path / "run"),
    }


def test_treebanks_become_a_scored_parser(settings, tmp_path):
    directory = tmp_path / "run"
    result = run_recipe(RECIPE, *option_words(settings))
    assert result.returncode == 0, result.stderr
    record = ParsingRecord.load(directory / "all_results.json")
    assert set(record.scores) == {"validation", "test", "test_last_checkpoint"}
    for scores in record.scores.values():
        assert scores.free.sentences == 4
        assert scores.constrained.unseen == scores.constrained.all_sentences
        assert scores.constrained.unseen_evalb == scores.constrained.evalb
        assert scores.constrained.repairs == 0
        assert scores.constrained.all_sentences.errors == 0
    trees = [Tree.fromstring(line) for line in (directory / "parses.test.txt").read_text("utf-8").splitlines()]
    assert [tree.leaves() for tree in trees] == [["The", "cat", verb, "."] for verb in VERBS]
    parser = pipeline("constituency-parsing", model=str(directory))
    (found,) = parser("The cat sleeps .", constrained=True)
    assert Tree.fromstring(found["tree"]) == trees[0]
    assert parser.model.generation_config.num_beams == 2
    assert " test, free " in result.stdout
    assert "EVALB's F1 is the program's" in " ".join(result.stdout.split())
    assert f"The model is in {directory}." in result.stdout

    again = run_recipe(RECIPE, *option_words(settings), "--resume")
    assert again.returncode == 0
    assert "has ended, after 4 steps; to continue it, raise max_steps" in again.stderr

    begun = json.loads((directory / "_run.json").read_text(encoding="utf-8"))
    assert begun.items() >= {"vocab_size": 300, "shared_vocabulary": False}.items()  # also in earlier runs
    other = run_recipe(RECIPE, *option_words({**settings, "shared_vocabulary": True, "max_steps": 8}), "--resume")
    assert "differs in shared_vocabulary (False then, True now)" in other.stderr


def test_a_greedy_parser_whose_words_and_labels_share_a_vocabulary(settings, tmp_path):
    changes = {"num_beams": 1, "shared_vocabulary": True, "test": None}
    call_recipe(RECIPE, *option_words({**settings, **changes}))
    parser = pipeline("constituency-parsing", model=str(tmp_path / "run"))
    search = parser.model.generation_config
    assert (search.num_beams, search.length_penalty, search.max_new_tokens_over_source) == (1, None, 20)
    assert parser.model.config.target_vocab_size is None
    assert parser("The cat sleeps .", constrained=True)[0]["repairs"] == 0


@pytest.mark.parametrize("keeps_tags", [True, False])
def test_gold_trees_have_their_tags(keeps_tags, settings, tmp_path):
    options = TreebankOptions([settings["train"]], validation=[settings["validation"]], vocab_size=283)
    corpora = prepare_treebank(tmp_path / "bank", dataclasses.replace(options, keeps_tags=keeps_tags))
    (file,) = corpora["validation"]
    gold = GoldTrees.load(file, "en")
    assert gold.sentences[0] == ["The", "cat", "sleeps", "."]
    assert gold.trees[0] == "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))"
    assert not GoldTrees.load(file, "en", corpora["train"]).seen
    assert GoldTrees.load(file, "en", [file]).seen == set(gold.trees)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": __file__}, r"test_train_parsing.py, line 1: "),
        ({"eval_bleu": 4}, "eval_bleu: has no effect here; parsers are scored by F1"),
        ({"model": "x"}, "model: has no effect here; parsers are trained from random weights"),
        ({"split_digits": True}, "there is no option --split_digits"),
    ],
)
def test_mistakes_are_one_line(changes, message, settings):
    assert message in refusal(RECIPE, *option_words({**settings, **changes}))


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "recipes" / "configs").glob("*_parsing*.yaml")), ids=lambda path: path.stem
)
def test_every_configuration_is_understood_and_describes_a_model(path):
    recipe = recipe_module(RECIPE)
    data, model, args = recipe.RecipeParser(recipe.KINDS).parse(["--config", str(path), "--precision", "float32"])
    parser = model.configure(data.source_language, recipe.PARSE, recipe.VaswaniParsingConfig)
    if path.stem.startswith("wsj"):  # section 6.3
        assert (parser.encoder_layers, parser.decoder_layers, parser.d_model) == (4, 4, 1024)
        assert data.vocab_size == (32_000 if "semi" in path.stem else 16_000)
        assert (data.num_beams, data.length_penalty, data.max_new_tokens_over_source) == (21, 0.3, 300)
        # The authors' code, transformer_parsing_base and transformer_parsing_big, as the card's table states it.
        values = {**vars(parser), **vars(args), "d_k": parser.d_k, "d_v": parser.d_v}
        for name, stated in PAPER_PARSING_SETTINGS.items():
            if str(stated).startswith("code: "):
                alone, _, semi = stated.removeprefix("code: ").removesuffix(")").partition(" (semi-supervised: ")
                expected = semi if semi and "semi" in path.stem else alone
                assert values[name] == float(expected.replace(",", "")), name
    else:
        assert data.train
    assert args.max_steps > 0
