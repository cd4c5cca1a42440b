"""Translation of a file in shards, which are ranges of its lines, by any process on any machine.

OUTPUT.shards/00003-of-00100    translations of the lines of the fourth of a hundred shards
OUTPUT.shards/options.json      model, options and input, which are the same for all shards
"""

import json
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import cast

from tqdm.auto import tqdm

from ..io.files import Json, atomic_write, locked, read_json
from ..io.manifests import require_same_manifest
from ..model.saved_model import SavedModel
from .decoding_arguments import DecodingPrecision
from .line_translation import LineTranslator
from .translation_options import TranslationOptions


_RECORD_NAME = "options.json"


def shard_folder(output: str) -> Path:
    """The directory of the finished shards of an output."""
    return Path(f"{output}.shards")


def is_begun(output: str) -> bool:
    """Whether a command that translates into an output has finished a shard; it has passed the check of the output."""
    return (shard_folder(output) / _RECORD_NAME).exists()


class ShardedTranslation:
    """The shards of one translation: which are missing, what they are made of, and the output made of them.

    The input is read once to count its lines, so that a bad line is found before any translation.

    Args:
        models: The model, followed by the other models of an ensemble.
        options: What to translate, and how; input and output are files.
        count: Number of shards.
        lines_per_shard: Instead of `count`: most lines of a shard.

    Attributes:
        lines: Number of lines.
        count: Number of shards.
        folder: The directory of finished shards.
    """

    def __init__(
        self,
        models: list[SavedModel],
        options: TranslationOptions,
        count: int | None = None,
        lines_per_shard: int = 2000,
    ) -> None:
        self.models, self.options = models, options
        self.folder = shard_folder(options.output)
        self._record_path = self.folder / _RECORD_NAME
        self.lines, digest = 0, sha256()
        for line in options.lines(models[0].config):
            self.lines += 1
            digest.update(line.encode() + b"\n")
        self._input = f"{self.lines} lines, sha256 {digest.hexdigest()}"
        self.count = -(-self.lines // lines_per_shard) if count is None else count

    @cached_property
    def translator(self) -> LineTranslator:
        """What translates; loaded at first use."""
        return LineTranslator(self.models, self.options)

    def path(self, number: int) -> Path:
        """The file of a finished shard."""
        return self.folder / f"{number:05d}-of-{self.count:05d}"

    def missing(self) -> list[int]:
        """Numbers of the shards that are not finished."""
        finished = {path.name for path in self.folder.glob(f"*-of-{self.count:05d}")}
        return [number for number in range(self.count) if self.path(number).name not in finished]

    def size(self, number: int) -> int:
        """Number of lines of a shard."""
        return self.lines * (number + 1) // self.count - self.lines * number // self.count

    def sources(self, numbers: Collection[int]) -> Iterator[tuple[int, list[str]]]:
        """The lines of some shards, read in one pass over the input."""
        lines = self.options.lines(self.models[0].config)
        for number in range(max(numbers, default=-1) + 1):
            shard = list(islice(lines, self.size(number)))
            if number in numbers:
                yield number, shard

    def translate(self, numbers: Collection[int], bar: tqdm | None = None) -> None:
        """Translate some shards; each is written atomically.

        Args:
            numbers: Their numbers.
            bar: Counts their lines.
        """
        for number, lines in self.sources(numbers):
            translations = self.translator.translate(number, lines, bar)
            self._record_options()
            atomic_write(self.path(number), translations)

    def resume(self) -> bool:
        """Whether there are finished shards; they are continued in their precision, if none was asked for.

        Raises:
            ValueError: They were translated from another input, by another model or with other options.
        """
        if not is_begun(self.options.output):
            return False
        if self.options.precision == "auto":
            self.options.precision = cast(DecodingPrecision, read_json(self._record_path)["precision"])
        self._compare_options()
        return True

    def wait(self, minutes: float) -> None:
        """Wait until all shards are finished, by other processes too.

        A collective operation would time out, since they may take hours longer than this one.

        Raises:
            TimeoutError: No shard was finished for so many minutes.
        """
        missing, since = self.missing(), time.monotonic()
        while missing:
            time.sleep(0.2)
            before, missing = missing, self.missing()
            if missing != before:
                since = time.monotonic()
            elif time.monotonic() - since > 60 * minutes:
                raise TimeoutError(
                    f"another process has ended or is stopped: no shard was finished for {minutes:g} minutes; repeat "
                    "the command to continue"
                )

    def collect(self) -> None:
        """Write the output from all shards, in order, and remove them."""
        contents = (self.path(number).read_bytes() for number in range(self.count))
        atomic_write(self.options.output, contents)
        for pattern in ("*-of-*", f"*{_RECORD_NAME}*"):  # last the record, which tells whose output it is
            for path in self.folder.glob(pattern):
                path.unlink()
        with suppress(OSError):  # it has files of others
            self.folder.rmdir()

    def _record_options(self) -> None:
        """Write `options.json`, or compare it with the options of a shard that another process has finished."""
        if not is_begun(self.options.output):
            with locked(self._record_path, "output", wait=True):
                if not is_begun(self.options.output):
                    atomic_write(self._record_path, json.dumps(self._record, indent=2) + "\n")
        self._compare_options()

    def _compare_options(self) -> None:
        require_same_manifest(
            read_json(self._record_path),
            self._record,
            f"output: {self.folder} holds part of another translation, which differs in",
            "repeat its command to continue it, or delete the folder to start from the beginning",
        )

    @cached_property
    def _record(self) -> dict[str, Json]:
        return {"input": self._input, **self.options.record(self.models)}
