"""Saved tokenizers in clients that read `tokenizer.json` alone: `tokenizers`, and transformers.js in node."""

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.engines.engine import UNUSED, save_stock_tokenizer


TAGS = ("<2de>", "<2en>")
KINDS = {"bpe": (), "wordpiece": (), "bpe, both directions, digits": TAGS, "wordpiece, both directions": TAGS}
TEXTS = [
    "The old man reads a book.",
    "<pad> and </s> are words",
    "</s>",
    "a</s>b<unk>",
    "  two  blanks\n\tand 🐈 ",
    "É e\u0301, a\ufeffb \x85 c",
    "\ufeffa\u00a0\u2009b\u3000c\u2028d\u202fe \x00f\x1cg",
    "soft\u00adhyphen\u200b\u2060 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u200f1\u066b5\u202c",
    "249,99 € um 14:35, +49 30 1234567, ١٢٣ ½ Ⅻ",
    "Wait , what ? I do n't know ! It 's",
    UNUSED.format(5),
    "x",
    "",
    *(
        text.replace("TAG", tag)
        for tag in TAGS
        for text in ("TAG x", "TAG", "TAGx", " TAG x", "x TAG y", "TAG TAG x", "TAG <2en>", "TAG </s>", "\nTAG x")
    ),
]


@pytest.fixture(scope="module", params=KINDS)
def trained_tokenizer(request) -> VaswaniTokenizer:
    corpus = [sentence for pair in phrasebook("validation") for sentence in pair]
    kind, tags = request.param.split(",")[0], KINDS[request.param]
    options = {"special_tokens": tags, "split_digits": "digits" in request.param}
    return VaswaniTokenizer.train(corpus, 400, kind, show_progress=False, **options)


@pytest.fixture(scope="module")
def directory(trained_tokenizer, tmp_path_factory) -> Path:
    trained_tokenizer(["short", "a longer text"], padding=True, truncation=True, max_length=3)
    directory = tmp_path_factory.mktemp("saved")
    save_stock_tokenizer(trained_tokenizer, directory, 77)
    return directory


def test_tokenizers_encodes_and_decodes_with_the_file_alone(directory, trained_tokenizer):
    bare = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = trained_tokenizer(TEXTS)["input_ids"]
    assert [encoding.ids for encoding in bare.encode_batch(TEXTS)] == ids
    assert bare.encode("x", add_special_tokens=False).ids == ids[TEXTS.index("x")][:-1]
    rows = [*ids, [0, 5, 2, 1, 0], [len(trained_tokenizer) - 1, 7, 1]]
    for skip in (True, False):
        decoded = bare.decode_batch(rows, skip_special_tokens=skip)
        assert decoded == trained_tokenizer.batch_decode(rows, skip_special_tokens=True)


def test_transformers_has_its_special_tokens(directory, trained_tokenizer):
    loaded = AutoTokenizer.from_pretrained(directory)
    assert not isinstance(loaded, VaswaniTokenizer)
    assert len(loaded) == len(trained_tokenizer)
    assert loaded.model_max_length == 77
    ids = trained_tokenizer(TEXTS)["input_ids"]
    assert loaded(TEXTS)["input_ids"] == ids
    assert loaded.batch_decode(ids, skip_special_tokens=True) == trained_tokenizer.batch_decode(
        ids, skip_special_tokens=True
    )
    for name in ("pad", "eos", "unk"):
        assert getattr(loaded, f"{name}_token_id") == getattr(trained_tokenizer, f"{name}_token_id")


def test_ordinary_added_tokens_and_recognised_special_tokens_stay_as_they_are(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "ours")
    extended = VaswaniTokenizer.from_pretrained(tmp_path / "ours")
    extended.add_tokens(["Bluetooth"])
    recognising = VaswaniTokenizer.from_pretrained(tmp_path / "ours", split_special_tokens=False)
    texts = ["A Bluetooth device</s>", "</s>"]
    for each in (extended, recognising):
        each(texts, truncation=True, max_length=5, padding="max_length")  # which the backend remembers
        save_stock_tokenizer(each, tmp_path, 1024)
        bare = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert [encoding.ids for encoding in bare.encode_batch(texts)] == each(texts)["input_ids"]
    assert len(recognising("</s>")["input_ids"]) == 2


NODE = """
import { readFileSync } from "node:fs";
import { dirname, basename } from "node:path";
import { pathToFileURL } from "node:url";
const [modules, directory] = process.argv.slice(1);
const library = pathToFileURL(`${modules}/@huggingface/transformers/dist/transformers.node.mjs`);
const { AutoTokenizer, env } = await import(library);
Object.assign(env, { allowRemoteModels: false, localModelPath: dirname(directory) + "/" });
const tokenizer = await AutoTokenizer.from_pretrained(basename(directory));
const ids = JSON.parse(readFileSync(0, "utf8")).map((text) => tokenizer.encode(text));
const decoded = ids.map((row) => tokenizer.decode(row, { skip_special_tokens: true }));
process.stdout.write(JSON.stringify({ ids, decoded }));
"""


@pytest.mark.system
def test_transformers_js_in_node_encodes_and_decodes_alike(directory, trained_tokenizer, shared_data):
    if "TRANSFORMERS_JS" not in os.environ:
        pytest.skip("TRANSFORMERS_JS does not name a folder node_modules; run: make test-browser")
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    texts = list(TEXTS)
    for corpus, language in (("tatoeba_en-de", "en"), ("tatoeba_en-de", "de"), ("tatoeba_en-fr", "fr")):
        with gzip.open(shared_data / corpus / f"test.{language}.gz", "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        texts += [*lines, *(f"{tag} {line}" for tag in TAGS for line in lines)]
    command = ["node", "--input-type=module", "--eval", NODE, os.environ["TRANSFORMERS_JS"], str(directory)]
    result = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    ids = trained_tokenizer(texts)["input_ids"]
    assert [text for text, mine, theirs in zip(texts, ids, found["ids"], strict=True) if mine != theirs] == []
    decoded = trained_tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert [pair for pair in zip(decoded, found["decoded"], strict=True) if pair[0] != pair[1]] == []
