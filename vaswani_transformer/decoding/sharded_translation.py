"""Translation of a file in shards, ranges of its lines, by any process on any machine.

OUTPUT.shards/00003-of-00100.gz    translations of the lines of the fourth of a hundred shards
OUTPUT.shards/options.json         model, options, input and number of shards, which are the same for all

gzip's check sum and length tell damage and cut-offs, and each shard must have a translation of each of its lines.
"""

import gzip
import json
import logging
import time
import zlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import cast

from tqdm.auto import tqdm

from ..engines.exported_model import engine_identity
from ..options.arguments import Precision, decisive_values
from ..options.decoding import TranslationArguments
from ..system.files import Json, atomic_write, locked, read_json
from ..system.manifests import MODEL_FILES, matching_files_digest, require_same_origin
from .line_translation import LineTranslator, open_models, require_output, source_lines


logger = logging.getLogger(__name__)


class ShardedTranslation:
    """The shards of one translation: the missing ones, their input, and the collected output.

    The whole input is read into memory first, so that a bad line is found before any translation.

    Args:
        options: What to translate, and how; input and output are files.
        count: Number of shards; by default as an earlier command recorded it.
        lines_per_shard: Most lines of a shard, without `count` and a record.
        overwrite: Whether to replace an existing output. Not needed to continue a translation whose shards exist.

    Attributes:
        models: The model, followed by the other models of an ensemble.
        lines: The lines to translate.
        count: Number of shards.

    Raises:
        ValueError, OSError: The output, a model or the input cannot be used.
    """

    def __init__(
        self,
        options: TranslationArguments,
        count: int | None = None,
        lines_per_shard: int = 2000,
        overwrite: bool = False,
    ) -> None:
        self.options = options
        self._folder = Path(f"{options.output}.shards")
        self._record_path = self._folder / "options.json"
        require_output(options, overwrite or not self.is_new)
        self.models = open_models(options)
        self.lines = list(source_lines(options, self.models[0].config))
        if count is None and not self.is_new:
            count = cast(int, read_json(self._record_path)["shards"])
        self.count = count or -(-len(self.lines) // lines_per_shard)

    def path(self, number: int) -> Path:
        """The file of a finished shard."""
        return self._folder / f"{number:05d}-of-{self.count:05d}.gz"

    def sources(self, number: int) -> list[str]:
        """The lines of a shard."""
        first, end = (len(self.lines) * boundary // self.count for boundary in (number, number + 1))
        return self.lines[first:end]

    @property
    def is_new(self) -> bool:
        """Whether no earlier command has begun this translation."""
        return not self._record_path.exists()

    def begin(self, numbers: Collection[int] | None = None) -> list[int]:
        """Compare the options with an earlier command's record, and find the missing shards; call it first.

        If the precision is "auto", an earlier command's is used. Of the shards with these `numbers`, by default of all,
        it deletes damaged ones, with a warning, and returns those that are not finished.

        Raises:
            ValueError: The earlier command's input, model or options are different.
        """
        if not self.is_new:
            if self.options.precision == "auto":
                self.options.precision = cast(Precision, read_json(self._record_path).get("precision", "auto"))
            self._require_record()
        missing = []
        for number in range(self.count) if numbers is None else numbers:
            try:
                self._content(number)
            except FileNotFoundError:
                missing.append(number)
            except ValueError as error:
                logger.warning(f"{error}; its lines are translated again")
                self.path(number).unlink(missing_ok=True)
                missing.append(number)
        return missing

    def translate(self, numbers: Collection[int], bar: tqdm | None = None) -> None:
        """Translate the shards with these `numbers`; each is written atomically.

        The first shard is written with the record: a command whose search fails leaves nothing to continue.

        Raises:
            ValueError: As from `begin`; or the search is not possible.
        """
        if not numbers:
            return
        translator = LineTranslator(self.models, self.options)

        def translated(number: int) -> bytes:
            return b"".join(translator.translate(number, self.sources(number), bar))

        threads = ThreadPoolExecutor(translator.calls)
        try:
            contents = (map if translator.calls == 1 else threads.map)(translated, numbers)
            for number, content in zip(numbers, contents, strict=True):
                if self.is_new:
                    with locked(self._record_path, "output", wait=True):
                        if self.is_new:
                            atomic_write(self._record_path, json.dumps(self._record, indent=2) + "\n")
                self._require_record()
                atomic_write(self.path(number), [gzip.compress(content, mtime=0)])
        finally:
            translator.stop()
            threads.shutdown(cancel_futures=True)

    def wait(self, minutes: float) -> None:
        """Wait until all processes have finished their shards.

        A collective operation would time out, since other processes may take hours longer than this one.

        Raises:
            TimeoutError: No shard was finished in this time.
        """
        finished, since = -1, time.monotonic()
        while finished < self.count:
            before, finished = finished, len([*self._folder.glob(f"*-of-{self.count:05d}.gz")])
            if finished != before:
                since = time.monotonic()
            elif time.monotonic() - since > 60 * minutes:
                raise TimeoutError(
                    f"another process has ended or is stopped: no shard was finished for {minutes:g} minutes; repeat "
                    "the command to continue"
                )
            time.sleep(0.2)

    def collect(self) -> None:
        """Write the output from all shards, in order, and remove them.

        Raises:
            ValueError: A shard is damaged.
        """
        atomic_write(self.options.output, map(self._content, range(self.count)))
        for pattern in ("[0-9]*-of-*", "options.json*"):  # last the record, which tells whose output it is
            for path in self._folder.glob(pattern):
                path.unlink()
        with suppress(OSError):  # other files are in it
            self._folder.rmdir()

    def _require_record(self) -> None:
        require_same_origin(
            read_json(self._record_path),
            self._record,
            f"output: {self._folder} holds part of another translation, which differs in",
            "repeat its command to continue it, or delete the folder to start from the beginning",
        )

    @cached_property
    def _record(self) -> dict[str, Json]:
        """Everything that decides the output: options, and digests of the lines, the models and the engine."""
        options, files = self.options, ("generation_config.json", *MODEL_FILES)
        digest = sha256("\n".join(self.lines).encode()).hexdigest()
        return {
            "input": f"{len(self.lines)} lines, sha256 {digest}",
            "shards": self.count,
            **decisive_values(options, "translations"),
            **(decisive_values(options, "samples") if options.do_sample else {}),
            "models": [matching_files_digest(each.directory, files) for each in self.models],
            "engine": options.engine and engine_identity(options.engine),
            "json": options.writes_json,
        }

    def _content(self, number: int) -> bytes:
        """The translations of a finished shard; raises a ValueError if it is damaged."""
        path, expected = self.path(number), len(self.sources(number)) * self.options.num_return_sequences
        try:
            content = gzip.decompress(path.read_bytes())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"output: {path} is damaged ({error})") from None
        if (found := content.count(b"\n")) != expected:
            raise ValueError(f"output: {path} has {found} translations instead of {expected}")
        return content
