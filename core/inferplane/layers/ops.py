"""The ops that layers call, bound once to the providers of a plan; the hot path is a plain function call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from inferplane_api.errors import InferplaneError
from inferplane_api.ops import SCHEMAS, OpSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from inferplane.plan.types import Component, OpBinding


class Ops(NamedTuple):
    """A function for every schema of `inferplane_api.ops.SCHEMAS`; arguments and results are the reference's."""

    embedding: Callable[..., torch.Tensor]
    rms_norm: Callable[..., torch.Tensor]
    add_rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    layer_norm: Callable[..., torch.Tensor]
    rope: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    rope_angles: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    silu_mul: Callable[..., torch.Tensor]
    gelu_tanh_mul: Callable[..., torch.Tensor]
    gelu_mul: Callable[..., torch.Tensor]
    kv_write: Callable[..., None]
    soft_cap: Callable[..., torch.Tensor]
    largest: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    log_softmax: Callable[..., torch.Tensor]
    gumbel_noise: Callable[..., torch.Tensor]
    apply_token_bitmask: Callable[..., None]


def bind_ops(bindings: Iterable[OpBinding], load: Callable[[Component], Any]) -> Ops:
    """Bind every op: to the provider that the plan names, or to the reference where it names none.

    `load` gives the OpProvider of a component and is called once for each. Raises InferplaneError for an op that no
    schema describes, and for a provider that lacks an op it was chosen for.
    """
    known = {schema.id: schema for schema in SCHEMAS.values()}
    functions = {schema.name: reference_of(schema) for schema in SCHEMAS.values()}
    provided: dict[str, Any] = {}
    for binding in bindings:
        provider = binding.provider
        if binding.op not in known:
            raise InferplaneError(
                f"{provider.id} ({provider.distribution} {provider.version}) is bound to the unknown op {binding.op!r}",
                code="ops.unknown",
                remedy=f"known ops: {', '.join(sorted(known))}",
            )
        if provider.id not in provided:
            provided[provider.id] = load(provider).ops()
        function = provided[provider.id].get(binding.op)
        if function is None:
            raise InferplaneError(
                f"{provider.id} ({provider.distribution} {provider.version}) lacks {binding.op}, which it declares",
                code="ops.missing",
                remedy=f"report it to the authors of {provider.distribution}, or disable the plugin",
            )
        functions[known[binding.op].name] = function
    return Ops(**functions)


def reference_of(schema: OpSchema) -> Callable[..., Any]:
    """The torch reference of an op."""
    module, _, attribute = schema.reference.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    return function
