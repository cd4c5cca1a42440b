"""Frozen dataclasses stored as JSON: `Record` loads and saves them, and checks field types."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from .files import Json, atomic_write, read_json


T = TypeVar("T")

# Metadata of a dataclass field that collects all JSON entries without a field of their own.
REST = {"rest": True}

_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list"}


class Record:
    """Base of frozen dataclasses stored as JSON files, with one entry for each field.

    An entry may be missing if its field has a default. A default of None is not written.
    """

    @classmethod
    def load(cls: type[T], path: str | Path) -> T:
        """Read a file; a ValueError names the file, and a field that is missing or of a wrong type."""
        content = read_json(path)
        try:
            return from_json(cls, content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write a file atomically."""
        atomic_write(path, json.dumps(to_json(self), indent=2, ensure_ascii=False) + "\n")


def to_json(value: Any) -> Any:
    """Convert dataclasses in a value to dictionaries, recursively."""
    if is_dataclass(value):
        entries: dict[str, object] = {}
        for field in fields(value):
            item = getattr(value, field.name)
            if field.metadata == REST:
                entries |= item
            elif item is not None or field.default is not None:
                entries[field.name] = to_json(item)
        return entries
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def from_json(kind: type[T], value: object, place: str = "") -> T:
    """Convert a value of a JSON file to a type: a dataclass, a plain type, a list, a dict or an optional.

    A ValueError for a missing field or a wrong type begins with `place`, the path of the value, such as ".data.train".
    """
    if get_origin(kind) is UnionType:
        (plain,) = (member for member in get_args(kind) if member is not NoneType)  # X | None, and no other union
        return None if value is None else from_json(plain, value, place)
    if is_dataclass(kind):
        arguments, rest = {}, dict(_require(dict, value, place))
        for field in fields(kind):
            if field.metadata == REST:
                arguments[field.name] = rest
            elif field.name in rest:
                arguments[field.name] = from_json(field.type, rest.pop(field.name), f"{place}.{field.name}")  # type: ignore
            elif field.default is MISSING and field.default_factory is MISSING:
                raise ValueError(f"{place}.{field.name} is missing".removeprefix("."))
        return kind(**arguments)
    if get_origin(kind) is dict:
        entries = _require(dict, value, place).items()
        return {name: from_json(get_args(kind)[1], item, f"{place}.{name}") for name, item in entries}  # type: ignore
    if get_origin(kind) is list:
        items = enumerate(_require(list, value, place))
        return [from_json(get_args(kind)[0], item, f"{place}.{number}") for number, item in items]  # type: ignore
    return _require(object if kind == Json else kind, value, place)


def _require(kind: type[T], value: object, place: str) -> Any:
    accepted = (int, float) if kind is float else kind
    if isinstance(value, accepted) and (not isinstance(value, bool) or kind in (bool, object)):
        return value
    expected = _NAMES.get(kind, "an object")
    raise ValueError(f"{place.removeprefix('.') or 'the whole'} must be {expected}, is {json.dumps(value)[:80]}")
