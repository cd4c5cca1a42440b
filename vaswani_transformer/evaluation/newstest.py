"""WMT test sets: their files by sacreBLEU's names, and the variants of newstest2014."""

import difflib
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import sacrebleu
from sacrebleu.utils import SACREBLEU_DIR


_VARIANTS = {3003: "full", 2737: "filtered"}

# Digests of English sentences that both variants contain, in every pair of languages.
_DIGESTS = {"68fc434da998ebde", "ea0eb6db2d703810", "9b4732563cb28881"}


def sacrebleu_files(test_set: str, source_language: str, target_language: str) -> tuple[Path, list[Path]]:
    """The source file and the reference files of a test set, downloaded unless sacreBLEU's cache holds them.

    Args:
        test_set: Its name in sacreBLEU, such as "wmt14/full".
        source_language: Code of the language to translate from.
        target_language: Code of the language to translate into.

    Raises:
        ValueError: There is no such test set, or not in these languages.
        ConnectionError: It cannot be downloaded.
    """
    pair = f"{source_language}-{target_language}"
    available = sacrebleu.get_available_testsets()
    if test_set not in available:
        nearest = difflib.get_close_matches(test_set, available, n=3, cutoff=0.4)
        raise ValueError(
            f"test_set: sacreBLEU has no {test_set!r}{', but ' + ', '.join(nearest) if nearest else ''}; newstest2013 "
            f"is called wmt13, and newstest2014 wmt14/full or, filtered, wmt14"
        )
    pairs = sacrebleu.get_langpairs_for_testset(test_set)
    if pair not in pairs:
        raise ValueError(f"source_language, target_language: {test_set} has no {pair}, only {', '.join(sorted(pairs))}")
    try:
        source = sacrebleu.get_source_file(test_set, pair)
        references = sacrebleu.get_reference_files(test_set, pair)
    except (OSError, SystemExit) as error:
        raise ConnectionError(
            f"test_set: {test_set} is not in {SACREBLEU_DIR} and cannot be downloaded ({error}); run `sacrebleu "
            f"--download {test_set} -l {pair}` where there is a network, or give --source and --reference"
        ) from None
    return Path(source), [Path(reference) for reference in references]


def newstest2014_variant(name: str, *sides: Sequence[str]) -> str | None:
    """The variant of newstest2014 that a test set is; the BLEUs of different variants do not compare.

    Args:
        name: Name of the set or of its file. If it contains "newstest2014", the set is taken for that.
        sides: The lines of its source and of its reference; English lines identify the set under any name.

    Returns:
        "full" (3,003 lines), "filtered" (2,737), "altered" (any other number); None if it is another set.
    """
    named = "newstest2014" in name
    if not (named or any({_digest(line) for line in side} >= _DIGESTS for side in sides)):
        return None
    return _VARIANTS.get(len(sides[0]), "altered")


def _digest(line: str) -> str:
    """A digest of the letters and digits alone, the same for other quotes, spaces and tokenization."""
    return sha256("".join(re.findall(r"\w", line.lower())).encode()).hexdigest()[:16]
