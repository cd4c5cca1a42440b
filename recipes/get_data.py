"""Get the public corpora that configurations name, into data/ in the working directory.

    python recipes/get_data.py multi30k
    python recipes/get_data.py tatoeba_en-de craft

multi30k, newstest and craft come from public repositories, at a commit, and each text must have the SHA-256 that the
package records. tatoeba_en-de and tatoeba_en-fr are split from today's archive: valid and test are the pinned pairs, as
far as they are still in it, and all other pairs form the training set. canlaws_en-fr has no public source with the same
splits.

Existing files are checked and kept. So a copy of a corpus needs no network: copy its folder to data/, and run the
command. Files that are split from an archive belong together: if one is missing, all are written again. After an
interruption, the same command continues. The source and the licence of each corpus are printed.
"""

import gzip
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from io import BytesIO, TextIOWrapper
from pathlib import Path
from urllib.request import Request, urlopen
from zipfile import ZipFile

from vaswani_transformer.data.public_corpora import PUBLIC_CORPORA, PublicCorpus, split_pairs
from vaswani_transformer.data.text_files import open_binary
from vaswani_transformer.options.arguments import option
from vaswani_transformer.options.parser import RecipeParser
from vaswani_transformer.system.console import PlainConsole, ProgressBar
from vaswani_transformer.system.faults import exit_on_error
from vaswani_transformer.system.files import atomic_write
from vaswani_transformer.system.messages import errors_begin_with, one_line


NAMES = f"One or several of {', '.join(PUBLIC_CORPORA)}."
ADVICE = "repeat the command to continue"


@dataclass
class GetDataArguments:
    """Options of get_data.py, beside the names of the corpora."""

    output_dir: str = option("data", "Directory to make the folders of the corpora in.")


def main() -> None:
    parser = RecipeParser((GetDataArguments,), usage="%(prog)s CORPUS ... [--output_dir DIRECTORY]")
    parser.add_argument("corpora", nargs="+", metavar="CORPUS", choices=PUBLIC_CORPORA, help=NAMES)
    options = parser.read()
    (args,) = parser.fill(options)
    with exit_on_error(ADVICE):
        for name in options.corpora:
            run(name, Path(args.output_dir, name))


def run(name: str, folder: Path) -> None:
    corpus, console = PUBLIC_CORPORA[name], PlainConsole()
    missing = [file for file in corpus.files if not (folder / file).exists()]
    others = other_texts(folder, corpus)
    if others and corpus.archive is None:
        raise ValueError(f"{folder / others[0]}: is another text than the corpus's; remove it, and repeat the command")
    if missing and corpus.missing is not None:
        raise ValueError(f"{name}: {corpus.missing}; copy {missing[0]} to {folder}")
    new = 0
    for file, content in new_files(name, corpus, missing):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / file, [content])
        new += 1
    console.print(f"{folder}: {corpus.title}; {new} of {len(corpus.files)} files are new", soft_wrap=True)
    if corpus.archive is not None and (others := other_texts(folder, corpus)):
        follow = "these files follow the archive as of its download, and differ from the pinned version"
        console.print(f"{follow}: {', '.join(others)}", soft_wrap=True)
    console.print(f"source: {corpus.source}\nlicence: {corpus.licence}", soft_wrap=True)


def other_texts(folder: Path, corpus: PublicCorpus) -> list[str]:
    """The existing files whose text is not the corpus's."""
    others = []
    for file, entry in corpus.files.items():
        if (folder / file).exists():
            with open_binary(folder / file) as text:
                digest = hashlib.file_digest(text, "sha256")  # type: ignore[arg-type]  # they all have readinto
            if digest.hexdigest() != entry.sha256:
                others.append(file)
    return others


def new_files(name: str, corpus: PublicCorpus, missing: list[str]) -> Iterator[tuple[str, bytes]]:
    """Missing files with their compressed texts; of an archive, all files, since it may have changed."""
    if corpus.archive is None:
        yield from ((file, download(corpus, file)) for file in missing)
    elif missing:
        yield from split_archive(name, corpus.archive)


def split_archive(name: str, archive: str) -> Iterator[tuple[str, bytes]]:
    """Files of a corpus from an archive of lines "English<TAB>other language<TAB>attribution"."""
    content = fetch(archive)
    with errors_begin_with(f"{archive}: not the corpus; try again later"), ZipFile(BytesIO(content)) as members:
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


def download(corpus: PublicCorpus, file: str) -> bytes:
    """A file's text from its source, compressed."""
    text = b""
    for part in ProgressBar(corpus.files[file].parts, file, leave=False):
        content = fetch(corpus.url + part)
        with errors_begin_with(f"{corpus.url}{part}: not the corpus; try again later"):
            text += gzip.decompress(content) if part.endswith(".gz") else content
    if ".mrg" in file:
        text = one_tree_a_line(text)
    if hashlib.sha256(text).hexdigest() != corpus.files[file].sha256:
        raise ValueError(f"{corpus.url}: has another text than the corpus's {file}; try again later")
    return gzip.compress(text, mtime=0)


def fetch(url: str) -> bytes:
    """The content of an address; raises an OSError that names it."""
    request = Request(url, headers={"User-Agent": "vaswani_transformer"})  # some servers refuse Python's default
    try:
        with urlopen(request, timeout=60) as response:
            return response.read()
    except (OSError, HTTPException) as error:
        raise OSError(f"{url}: {one_line(error)}; {ADVICE}") from error


def one_tree_a_line(text: bytes) -> bytes:
    """Trees of the Penn Treebank's format, "( (S ...) )", without spaces inside the parentheses: "((S ...))"."""
    joined = re.sub(rb"(?<=\() | (?=\))", b"", b" ".join(text.split()))
    return joined.replace(b" ((", b"\n((") + b"\n"


if __name__ == "__main__":
    main()
