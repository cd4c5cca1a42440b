"""Get the public corpora that configurations name, into data/ in the working directory.

    python recipes/get_data.py multi30k
    python recipes/get_data.py tatoeba_en-de craft --from /mnt/corpora

multi30k, newstest and craft come from public repositories, at a commit, and each text must have the SHA-256 that the
package records. tatoeba_en-de and tatoeba_en-fr are split from today's archive: valid and test are the pinned pairs, as
far as they are still in it, and all other pairs form the training set. canlaws_en-fr has no public source with the same
splits, and can only be copied. `--from` names a directory with a folder for each corpus; then all are the pinned texts,
without a network.

Existing files are kept. Files that are split from an archive belong together: if one is missing, every file whose text
differs from the archive or the copy is rewritten. After an interruption, the same command continues. The source
and the licence of each corpus are printed.
"""

import gzip
import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from datasets import DownloadConfig, DownloadManager

from vaswani_transformer.data.public_corpora import PUBLIC_CORPORA, PublicCorpus, split_pairs
from vaswani_transformer.data.text_files import open_binary
from vaswani_transformer.options.arguments import option
from vaswani_transformer.options.parser import RecipeParser
from vaswani_transformer.system.console import PlainConsole, ProgressBar, one_line
from vaswani_transformer.system.faults import exit_on_error
from vaswani_transformer.system.files import atomic_write


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


def main() -> None:
    parser = make_parser()
    options = parser.read()
    (args,) = parser.fill(options)
    with exit_on_error("get_data.py", "repeat the command to continue"):
        for name in options.corpora:
            run(name, args)


def run(name: str, args: GetDataArguments) -> None:
    corpus, folder, console = PUBLIC_CORPORA[name], Path(args.output_dir, name), PlainConsole()
    missing = [file for file in corpus.files if not (folder / file).exists()]
    others = other_texts(folder, corpus)
    if others and corpus.archive is None:
        raise ValueError(f"{folder / others[0]}: is another text than the corpus's; remove it, and repeat the command")
    if missing and args.copy is None and corpus.missing is not None:
        raise ValueError(f"{name}: {corpus.missing}; name a directory that has a copy with --from")
    new = 0
    for file, content in new_files(name, corpus, missing, args.copy) if missing else ():
        if file not in missing and (folder / file).read_bytes() == content:
            continue
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / file, [content])
        new += 1
    console.print(f"{folder}: {corpus.title}; {new} of {len(corpus.files)} files are new", soft_wrap=True)
    if corpus.archive is not None and (others := other_texts(folder, corpus)):
        console.print(f"of the archive when it was downloaded, not as pinned: {', '.join(others)}", soft_wrap=True)
    console.print(f"source: {corpus.source}\nlicence: {corpus.licence}", soft_wrap=True)


def other_texts(folder: Path, corpus: PublicCorpus) -> list[str]:
    """The files that are there with another text than the corpus's."""
    return [
        file
        for file, entry in corpus.files.items()
        if (folder / file).exists() and text_digest(folder / file) != entry.sha256
    ]


def new_files(name: str, corpus: PublicCorpus, missing: list[str], copy: str | None) -> Iterator[tuple[str, bytes]]:
    """Missing files with their compressed texts; of an archive, all files, since it may have changed."""
    if copy is not None:
        folder = Path(copy, name)
        if not folder.is_dir():
            raise ValueError(f"from: there is no {folder}; name a directory with the folders of the corpora")
        for file in missing if corpus.archive is None else corpus.files:
            if text_digest(folder / file) != corpus.files[file].sha256:
                raise ValueError(f"{folder / file}: is another text than the corpus's; name another copy with --from")
            yield file, (folder / file).read_bytes()
    elif corpus.archive is not None:
        yield from split_archive(name, corpus.archive)
    else:
        yield from ((file, download(name, corpus, file)) for file in missing)


def text_digest(path: Path) -> str:
    with open_binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # they all have readinto


def split_archive(name: str, archive: str) -> Iterator[tuple[str, bytes]]:
    """Files of a corpus from an archive of lines "English<TAB>other language<TAB>attribution"."""
    with fetched([archive], name) as (content,), ZipFile(BytesIO(content)) as members:
        text = TextIOWrapper(members.open(Path(archive).name.replace("-eng.zip", ".txt")), encoding="utf-8")
        pairs = [(first, second) for first, second, *_ in (line.rstrip("\n").split("\t") for line in text)]
        splits, gone = split_pairs(name, pairs)
    for split, numbers in gone.items():
        if numbers:
            print(f"{split}: the archive lacks {len(numbers)} pairs, of lines {', '.join(map(str, numbers))}")
    languages = name.removeprefix("tatoeba_")
    for split, chosen in splits.items():
        for side, language in enumerate(languages.split("-")):
            yield f"{split}.{language}.gz", compressed(pair[side] for pair in chosen)
    translations = defaultdict(list)
    for first, second in (*splits["test"], *pairs):
        translations[first].append(second)
    lines = ("\t".join([first, *dict.fromkeys(translations[first])]) for first, _ in splits["test"])
    yield f"test.multiref.{languages}.tsv.gz", compressed(lines)


def compressed(lines: Iterable[str]) -> bytes:
    return gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0)


def download(name: str, corpus: PublicCorpus, file: str) -> bytes:
    """A file's text from its source, compressed."""
    urls = [corpus.url + part for part in corpus.files[file].parts]
    with fetched(urls, f"{name}/{file}") as contents:
        pairs = zip(urls, contents, strict=True)
        text = b"".join(gzip.decompress(content) if url.endswith(".gz") else content for url, content in pairs)
        if ".mrg" in file:
            text = one_tree_a_line(text)
        if hashlib.sha256(text).hexdigest() != corpus.files[file].sha256:
            raise ValueError(f"is another text than the corpus's {file}")
    return gzip.compress(text, mtime=0)


@contextmanager
def fetched(urls: Sequence[str], title: str) -> Iterator[list[bytes]]:
    """Contents of addresses, kept in the cache of `datasets` unless the block refuses them.

    The cache knows a new content by its ETag alone. From a server that sends none, a wrong content would stay forever.

    Raises:
        OSError: An address cannot be reached.
        ValueError: The block has refused the contents.
    """
    agent = {"headers": {"User-Agent": "vaswani_transformer"}}  # some servers refuse that of Python's libraries
    config = DownloadConfig(disable_tqdm=True, storage_options=agent)
    manager = DownloadManager(download_config=config, record_checksums=False)
    paths = []
    for url in ProgressBar(urls, title, leave=False):
        try:
            paths.append(Path(manager.download(url)))
        except Exception as error:  # fsspec and aiohttp raise errors of many types
            cause = one_line(error.__cause__ or error) or type(error).__name__
            raise OSError(f"{url}: {cause}; repeat the command to continue, or give --from") from error
    try:
        yield [path.read_bytes() for path in paths]
    except (BadZipFile, EOFError, KeyError, OSError, ValueError, zlib.error) as error:
        for path in paths:
            path.unlink()
        raise ValueError(
            f"{urls[0]}: {one_line(error)}; repeat the command to download it again, or give --from"
        ) from error


def one_tree_a_line(text: bytes) -> bytes:
    """Trees of the Penn Treebank's format, "( (S ...) )", without spaces inside the parentheses: "((S ...))"."""
    joined = re.sub(rb"(?<=\() | (?=\))", b"", b" ".join(text.split()))
    return joined.replace(b" ((", b"\n((") + b"\n"


if __name__ == "__main__":
    main()
