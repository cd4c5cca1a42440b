"""Dictionaries and byte-pair codes of fairseq as the tokenizer that transformers has for them."""

import json
import tempfile
from pathlib import Path

from transformers import FSMTTokenizer


_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, in no file
_CODES = ("bpecodes", "code")  # what fairseq's scripts and models call the file


def fairseq_tokenizer(
    directory: str | Path, languages: tuple[str, str], vocab_sizes: tuple[int, int], model_max_length: int = 1024
) -> FSMTTokenizer:
    """Moses' tokenization, and the byte pairs of fastBPE or subword-nmt, as fairseq's translation models were trained.

    Args:
        directory: Where `dict.SRC.txt`, `dict.TGT.txt`, and `bpecodes` or `code` are.
        languages: Codes of source and target, SRC and TGT, such as ("en", "de").
        vocab_sizes: Entries that the model has for source and target.
        model_max_length: Tokens of the longest source.

    Raises:
        ValueError: A file is missing or malformed, or a dictionary is not the model's.
    """
    directory = Path(directory)
    paths = [directory / f"dict.{language}.txt" for language in languages]
    codes = next((path for path in (directory / name for name in _CODES) if path.is_file()), None)
    missing = [path.name for path in paths if not path.is_file()] + ([] if codes else [" or ".join(_CODES)])
    if codes is None or missing:
        raise ValueError(f"dictionaries: {directory} has no {', no '.join(missing)}; name the directory that has")
    vocabularies = [read_dictionary(path) for path in paths]
    for path, vocabulary, size in zip(paths, vocabularies, vocab_sizes, strict=True):
        if len(vocabulary) != size:
            raise ValueError(
                f"{path}: with special tokens there are {len(vocabulary)} entries, but the model has {size}; "
                f"give the dictionaries that it was trained with"
            )
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / name for name in ("src_vocab_file", "tgt_vocab_file", "merges_file")}
        for name, vocabulary in zip(files, vocabularies, strict=False):
            files[name].write_text(json.dumps(vocabulary), encoding="utf-8")
        files["merges_file"].write_text("".join(f"{merge}\n" for merge in read_codes(codes)), encoding="utf-8")
        return FSMTTokenizer(
            langs=list(languages),
            # Text whose capitals are all unknown was lower-cased before training.
            do_lower_case=not any(token.lower() != token for token in vocabularies[0]),
            model_max_length=model_max_length,
            **{name: str(path) for name, path in files.items()},
        )


def read_dictionary(path: Path) -> dict[str, int]:
    """Ids of the tokens of a fairseq dictionary, whose lines are `token count`.

    There `@@` marks a token that the next one continues, here `</w>` one that ends a word.

    Raises:
        ValueError: A line has another form, or a token occurs twice.
    """
    ids = {token: number for number, token in enumerate(_SPECIAL)}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            token, _, count = line.rstrip().rpartition(" ")
            if not (token and count.isdecimal()):
                raise ValueError(f"{path}, line {number}: must be `token count`, is {line.rstrip()!r}")
            name = token.removesuffix("@@") if token.endswith("@@") else f"{token}</w>"
            if name in ids:
                raise ValueError(f"{path}, line {number}: {token!r} is there already")
            ids[name] = len(ids)
    return ids


def read_codes(path: Path) -> list[str]:
    """The pairs that byte-pair encoding merges, first ones first, `left right` each.

    fastBPE has a count behind each pair, subword-nmt the format's version ahead of them.

    Raises:
        ValueError: The file is neither, or of subword-nmt's version 0.1, which marks the end of a word otherwise.
    """
    lines = [line.split(" ") for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    if lines and lines[0] == ["#version:", "0.2"]:
        pairs, columns = lines[1:], 2
    else:
        pairs, columns = lines, 3
    if not pairs or any(len(pair) != columns for pair in pairs):
        raise ValueError(
            f"{path}: must be codes of subword-nmt, which begin with '#version: 0.2', "
            f"or of fastBPE, which have a count behind each pair"
        )
    return [" ".join(pair[:2]) for pair in pairs]
