"""Models and tokenizers of Marian and FSMT, untrained or taught a little, and comparisons with converted ones."""

import json
from pathlib import Path

import pytest
import sentencepiece
import torch
import transformers
from packaging.version import Version
from torch.nn import functional as F
from transformers import (
    FSMTConfig,
    FSMTForConditionalGeneration,
    FSMTTokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    PreTrainedModel,
)

from vaswani_transformer.data.phrasebook import phrasebook


PAIRS = phrasebook("validation")[:200]
TEXTS = [english for english, _ in PAIRS[:8]]
SIZES = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,  # Marian computes its table in Python
}
OWN = {
    "marian": {"vocab_size": 57, "pad_token_id": 56, "decoder_start_token_id": 56, "scale_embedding": True},
    "fsmt": {"src_vocab_size": 57, "tgt_vocab_size": 49},
}


def untrained(kind: str, **changes) -> PreTrainedModel:
    """A model in which every weight is its own, so that no mix-up goes unseen."""
    changes = {**SIZES, **OWN[kind], **changes}
    if kind == "marian":
        model = MarianMTModel(MarianConfig(**changes))
    else:
        model = FSMTForConditionalGeneration(FSMTConfig(**changes))
    with torch.no_grad():
        for weight in trained_weights(model):
            weight.add_(0.2 * torch.randn_like(weight))
        if kind == "marian":
            model.final_logits_bias.copy_(0.5 * torch.randn_like(model.final_logits_bias))
        else:  # it gives padding no position, also where it has said it itself, which a trained model does not
            model.generation_config.bad_words_ids = [[1]]
    return model.eval()


def trained_weights(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """All weights but positions and a matrix of Marian's, which nothing reads if embeddings are not tied."""
    unused = ("embed_positions", "model.shared.weight")
    named = model.named_parameters(remove_duplicate=False)
    return list({weight: None for name, weight in named if not any(part in name for part in unused)})


def batch(model: PreTrainedModel) -> torch.Tensor:
    """Sources of every length up to 10, EOS and padding behind them: `[9, 10]`."""
    sources = torch.full((9, 10), model.config.pad_token_id)
    for row, source in enumerate(sources):
        source[: row + 1] = torch.randint(3, 48, (row + 1,))
        source[row + 1] = model.config.eos_token_id
    return sources


def inputs_of(model: PreTrainedModel, sources: torch.Tensor) -> dict[str, torch.Tensor]:
    """Inputs for `forward`; the target repeats the source."""
    start = torch.full_like(sources[:, :1], model.config.decoder_start_token_id)
    mask = sources.ne(model.config.pad_token_id).long()
    return {
        "input_ids": sources,
        "attention_mask": mask,
        "decoder_input_ids": torch.cat((start, sources[:, :-1]), dim=1),
        "use_cache": False,  # FSMT masks the future only then
    }


def teach(model: PreTrainedModel, sources: torch.Tensor, steps: int = 35) -> None:
    """Let the model learn to repeat its sources, so that what it says ends; by default not so well that all is told."""
    optimizer = torch.optim.Adam(trained_weights(model), lr=5e-3, fused=True)
    for _ in range(steps):
        logits = model(**inputs_of(model, sources)).logits
        F.cross_entropy(logits.flatten(0, 1), sources.flatten(), ignore_index=model.config.pad_token_id).backward()
        optimizer.step()
        optimizer.zero_grad()


def same_logits(source: PreTrainedModel, converted: PreTrainedModel, sources: torch.Tensor) -> None:
    real = sources.ne(source.config.pad_token_id)
    with torch.no_grad():
        expected, logits = (model(**inputs_of(source, sources)).logits[real] for model in (source, converted))
    torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)


def require_sound_generate(source: PreTrainedModel) -> None:
    """Older transformers searches otherwise than the forward pass of these two says: FSMT's cache is not right, and of
    Marian's vocabularies it takes the source's."""
    separate = not getattr(source.config, "share_encoder_decoder_embeddings", False)
    if separate and Version(transformers.__version__) < Version("5.23"):
        pytest.skip("this transformers does not search with FSMT and with Marian's separate vocabularies as it should")


def same_search(source: PreTrainedModel, converted: PreTrainedModel, sources: torch.Tensor, **settings) -> list[int]:
    """Compare hypotheses and scores; gives the lengths of the hypotheses, in generated tokens."""
    require_sound_generate(source)
    mask = sources.ne(source.config.pad_token_id).long()
    if settings.get("num_beams") != 1:
        settings = {"output_scores": True, **settings}
    found = [
        model.generate(sources, attention_mask=mask, return_dict_in_generate=True, **settings)
        for model in (source, converted)
    ]
    assert found[1].sequences.tolist() == found[0].sequences.tolist()
    if settings.get("output_scores"):
        torch.testing.assert_close(found[1].sequences_scores, found[0].sequences_scores, atol=1e-5, rtol=0)
    generated = found[0].sequences[:, 1:]
    return generated.ne(source.config.pad_token_id).sum(-1).tolist()


def marian_tokenizer(folder: Path, separate_vocabs: bool) -> MarianTokenizer:
    """Two sentencepiece models of the embedded corpus, and one vocabulary of all their pieces, or one of each."""
    folder.mkdir()
    pieces = []
    for side, name in enumerate(("source", "target")):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([pair[side] for pair in PAIRS]),
            model_prefix=str(folder / name),
            vocab_size=(120, 130)[side],
            minloglevel=2,
        )
        path = (folder / f"{name}.model").rename(folder / f"{name}.spm")
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        pieces.append([model.id_to_piece(number) for number in range(3, len(model))])
    if not separate_vocabs:
        pieces = [pieces[0] + pieces[1]] * 2
    for vocabulary, name in zip(pieces, ("vocab", "target_vocab"), strict=True):
        tokens = dict.fromkeys(["</s>", "<unk>", "<pad>", *vocabulary])
        ids = {token: number for number, token in enumerate(tokens)}
        (folder / f"{name}.json").write_text(json.dumps(ids), encoding="utf-8")
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json", "target_vocab.json")]
    return MarianTokenizer(*files, source_lang="en", target_lang="de", separate_vocabs=separate_vocabs)


def fsmt_tokenizer(folder: Path, separate_vocabs: bool = True) -> FSMTTokenizer:
    """Single characters, a few pairs, and another order of them for the target, if it has its own."""
    folder.mkdir()
    characters = sorted(set("".join(sentence for pair in PAIRS for sentence in pair)) - {" "})
    merges = [("e", "n"), ("t", "h"), ("th", "e</w>"), ("c", "h"), ("s", "t</w>"), ("en", "</w>")]
    tokens = [*characters, *(f"{character}</w>" for character in characters), *("".join(merge) for merge in merges)]
    for name, order in (("src", tokens), ("tgt", tokens[::-1] if separate_vocabs else tokens)):
        ids = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys(order)])}
        (folder / f"vocab-{name}.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in merges), encoding="utf-8")
    files = [str(folder / name) for name in ("vocab-src.json", "vocab-tgt.json", "merges.txt")]
    return FSMTTokenizer(["en", "de"], *files)
