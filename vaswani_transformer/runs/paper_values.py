"""The paper's values of the options, compared with those of a run."""

from collections.abc import Mapping
from dataclasses import fields

from ..system.files import Json
from .run_arguments import DataArguments, ModelArguments
from .training_arguments import RecipeTrainingArguments


# For one model or several, by option.
PAPER_VALUES: dict[str, tuple[Json, ...]] = {
    each.name: paper if isinstance(paper, tuple) else (paper,)
    for kind in (ModelArguments, DataArguments, RecipeTrainingArguments)
    for each in fields(kind)
    if (paper := each.metadata.get("paper")) is not None
}


def beside_paper(values: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Name, value in the run and value in the paper of each option that the paper states.

    Options that neither uses, such as a cooldown, are left out.
    """
    return [
        (name, as_text(values[name]), as_text(*paper))
        for name, paper in PAPER_VALUES.items()
        if name in values and (values[name] or any(paper))
    ]


def departures(values: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """As `beside_paper`, for the options whose values differ from the paper's."""
    return beside_paper({name: value for name, value in values.items() if value not in PAPER_VALUES.get(name, [value])})


def as_text(*values: object) -> str:
    """The value of an option, or several, as reports show them."""

    def text(value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return str(value).lower()
        return f"{value:,g}" if isinstance(value, float) else f"{value:,}"

    return " or ".join(map(text, values))
