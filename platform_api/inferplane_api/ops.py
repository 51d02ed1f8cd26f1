"""The versioned op schemas: names, signatures, tolerances and where the torch reference is; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

REFERENCE = "inferplane_api.reference.ops"


class OpSchema(NamedTuple):
    """One op. A provider's function takes the reference's arguments and gives its result within the tolerance.

    T is the number of tokens; "..." begins with it where it stands first. On a platform with token buckets it is always
    one of them. A result belongs to the caller: no later call of any op changes it.
    """

    name: str
    version: int
    signature: str
    """Arguments with shapes, for people; the reference's docstring says what is computed."""
    tolerances: Mapping[str, tuple[float, float]]
    """Per dtype: (relative, absolute), against the reference computed in float64."""
    requires: frozenset[str] = frozenset()
    """Device features without which nobody calls the op, and no provider is bound."""

    @property
    def id(self) -> str:
        """Name and version, for example "rms_norm@1"."""
        return f"{self.name}@{self.version}"

    @property
    def reference(self) -> str:
        """Where the torch reference is, as "module:function"."""
        return f"{REFERENCE}:{self.name}"

    @property
    def generator(self) -> str:
        """Where the input generator is: `f(dtype, device, generator) -> list[dict[str, Any]]`."""
        return f"{REFERENCE}_inputs:{self.name}"


_LOOSE: Mapping[str, tuple[float, float]] = {
    "float32": (1e-5, 1e-5),
    "bfloat16": (1.6e-2, 1e-2),
    "float16": (2e-3, 2e-3),
}
_EXACT: Mapping[str, tuple[float, float]] = {"float32": (0.0, 0.0), "bfloat16": (0.0, 0.0), "float16": (0.0, 0.0)}

SCHEMAS: Mapping[str, OpSchema] = {
    schema.name: schema
    for schema in (
        OpSchema("embedding", 1, "(ids[T] int64, weight[V, D]) -> [T, D]", _EXACT),
        OpSchema("rms_norm", 1, "(x[..., D], weight[D], eps, offset=0.0) -> [..., D]", _LOOSE),
        OpSchema("add_rms_norm", 1, "(x[..., D], residual[..., D], weight[D], eps, offset=0.0) -> (y, sum)", _LOOSE),
        OpSchema("layer_norm", 1, "(x[..., D], weight[D], bias[D] | None, eps) -> [..., D]", _LOOSE),
        OpSchema("rope", 1, "(q[T, H, D], k[T, K, D], cos[T, R/2], sin[T, R/2], interleaved=False) -> (q, k)", _LOOSE),
        OpSchema(
            "rope_angles", 1, "(positions[T] int64, frequencies[R/2] float32, factor=1.0) -> (cos, sin) float32", _LOOSE
        ),
        OpSchema("silu_mul", 1, "(x[..., 2 D]) -> [..., D]", _LOOSE),
        OpSchema("gelu_tanh_mul", 1, "(x[..., 2 D]) -> [..., D]", _LOOSE),
        OpSchema("gelu_mul", 1, "(x[..., 2 D]) -> [..., D]", _LOOSE),
        OpSchema(
            "kv_write",
            1,
            "(k[T, K, D], v[T, K, D], kv: KVView, slot_mapping[T] int64) -> None",
            _EXACT,
            requires=frozenset({"in_place_kv_write"}),
        ),
        OpSchema("soft_cap", 1, "(x[...], cap) -> [...]", _LOOSE),
        OpSchema("largest", 1, "(logits[N, V] float32) -> (values[N] float32, ids[N] int64)", _EXACT),
        OpSchema("log_softmax", 1, "(logits[N, V] float32) -> [N, V] float32", _LOOSE),
        OpSchema("gumbel_noise", 1, "(seeds[N] int64, positions[N] int64, ids[N, C] int64) -> [N, C] float32", _LOOSE),
        OpSchema("apply_token_bitmask", 1, "(logits[N, V], mask[N, ceil(V/32)] int32) -> None", _EXACT),
    )
}
"""Every op that core's layers and sampler call."""


class OpProvider(Protocol):
    """What a KernelSpec of kind "ops" loads."""

    def ops(self) -> Mapping[str, Callable[..., Any]]:
        """Op id ("name@version") to function, for a subset of SCHEMAS."""
