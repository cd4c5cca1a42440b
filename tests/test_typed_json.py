"""Records are saved and loaded without loss; what does not fit is named with its file and field."""

import json
import re
from dataclasses import dataclass, field

import pytest

from vaswani_transformer.system.typed_json import REST, Record


@dataclass(frozen=True)
class Inner:
    number: float
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Outer(Record):
    count: int
    flag: bool
    nullable: int | None
    inner: Inner
    several: list[Inner]
    by_name: dict[str, Inner]
    absent: Inner | None = None
    others: dict[str, object] = field(default_factory=dict, metadata=REST)


CONTENT = {
    "count": 3,
    "flag": True,
    "nullable": None,
    "inner": {"number": 1},
    "several": [{"number": 0.5, "text": "ü"}],
    "by_name": {"a": {"number": 2.5}},
    "more": [1, {"x": None}],
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "outer.json"


def test_a_record_is_the_file_and_the_file_the_record(path):
    path.write_text(json.dumps(CONTENT), encoding="utf-8")
    record = Outer.load(path)
    assert record == Outer(
        count=3,
        flag=True,
        nullable=None,
        inner=Inner(1),
        several=[Inner(0.5, "ü")],
        by_name={"a": Inner(2.5)},
        others={"more": [1, {"x": None}]},
    )
    record.save(path)
    assert json.loads(path.read_text(encoding="utf-8")) == CONTENT
    assert "ü" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 1.5}, "count must be a whole number, is 1.5"),
        ({"flag": 1}, "flag must be true or false, is 1"),
        ({"nullable": "x"}, 'nullable must be a whole number, is "x"'),
        ({"inner": {}}, "inner.number is missing"),
        ({"inner": {"number": "1"}}, 'inner.number must be a number, is "1"'),
        ({"several": {}}, "several must be a list, is {}"),
        ({"several": [{"number": 1}, {"number": 1, "text": 2}]}, "several.1.text must be a text, is 2"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named_in_one_line(path, change, message):
    path.write_text(json.dumps({**CONTENT, **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Outer.load(path)
    assert str(caught.value) == f"{path}: {message}"
