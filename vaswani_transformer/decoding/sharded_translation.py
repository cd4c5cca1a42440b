"""Translation in shards: any process may do any of them, and a restart repeats only unfinished ones.

DIR/manifest.json                    model, options, input and output; `{}` while the input is being divided
DIR/source-000000.txt                lines of a shard
DIR/shard-000000.0123456789ab.txt    what they became, under its digest, so that attempts at one shard do not collide
"""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import cast

from tqdm.auto import tqdm

from ..convert.engines import require_export
from ..io.files import (
    Json,
    atomic_write,
    locked,
    read_json,
    require_same_manifest,
)
from .decoding_arguments import DecodingArguments
from .line_translation import TranslationOptions, Translator, split_lines


_OF_MACHINE = {"timeout_minutes", "trust_remote_code"}  # options that each command decides
_FINISHED = re.compile(r"shard-(\d{6,})\.([0-9a-f]{12})\.txt")
_RECENT = 100  # finished shards by which the rate is estimated


@dataclass(frozen=True)
class SourceText:
    """What was divided into shards.

    Attributes:
        lines: Number of lines.
        digest: Digest of all lines.
    """

    lines: int
    digest: str

    def __str__(self) -> str:
        return f"{self.lines} lines, sha256 {self.digest}"


@dataclass(frozen=True)
class Progress:
    """How far a translation is.

    Attributes:
        shards: Number of shards.
        missing: Numbers of those that are not finished.
        lines_per_second: Rate at which the last hundred shards were finished; None of fewer than two.
        seconds_left: For the missing ones at this rate.
        seconds_since: Since the last shard was finished; None if none is.
    """

    shards: int
    missing: list[int]
    lines_per_second: float | None = None
    seconds_left: float | None = None
    seconds_since: float | None = None


class ShardedTranslation:
    """A directory of shards to translate, and of finished ones.

    Any number of processes, on any machines that see the directory, may translate shards of it, also the same ones.

    Args:
        folder: The directory.
        option: The user's name for it, with which messages begin.
        model: Where the model is, if it is no longer where it was when the input was divided.
        trust_remote_code: Run code that comes with the model; only if you trust its author.
    """

    def __init__(
        self, folder: str | Path, option: str = "work", model: str | None = None, trust_remote_code: bool = False
    ) -> None:
        self.folder, self._option = Path(folder), option
        self._model, self._trust_remote_code = model, trust_remote_code
        self._manifest_path = self.folder / "manifest.json"
        self._recorded: dict[str, Json] = {}  # the manifest, once it is complete
        self._sources: list[Json] = []  # digest of each shard's lines, once `divide` has read them

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create and lock the directory, so that no other command divides an input into it.

        On an error before the first finished shard, the directory is removed.

        Raises:
            ValueError: Another command holds the lock.
            FileExistsError: The directory has files of another program.
        """
        self.folder.mkdir(exist_ok=True)
        with locked(self.folder, self._option):
            if not self._manifest_path.exists() and any(path.suffix != ".tmp" for path in self.folder.iterdir()):
                raise FileExistsError(f"{self._option}: {self.folder}, needed for shards, has other files in it")
            try:
                if not self._manifest_path.exists():
                    atomic_write(self._manifest_path, "{}")
                yield
            except BaseException:
                if not self.is_begun:
                    self.remove()
                raise

    def divide(self, lines: Iterable[str], lines_per_shard: int) -> SourceText:
        """Write sources of `lines_per_shard` lines; if a shard is finished, only read the lines, for their digest.

        All lines are read, so that a bad one is found before any translation.
        """
        is_begun = self.is_begun
        if not is_begun:
            self._remove_shards()
        count, digest = 0, sha256()
        self._sources = []
        for number, shard in enumerate(split_lines(lines, lines_per_shard)):
            content = "".join(line + "\n" for line in shard).encode()
            digest.update(content)
            self._sources.append(_digest(content))
            count += len(shard)
            if not is_begun:
                atomic_write(self._source(number), [content])
        return SourceText(count, digest.hexdigest())

    def begin(
        self,
        source: SourceText,
        lines_per_shard: int,
        model: tuple[str, Path],
        options: TranslationOptions,
        columns: tuple[str, str] | None,
        output: Path | None,
    ) -> None:
        """Write the manifest or, if a shard is finished, compare it with what is there.

        Args:
            source: The result of `divide`.
            lines_per_shard: As for `divide`.
            model: Name of the model, and the directory of its files.
            options: How to translate.
            columns: As for `Translator`.
            output: The file that the translations are for; None for standard output.

        Raises:
            ValueError: The shards belong to another translation.
        """
        name, directory = model
        kept = [field.name for field in fields(TranslationOptions) if field.name not in _OF_MACHINE]
        decisive: dict[str, Json] = {
            "model": options.model_digest(directory),
            "input": str(source),
            "lines_per_shard": lines_per_shard,
            **options.decisive,
        }
        manifest: dict[str, Json] = {
            **decisive,
            "lines": source.lines,
            "sources": self._sources,
            "place": str(Path(name).resolve()) if Path(name).is_dir() else name,
            "options": {each: getattr(options, each) for each in kept},
            "columns": None if columns is None else [*columns],
            "output": None if output is None else str(output.resolve()),
        }
        if self.is_begun:
            require_same_manifest(
                self._manifest,
                decisive,
                f"{self._option}: {self.folder} holds part of another translation, which differs in",
                "repeat its command to continue it, or delete the folder to start from the beginning",
            )
        else:
            atomic_write(self._manifest_path, json.dumps(manifest, indent=2))

    @property
    def is_divided(self) -> bool:
        """Whether all sources and the manifest are written."""
        return self._manifest_path.exists() and bool(self._read_manifest())

    @property
    def is_begun(self) -> bool:
        """Whether a shard is finished."""
        return self.is_divided and bool(self._finished())

    @property
    def precision(self) -> str:
        """The dtype of the model that translates, by PyTorch's name; "auto" for that of its saved weights."""
        return str(self._manifest.get("dtype"))

    @property
    def output(self) -> Path | None:
        """The file that the translations are for; None for standard output."""
        name = self._manifest.get("output")
        return None if name is None else Path(str(name))

    @property
    def is_json(self) -> bool:
        """Whether shards have lines of JSON."""
        return self._manifest.get("columns") is not None

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self._count("lines") // self._count("lines_per_shard"))

    def size(self, number: int) -> int:
        """Number of lines of a shard."""
        size = self._count("lines_per_shard")
        return min(size, self._count("lines") - number * size)

    def source(self, number: int) -> list[str]:
        """The lines of a shard.

        Raises:
            ValueError: They are not those that were written.
        """
        path, digests = self._source(number), self._sources or self._manifest.get("sources")
        content = path.read_bytes() if path.exists() else b""
        if not isinstance(digests, list):
            raise self._damage(f"{self._manifest_path} is of an earlier version")
        if [_digest(content)] != digests[number : number + 1]:
            raise self._damage(f"{path} was changed or removed after the input was divided")
        return content.decode().split("\n")[:-1]

    def missing(self) -> list[int]:
        """Numbers of the shards to translate; damaged ones are removed, and named on standard error."""
        finished = self._finished()
        return [number for number in range(self.shards) if self._read(number, finished) is None]

    def progress(self) -> Progress:
        """How far the translation is, by the names of finished shards."""
        finished = self._finished()
        missing = [number for number in range(self.shards) if number not in finished]
        times = sorted(path.stat().st_mtime for paths in finished.values() for path in paths[:1])
        since = time.time() - times[-1] if times else None
        recent = times[-_RECENT:]
        if len(recent) < 2 or recent[-1] == recent[0]:
            return Progress(self.shards, missing, seconds_since=since)
        rate = (len(recent) - 1) * self._count("lines_per_shard") / (recent[-1] - recent[0])
        return Progress(self.shards, missing, rate, sum(map(self.size, missing)) / rate, since)

    @cached_property
    def translator(self) -> Translator:
        """What translates, with the model and options of the manifest; loaded at first use.

        Raises:
            ValueError: The model is another one, or the manifest is damaged.
        """
        manifest = self._manifest
        try:
            kept = cast(dict[str, Json], manifest["options"])
            options = TranslationOptions(**kept, trust_remote_code=self._trust_remote_code)  # type: ignore[arg-type]
            columns = cast(tuple[str, str] | None, manifest["columns"] and tuple(cast(list[str], manifest["columns"])))
            name = self._model or str(manifest["place"])
        except (KeyError, TypeError) as error:
            raise self._damage(str(error)) from None
        saved = DecodingArguments.open(options, name)
        digests: dict[str, Json] = {"model": options.model_digest(saved.directory)}
        if options.engine is not None:
            require_export(Path(options.engine))
        digests |= {each: options.decisive[each] for each in ("engine", "ensemble") if getattr(options, each)}
        require_same_manifest(
            manifest,
            digests,
            f"{self._option}: {name} or what translates with it changed after the input was divided; they differ in",
            f"name the former model with --model, or divide the input into another directory than {self.folder}",
        )
        return Translator(saved, options, columns)

    def translate(self, number: int, bar: tqdm | None = None) -> None:
        """Translate a shard, unless it is finished.

        Args:
            number: Its number.
            bar: Counts its lines.

        Raises:
            ValueError: There is no such shard; or as from `translator`.
        """
        if number not in range(self.shards):
            raise ValueError(f"shard: {number} is none of {self.folder}; name one from 0 to {self.shards - 1}")
        if self._read(number, self._finished()) is not None:
            if bar is not None:
                bar.update(self.size(number))
            return
        content = b"".join(self.translator.translate(number, self.source(number), bar))
        atomic_write(self.folder / f"shard-{number:06d}.{_digest(content)}.txt", [content])

    def warn_of_long_lines(self) -> None:
        """As `Translator.warn_of_long_lines`, of the shards translated here."""
        if "translator" in vars(self):  # it was used
            self.translator.warn_of_long_lines()

    def collect(self, output: Path | None, temporary_folder: Path | None = None) -> None:
        """Write the output from all shards, in order.

        Args:
            output: The file, such as the attribute `output`; None for standard output.
            temporary_folder: Where it is written before it is renamed, on the same file system; by default beside it.

        Raises:
            ValueError: A shard is damaged or missing; no output file was written.
        """
        finished = self._finished()
        missing = [number for number in range(self.shards) if number not in finished]
        if missing:
            raise ValueError(
                f"{self._option}: {len(missing)} of {self.shards} shards of {self.folder} are not finished; first "
                f"translate them, beginning with {missing[0]}"
            )
        if output is None:
            for _ in self._contents(finished):  # an error before the first line
                pass
            sys.stdout.buffer.writelines(self._contents(finished))
            sys.stdout.buffer.flush()
        else:
            atomic_write(output, self._contents(finished), temporary_folder)

    def remove(self) -> None:
        """Remove the directory if its manifest shows that this program made it, or if it is empty."""
        if self._manifest_path.exists():
            self._recorded = {}
            atomic_write(self._manifest_path, "{}")  # if this is killed, the remaining shards must not be used
            self._remove_shards()
            for path in (*self.folder.glob("*.tmp"), self._manifest_path):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # it has other files
            self.folder.rmdir()

    def _remove_shards(self) -> None:
        for pattern in ("shard-*.txt", "source-*.txt"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)

    def _contents(self, finished: dict[int, list[Path]]) -> Iterator[bytes]:
        for number in range(self.shards):
            content = self._read(number, finished)
            if content is None:
                raise ValueError(
                    f"{self._option}: shard {number} of {self.folder} was changed or removed after it was written; "
                    f"translate it again, by repeating the command or with --shard {number}"
                )
            yield content

    def _read(self, number: int, finished: dict[int, list[Path]]) -> bytes | None:
        """The content of a shard; None if it is not finished. Damaged files of it are removed."""
        for path in finished.get(number, []):
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                if f".{_digest(content)}." in path.name:
                    return content
                print(f"{path} is damaged, and removed", file=sys.stderr)
                path.unlink(missing_ok=True)
        return None

    def _finished(self) -> dict[int, list[Path]]:
        """The files of each finished shard; two attempts on unlike machines may leave two."""
        found: dict[int, list[Path]] = {}
        for path in sorted(self.folder.iterdir()):
            if match := _FINISHED.fullmatch(path.name):
                found.setdefault(int(match[1]), []).append(path)
        return found

    def _source(self, number: int) -> Path:
        return self.folder / f"source-{number:06d}.txt"

    @property
    def _manifest(self) -> dict[str, Json]:
        """What `begin` has written, read once."""
        self._recorded = self._recorded or (self._read_manifest() if self._manifest_path.exists() else {})
        if not self._recorded:
            raise ValueError(f"{self._option}: {self.folder} holds no shards; divide a file into it with --input")
        return self._recorded

    def _read_manifest(self) -> dict[str, Json]:
        try:
            return read_json(self._manifest_path)
        except ValueError as error:
            raise self._damage(str(error)) from None

    def _count(self, name: str) -> int:
        value = self._manifest.get(name)
        if not isinstance(value, int) or value < (name == "lines_per_shard"):
            raise self._damage(f"{self._manifest_path} has no {name}")
        return value

    def _damage(self, what: str) -> ValueError:
        return ValueError(f"{self._option}: {what}; delete {self.folder} to start from the beginning")


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]
