"""Word alignment: links to the source word with the largest attention, and heads on which two models agree."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import call_recipe, write_pairs
from transformers import AutoTokenizer, pipeline

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.alignment import Aligner, ChosenHeads, choose_heads, product_links
from vaswani_transformer.decoding.saved_model import open_model
from vaswani_transformer.io.manifests import MODEL_FILES, Manifest, find_damage
from vaswani_transformer.model.scores_vaswani import (
    AlignmentHeads,
    best_links,
    read_decoder,
    token_words,
    word_attention,
)
from vaswani_transformer.visualization.attention import read_attention


PAIRS = phrasebook("test")[:7]
LAST = AlignmentHeads([[2, 0], [2, 1]])  # of three layers
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))


@pytest.fixture
def model(tokenizer):
    """A model of several layers and heads, with attention that is not even."""
    config = VaswaniConfig(
        vocab_size=len(tokenizer), d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=3
    )
    model = VaswaniForConditionalGeneration(config).eval()
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data *= 3
    return model


def attention_by_hand(model, tokenizer, source, target, heads):
    """Attention of each target word to each source word, by what the explorer shows: its rows are the steps."""
    weights = read_attention(model, tokenizer, source, target)
    attention = np.mean([weights.cross[layer, head] for layer, head in heads.pairs], axis=0)  # [target, source]

    def words(text, side):
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
        found = np.cumsum([token.startswith("\u0120") for token in tokens[:-1]] + [True]) - 1
        assert found[-1] == len(text.split()), side  # the last is the EOS
        return list(found[:-1])

    sources, targets = words(source, "source"), words(target, "target")
    sums = np.zeros((targets[-1] + 1, sources[-1] + 1))
    for place, of_target in enumerate(targets):
        for column, of_source in enumerate(sources):
            sums[of_target, of_source] += attention[place + heads.is_shifted, column]
    return sums


def by_hand(model, tokenizer, source, target, heads):
    sums = attention_by_hand(model, tokenizer, source, target, heads)
    return [(int(column), word) for word, column in enumerate(sums.argmax(1))]


def product_by_hand(model, tokenizer, source, target, heads):
    """The product of attention of two models, forward by the first heads, as shares of each word's."""
    ahead = attention_by_hand(model, tokenizer, source, target, heads[0])
    back = attention_by_hand(model, tokenizer, target, source, heads[1]).T
    return np.array(
        [
            [ahead[t, s] / sum(ahead[t]) * back[t, s] / sum(back[:, s]) for s in range(ahead.shape[1])]
            for t in range(len(ahead))
        ]
    )


@pytest.mark.parametrize("budget", [1, 40, 4096])
def test_links_are_those_of_the_explorers_attention(budget, model, tokenizer):
    groups = [LAST, AlignmentHeads([[0, 1]], True), AlignmentHeads([[2, 0], [0, 0]], True)]
    found = Aligner(model, tokenizer, tokens_per_batch=budget).align(SOURCES, TARGETS, groups)
    for source, target, links in zip(SOURCES, TARGETS, found, strict=True):
        for group, of_group in zip(groups, links, strict=True):
            assert of_group == by_hand(model, tokenizer, source, target, group)
    assert len({tuple(of_group) for links in found for of_group in links}) > len(SOURCES)
    assert model.config._attn_implementation == "sdpa"


def test_blank_sentences_have_no_links(model, tokenizer):
    found = Aligner(model, tokenizer).align(["", "  ", "a b", "a"], ["a", "", " ", " b\u2028c "], [LAST])
    assert found == [[[]], [[]], [[]], [[(0, 0), (0, 1)]]]
    aligner = Aligner(model, tokenizer)
    assert aligner.align_with(aligner, ["", "a b", "a"], ["a", " ", "b"], [LAST, LAST], True) == [[], [], [(0, 0)]]


def test_the_tag_of_a_language_is_no_word(model, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<2de>"]})
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)  # which knows less of its special tokens
    model.resize_token_embeddings(len(tokenizer))
    ids = tokenizer("<2de> The old man").input_ids
    assert ids[0] == len(tokenizer) - 1
    places, words = token_words(tokenizer, ids, is_whole=True)
    assert (places[0], places[1], words) == (None, 0, 3)
    found = Aligner(model, tokenizer, tag="<2de>").align(SOURCES, TARGETS, [LAST])
    for source, (links,) in zip(SOURCES, found, strict=True):
        assert {place for place, _ in links} <= {*range(len(source.split()))}
    assert min(place for (links,) in found for place, _ in links) == 0


def test_attention_is_summed_over_the_tokens_of_both_words():
    attention = torch.tensor([[0.3, 0.4, 0.3, 0.0], [0.1, 0.2, 0.0, 0.7], [0.9, 0.0, 0.1, 0.0]])
    # Source words: tokens 0 and 2, token 1; token 3 is the end.
    for targets, expected in (([0, 1, 1], [(0, 0), (0, 1)]), ([0, 1, None], [(0, 0), (1, 1)])):
        assert best_links(word_attention(attention, [0, 1, 0, None], 2, targets, 2)) == expected


def test_the_heads_chosen_are_those_that_agree(model, tokenizer, monkeypatch):
    """Both models link at random, but for one group each, which link alike."""
    draw, drawn = np.random.default_rng(0), {}
    good = {"forward": AlignmentHeads([[1, 0]], True), "backward": AlignmentHeads([[2, 0], [2, 1]])}

    def align(self, sources, targets, groups):
        name = "forward" if sources is SOURCES else "backward"
        found = []
        for number in range(len(sources)):
            true = [(word % 5, word) if name == "forward" else (word, word % 5) for word in range(8)]
            rows = [true if group == good[name] else [(int(draw.integers(8)), w) for w in range(8)] for group in groups]
            found.append(rows if number else [true] * len(groups))
        drawn[name] = found
        return found

    monkeypatch.setattr(Aligner, "align", align)
    both = Aligner(model, tokenizer)
    assert both.candidates[:4] == [
        *map(AlignmentHeads, ([[0, 0], [0, 1]], [[1, 0], [1, 1]], [[2, 0], [2, 1]], [[0, 0]]))
    ]
    assert len(both.candidates) == 2 * (3 + 6)
    chosen = choose_heads(both, both, SOURCES, TARGETS)
    assert (chosen.forward, chosen.backward) == (good["forward"], good["backward"])
    assert chosen.agreement == 1.0
    pairs = [*zip(drawn["forward"], drawn["backward"], strict=True)][1::2]  # those that did not choose
    of_last = [(ahead[2], [link[::-1] for link in back[2]]) for ahead, back in pairs]  # all heads of the last layer
    shared = sum(len({*ahead} & {*back}) for ahead, back in of_last)
    assert chosen.agreement_before == 2 * shared / sum(len({*links}) for pair in of_last for links in pair)
    alike = choose_heads(both, both, SOURCES, TARGETS, same=True)
    assert alike.forward == alike.backward
    assert alike.agreement < 1.0


def test_a_translations_alignment_is_that_of_the_same_pair_given(model, tokenizer):
    model.generation_config.max_new_tokens = 8
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    found = translator(SOURCES, return_alignment=True, return_tensors=True, return_text=True, num_return_sequences=2)
    for source, records in zip(SOURCES, found, strict=True):
        for record in records:
            assert [target for _, target in record["alignment"]] == list(range(len(record["translation_text"].split())))
            ids = record["translation_token_ids"].tolist()[1:]
            if ids[-1] == tokenizer.eos_token_id and tokenizer(record["translation_text"]).input_ids == ids:
                expected = by_hand(model, tokenizer, source, record["translation_text"], LAST)
                assert record["alignment"] == expected
    assert translator(" ", return_alignment=True)[0]["alignment"] == []


@pytest.fixture
def folder(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("forward", "backward"):
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
        Manifest.from_files(tmp_path / name, MODEL_FILES).save(tmp_path / name)
    write_pairs(PAIRS, tmp_path / "pairs.en", tmp_path / "pairs.de")
    return tmp_path


def test_a_file_of_alignments_and_the_choice_that_the_models_keep(folder, model, tokenizer, monkeypatch, capsys):
    command = ["--model", "forward", "--corpus", "pairs.en", "pairs.de"]
    call_recipe("align.py", *command, "--output", "last")
    expected = [by_hand(model, tokenizer, *pair, LAST) for pair in PAIRS]
    lines = (folder / "last").read_text(encoding="utf-8").splitlines()
    assert lines == [" ".join(f"{source}-{target}" for source, target in links) for links in expected]
    both = [*command, "--reverse_model", "backward", "--output"]
    heads = AlignmentHeads([[0, 1]], True), AlignmentHeads([[1, 0], [1, 1]])
    path = "vaswani_transformer.decoding.alignment.choose_heads"
    monkeypatch.setattr(path, lambda *_: ChosenHeads(*heads, 0.5, 0.5))
    call_recipe("align.py", *both, "no better")
    products = [product_by_hand(model, tokenizer, *pair, [LAST, LAST]) for pair in PAIRS]
    lines = (folder / "no better").read_text(encoding="utf-8").splitlines()
    assert lines == [" ".join(f"{s}-{t}" for t, s in enumerate(product.argmax(1))) for product in products]
    assert lines != (folder / "last").read_text(encoding="utf-8").splitlines()
    assert [open_model(folder / name).config.alignment_heads for name in ("forward", "backward")] == [None, None]

    def choose(*_):
        (folder / "chosen").mkdir()  # so that the output cannot be written
        return ChosenHeads(*heads, 0.625, 0.5)

    monkeypatch.setattr(path, choose)
    with pytest.raises(SystemExit, match="chosen"):
        call_recipe("align.py", *both, "chosen")
    printed = capsys.readouterr().out
    for figure in ("0.500", "0.625"):
        assert f"agreement of the chosen heads {figure}, of all heads of the last layers 0.500" in printed
    for name, chosen in zip(("forward", "backward"), heads, strict=True):
        config = open_model(folder / name).config
        assert AlignmentHeads(config.alignment_heads, config.alignment_shift) == chosen
    call_recipe("align.py", *command, "--output", "kept")
    expected = [by_hand(model, tokenizer, *pair, heads[0]) for pair in PAIRS]
    lines = (folder / "kept").read_text(encoding="utf-8").splitlines()
    assert lines == [" ".join(f"{source}-{target}" for source, target in links) for links in expected]
    found = pipeline("translation", model="forward")(SOURCES[0], return_alignment=True, max_new_tokens=5)[0]
    (folder / "one.en").write_text(SOURCES[0] + "\n", encoding="utf-8")
    call_recipe(
        *("translate.py", "--model", "forward", "--input", "one.en", "--output", "one.jsonl"),
        *("--return_alignment", "--max_new_tokens", "5"),
    )
    row = json.loads((folder / "one.jsonl").read_text(encoding="utf-8"))
    assert row["alignment"] == " ".join(f"{source}-{target}" for source, target in found["alignment"])


def test_mistakes_are_found_before_anything_is_read(folder):
    (folder / "there").touch()
    with pytest.raises(SystemExit, match="output: there exists already"):
        call_recipe("align.py", "--model", "missing", "--corpus", "missing.jsonl", "--output", "there")
    command = ["align.py", "--model", "forward", "--corpus", "pairs.en", "pairs.de", "--reverse_model"]
    with pytest.raises(SystemExit, match="reverse_model: is the model too"):
        call_recipe(*command, "./forward/", "--output", "o")
    open_model(folder / "forward").update_config(source_language="en", target_language="de")
    with pytest.raises(SystemExit, match="reverse_model: the model translates from en, not de"):
        call_recipe(*command, "./forward/", "--output", "o")
    with pytest.raises(ValueError, match="alignment: the model has two vocabularies"):
        AlignmentHeads.for_model(SimpleNamespace(config=SimpleNamespace(model_type="vaswani", target_vocab_size=50)))
    with pytest.raises(ValueError, match="alignment: models of the type t5 are not supported"):
        AlignmentHeads.for_model(SimpleNamespace(config=SimpleNamespace(model_type="t5")))


def test_a_model_of_both_directions_is_its_own_reverse(folder, model, tokenizer):
    tokenizer = copy.deepcopy(tokenizer)  # other tests have it, too
    tokenizer.add_special_tokens({"additional_special_tokens": ["<2de>", "<2en>"]})
    model.resize_token_embeddings(len(tokenizer))
    model.config.language_tags = dict(
        zip(("de", "en"), tokenizer.convert_tokens_to_ids(["<2de>", "<2en>"]), strict=True)
    )
    model.config.source_language, model.config.target_language = "en", "de"
    for saved in (model, tokenizer):
        saved.save_pretrained("both")
    call_recipe(
        *("align.py", "--model", "both", "--reverse_model", str(folder / "both"), "--corpus", "pairs.en", "pairs.de"),
        *("--source_language", "en", "--target_language", "de", "--output", "o"),
    )
    tags = ("<2de>", "<2en>")
    expected = choose_heads(*(Aligner(model, tokenizer, tag) for tag in tags), SOURCES, TARGETS, same=True)
    assert expected.forward == expected.backward
    is_better = expected.agreement > expected.agreement_before
    assert AlignmentHeads.for_model(open_model("both").load()) == (expected.forward if is_better else LAST)


def test_only_links_that_are_the_best_of_both_words(folder, model, tokenizer):
    command = ["--model", "forward", "--reverse_model", "backward", "--corpus", "pairs.en", "pairs.de"]
    call_recipe("align.py", *command, "--output", "both", "--intersect")
    heads = [AlignmentHeads.for_model(open_model(folder / name).load()) for name in ("forward", "backward")]
    lines = (folder / "both").read_text(encoding="utf-8").splitlines()
    for line, pair in zip(lines, PAIRS, strict=True):
        product = product_by_hand(model, tokenizer, *pair, heads)
        best = [(s, t) for t, row in enumerate(product) for s in range(len(row)) if row[s] == max(row)]
        assert line == " ".join(f"{s}-{t}" for s, t in best if product[t, s] == max(product[:, s]))
    assert 0 < sum(len(line.split()) for line in lines) < sum(len(target.split()) for target in TARGETS)


def test_keeping_heads_leaves_a_checkpoint_whole(folder):
    """A checkpoint's manifest also has files that resuming needs."""
    (folder / "forward" / "optimizer.pt").write_bytes(b"state")
    Manifest.from_files(folder / "forward", step=7).save(folder / "forward")
    open_model(folder / "forward").update_config(alignment_heads=[[0, 1]], alignment_shift=True)
    assert find_damage(folder / "forward") is None
    assert AlignmentHeads.for_model(open_model(folder / "forward").load()) == AlignmentHeads([[0, 1]], True)


def test_words_that_the_tokenizer_does_not_know_have_places():
    corpus = [sentence for pair in PAIRS for sentence in pair]
    tokenizer = VaswaniTokenizer.train(corpus, 120, "wordpiece", show_progress=False)
    ids = tokenizer("old ☃ man").input_ids
    assert tokenizer.unk_token_id in ids
    places, words = token_words(tokenizer, ids, is_whole=True)
    assert (words, places[0], places[-2], places[-1]) == (3, 0, 2, None)
    places, words = token_words(tokenizer, ids)
    assert (words, places[0], places[-2], places[-1]) == (2, 0, 1, None)


def test_a_model_that_has_learned_to_copy_aligns_each_word_with_itself(tokenizer):
    """The default of a trained model, whichever of its steps attends to a word."""
    config = VaswaniConfig(
        vocab_size=len(tokenizer), d_model=32, d_ff=64, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    model = VaswaniForConditionalGeneration(config)
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(200):
        source = torch.randint(3, 60, (32, 7), generator=draw)
        source[:, -1] = 1
        model(input_ids=source, labels=source).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    heads = AlignmentHeads.for_model(model)
    source = torch.randint(3, 60, (8, 7), generator=draw)
    source[:, -1] = 1
    forced = torch.cat((torch.zeros(8, 1, dtype=torch.long), source), dim=1)
    inputs = {"input_ids": source, "attention_mask": torch.ones_like(source)}
    _, attention = read_decoder(model.eval(), inputs, forced, [heads.pairs])
    places = [*range(6), None], 6
    found = [best_links(word_attention(heads.token_attention(each[0]), *places, *places)) for each in attention]
    right = sum(link == (place, place) for links in found for place, link in enumerate(links))
    assert right >= 0.9 * 8 * 6


def test_a_word_that_attends_to_nothing_takes_no_links_from_others():
    forward = torch.tensor([[0.9, 0.1], [0.1, 0.9]])  # [target, source]
    backward = torch.tensor([[0.8, 0.1], [0.0, 0.0]])  # [source, target]
    assert product_links(forward, backward, is_mutual=True) == [(0, 0)]
