import copy
import json
import multiprocessing
import re
import threading
import unicodedata
from collections import Counter

import pytest
from helpers import call_in_threads
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook


PAD, EOS, UNK = 0, 1, 2

# Each odd character stands in one position only: some at the start of a run, some inside, some alone.
ODD_LINES = ["a\x1cb \x1d\x1e", "5ß", "x\u0302y", "中文", "3€!?", "one\ttwo\nthree\u2028four\u3000\u200b", "½Ⅻ", "# #a"]
INVISIBLE = {0xAD, 0x61C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF}
CORPUS = [sentence for pair in phrasebook("validation") for sentence in pair] + ODD_LINES

AWKWARD = [
    "",
    " ",
    "\t leading,  double and trailing \n",
    "</s>",
    "a</s>b <pad><unk> </s>",
    "# a #b ## c",
    "\u0301e\u0301 cafe\u0301 x\u0302",
    "Ġ ▁ \ufffd \x00",
    "don't . , ! ?",
]
PIECES = ["</s>", "<pad>", "<unk>", " ", "  ", "\t", "\n", "\r\n"]
PIECES += ["e\u0301", "\u0301", "# ", "Ġ", "the", "ein", "7", "."]
TEXTS = st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join)


def normal(text: str) -> str:
    """The text that decoding gives back."""
    visible = [c for c in text if ord(c) not in INVISIBLE and (c.isspace() or unicodedata.category(c) != "Cc")]
    return " ".join(unicodedata.normalize("NFC", "".join(visible)).split())


def decoded(tokenizer: VaswaniTokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)


def train(corpus: list[str], vocab_size: int, model: str) -> VaswaniTokenizer:
    return VaswaniTokenizer.train(corpus, vocab_size, model, show_progress=False)


def size_named_in(error: pytest.ExceptionInfo, pattern: str) -> int:
    match = re.search(pattern, str(error.value))
    assert match, error.value
    return int(match[1])


LANGUAGES = ["<2de>", "<2de_AT>", "[to.fr]+"]
WITH_LANGUAGES = ["<2de> the man", "a[to.fr]+b </s><2de_AT>"]


def with_languages(tokenizer: VaswaniTokenizer) -> VaswaniTokenizer:
    """A copy to whose vocabulary special tokens were added, in both of the ways that there are."""
    extended = copy.deepcopy(tokenizer)
    assert extended.add_special_tokens({"additional_special_tokens": LANGUAGES[:2]}) == 2
    assert extended.add_tokens(LANGUAGES[2:], special_tokens=True) == 1
    return extended


@pytest.fixture(scope="module")
def word_pieces() -> VaswaniTokenizer:
    return train(CORPUS, 500, "wordpiece")


@pytest.fixture(params=["bpe", "wordpiece"])
def either(request: pytest.FixtureRequest, tokenizer: VaswaniTokenizer, word_pieces: VaswaniTokenizer):
    return tokenizer if request.param == "bpe" else word_pieces


@given(TEXTS)
@example("</s>")
@example(" a  b ")
@example("\u1100\u1161\u11a8 \u212b")  # Hangul that composes, and a sign that NFC replaces
@example("\u0327\u0301a\u0301\u0327")  # marks that NFC reorders
@example("x" * 1000)
def test_byte_pairs_give_back_any_text_and_no_special_id_but_the_end(tokenizer, text):
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == normal(text)
    assert ids[-1] == EOS
    assert not {PAD, EOS, UNK} & set(ids[:-1])


@given(st.text(st.sampled_from(sorted(set(normal("".join(CORPUS)))))) | TEXTS)
@example("".join(ODD_LINES))
@example("a###b ##c # d")  # like the mark of a continuation
def test_word_pieces_give_back_text_of_known_characters(word_pieces, text):
    ids = word_pieces(text).input_ids
    known = set(normal("".join(CORPUS))) | {" "}
    assert (UNK in ids) == (not set(normal(text)) <= known)
    if UNK not in ids:
        assert word_pieces.decode(ids, skip_special_tokens=True) == normal(text)
    assert ids[-1] == EOS
    assert not {PAD, EOS} & set(ids[:-1])


@pytest.mark.parametrize("length", [99, 100, 101, 201])
def test_a_run_of_any_length_is_encoded(either, length):
    for text in ("a" * length, "5" * length + "!" * length):
        assert UNK not in either(text).input_ids
        assert decoded(either, text) == text


@pytest.mark.parametrize("model", ["bpe", "wordpiece"])
def test_names_of_special_tokens_in_a_corpus_stay_text(model):
    corpus = ["</s> <pad> <unk> </s></s>"] * 20
    with pytest.raises(ValueError, match="only") as error:
        train(corpus, 10_000, model)
    trained = train(corpus, size_named_in(error, r"only (\d+)"), model)  # every merge that there is
    for text in ("</s>", "<pad>", "<unk> </s>"):
        ids = trained(text).input_ids
        assert not {PAD, EOS, UNK} & set(ids[:-1])
        assert decoded(trained, text) == text


def test_word_pieces_know_the_thousand_most_frequent_characters(caplog):
    characters = [chr(0x4E00 + 7 * number) for number in range(1100)]
    corpus = [character * (1 if number % 11 == 0 else 2) for number, character in enumerate(characters)]
    trained = train(corpus, 2100, "wordpiece")
    # 100 lines of one lost character and one of two such, each after a space, of 100 and 1,000 such lines.
    assert "1,000 characters, and the corpus has more, so that 6.3% of its text becomes <unk>; use bpe" in caplog.text
    counts = Counter("".join(corpus))
    known = {character for character in characters if UNK not in trained(character).input_ids}
    assert len(known) == 999  # and the space
    assert min(counts[character] for character in known) >= max(counts[c] for c in counts if c not in known)


@pytest.mark.parametrize(
    "text", ["a  b", "a\u00a0b", "a\tb", "a\u3000b", "a\u2028b", "\ufeffa b", "a\u00ad b\u200b", " a b\n"]
)
def test_text_that_looks_alike_has_the_same_ids(either, text):
    assert either(text).input_ids == either("a b").input_ids
    assert either(f"<2de> {text}").input_ids == either("<2de> a b").input_ids


def test_joiners_that_change_the_look_of_a_word_stay(tokenizer):
    for text in (
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0915\u094d\u200d\u0937",
        "\U0001f468\u200d\U0001f469",
    ):
        assert decoded(tokenizer, text) == text


@pytest.mark.parametrize("model", ["bpe", "wordpiece"])
def test_digits_can_be_tokens_of_their_own(model, tmp_path):
    corpus = [*CORPUS, *(f"{number} euros, {number},99" for number in range(1900, 2030))]
    trained = VaswaniTokenizer.train(corpus, 700, model, show_progress=False, split_digits=True)
    trained.add_special_tokens({"additional_special_tokens": ["<2de>"]})
    trained.save_pretrained(tmp_path)
    for tokenizer in (trained, VaswaniTokenizer.from_pretrained(tmp_path)):
        for text in ("1999 euros", "2024,99", "49 30 12345678", "<2de> 2000"):
            pieces = [tokenizer.decode([token]) for token in tokenizer(text).input_ids]
            assert [piece for piece in pieces if sum(map(str.isdigit, piece)) > 1] == []
            assert tokenizer.decode(tokenizer(text).input_ids[:-1]) == text


def test_a_saved_tokenizer_keeps_its_normalization_when_tags_are_added(tokenizer):
    old = copy.deepcopy(tokenizer)  # as an earlier version made it
    old.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(" ")])
    old = with_languages(old)
    assert decoded(old, "<2de> a\u00a0 b") == "a\u00a0 b"
    assert old("<2de>").input_ids == with_languages(tokenizer)("<2de>").input_ids


def test_training_is_deterministic():
    ties = [chr(0x4E00 + number) + chr(0x6E00 + number) for number in range(700)]  # more than are kept, all as frequent
    for corpus, size in ((CORPUS, 500), (ties, 2100)):
        for model in ("bpe", "wordpiece"):
            texts = (iter(corpus), corpus)  # an iterator is read once
            first, second = (train(text, size, model).backend_tokenizer.to_str() for text in texts)
            assert first == second


def test_source_and_target_alike_end_in_eos(either):
    encoded = either(["a man", ""], text_target=["ein Mann", ""])
    assert encoded["labels"] == either(["ein Mann", ""]).input_ids
    for ids in (*encoded["input_ids"], *encoded["labels"]):
        assert ids.count(EOS) == 1
        assert ids[-1] == EOS
    assert encoded["input_ids"][1] == encoded["labels"][1] == [EOS]


def test_truncation_keeps_eos(either):
    text = "the woman sees the old house"
    for length in (1, 5):
        expected = [*either(text).input_ids[: length - 1], EOS]
        assert either(text, truncation=True, max_length=length).input_ids == expected
        assert either(text_target=text, truncation=True, max_length=length).input_ids == expected


def test_threads_that_share_a_tokenizer_do_not_change_each_others_results(tokenizer):
    texts = CORPUS[:12]
    calls = [
        lambda: tokenizer(texts).input_ids,
        lambda: tokenizer(texts, truncation=True, max_length=6).input_ids,
        lambda: tokenizer(texts, padding="max_length", max_length=40).input_ids,
        lambda: tokenizer.encode(texts[0], truncation=True, max_length=4),
        lambda: tokenizer.tokenize(texts[0]),
    ]
    expected = [call() for call in calls]
    for value, found in zip(expected, call_in_threads(calls, rounds=20), strict=True):
        assert all(each == value for each in found)


def test_a_process_that_is_forked_while_a_thread_encodes_can_encode(tokenizer):
    ids, is_over = tokenizer("a b").input_ids, threading.Event()

    def encode() -> None:
        while not is_over.is_set():
            tokenizer(CORPUS)

    thread = threading.Thread(target=encode)
    thread.start()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            found = pool.apply_async(encode_text, (tokenizer, "a b")).get(timeout=20)
        finally:
            is_over.set()
            thread.join()
    assert found == ids


def encode_text(tokenizer: VaswaniTokenizer, text: str) -> list[int]:
    return tokenizer(text).input_ids


@pytest.mark.parametrize("load", [VaswaniTokenizer.from_pretrained, AutoTokenizer.from_pretrained])
@pytest.mark.parametrize("has_added_tokens", [False, True])
def test_saving_and_loading_twice_changes_nothing(either, load, has_added_tokens, tmp_path):
    either = with_languages(either) if has_added_tokens else either
    either.save_pretrained(tmp_path / "first")
    once = load(tmp_path / "first")
    once.save_pretrained(tmp_path / "second")
    for loaded in (once, load(tmp_path / "second")):
        assert type(loaded) is VaswaniTokenizer
        assert len(loaded) == len(either)
        for text in [*AWKWARD, *WITH_LANGUAGES]:
            assert dict(loaded(text)) == dict(either(text))
            assert decoded(loaded, text) == decoded(either, text)


@pytest.mark.system
def test_transformers_without_this_package_encodes_and_decodes_alike(hub, extended_bpe, extended_word_pieces, tmp_path):
    texts, saved = [*AWKWARD, *WITH_LANGUAGES], {"bpe": extended_bpe, "wordpiece": extended_word_pieces}
    for name, trained in saved.items():
        trained.save_pretrained(tmp_path / name)
    script = """
import json, sys
from transformers import AutoTokenizer
results = {}
for name in ("bpe", "wordpiece"):
    tokenizer = AutoTokenizer.from_pretrained(f"./{name}")
    encoded = [dict(tokenizer(text)) for text in json.loads(sys.argv[1])]
    decoded = [tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in encoded]
    results[name] = [encoded, decoded, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id]
assert "vaswani_transformer" not in sys.modules
print(json.dumps(results))
"""
    run = hub.run(script, json.dumps(texts), folder=tmp_path)
    assert run.returncode == 0, run.stderr
    for name, trained in saved.items():
        encoded = [dict(trained(text)) for text in texts]
        expected = [encoded, [decoded(trained, text) for text in texts], len(trained), PAD, EOS]
        assert json.loads(run.stdout)[name] == expected


@pytest.fixture(scope="module")
def extended_bpe(tokenizer: VaswaniTokenizer) -> VaswaniTokenizer:
    return with_languages(tokenizer)


@pytest.fixture(scope="module")
def extended_word_pieces(word_pieces: VaswaniTokenizer) -> VaswaniTokenizer:
    return with_languages(word_pieces)


def test_other_text_is_encoded_as_before(tokenizer, word_pieces, extended_bpe, extended_word_pieces):
    for before, after in ((tokenizer, extended_bpe), (word_pieces, extended_word_pieces)):
        for text in [*CORPUS, *AWKWARD]:
            assert after(text).input_ids == before(text).input_ids


@given(st.lists(st.sampled_from([*LANGUAGES, *PIECES, "<", ">"]) | st.text(max_size=3)).map("".join))
@example(" <2de>  </s><2de_AT>")
@example("\n<2de>")
@example("<2de><2de> <2de>")
@example("<2de>\u0338")  # NFC makes another sign of the end of this one and the mark behind it
def test_text_with_added_tokens_comes_back(extended_bpe, text):
    ids = extended_bpe(text).input_ids
    assert extended_bpe.decode(ids[:-1]) == normal(text)
    assert ids[-1] == EOS
    assert not {PAD, EOS, UNK} & set(ids[:-1])
    longest_first = re.findall(r"\A<2de_AT>|\A<2de>|\[to\.fr\]\+", normal(text))
    added = set(extended_bpe.convert_tokens_to_ids(LANGUAGES))
    assert [extended_bpe.convert_ids_to_tokens(token) for token in ids if token in added] == longest_first


@pytest.mark.parametrize("name", ["<to de>", "e\u0301", "<" + 100 * "x", ""])
def test_special_tokens_that_no_vocabulary_can_have_are_refused(either, name):
    extended = copy.deepcopy(either)
    with pytest.raises(ValueError, match=r"^special token "):
        extended.add_special_tokens({"additional_special_tokens": ["<2de>", name]})
    assert len(extended) == len(either)


def test_special_tokens_are_added_before_ordinary_ones_only(either):
    late = copy.deepcopy(either)
    late.add_tokens(["Zzyx"])
    with pytest.raises(ValueError, match=r"^special token .* first$"):  # it would no longer be found in text
        late.add_tokens(["<2de>"], special_tokens=True)


def test_special_tokens_of_a_new_vocabulary_are_its_last_entries(either):
    size, model = len(either), "bpe" if "byte" in str(either.backend_tokenizer.pre_tokenizer).lower() else "wordpiece"
    corpus = [*CORPUS, "<2de> stays text in the corpus"]
    trained = VaswaniTokenizer.train(corpus, size, model, show_progress=False, special_tokens=LANGUAGES)
    later = with_languages(train(corpus, size - len(LANGUAGES), model))
    assert len(trained) == size
    assert trained.get_vocab() == later.get_vocab()
    for text in [*AWKWARD, *WITH_LANGUAGES]:
        assert trained(text).input_ids == later(text).input_ids
    assert decoded(trained, "<2de> The man [to.fr]+") == "The man "


@pytest.mark.parametrize("model", ["bpe", "wordpiece"])
def test_a_corpus_too_small_for_the_vocabulary_names_the_size_it_supports(model):
    corpus = ["the low tower", "the tower"]
    with pytest.raises(ValueError, match=r"^vocab_size: .*not 5000") as error:
        train(corpus, 5000, model)
    supported = size_named_in(error, r"only (\d+) entries")
    assert train(corpus, supported, model).vocab_size == supported
    with pytest.raises(ValueError, match=f"only {supported} entries"):
        train(corpus, supported + 1, model)


@pytest.mark.parametrize("model", ["bpe", "wordpiece"])
def test_a_vocabulary_too_small_for_the_characters_names_the_size_they_need(model):
    with pytest.raises(ValueError, match=r"^vocab_size: 9 ") as error:
        train(CORPUS, 9, model)
    needed = size_named_in(error, r"ask for (\d+) or more")
    if model == "bpe":
        assert needed == 256 + 3
    else:  # at the start and inside, but a space is never inside
        assert needed == 2 * len(set(normal("".join(CORPUS)))) - 1 + 3
    assert train(CORPUS, needed, model).vocab_size == needed
    with pytest.raises(ValueError, match=f"{needed} or more"):
        train(CORPUS, needed - 1, model)
