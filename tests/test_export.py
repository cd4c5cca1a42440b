"""The exported model against our own: token probabilities, hypotheses; refusals; the parity report."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import REPOSITORY, call_recipe, change_json, save_model, write_pairs
from models import POSITION_ENCODINGS, distinct

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.data.phrasebook import phrasebook


ctranslate2 = pytest.importorskip("ctranslate2")

from vaswani_transformer.engines import ctranslate2 as engine  # noqa: E402 - needs CTranslate2
from vaswani_transformer.engines import parity  # noqa: E402
from vaswani_transformer.engines.ctranslate2 import CTranslate2Translator, warn_of_saturation  # noqa: E402
from vaswani_transformer.engines.transformers_engine import TransformersTranslator  # noqa: E402


PAIRS = phrasebook("validation")[:24]
SOURCES = [english for english, _ in PAIRS]
CONFIGURATIONS = {
    **{name: {"position_encoding": name, "max_position_embeddings": 60} for name in POSITION_ENCODINGS},
    "no biases": {"attention_bias": False},
    "narrow heads": {"d_k": 3, "d_v": 3},
    "wide heads": {"d_k": 11, "d_v": 11},
    "coarse norm": {"layer_norm_eps": 0.3},
    "own start": {"decoder_start_token_id": 5},
    "unused rows": {"vocab_size": 411},
    "own softmax": {"tie_word_embeddings": False},
}


@pytest.fixture(scope="module")
def greedy(trained) -> VaswaniForConditionalGeneration:
    """The model, to be searched greedily, which is the same by all rules: it has learned its sentences by heart."""
    model = copy.deepcopy(trained)
    model.generation_config.update(num_beams=1, length_penalty=None, early_stopping=None)
    return model


@pytest.fixture(scope="module")
def exported(greedy, tokenizer, tmp_path_factory) -> Path:
    return engine.export(greedy, tokenizer, tmp_path_factory.mktemp("export") / "model")


@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_every_token_has_the_same_probability(changes, tokenizer, tmp_path):
    model = distinct(**{"vocab_size": len(tokenizer), **changes})
    directory = engine.export(model, tokenizer, tmp_path / "out")
    translator = CTranslate2Translator(directory)
    for source, target in PAIRS[:4]:
        ids, labels = (tokenizer(text)["input_ids"] for text in (source, target))
        with torch.no_grad():
            logits = model(torch.tensor([ids]), labels=torch.tensor([labels])).logits[0]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(labels).unsqueeze(1)).squeeze(1)
        names = [tokenizer.convert_ids_to_tokens(tokens) for tokens in (ids, labels[:-1])]  # it adds EOS
        result = translator.engine.score_batch([names[0]], [names[1]])[0]
        torch.testing.assert_close(torch.tensor(result.log_probs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("alpha", [1.0, 1.5])  # by which the rules differ, whatever the model has learned
def test_hypotheses_are_those_of_our_search_by_the_engines_rules(trained, tokenizer, tmp_path, alpha):
    model = copy.deepcopy(trained)
    model.generation_config.length_penalty = alpha
    model.generation_config.max_length = 60
    translator = CTranslate2Translator(engine.export(model, tokenizer, tmp_path / "out"))
    sources = tokenizer([english for english, _ in phrasebook("test")[:12]])["input_ids"]  # which it does not know
    found = translator.hypotheses(sources)
    ours = TransformersTranslator(model, "ours")
    assert found == ours.hypotheses(sources, **translator.rule)
    assert found != ours.hypotheses(sources)
    assert len({len(tokens) for tokens in found}) > 3  # they end, at different places


def test_a_translation_may_be_empty(tokenizer, tmp_path):
    model = distinct(len(tokenizer))
    with torch.no_grad():
        norm = model.model.decoder.layers[-1].feed_forward_residual.norm
        norm.bias.copy_(8 * model.lm_head.weight[1])
    directory = engine.export(model, tokenizer, tmp_path / "out")
    assert CTranslate2Translator(directory).hypotheses([[3, 4, 1]]) == [[1]]


def test_a_long_source_is_not_cut_off(exported):
    with pytest.raises(RuntimeError, match="position"):
        CTranslate2Translator(exported).hypotheses([[3] * (engine.POSITIONS + 1)])


@pytest.mark.parametrize("quantization", ["int8", "float16"])
def test_quantized_it_is_smaller_and_close_and_the_model_is_left_alone(
    greedy, tokenizer, exported, tmp_path, quantization
):
    before = copy.deepcopy(greedy.state_dict())
    directory = engine.export(greedy, tokenizer, tmp_path / "out", quantization)
    for name, weight in greedy.state_dict().items():
        assert torch.equal(weight, before[name]), name
    # The table of positions, most of so small a model, is not quantized to integers.
    assert (directory / "model.bin").stat().st_size < (exported / "model.bin").stat().st_size
    sources, targets = (tokenizer([pair[side] for pair in PAIRS[:16]])["input_ids"] for side in (0, 1))
    # Computed in int8, the same file gives what the processor's instructions make of it.
    assert CTranslate2Translator(directory, compute_type="float32").hypotheses(sources) == targets


def test_a_processor_that_saturates_8_bit_sums_is_named_once(greedy, tokenizer, tmp_path, monkeypatch, caplog):
    types = {"float32", "int8"}
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: types)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    warn_of_saturation.cache_clear()
    directory = engine.export(greedy, tokenizer, tmp_path / "out", "int8")
    CTranslate2Translator(directory)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("int8: this processor has neither VNNI nor AMX")
    warn_of_saturation.cache_clear()
    CTranslate2Translator(directory, compute_type="float32")
    types.add("int16")
    CTranslate2Translator(directory)  # by MKL
    assert len(caplog.records) == 1


def test_int16_is_refused_where_it_would_run_as_int8(greedy, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32", "int8"})
    with pytest.raises(
        ValueError, match=r"^quantization: CTranslate2 does not support int16 on this processor.*float32, int8$"
    ):
        engine.export(greedy, tokenizer, tmp_path / "out", "int16")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "search", "message"),
    [
        ({"d_k": 5}, {}, r"^d_v: must be 5 for CTranslate2, is 6"),
        ({"eos_token_id": [1, 5]}, {}, r"^eos_token_id: an exported model has one EOS token, not \[1, 5\]"),
        ({}, {"no_repeat_ngram_size": 3}, "generation_config: CTranslate2 would ignore no_repeat_ngram_size"),
    ],
)
def test_what_the_engine_cannot_express_is_refused(changes, search, message, tokenizer, tmp_path):
    model = distinct(vocab_size=len(tokenizer), **changes)
    model.generation_config.update(**search)
    with pytest.raises(ValueError, match=message):
        engine.export(model, tokenizer, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_translation_ends_with_the_learned_table(tokenizer, tmp_path):
    model = distinct(len(tokenizer), position_encoding="learned", max_position_embeddings=20)
    translator = CTranslate2Translator(engine.export(model, tokenizer, tmp_path / "out"))
    assert len(translator.hypotheses([[3] * 19 + [1]])[0]) <= 20


def test_only_an_earlier_export_is_replaced_and_only_if_forced(trained, tokenizer, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match="is not an exported model"):
        engine.export(trained, tokenizer, tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()
    engine.export(trained, tokenizer, tmp_path / "out")
    (tmp_path / "out" / "parity.json").touch()
    with pytest.raises(FileExistsError, match="out exists already"):
        engine.export(trained, tokenizer, tmp_path / "out")
    engine.export(trained, tokenizer, tmp_path / "out", force=True)
    assert not (tmp_path / "out" / "parity.json").exists()


def test_the_published_report_can_be_read():
    report = parity.ParityReport.load(REPOSITORY / "model_cards" / "benchmarks" / "parity.json")
    assert report.identical + sum(report.kinds.values()) == report.lines >= 1000


def test_parity_counts_sentences_that_the_exported_tokenizer_encodes_otherwise(greedy, tokenizer, tmp_path):
    directory = engine.export(greedy, tokenizer, tmp_path / "out")
    translator, file = CTranslate2Translator(directory), directory / "tokenizer.json"
    sentences = [*SOURCES[:2], "a </s> b", " "]
    assert parity.parity_report(greedy, tokenizer, translator, sentences, None, file).same_tokens == 3
    tokenizer.backend_tokenizer.save(str(file))  # its list of special tokens is in force there
    assert parity.parity_report(greedy, tokenizer, translator, sentences, None, file).same_tokens == 2
    assert parity.parity_report(greedy, tokenizer, translator, sentences).same_tokens is None


def test_parity_of_other_weights_shows_every_difference(greedy, tokenizer, exported):
    tampered = copy.deepcopy(greedy)
    with torch.no_grad():
        tampered.model.decoder.layers[0].encoder_attn.v_proj.weight.mul_(-1)
    file = exported / "tokenizer.json"
    report = parity.parity_report(tampered, tokenizer, CTranslate2Translator(exported), SOURCES[:16], None, file)
    assert report.identical + len(report.differences) == report.same_tokens == 16
    assert len(report.differences) > 8
    assert sum(report.kinds.values()) == len(report.differences)
    assert report.kinds["ours_scores_higher"] > 8  # under the model that searched for them
    for difference in report.differences:
        number = difference.line - 1
        assert difference.exported == PAIRS[number][1]
        assert difference.source == SOURCES[number]
        labels = torch.tensor([tokenizer(difference.exported)["input_ids"]])
        with torch.no_grad():
            loss = tampered(torch.tensor([tokenizer(difference.source)["input_ids"]]), labels=labels).loss
        assert difference.exported_score == pytest.approx(-float(loss) * labels.shape[1], abs=1e-3)  # greedy


def test_hypotheses_of_one_score_are_a_tie(trained, tokenizer):
    """A token's twin, with the same row of the matrix, is as likely everywhere, and means the same to the decoder."""
    model = copy.deepcopy(trained)
    best = TransformersTranslator(model, "ours").hypotheses(tokenizer(SOURCES[:1])["input_ids"])[0]
    twin = next(token for token in range(3, 400) if token not in best)
    with torch.no_grad():
        model.model.shared.weight[twin] = model.model.shared.weight[best[0]]
    model.generation_config.bad_words_ids = [[twin]]

    def kinds(exported: list[int]) -> list[str]:
        fixed = SimpleNamespace(rule={"early_stopping": True}, hypotheses=lambda sources: [exported])
        found = parity.parity_report(model, tokenizer, fixed, SOURCES[:1]).kinds
        return [kind for kind, count in found.items() if count]

    assert kinds(best) == []
    assert kinds([twin, *best[1:]]) == ["tie"]
    assert kinds([*best[:-3], *best[-2:]]) == ["ours_scores_higher"]
    model.generation_config.bad_words_ids = [[best[0]], [twin]]  # ours finds another
    assert kinds(best) == ["exported_scores_higher"]


def test_the_recipe_exports_and_reports(trained, tokenizer, tmp_path, capsys):
    model = save_model(tmp_path / "model", trained, tokenizer)
    languages = {"source_language": "en", "target_language": "zh"}  # whose BLEU has its own tokenizer
    change_json(model / "config.json", **languages)
    names = write_pairs(PAIRS[:16], tmp_path / "text", tmp_path / "references")
    text = ("--text", names[0], "--references", names[1])
    arguments = ("export.py", "--model", model, "--to", "ctranslate2", "--output", tmp_path / "out")
    call_recipe(*arguments, *text, "--num_beams", "1")
    report = json.loads((tmp_path / "out" / "parity.json").read_text(encoding="utf-8"))
    assert report["identical"] == report["lines"] == report["same_tokens"] == 16
    assert "tok:zh" in report["bleu"]["exported"]["signature"]
    shown = capsys.readouterr().out
    for words in ("16 of 16 (100.00%)", f"{report['bleu']['exported']['score']:.2f}", "float32", "MB"):
        assert words in shown
    call_recipe(*arguments, "--quantization", "int8", "--force")
    assert not (tmp_path / "out" / "parity.json").exists()
    assert "int8" in capsys.readouterr().out


def test_a_sentence_longer_than_the_learned_positions_is_refused_before_the_export(tokenizer, tmp_path):
    model = distinct(len(tokenizer), position_encoding="learned", max_position_embeddings=20)
    save_model(tmp_path / "m", model, tokenizer)
    (tmp_path / "text").write_text("Go.\n" + "The cat sleeps. " * 20 + "\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"text: line 2 has \d+ tokens, and the export takes 20; split it"):
        call_recipe("export.py", "--model", tmp_path / "m", "--output", tmp_path / "out", "--text", tmp_path / "text")
    assert not (tmp_path / "out").exists()
