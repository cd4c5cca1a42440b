"""`pipeline("constituency-parsing")`, with a model whose weights are random."""

import json

import pytest
from helpers import save_model
from models import PARSED, make_parser
from nltk import Tree
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vaswani_transformer import (
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniForConstituencyParsing,
    VaswaniTokenizer,
)
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.model.parsing_vaswani import VaswaniParsingModel, join_words, parse_in_batches, split_words
from vaswani_transformer.parsing.tokenizer import VaswaniParsingTokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_parser(tmp_path_factory.mktemp("parser"))


@pytest.fixture(scope="module")
def parser(directory):
    return pipeline("constituency-parsing", model=str(directory))


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("constrained", [False, True])
def test_a_tree_over_the_words_of_each_sentence(parser, constrained, num_beams):
    records = parser(PARSED, constrained=constrained, num_beams=num_beams)
    for record, sentence in zip(records, PARSED, strict=True):
        assert record["words"] == sentence.split()
        leaves = [{"-LRB-": "(", "-RRB-": ")"}.get(leaf, leaf) for leaf in Tree.fromstring(record["tree"]).leaves()]
        assert leaves == record["words"]
    repairs = [record["repairs"] for record in records]
    assert not any(repairs) if constrained else any(repairs)
    json.dumps(records)


def test_options_of_the_constructor_are_those_of_the_search(directory, parser):
    made = pipeline("constituency-parsing", model=str(directory), num_beams=4, num_return_sequences=2)
    assert made(PARSED, constrained=True) == parser(PARSED, constrained=True, num_beams=4, num_return_sequences=2)


def test_the_smaller_limit_of_generated_tokens_holds_for_constrained_parses(parser):
    found = parser(PARSED, constrained=True, max_new_tokens=25, max_length=100)
    assert found == parser(PARSED, constrained=True, max_new_tokens=25)


def test_a_sentence_does_not_depend_on_its_batch(parser):
    one_by_one = [parser(sentence, constrained=True)[0] for sentence in PARSED]
    assert parser(PARSED, constrained=True) == one_by_one
    assert parser(PARSED, constrained=True, batch_size=2) == one_by_one


def test_several_parses_are_returned_on_request(parser):
    records = parser(PARSED[:2], constrained=True, num_return_sequences=2)
    assert [len(parses) for parses in records] == [2, 2]
    assert records[0][0]["tree"] != records[0][1]["tree"]


def test_generators_are_streamed_and_dicts_stand_for_their_text(parser):
    streamed = parser(({"text": sentence} for sentence in PARSED), constrained=True)
    assert [records[0] for records in streamed] == parser(PARSED, constrained=True)


def test_nltk_trees_are_returned_on_request(parser):
    (record,) = parser("The cat sat .", return_nltk=True)
    assert record["nltk_tree"] == Tree.fromstring(record["tree"])


def test_processors_of_the_caller_are_applied(parser):
    def refuse(input_ids, scores):
        raise ZeroDivisionError

    for constrained in (False, True):
        with pytest.raises(ZeroDivisionError):
            parser("The cat .", constrained=constrained, logits_processor=[refuse])


def test_what_no_parser_can_take_is_refused(parser, tmp_path):
    with pytest.raises(ValueError, match=r"sentence 1: .* must be words, at least one"):
        parser(["The cat .", "  "])
    with pytest.raises(ValueError, match=r"sentence 0: .*'a b'"):
        list(parse_in_batches(parser.model, parser.tokenizer, [["a b"]]))
    with pytest.raises(TypeError, match="must be a string, is NoneType"):
        parser(None)
    learned = make_parser(tmp_path / "learned", position_encoding="learned", max_position_embeddings=12)
    short = pipeline("constituency-parsing", model=str(learned))
    assert short("Cats .", constrained=True)[0]["repairs"] == 0
    with pytest.raises(ValueError, match=r"sentence 0: has .* tokens, more than max_position_embeddings = 12"):
        short("The cat sat on the mat with the other cats .")


def test_a_translation_model_is_refused(tmp_path):
    tokenizer = VaswaniTokenizer.train(PARSED * 3, 280, show_progress=False)
    config = VaswaniConfig(vocab_size=280, d_model=8, d_ff=8, num_heads=1, encoder_layers=1, decoder_layers=1)
    save_model(tmp_path, VaswaniForConditionalGeneration(config), tokenizer)
    with pytest.raises(ValueError, match="has no labels of parses"):
        pipeline("constituency-parsing", model=str(tmp_path))("The cat .")


def test_auto_classes_know_a_parser_from_a_translation_model(directory):
    assert type(AutoModelForSeq2SeqLM.from_pretrained(directory)) is VaswaniForConstituencyParsing
    assert type(open_model(directory, task="constituency-parsing").load()) is VaswaniForConstituencyParsing
    assert type(AutoModel.from_pretrained(directory)) is VaswaniParsingModel
    assert type(AutoTokenizer.from_pretrained(directory)) is VaswaniParsingTokenizer
    with pytest.raises(ValueError, match="is a model for constituency-parsing; name one for translation"):
        open_model(directory, task="translation")


def test_only_parsers_bring_the_code_of_parsing(directory, tmp_path):
    sizes = {"vocab_size": 40, "d_model": 8, "d_ff": 8, "num_heads": 1, "encoder_layers": 1, "decoder_layers": 1}
    VaswaniForConditionalGeneration(VaswaniConfig(**sizes)).save_pretrained(tmp_path)
    of_translator, of_parser = ({file.name for file in each.glob("*.py")} for each in (tmp_path, directory))
    assert of_parser - of_translator == {"parse_sequence_vaswani.py", "parsing_vaswani.py"}
    assert not of_translator - of_parser


@pytest.mark.system
def test_a_saved_model_parses_with_transformers_alone(hub, directory, parser, tmp_path):
    code = (
        "import json, sys\n"
        "from transformers import pipeline\n"
        "parser = pipeline('constituency-parsing', model=sys.argv[1], trust_remote_code=True)\n"
        "assert type(parser).__module__.startswith('transformers_modules.')\n"
        "print(json.dumps(parser(json.loads(sys.argv[2]), constrained=True)))\n"
    )
    result = hub.run(code, str(directory), json.dumps(PARSED), folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == parser(PARSED, constrained=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat sat.", "The cat sat ."),
        ("I can't, won't!", "I ca n't , wo n't !"),
        ("It's the dogs' food.", "It 's the dogs ' food ."),
        ('He said, "Go."', "He said , `` Go . ''"),
        ("Mr. Smith (aged 1,000) came at 10:30...", "Mr. Smith ( aged 1,000 ) came at 10:30 ..."),
        ("WHAT IS THIS?", "WHAT IS THIS ?"),
        ("“It’s the dogs’ food,” he said. “Can’t!”", "`` It 's the dogs ' food , '' he said. `` Ca n't ! ''"),
        ("Words already , apart .", "Words already , apart ."),
        ("", ""),
    ],
)
def test_sentences_are_divided_as_in_the_penn_treebank(text, words):
    assert split_words(text) == words.split()


@pytest.mark.parametrize("character", "'\" )")
def test_many_equal_characters_do_not_stop_the_division(character):
    assert split_words(f"One.{20_000 * character}two") != []  # a pattern with backtracking never ends


def test_invisible_characters_are_no_words_and_those_given_as_words_are_read(parser):
    assert split_words("\ufeff\u201cThe\u201d \u202a\u200b c\u00ad\u2066at\u2069.\u200b") == [
        "``",
        "The",
        "''",
        "cat",
        ".",
    ]
    words = ["The", "\u200b", "cat", "\ufeff\u00ad", "\u202a"]
    tokens = parser.tokenizer(join_words(words))
    assert len({tokens.token_to_word(index) for index in range(len(tokens.input_ids) - 1)}) == 5
    ((_, ((parse,),)),) = parse_in_batches(parser.model, parser.tokenizer, [words], constrained=True)
    assert Tree.fromstring(parse.tree).leaves() == words
