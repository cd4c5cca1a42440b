"""Translate text: a file or standard input in, one line out for each line in, in order; empty lines stay empty.

From file to file, on all GPUs of a machine, and as a filter:

    python recipes/translate.py --model runs/demo --input news.en --output news.de
    accelerate launch recipes/translate.py --model runs/demo --input news.en.gz --output news.de
    head news.en | python recipes/translate.py --model runs/demo

Lines end at line feeds. With an output file, the same command goes on after an interruption, with the same or another
number of processes: what is finished lies in `<output>.shards/`, in files of `--lines_per_shard` lines, until all of it
is there; meanwhile no other command can write it. Only then does the output file appear. An existing one is replaced
only with `--overwrite`: it may have taken days to make. Standard output gets each shard when it is done; it cannot be
shared by processes, nor gone on with.

The input must not change meanwhile, and finished shards neither: both are compared with digests, and what differs is
refused. A process that dies or is stopped ends all after `--timeout_minutes`; what is finished stays.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, parse_flag_from_env
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer.arguments import RecipeParser
from vaswani_transformer.console import one_line
from vaswani_transformer.data.corpora import decode_lines, open_binary
from vaswani_transformer.files import locked, read_json
from vaswani_transformer.model.pipeline_vaswani import translate_in_batches
from vaswani_transformer.saved_model import open_model
from vaswani_transformer.training import Watchdog, keep_freed_memory
from vaswani_transformer.training.faults import is_lost_rank


@dataclass
class TranslationArguments:
    """What to translate, with which model, and how."""

    model: str | None = field(default=None, metadata={"help": "Directory of a saved model, or its name on the Hub."})
    input: str = field(default="-", metadata={"help": "UTF-8 text (plain, .gz, .xz), or - for standard input."})
    output: str = field(default="-", metadata={"help": "File to write, or - for standard output."})
    overwrite: bool = field(default=False, metadata={"help": "Replace an output file that exists."})
    lines_per_shard: int = field(default=2000, metadata={"help": "Lines translated, and written, at a time."})
    tokens_per_batch: int = field(
        default=4096,
        metadata={"help": "Source tokens of a batch, padding included; its beams may generate 16 times as many."},
    )
    num_beams: int | None = field(default=None, metadata={"help": "Beams (6.1); by default the model's own setting."})
    length_penalty: float | None = field(default=None, metadata={"help": "Alpha of 6.1; by default the model's own."})
    max_new_tokens: int | None = field(default=None, metadata={"help": "Longest translation; by default the model's."})
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto", metadata={"help": "Precision of the model; 'auto' is what it was saved in."}
    )
    timeout_minutes: float = field(
        default=10.0,
        metadata={"help": "Minutes without a sign of life of one of several processes after which all end."},
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run code that comes with the model; give it only where you trust its author."}
    )

    def __post_init__(self) -> None:
        if self.model is None:
            raise ValueError("model: give the directory of a saved model, or its name on the Hub")
        for name in ("lines_per_shard", "tokens_per_batch", "num_beams", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: must be at least 1, is {value}")
        for name, most in (("num_beams", 2**10), ("max_new_tokens", 2**20)):
            value = getattr(self, name)
            if value is not None and value > most:
                raise ValueError(f"{name}: must be at most {most}, is {value}")

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("num_beams", "length_penalty", "max_new_tokens")}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Plan:
    """What there is to do, as the main process found it.

    Attributes:
        source: The file to read; None if standard input is translated as it comes.
        lines: How many it has; None if that is not known.
        digests: Of the lines of each shard.
        missing: The numbers of the shards that are not finished.
    """

    source: Path | None
    lines: int | None
    digests: list[str]
    missing: list[int]


class Shards:
    """The folder `<output>.shards`, which holds what is finished until the output can be written.

    Its files are written atomically. `manifest.json` says what the shards are the translation of; as `{}`, that there
    is nothing to keep. Beside each shard, a record has its number of lines and its digest.
    """

    def __init__(self, output: Path) -> None:
        try:
            self.output = output.resolve()  # a link stays one, for what it points to is replaced
        except RuntimeError:  # before Python 3.13
            raise ValueError(f"output: {output} is a link that leads back to itself; name another file") from None
        if not self.output.name:
            raise ValueError(f"output: {output} is a directory; name a file in it")
        self.folder = self.output.with_name(self.output.name + ".shards")
        self.manifest = self.folder / "manifest.json"

    def path(self, number: int) -> Path:
        return self.folder / f"shard-{number:06d}.txt"

    def record(self, number: int) -> Path:
        return self.path(number).with_suffix(".json")

    def save(self, number: int, translations: list[bytes]) -> None:
        """Write a shard, its record first, so that no shard is without one."""
        record = {"lines": len(translations), "sha256": sha256(b"".join(translations)).hexdigest()}
        # Not atomically: with half a record the shard counts as damaged, and is translated again.
        self.record(number).write_text(json.dumps(record), encoding="utf-8")
        self.write(self.path(number), translations)

    def read(self, number: int) -> bytes | None:
        """The content of a shard; None if it is not there, or not as it was written."""
        if not self.path(number).exists():
            return None
        content = self.path(number).read_bytes()
        found = {"lines": content.count(b"\n"), "sha256": sha256(content).hexdigest()}
        return content if found == read_json(self.record(number)) else None

    def missing(self, count: int) -> list[int]:
        """The numbers of the shards to translate; damaged ones are named on standard error."""
        numbers = [number for number in range(count) if self.read(number) is None]
        for path in filter(Path.exists, map(self.path, numbers)):
            print(f"{path} is damaged; it is translated again", file=sys.stderr)
        return numbers

    @property
    def recorded(self) -> dict[str, Any]:
        return json.loads(self.manifest.read_text(encoding="utf-8")) if self.manifest.exists() else {}

    @property
    def begun(self) -> bool:
        """Whether there is something to go on with."""
        return bool(self.recorded) and any(self.folder.glob("shard-*.txt"))

    def open(self) -> None:
        """Begin in the folder, unless that has been done.

        Raises:
            FileExistsError: It is of another's making.
        """
        if self.manifest.exists():
            return
        if any(path.suffix != ".tmp" for path in self.folder.iterdir()):
            raise FileExistsError(f"output: {self.folder}, needed for what is unfinished, has other files in it")
        self.write(self.manifest, [b"{}"])

    def begin(self, manifest: dict[str, Any]) -> None:
        """Record what is translated, or make sure that what is there is part of the same translation.

        Raises:
            ValueError: It is part of another.
        """
        if not self.begun:
            self.write(self.manifest, [json.dumps(manifest, indent=2).encode()])
            return
        before = self.recorded
        differing = [
            f"{name} ({before.get(name)} then, {now} now)" for name, now in manifest.items() if before.get(name) != now
        ]
        if differing:
            raise ValueError(
                f"{self.folder} holds part of another translation, which differs in {', '.join(differing)}; repeat the "
                f"command that began it to go on with that one, or delete the folder to begin anew"
            )

    def write(self, path: Path, lines: Iterable[bytes]) -> None:
        """Write a file that appears, or replaces the one before it, at once and whole, even if the power fails."""
        # Named after the process, as one that outlived its killed launcher may still be writing.
        temporary = self.folder / f"{path.name}.{os.getpid()}.tmp"
        with open(temporary, "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def finish(self, count: int) -> None:
        """Make the output of that many shards, and remove the folder.

        Raises:
            ValueError: A shard is damaged or gone; no output was made.
        """
        self.write(self.output, self._contents(count))
        self.clear()

    def _contents(self, count: int) -> Iterator[bytes]:
        for number in range(count):
            content = self.read(number)
            if content is None:
                raise ValueError(
                    f"output: {self.path(number)} was changed or removed after it was written; repeat the command, "
                    f"which translates that shard again"
                )
            yield content

    def clear(self) -> None:
        """Remove the folder if it is this program's, which its manifest shows, or empty."""
        if self.manifest.exists():
            self.write(self.manifest, [b"{}"])  # lest a kill in the midst leave shards that are gone on with
            for pattern in ("shard-*.txt", "shard-*.json", "input", "*.tmp", self.manifest.name):
                for path in self.folder.glob(pattern):
                    path.unlink(missing_ok=True)
        with suppress(OSError):  # something else lies in it
            self.folder.rmdir()


def main() -> None:
    (args,) = RecipeParser((TranslationArguments,)).parse()
    # Unless told of the CPU, processes without a GPU do not know of one another, and each would do everything.
    cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    # The first process to be done waits for the last as long as that takes; the watchdog sees whether it is alive.
    state = PartialState(cpu=cpu, timeout=timedelta(days=30))
    watchdog = Watchdog("translate.py", 60 * args.timeout_minutes, "repeat the command to go on")
    try:
        with watchdog, ExitStack() as until_the_end:
            if args.output == "-":
                stream(args, agree(plan_stream, args))
            else:
                plan = agree(partial(plan_file, until_the_end=until_the_end), args)
                translate_file(args, Shards(Path(args.output)), plan)
    except BrokenPipeError:  # whoever read the output has enough of it, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as error:
        if args.output == "-" and sys.stdout is not None:
            with suppress(OSError):  # what standard output could not take is not tried again at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        watchdog.exit(one_line(error))
    except RuntimeError as error:  # a collective operation notices a lost process before the watchdog does
        if not is_lost_rank(error):
            raise
        watchdog.end(f"another process has ended or cannot be reached; {watchdog.advice}")
    state.destroy_process_group()


def require_streams(args: TranslationArguments) -> None:
    """Refuse standard input or output that the caller closed, where it is needed."""
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if getattr(args, name) == "-" and stream is None:
            raise ValueError(f"{name}: standard {name} is closed; name a file with --{name}")


def agree(make_plan: Callable[[TranslationArguments], Plan], args: TranslationArguments) -> Plan:
    """The plan that the main process makes; if it cannot, that process says why, and all end."""
    state = PartialState()
    outcome: list[Plan | str] = [""]
    if state.is_main_process:
        try:
            require_streams(args)
            outcome = [make_plan(args)]
        except (ValueError, OSError) as error:
            outcome = [one_line(error)]
    broadcast_object_list(outcome)
    if isinstance(outcome[0], str):
        sys.exit(f"translate.py: {outcome[0]}" if state.is_main_process else 1)
    return outcome[0]


def plan_stream(args: TranslationArguments) -> Plan:
    if PartialState().num_processes > 1:
        raise ValueError("output: several processes cannot share standard output; give --output FILE")
    open_model(args.model, trust_remote_code=args.trust_remote_code)
    if args.input == "-":
        return Plan(None, None, [], [])
    source = require_input(args.input)
    return Plan(source, *survey(source, args.input, args.lines_per_shard)[:2], [])


def plan_file(args: TranslationArguments, until_the_end: ExitStack) -> Plan:
    """Check everything that can be checked before the model is loaded, and see what is left to do.

    Until the end, no other command can write the same output.
    """
    shards = Shards(Path(args.output))
    source = None if args.input == "-" else require_input(args.input)
    with ExitStack() as meanwhile:
        if shards.folder.is_dir():
            meanwhile.enter_context(locked(shards.folder, "output"))
        if not shards.begun:
            shards.clear()
    require_output(args, source, shards)
    model = identify_model(args)
    shards.folder.mkdir(exist_ok=True)
    until_the_end.enter_context(locked(shards.folder, "output"))
    begun = shards.begun
    try:
        shards.open()
        if source is None:
            # Always read again, since only what comes in can tell whether it is what came before.
            source = shards.folder / "input"
            shards.write(source, sys.stdin.buffer)
        name = "standard input" if args.input == "-" else args.input
        lines, digests, digest = survey(source, name, args.lines_per_shard)
        # All that makes the translation what it is. Batches, like processes, do not.
        settings = ("lines_per_shard", "num_beams", "length_penalty", "max_new_tokens", "dtype")
        shards.begin(
            {
                "model": model,
                "input": f"{lines} lines, sha256 {digest}",
                **{name: getattr(args, name) for name in settings},
            }
        )
    except BaseException:
        if not begun:
            shards.clear()
        raise
    missing = shards.missing(len(digests))
    if begun:
        finished = len(digests) - len(missing)
        print(f"{finished} of {len(digests)} shards are there already; going on", file=sys.stderr)
    return Plan(source, lines, digests, missing)


def require_input(name: str) -> Path:
    path = Path(name)
    if path.is_dir():
        raise IsADirectoryError(f"input: {path} is a directory; name a file in it")
    if not path.exists():
        raise FileNotFoundError(f"input: there is no file {path}")
    if not path.is_file():
        raise ValueError(f"input: {path} can be read only once; give it as standard input")
    return path


def require_output(args: TranslationArguments, source: Path | None, shards: Shards) -> None:
    path = Path(args.output)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"output: there is no directory {path.parent}; make it")
    if path.exists() and not path.is_file():
        raise ValueError(f"output: {path} is not a file; give one, or - for standard output")
    if path.exists() and source is not None and path.samefile(source):
        raise ValueError(f"output: {path} is the input too; name another file")
    # Where shards are, the check was passed when they were begun, and a kill came before they could be removed.
    if path.exists() and not args.overwrite and not shards.begun:
        raise FileExistsError(f"output: {path} exists already; name another file, or replace it with --overwrite")


def identify_model(args: TranslationArguments) -> str:
    """A digest of the model's files, once they have been checked."""
    directory = open_model(args.model, trust_remote_code=args.trust_remote_code).directory
    digest = sha256()
    for pattern in ("config.json", "generation_config.json", "*token*.json", "vocab*", "*.model", "*.safetensors"):
        for path in sorted(directory.glob(pattern)):
            digest.update(path.name.encode())
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
    return f"sha256 {digest.hexdigest()}"


def survey(path: Path, name: str, size: int) -> tuple[int, list[str], str]:
    """Read a file once ahead, so that a bad line is known at once.

    Returns:
        The number of lines, a digest of each shard of `size` lines, and a digest of all lines.

    Raises:
        ValueError: It is not UTF-8, or not the archive its suffix promises; the message names the line.
    """
    count, digests, whole = 0, [], sha256()
    with open_binary(path) as file:
        for lines in read_shards(decode_lines(file, Path(name)), size):
            count += len(lines)
            digests.append(digest_lines(lines))
            whole.update("".join(line + "\n" for line in lines).encode())
    return count, digests, whole.hexdigest()


def digest_lines(lines: list[str]) -> str:
    return sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def read_shards(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lines, `size` at a time; no more of them are in memory."""
    while shard := list(islice(lines, size)):
        yield shard


def planned_shards(file: BinaryIO, plan: Plan, args: TranslationArguments) -> Iterator[list[str]]:
    """The shards of the input, each compared with what was planned; lines that were appended since are left out.

    Raises:
        ValueError: The input has changed.
    """
    lines = decode_lines(file, plan.source or Path("standard input"))
    if plan.source is None:
        yield from read_shards(lines, args.lines_per_shard)
        return
    shards = read_shards(islice(lines, plan.lines), args.lines_per_shard)
    for digest in plan.digests:
        shard = next(shards, [])
        if digest_lines(shard) != digest:
            raise ValueError(
                f"input: {args.input} was changed while it was translated; put the original back and repeat the "
                f"command, or begin anew"
            )
        yield shard


def stream(args: TranslationArguments, plan: Plan) -> None:
    """Translate to standard output."""
    tokenizer, model = load(args)
    with (
        sys.stdin.buffer if plan.source is None else open_binary(plan.source) as file,
        tqdm(total=plan.lines, desc="Translating", unit="lines") as bar,
    ):
        for lines in planned_shards(file, plan, args):
            sys.stdout.buffer.writelines(translate(model, tokenizer, lines, args, bar))
            sys.stdout.buffer.flush()


def translate_file(args: TranslationArguments, shards: Shards, plan: Plan) -> None:
    """Translate this process's share of what is missing, and when all have done so, write the output."""
    state, size = PartialState(), args.lines_per_shard
    sizes = {
        number: min(size, plan.lines - number * size)
        for number in plan.missing[state.process_index :: state.num_processes]
    }
    if sizes:
        tokenizer, model = load(args)
        description = f"Translating, process 1 of {state.num_processes}" if state.num_processes > 1 else "Translating"
        with (
            open_binary(plan.source) as file,
            tqdm(total=sum(sizes.values()), desc=description, unit="lines", disable=not state.is_main_process) as bar,
        ):
            for number, shard in enumerate(planned_shards(file, plan, args)):
                if number in sizes:
                    shards.save(number, translate(model, tokenizer, shard, args, bar))
    state.wait_for_everyone()
    if state.is_main_process:
        shards.finish(len(plan.digests))


def load(args: TranslationArguments) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    if PartialState().device.type == "cpu":
        keep_freed_memory()
    saved = open_model(args.model, trust_remote_code=args.trust_remote_code)
    return saved.tokenizer, saved.load(args.dtype).to(PartialState().device)


def translate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: list[str], args: TranslationArguments, bar: tqdm
) -> list[bytes]:
    """The lines to write for these, which are stripped of white space as in training."""
    translations = [b""] * len(lines)
    sentences = [line.strip() for line in lines]
    for indices, hypotheses in translate_in_batches(
        model, tokenizer, sentences, args.tokens_per_batch, **args.generate_kwargs
    ):
        for index, texts in zip(indices, hypotheses, strict=True):
            # One line to every tool, also to those that see the end of one in U+2028 and the like.
            translations[index] = " ".join(texts[0].splitlines()).encode() + b"\n"
        bar.update(len(indices))
    return translations


if __name__ == "__main__":
    main()
