"""The options of transformers' trainer without transformers, which takes seconds to import."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import field, fields, make_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..options.parser import RecipeParser


_CHECKED = {"int": int, "float": float, "bool": bool}


def trainer_options(kinds: Sequence[type], shown: Collection[str] | None = None) -> RecipeParser:
    """A parser of the options of some dataclasses and of transformers' trainer.

    Of the trainer's, it checks names, numbers and truth values only.
    """
    known = {each.name for kind in kinds for each in fields(kind)}
    options = [each for each in _trainer_fields() if each[0] not in known]
    return RecipeParser((*kinds, make_dataclass("TrainerOptions", options)), shown, has_all_texts=False)


def _trainer_fields() -> Iterator[tuple[str, Any, Any]]:
    """Name, type and default of each field of `Seq2SeqTrainingArguments`, by its source."""
    folder = Path(find_spec("transformers").origin).parent
    for file in ("training_args.py", "training_args_seq2seq.py"):
        module = ast.parse((folder / file).read_text(encoding="utf-8"))
        for kind in (node for node in module.body if isinstance(node, ast.ClassDef)):
            for node in (each for each in kind.body if isinstance(each, ast.AnnAssign)):
                name, annotation = ast.unparse(node.target), ast.unparse(node.annotation)
                if plain := re.fullmatch(r"(int|float|bool)( \| None)?", annotation):
                    is_true = "default=True" in ast.unparse(node.value)  # then there is a --no_ form
                    yield name, _CHECKED[plain[1]], field(default=is_true)
                else:  # one text or several
                    yield name, str | None, field(default=None, metadata={"nargs": "*"})
