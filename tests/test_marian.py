"""Our models as MarianMT models: logits, hypotheses and tokens, also where this package is not installed; refusals."""

import copy
import json
from pathlib import Path

import pytest
import torch
from helpers import call_recipe, run_python, save_model, write_pairs
from models import distinct, with_own_softmax
from transformers import MarianMTModel

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.engines import parity
from vaswani_transformer.engines.exported_model import open_engine
from vaswani_transformer.engines.marian import export, to_marian
from vaswani_transformer.engines.transformers_engine import TransformersTranslator
from vaswani_transformer.model.search_options_vaswani import LengthLimit, SearchOptions


PAIRS = phrasebook("validation")[:16]
SOURCES = [english for english, _ in PAIRS]
PAD, CPU = 0, torch.device("cpu")
CONFIGURATIONS = {
    "paper": {},
    "Marian's layout": {"position_encoding": "sinusoidal_marian"},
    "one head": {"num_heads": 1, "decoder_layers": 1},
    "no attention biases": {"attention_bias": False},
    "narrow decoder": {"decoder_d_ff": 20},
    "swish": {"activation": "swish"},
    "biased softmax": {"logits_bias": True},
    "own start": {"decoder_start_token_id": 5},
    "own padding": {"zero_padding_embedding": False},
    "own softmax": {"tie_word_embeddings": False},
    "own vocabularies": {"target_vocab_size": 43},
}
TEXTS = [
    "The old man reads a book.",
    "<pad> and </s> are words",
    "  two  blanks\n\tand 🐈 ",
    "É e\u0301",
    "x",
    "x <2de> y",
]


@torch.no_grad()
def logits_of(model: torch.nn.Module) -> torch.Tensor:
    """Logits of a padded batch, at targets that are not padding, without padding's: `[targets, vocabulary - 1]`."""
    torch.manual_seed(1)
    start = model.config.decoder_start_token_id
    sources, targets = torch.randint(2, 40, (5, 9)), torch.randint(2, 40, (5, 8))
    targets[:, 0] = start
    for row in range(5):
        sources[row, 9 - row :], targets[row, 8 - row :] = PAD, PAD
    logits = model(sources, attention_mask=sources.ne(PAD).long(), decoder_input_ids=targets).logits
    is_target = targets.ne(PAD) | torch.arange(8).eq(0)
    return logits[is_target][:, PAD + 1 :]


def require_the_logits_when_saved(model: VaswaniForConditionalGeneration, folder: Path) -> None:
    before = copy.deepcopy(model.state_dict())
    to_marian(model).save_pretrained(folder)
    loaded = MarianMTModel.from_pretrained(folder).eval()
    torch.testing.assert_close(logits_of(loaded), logits_of(model), atol=1e-5, rtol=1e-5)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_saved_model_has_the_same_logits_and_the_source_is_unchanged(changes, tmp_path):
    require_the_logits_when_saved(distinct(layer_norm_eps=1e-5, **changes), tmp_path)


@pytest.mark.parametrize("flag", [True, False])
def test_ties_are_those_of_the_matrices_whatever_the_flag_says(flag, tmp_path):
    model = with_own_softmax(layer_norm_eps=1e-5)
    model.config.tie_word_embeddings = flag
    require_the_logits_when_saved(model, tmp_path)
    assert model.config.tie_word_embeddings == flag


def test_another_epsilon_is_kept_in_memory_alone(tmp_path):
    """MarianMT has 1e-5."""
    model = distinct(layer_norm_eps=0.3)
    converted = to_marian(model)
    torch.testing.assert_close(logits_of(converted), logits_of(model), atol=1e-5, rtol=1e-5)
    converted.save_pretrained(tmp_path)
    assert not torch.allclose(logits_of(MarianMTModel.from_pretrained(tmp_path).eval()), logits_of(model), atol=1e-2)


def test_the_limit_of_a_search_counts_more_than_that_of_the_export():
    export = to_marian(distinct())
    export.generation_config.max_new_tokens, export.generation_config.eos_token_id = 30, None
    search = SearchOptions(limit=LengthLimit("max_new_tokens", 3))
    translator = TransformersTranslator(export, "the export")
    assert len(translator.n_best([[7, 8, 9, 1]])[0][0]) == 30
    assert len(translator.n_best([[7, 8, 9, 1]], search)[0][0]) == 3


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"zero_padding_embedding": False}])
def test_padding_is_impossible_where_its_row_was_set_to_zero(changes):
    model = distinct(**changes)
    model.lm_head.weight.data[PAD] = 3 * torch.randn(24)
    converted = to_marian(model)
    source = torch.tensor([[7, 8, 9, 1]])
    with torch.no_grad():
        ours, theirs = (each(source, decoder_input_ids=torch.tensor([[PAD, 4]])).logits for each in (model, converted))
    if changes:
        torch.testing.assert_close(theirs[..., PAD], ours[..., PAD], atol=1e-4, rtol=1e-4)
    else:
        assert theirs[..., PAD].tolist() == [[-1e4, -1e4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_k": 5}, "^d_k: must be 6 for MarianMT, is 5"),
        ({"position_encoding": "learned"}, "^position_encoding: must be .* for MarianMT"),
        ({"position_offset": 2}, "^position_offset: must be 0 for MarianMT, is 2"),
    ],
)
def test_what_marian_cannot_express_is_refused_before_anything_is_written(changes, message, tokenizer, tmp_path):
    model = distinct(**{"vocab_size": len(tokenizer), **changes})
    with pytest.raises(ValueError, match=message):
        export(model, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def exported(trained, tokenizer, tmp_path_factory) -> Path:
    """An export with a length limit, because the model was not trained to end other sentences."""
    model = copy.deepcopy(trained)
    model.generation_config.max_length = 90
    return export(model, tokenizer, tmp_path_factory.mktemp("export") / "model")


# Loads a directory without this package, and prints what it does with texts.
STOCK = """
import json, sys
sys.modules["vaswani_transformer"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
directory, texts = sys.argv[1], json.loads(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(directory)
model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
inputs = tokenizer(texts, return_tensors="pt", padding=True)
outputs = tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)
print(json.dumps({
    "model": type(model).__name__, "outputs": outputs,
    "tokens": [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]],
    "decoded": tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True),
}))
"""


@pytest.mark.system
def test_transformers_alone_translates_alike(exported, trained, tokenizer, tmp_path):
    texts = [*SOURCES, *TEXTS]
    result = run_python(["-c", STOCK, exported, json.dumps(texts)], folder=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    ids = tokenizer(texts)["input_ids"]
    assert found["model"] == "MarianMTModel"
    assert found["tokens"] == [tokenizer.convert_ids_to_tokens(row) for row in ids]
    assert found["decoded"] == tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert found["outputs"][: len(PAIRS)] == [german for _, german in PAIRS]  # it has learned them by heart
    rules = open_engine(exported, CPU).rule
    expected = TransformersTranslator(trained, "ours").hypotheses(ids, **rules)
    assert found["outputs"] == tokenizer.batch_decode(expected, skip_special_tokens=True)


OURS = {"num_beams": 4, "length_penalty": 0.6}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {**OURS, "early_stopping": False, "max_length": 512}),
        ({"max_length": 9999}, {**OURS, "early_stopping": False, "max_length": 1024}),
        ({"max_new_tokens": 7}, {**OURS, "early_stopping": False, "max_new_tokens": 7}),
        ({"length_penalty_type": "transformers"}, {**OURS, "early_stopping": "never", "max_length": 512}),
        ({"bad_words_ids": [[7]]}, {**OURS, "bad_words_ids": [[7]], "early_stopping": False, "max_length": 512}),
    ],
)
def test_the_search_is_translated_into_terms_of_transformers(changes, expected, trained, tokenizer, tmp_path):
    model = copy.deepcopy(trained)
    model.generation_config.update(**changes)
    directory = export(model, tokenizer, tmp_path / "out")
    written = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
    written.pop("transformers_version")
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    assert written == {**expected, **ids}
    found = open_engine(directory, CPU)
    assert found.rule == {**expected, "length_penalty_type": "transformers"}
    sources = tokenizer(SOURCES[:2])["input_ids"]
    if changes.get("max_length") != 9999:  # to which our search would go
        assert found.hypotheses(sources) == TransformersTranslator(model, "ours").hypotheses(sources, **found.rule)


@pytest.mark.system
def test_parity_tells_the_search_from_the_weights(trained, tokenizer, exported):
    """A penalty that prefers short hypotheses changes ours alone."""
    terse = copy.deepcopy(trained)
    terse.generation_config.length_penalty = -3.0
    report = parity.parity_report(terse, tokenizer, open_engine(exported, CPU), SOURCES)
    assert report.kinds["rule"] == len(report.differences) > 3


def test_the_recipe_exports_what_other_recipes_open(trained, tokenizer, tmp_path):
    save_model(tmp_path / "model", trained, tokenizer)
    text, references = write_pairs(PAIRS[:6], tmp_path / "text", tmp_path / "references")
    output = tmp_path / "out"
    call_recipe("export.py", "--model", tmp_path / "model", "--to", "marian", "--output", output, "--text", text)
    report = parity.ParityReport.load(output / "parity.json")
    assert report.identical == report.same_tokens == 6
    call_recipe("translate.py", "--model", output, "--input", text, "--output", tmp_path / "translations")
    assert (tmp_path / "translations").read_bytes() == Path(references).read_bytes()
