"""Which op computes each activation that a config can name; imports no torch."""

from __future__ import annotations

from inferplane_api.errors import InvalidValue

_GATED_OPS = {
    "silu": "silu_mul",
    "swish": "silu_mul",
    "gelu": "gelu_mul",
    "gelu_pytorch_tanh": "gelu_tanh_mul",
    "gelu_new": "gelu_tanh_mul",
}


def gated_op(field: str, activation: str) -> str:
    """The op that multiplies the activated gate with the other half. Raises InvalidValue naming the config's field."""
    if activation not in _GATED_OPS:
        raise InvalidValue(field, activation, f"is not a supported activation: {', '.join(_GATED_OPS)}")
    return _GATED_OPS[activation]
