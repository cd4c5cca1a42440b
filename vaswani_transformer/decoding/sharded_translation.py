"""Translation of a file in shards: a restart, on any number of processes, repeats only unfinished ones.

OUTPUT.shards/manifest.json       input, model and options of the translation; `{}` while no shard is to be kept
OUTPUT.shards/shard-000000.txt    a finished shard; shard-000000.json holds its number of lines and its digest
OUTPUT.shards/input               a copy of the input
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.tables import kind_of_suffix
from ..io.files import Json, atomic_write, locked, matching_files_digest, read_json, require_same_manifest
from ..model.languages_vaswani import direction, longest_known, required_tag, split_tag, target_tag
from ..model.pipeline_vaswani import in_order, translate_in_batches
from ..model.scores_vaswani import TranslationScore


_MODEL_FILES = ("config.json", "generation_config.json", "*token*.json", "vocab*", "*.model", "*.safetensors")


def translate_lines(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: list[str],
    tokens_per_batch: int,
    bar: tqdm,
    columns: tuple[str, str] | None = None,
    **generate_kwargs: Any,
) -> list[bytes]:
    """Translate lines, stripped of white space as in training.

    Args:
        model: The model, on the device to use.
        tokenizer: Its tokenizer.
        lines: The lines.
        tokens_per_batch: As for `translate_in_batches`.
        bar: Counts the lines.
        columns: Names of source and target in JSON, without the source's tag, which training adds itself; by default,
            the result is text and has no source.
        generate_kwargs: For `translate_in_batches`.

    Returns:
        For each line in order, a line for each of its `num_return_sequences` translations, line feed included. With
        `return_scores` and `columns`, it has the fields of `TranslationScore`, too.
    """
    sentences = [line.strip() for line in lines]
    sources = sentences if columns is None else [split_tag(model.config, sentence)[1] for sentence in sentences]

    def counted() -> Iterator[tuple[list[int], list[list[str]]]]:
        for batch in translate_in_batches(model, tokenizer, sentences, tokens_per_batch, **generate_kwargs):
            yield batch
            bar.update(len(batch[0]))

    translations = zip(sources, in_order(counted()), strict=True)
    return [_record(source, each, columns) for source, found in translations for each in found]


def warn_of_long_lines(count: int, config: PreTrainedConfig, split_sentences: bool) -> None:
    """Say on standard error how many lines are longer, or hold a longer sentence, than all sources trained on."""
    what, advice = "have", "--split_sentences translates sentence by sentence"
    if split_sentences:
        what, advice = "have sentences with", "divide these sentences"
    if count:
        print(
            f"{count} lines {what} more tokens than the longest sentence trained on, {longest_known(config)}; parts of "
            f"them may be untranslated; {advice}",
            file=sys.stderr,
        )


def _record(source: str, found: str | tuple[str, TranslationScore], columns: tuple[str, str] | None) -> bytes:
    target, score = found if isinstance(found, tuple) else (found, None)
    # One line for every tool, because some take U+2028 and similar characters for line ends.
    source, target = (" ".join(text.splitlines()) for text in (source, target))
    if columns is not None:
        facts = {} if score is None else score.line
        target = json.dumps({columns[0]: source, columns[1]: target, **facts}, ensure_ascii=False)
    return target.encode() + b"\n"


def model_digest(directory: Path) -> str:
    """Digest of the files that a model's translations depend on; the directory's name does not matter."""
    return f"sha256 {matching_files_digest(directory, _MODEL_FILES)}"


def require_input(name: str) -> Path:
    """The path of a file that can be read repeatedly; raises a ValueError or OSError if it is not one."""
    path = Path(name)
    if path.is_dir():
        raise IsADirectoryError(f"input: {path} is a directory; name a file in it")
    if not path.exists():
        raise FileNotFoundError(f"input: there is no file {path}")
    if not path.is_file():
        raise ValueError(f"input: {path} can be read only once; give it as standard input")
    return path


def require_output(path: Path, source: Path | None) -> None:
    """Raise a ValueError or OSError unless a file other than `source` can be written at `path`."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"output: there is no directory {path.parent}; make it")
    if path.exists() and not path.is_file():
        raise ValueError(f"output: {path} is not a file; give one, or - for standard output")
    if path.exists() and source is not None and path.samefile(source):
        raise ValueError(f"output: {path} is the input too; name another file")


def output_columns(path: Path, config: PreTrainedConfig, target_language: str | None) -> tuple[str, str] | None:
    """Names of the columns of source and target, of an output in JSON; None of one in text.

    Raises:
        ValueError: The model does not translate into the language; or it has several directions, and the columns need
            the language.
    """
    if kind_of_suffix(path) != "json":
        target_tag(config, None, target_language)  # refuses a language that is not the model's
        return None
    source, target = direction(config, required_tag(config, target_language))
    return source or "source", target or "target"


def split_lines(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` lines; only one list is in memory."""
    while shard := list(islice(lines, size)):
        yield shard


@dataclass(frozen=True)
class SourceText:
    """A copy of the lines to translate, because the input may change meanwhile, or be standard input.

    Attributes:
        path: The copy.
        lines_per_shard: Lines of a shard, except the last.
        lines: Number of lines.
        digest: Digest of all lines.
    """

    path: Path
    lines_per_shard: int
    lines: int
    digest: str

    @classmethod
    def copy(cls, lines: Iterable[str], path: Path, lines_per_shard: int) -> "SourceText":
        """Read all lines, so that a bad one is found before any translation, and write them to `path`."""
        count, digest = 0, sha256()

        def chunks() -> Iterator[bytes]:
            nonlocal count
            for line in lines:
                chunk = line.encode() + b"\n"
                digest.update(chunk)
                count += 1
                yield chunk

        atomic_write(path, chunks())
        return cls(path, lines_per_shard, count, digest.hexdigest())

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.lines // self.lines_per_shard)

    def size(self, number: int) -> int:
        """Number of lines of a shard."""
        return min(self.lines_per_shard, self.lines - number * self.lines_per_shard)

    def read(self) -> Iterator[list[str]]:
        """The lines of each shard."""
        with open(self.path, encoding="utf-8", newline="\n") as file:
            yield from split_lines((line.removesuffix("\n") for line in file), self.lines_per_shard)


def _record_of_shard(content: bytes) -> bytes:
    return json.dumps({"lines": content.count(b"\n"), "sha256": sha256(content).hexdigest()}).encode()


class TranslatedShards:
    """The folder `<output>.shards`, which holds finished shards until the output is written.

    Args:
        output: The file to write; a link is followed.

    Raises:
        ValueError: `output` is a directory, or a link to itself.
    """

    def __init__(self, output: Path) -> None:
        try:
            self.output = output.resolve()
        except RuntimeError:  # before Python 3.13
            raise ValueError(f"output: {output} is a link that leads back to itself; name another file") from None
        if not self.output.name:
            raise ValueError(f"output: {output} is a directory; name a file in it")
        self.folder = self.output.with_name(self.output.name + ".shards")
        self._manifest = self.folder / "manifest.json"

    @property
    def begun(self) -> bool:
        """Whether there are shards of an unfinished translation."""
        return bool(self._recorded) and any(self.folder.glob("shard-*.txt"))

    @property
    def _recorded(self) -> dict[str, Json]:
        """The manifest; empty if there is none."""
        try:
            return read_json(self._manifest) if self._manifest.exists() else {}
        except ValueError as error:
            raise ValueError(f"output: {error}; delete {self.folder} to start from the beginning") from None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create and lock the folder, so that no other command writes the same output.

        On an error before the first finished shard, the folder is removed.

        Raises:
            ValueError: Another command holds the lock.
            FileExistsError: The folder has files of another program.
        """
        self.folder.mkdir(exist_ok=True)
        with locked(self.folder, "output"):
            if not self._manifest.exists() and any(path.suffix != ".tmp" for path in self.folder.iterdir()):
                raise FileExistsError(f"output: {self.folder}, needed for unfinished shards, has other files in it")
            try:
                if not self._manifest.exists():
                    atomic_write(self._manifest, "{}")
                yield
            except BaseException:
                if not self.begun:
                    self._clear()
                raise

    def begin(self, manifest: Mapping[str, Json]) -> None:
        """Write the manifest or, if there are shards, compare it with theirs.

        Raises:
            ValueError: The shards belong to another translation.
        """
        if self.begun:
            require_same_manifest(
                self._recorded,
                manifest,
                f"{self.folder} holds part of another translation, which differs in",
                "repeat its command to continue it, or delete the folder to start from the beginning",
            )
        else:
            atomic_write(self._manifest, json.dumps(manifest, indent=2))

    @property
    def dtype(self) -> str:
        """The dtype of the model that translated the finished shards; "auto" for that of its saved weights."""
        return str(self._recorded.get("dtype", "auto"))

    def path(self, number: int) -> Path:
        return self.folder / f"shard-{number:06d}.txt"

    def save(self, number: int, translations: list[bytes]) -> None:
        """Write a shard after its record, so that every shard has one."""
        # Need not be atomic: with half a record, the shard counts as damaged and is translated again.
        self.path(number).with_suffix(".json").write_bytes(_record_of_shard(b"".join(translations)))
        atomic_write(self.path(number), translations)

    def read(self, number: int) -> bytes | None:
        """The content of a shard; None if it is missing or was changed."""
        with suppress(FileNotFoundError):
            content = self.path(number).read_bytes()
            if self.path(number).with_suffix(".json").read_bytes() == _record_of_shard(content):
                return content
        return None

    def missing(self, count: int) -> list[int]:
        """Numbers of the shards to translate; standard error lists damaged ones."""
        numbers = [number for number in range(count) if self.read(number) is None]
        for path in filter(Path.exists, map(self.path, numbers)):
            print(f"{path} is damaged; it is translated again", file=sys.stderr)
        return numbers

    def finish(self, count: int) -> None:
        """Write the output from its `count` shards, and remove the folder.

        Raises:
            ValueError: A shard is damaged or missing; no output was written.
        """
        atomic_write(self.output, self._contents(count), temporary_folder=self.folder)
        self._clear()

    def _contents(self, count: int) -> Iterator[bytes]:
        for number in range(count):
            content = self.read(number)
            if content is None:
                raise ValueError(
                    f"output: {self.path(number)} was changed or removed after it was written; repeat the command, "
                    f"which translates that shard again"
                )
            yield content

    def _clear(self) -> None:
        """Remove the folder if its manifest shows that this program made it, or if it is empty."""
        if self._manifest.exists():
            atomic_write(self._manifest, "{}")  # if this is killed, the remaining shards must not be used
            for pattern in ("shard-*.txt", "shard-*.json", "input", "*.tmp", self._manifest.name):
                for path in self.folder.glob(pattern):
                    path.unlink(missing_ok=True)
        with suppress(OSError):  # it has other files
            self.folder.rmdir()
