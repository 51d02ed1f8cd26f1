"""Parameters of logits processors as a request carries them, held to what the processors declare. Imports no plugin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from inferplane.plan.types import PlannedProcessor
    from inferplane_api.spec import ProcessorParameter

MAX_LIST = 1024
MAX_TEXT = 4096


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str) and len(value) <= MAX_TEXT,
    "int": _is_int,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
}


def check_processor_arguments(
    arguments: Mapping[str, Any] | None, processors: Sequence[PlannedProcessor], field: str
) -> None:
    """Raises InvalidValue, under the name "field.parameter", for a parameter that nobody takes or that does not fit.

    A class that declares nothing takes any parameter, and judges its value itself.
    """
    if not arguments:
        return
    declared: dict[str, list[ProcessorParameter]] = {}
    for processor in processors:
        for parameter in processor.parameters or ():
            declared.setdefault(parameter.name, []).append(parameter)
    open_ended = any(processor.parameters is None for processor in processors)
    for name, value in arguments.items():
        shown = f"{field}.{name[:64]}"
        if name not in declared and not open_ended:
            known = ", ".join(sorted(declared)) or "none"
            raise InvalidValue(shown, value, f"no logits processor here takes it; parameters that are taken: {known}")
        for parameter in declared.get(name, ()):
            if problem := _problem(parameter, value):
                raise InvalidValue(shown, value, problem)


def _problem(parameter: ProcessorParameter, value: Any) -> str | None:
    item_type = parameter.type.removeprefix("list[").removesuffix("]")
    listed = item_type != parameter.type
    items: Iterable[Any] = value if listed and isinstance(value, list) else [value]
    fits = _TYPES[item_type]
    if (listed and (not isinstance(value, list) or len(value) > MAX_LIST)) or not all(map(fits, items)):
        return f"must be of type {parameter.type}"
    if parameter.minimum is not None and any(item < parameter.minimum for item in items):
        return f"must be at least {parameter.minimum:g}"
    if parameter.maximum is not None and any(item > parameter.maximum for item in items):
        return f"must be at most {parameter.maximum:g}"
    return None
