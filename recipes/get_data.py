"""Get the public corpora that configurations name, into data/ in the working directory.

    python recipes/get_data.py multi30k
    python recipes/get_data.py tatoeba_en-de craft --from ../shared/data

multi30k, newstest and craft come from public repositories, at a commit. tatoeba_en-de, tatoeba_en-fr and canlaws_en-fr
have no public source with the same splits, and can only be copied. `--from` names a directory with a folder for each
corpus; then no network is needed.

Each text must have the SHA-256 that the package records. Files that are there are left alone, and after an interruption
the same command continues. The source and the licence of each corpus are printed.
"""

from dataclasses import dataclass
from pathlib import Path

from vaswani_transformer.data.public_corpora import PUBLIC_CORPORA
from vaswani_transformer.options.arguments import option
from vaswani_transformer.options.parser import RecipeParser


NAMES = f"One or several of {', '.join(PUBLIC_CORPORA)}."


@dataclass
class GetDataArguments:
    """Options of get_data.py, beside the names of the corpora."""

    copy: str | None = option(None, "Directory with a copy of the corpora, instead of the network.", alias="--from")
    output_dir: str = option("data", "Directory to make the folders of the corpora in.")


def make_parser() -> RecipeParser:
    parser = RecipeParser((GetDataArguments,), usage="%(prog)s CORPUS ... [--from DIRECTORY] [--output_dir DIRECTORY]")
    parser.add_argument("corpora", nargs="+", metavar="CORPUS", choices=PUBLIC_CORPORA, help=NAMES, is_shown=True)
    return parser


if __name__ == "__main__":
    make_parser().check()  # the imports below take seconds

import gzip
import hashlib
import re

from datasets import DownloadConfig, DownloadManager

from vaswani_transformer.data.public_corpora import PublicFile, public_corpus
from vaswani_transformer.data.text_files import open_binary
from vaswani_transformer.io.console import PlainConsole, ProgressBar, one_line
from vaswani_transformer.io.files import atomic_write
from vaswani_transformer.launch.faults import exit_on_error


def main() -> None:
    parser = make_parser()
    (args,) = parser.parse()
    with exit_on_error("get_data.py", "repeat the command to continue"):
        for name in parser.read().corpora:
            run(name, args)


def run(name: str, args: GetDataArguments) -> None:
    corpus = public_corpus(name)
    folder = Path(args.output_dir, name)
    missing = {file: entry for file, entry in corpus.files.items() if not is_there(folder / file, entry)}
    if missing and args.copy is None and corpus.missing is not None:
        raise ValueError(f"{name}: {corpus.missing}; name a directory that has a copy with --from")
    copy = None if args.copy is None or not missing else folder_of_copy(Path(args.copy), (name, *corpus.other_names))
    for file, entry in missing.items():
        content = download(name, file, entry) if copy is None else read_copy(copy / file, entry)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / file, [content])
    console = PlainConsole()
    console.print(f"{folder}: {corpus.title}; {len(missing)} of {len(corpus.files)} files are new", soft_wrap=True)
    console.print(f"source: {corpus.source}\nlicence: {corpus.licence}", soft_wrap=True)


def is_there(path: Path, entry: PublicFile) -> bool:
    """Whether a file exists; raises a ValueError if its text is not the corpus's."""
    if path.exists() and text_digest(path) != entry.sha256:
        raise ValueError(f"{path}: is another text than the corpus's; remove it, and repeat the command")
    return path.exists()


def folder_of_copy(parent: Path, names: tuple[str, ...]) -> Path:
    """The corpus's folder in a copy, under the first of its names that is there."""
    for name in names:
        if (parent / name).is_dir():
            return parent / name
    raise ValueError(f"from: there is no {parent / names[0]}; name a directory with the folders of the corpora")


def read_copy(path: Path, entry: PublicFile) -> bytes:
    """A compressed file as it is; raises a ValueError if its text is not the corpus's."""
    if text_digest(path) != entry.sha256:
        raise ValueError(f"{path}: is another text than the corpus's; name another copy with --from")
    return path.read_bytes()


def text_digest(path: Path) -> str:
    with open_binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # they all have readinto


def download(corpus: str, file: str, entry: PublicFile) -> bytes:
    """A file's text from its source, compressed; what has arrived stays in the cache of `datasets`.

    Raises:
        OSError: An address cannot be reached.
        ValueError: The text is not the corpus's.
    """
    manager = DownloadManager(download_config=DownloadConfig(disable_tqdm=True), record_checksums=False)
    texts = []
    for url in ProgressBar(entry.urls, f"{corpus}/{file}", leave=False):
        try:
            content = Path(manager.download(url)).read_bytes()
            texts.append(gzip.decompress(content) if url.endswith(".gz") else content)
        except Exception as error:  # fsspec, aiohttp and gzip raise errors of many types
            cause = one_line(error.__cause__ or error) or type(error).__name__
            raise OSError(f"{url}: {cause}; repeat the command to continue, or give --from") from error
    text = b"".join(texts)
    if ".mrg" in file:
        text = one_tree_a_line(text)
    if hashlib.sha256(text).hexdigest() != entry.sha256:
        raise ValueError(f"{file}: {entry.urls[0]} is another text than the corpus's; name a copy of it with --from")
    return gzip.compress(text, mtime=0)


def one_tree_a_line(text: bytes) -> bytes:
    """Trees of the Penn Treebank's format, "( (S ...) )", without spaces inside the parentheses: "((S ...))"."""
    joined = re.sub(rb"(?<=\() | (?=\))", b"", b" ".join(text.split()))
    return joined.replace(b" ((", b"\n((") + b"\n"


if __name__ == "__main__":
    main()
