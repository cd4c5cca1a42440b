"""The model in `model_cards/tatoeba-de-en`: small, as its card says, and with attention that the texts describe."""

import json
import re
import subprocess

import numpy as np
import pytest
import torch
from helpers import BOX, REPOSITORY
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vaswani_transformer.visualization.attention import AttentionWeights, merge_words, read_attention
from vaswani_transformer.visualization.figures import attention_entropy


SENTENCE = "Meine Schwester steht jeden Sonntag um zehn Uhr auf."


@pytest.fixture(scope="module")
def attention() -> AttentionWeights:
    """The attention that the pictures of the texts show."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(BOX).eval(), AutoTokenizer.from_pretrained(BOX)
    return merge_words(read_attention(model, tokenizer, f"<2en> {SENTENCE}"))


def test_the_repository_has_at_most_one_file_of_weights():
    listed = subprocess.run(
        ["git", "ls-files", "*.safetensors", "*.bin", "*.pt", "*.onnx"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("this copy is no repository")
    assert set(listed.stdout.splitlines()) <= {"model_cards/tatoeba-de-en/model.safetensors"}


def test_weights_are_small_and_are_computed_with_in_float32():
    weights = load_file(BOX / "model.safetensors")
    assert (BOX / "model.safetensors").stat().st_size <= 16e6
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    model = AutoModelForSeq2SeqLM.from_pretrained(BOX)
    assert model.dtype == torch.float32
    assert all(torch.equal(model.state_dict()[name], weight.float()) for name, weight in weights.items())


def test_rounded_weights_translate_as_the_run_did():
    """The examples of the card are the float32 model's; rounding may change one."""
    examples = json.loads((BOX / "all_results.json").read_text(encoding="utf-8"))["examples"]
    found = pipeline("translation_de_to_en", model=str(BOX))([each["source"] for each in examples])
    same = [one["translation_text"] == each["translation"] for one, each in zip(found, examples, strict=True)]
    assert len(same) >= 5
    assert sum(same) >= len(same) - 1


def test_words_are_aligned_with_their_translations():
    (found,) = pipeline("translation_de_to_en", model=str(BOX))([SENTENCE], return_alignment=True)
    source, target = SENTENCE.split(), found["translation_text"].split()
    links = {(source[one], target[other]) for one, other in found["alignment"]}
    assert links >= {("Schwester", "sister"), ("zehn", "ten"), ("jeden", "every")}


def test_readme_says_what_the_word_of_its_picture_attends_to(attention):
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    ((word, attended),) = re.findall(r'"(\w+)"\sattends\smost\sto\s"(\w+)"', text)
    mean = attention.cross[-1, :, attention.target.index(word)].mean(0)  # [source words]
    assert attention.source[mean.argmax()] == attended


def test_three_quarters_of_the_encoders_heads_look_at_more_than_one_word():
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(BOX).eval(), AutoTokenizer.from_pretrained(BOX)
    everyday = (REPOSITORY / "model_cards" / "benchmarks" / "everyday_de_en.tsv").read_text(encoding="utf-8")
    german = [line.removeprefix("de\t") for line in everyday.splitlines() if line.startswith("de\t")]
    views = [read_attention(model, tokenizer, f"<2en> {text}") for text in german[:20]]
    entropies = [attention_entropy(view)["encoder"][0] for view in views]  # [layers, heads] each, in bits
    assert (np.mean(entropies, 0) > 0.5).mean() >= 0.75


def test_the_chapter_names_the_heads_that_find_the_verbs_prefix(attention):
    text = (REPOSITORY / "vaswani_transformer" / "visualization" / "README.md").read_text(encoding="utf-8")
    ((layer, named),) = re.findall(r'In layer (\d), heads? ([\d, and]+) attends? from "steht" most to', text)
    verb, prefix = map(attention.source.index, ("steht", "auf"))
    heads = [
        number for number, head in enumerate(attention.encoder[int(layer) - 1], 1) if head[verb].argmax() == prefix
    ]
    assert heads == [int(number) for number in re.findall(r"\d", named)]
    assert f"--layer {layer} --words steht" in text
