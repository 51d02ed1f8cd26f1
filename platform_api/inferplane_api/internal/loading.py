"""Finds the object that a descriptor names as text; knows nothing of what it is."""

from __future__ import annotations

import importlib
from typing import Any


def find(path: str) -> Any:
    """The object at "module:attribute", or the module where no attribute is named.

    Raises whatever the import raises, and AttributeError for an attribute that is not there.
    """
    module, _, attributes = path.partition(":")
    value: Any = importlib.import_module(module)
    for name in filter(None, attributes.split(".")):
        value = getattr(value, name)
    return value
