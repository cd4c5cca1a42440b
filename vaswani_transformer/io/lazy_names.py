"""Names of a package that are imported only when they are asked for (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping


def lazy_names(package: str, names: Mapping[str, str]) -> tuple[list[str], Callable[[str], object]]:
    """`__all__` and `__getattr__` of a package.

    Args:
        package: Its `__name__`.
        names: By name, the module of the package that defines it.
    """

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{names[name]}"), name)

    return sorted(names), find
