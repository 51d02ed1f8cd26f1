"""vLLM's other words for values of settings, and ours. Knows no flag: it is read at every start."""

from __future__ import annotations

from typing import Any

_WORDS = {"dtype": {"half": "float16", "float": "float32"}}
"""Field to vLLM's word to ours."""


def own_value(field: str, value: Any) -> Any:
    """Our word for a value of a field where vLLM has another, else the value."""
    words = _WORDS.get(field)
    return words.get(value, value) if words and isinstance(value, str) else value
