"""Translation of a file in shards, ranges of its lines, by any process on any machine.

OUTPUT.shards/00003-of-00100    translations of the lines of the fourth of a hundred shards
OUTPUT.shards/options.json      model, options and input, equal for all shards
"""

import json
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import cast

from tqdm.auto import tqdm

from ..system.files import atomic_write, locked, read_json
from ..system.manifests import require_same_origin
from .decoding_arguments import DecodingPrecision
from .line_translation import LineTranslator
from .translation_options import TranslationOptions


class ShardedTranslation:
    """The shards of one translation: the missing ones, their input, and the collected output.

    The whole input is read into memory first, so that a bad line is found before any translation.

    Args:
        options: Options of translation; input and output are files.
        count: Number of shards.
        lines_per_shard: Instead of `count`: most lines of a shard.
        overwrite: Whether the output may replace an earlier file; always allowed if shards of it exist.

    Attributes:
        models: The model, followed by the other models of an ensemble.
        lines: The lines to translate.
        count: Number of shards.

    Raises:
        ValueError, OSError: The output, a model or the input cannot be used.
    """

    def __init__(
        self,
        options: TranslationOptions,
        count: int | None = None,
        lines_per_shard: int = 2000,
        overwrite: bool = False,
    ) -> None:
        self.options = options
        self._translator: LineTranslator | None = None
        self._folder = Path(f"{options.output}.shards")
        self._record_path = self._folder / "options.json"
        options.require_output(overwrite or self._record_path.exists())
        self.models = options.open_models()
        self.lines = list(options.lines(self.models[0].config))
        self.count = -(-len(self.lines) // lines_per_shard) if count is None else count

    def path(self, number: int) -> Path:
        """The file of a finished shard."""
        return self._folder / f"{number:05d}-of-{self.count:05d}"

    def sources(self, number: int) -> list[str]:
        """The lines of a shard."""
        first, end = (len(self.lines) * place // self.count for place in (number, number + 1))
        return self.lines[first:end]

    def begin(self, choose_precision: Callable[[], DecodingPrecision] = lambda: "auto") -> list[int]:
        """Record the options, or compare them with an earlier command's record; call it before `translate`.

        `choose_precision` is called if neither the user nor an earlier command has chosen one. Returns the numbers of
        the unfinished shards.

        Raises:
            ValueError: The earlier command's input, model or options are different.
        """
        path, options = self._record_path, self.options
        is_new = not path.exists()
        if options.precision == "auto":
            options.precision = choose_precision() if is_new else cast(DecodingPrecision, read_json(path)["precision"])
        digest = sha256("\n".join(self.lines).encode()).hexdigest()
        record = {"input": f"{len(self.lines)} lines, sha256 {digest}", **options.record(self.models)}
        if is_new:
            self._translator = LineTranslator(self.models, options)  # if the model cannot be loaded, there is no record
            with locked(path, "output", wait=True):
                if not path.exists():
                    atomic_write(path, json.dumps(record, indent=2) + "\n")
        require_same_origin(
            read_json(path),
            record,
            f"output: {self._folder} holds part of another translation, which differs in",
            "repeat its command to continue it, or delete the folder to start from the beginning",
        )
        return self._missing()

    def translate(self, numbers: Collection[int], bar: tqdm | None = None) -> None:
        """Translate the shards with these `numbers`; each is written atomically."""
        for number in numbers:
            self._translator = self._translator or LineTranslator(self.models, self.options)
            atomic_write(self.path(number), self._translator.translate(number, self.sources(number), bar))

    def wait(self, minutes: float) -> None:
        """Wait until all shards are finished, including those of other processes.

        A collective operation would time out, since other processes may take hours longer than this one.

        Raises:
            TimeoutError: No shard was finished in this time.
        """
        missing, since = self._missing(), time.monotonic()
        while missing:
            time.sleep(0.2)
            before, missing = missing, self._missing()
            if missing != before:
                since = time.monotonic()
            elif time.monotonic() - since > 60 * minutes:
                raise TimeoutError(
                    f"another process has ended or is stopped: no shard was finished for {minutes:g} minutes; repeat "
                    "the command to continue"
                )

    def collect(self) -> None:
        """Write the output from all shards, in order, and remove them."""
        atomic_write(self.options.output, (self.path(number).read_bytes() for number in range(self.count)))
        for pattern in ("*-of-*", "options.json*"):  # the record last: it tells whose output it is
            for path in self._folder.glob(pattern):
                path.unlink()
        with suppress(OSError):  # other files are in it
            self._folder.rmdir()

    def _missing(self) -> list[int]:
        finished = {path.name for path in self._folder.glob(f"*-of-{self.count:05d}")}
        return [number for number in range(self.count) if self.path(number).name not in finished]
