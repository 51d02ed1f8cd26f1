"""Area "ops": every op that a provider declares, in every type, against the contract's reference in float64."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from inferplane_api.internal.loading import find
from inferplane_api.kv import KVView
from inferplane_api.ops import SCHEMAS, OpSchema
from inferplane_api.testing.buckets import bucket_for, pad_rows
from inferplane_api.testing.case import Case, Lie, NotTested, require
from inferplane_api.testing.compare import describe, difference, same_bytes, tensors
from inferplane_api.testing.requirements import accept_kernel, requirement_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inferplane_api.spec import KernelSpec
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

Arguments = dict[str, Any]

ROWS: dict[str, tuple[str, ...]] = {
    "embedding": ("ids",),
    "rms_norm": ("x",),
    "add_rms_norm": ("x", "residual"),
    "layer_norm": ("x",),
    "rope_angles": ("positions",),
    "rope": ("q", "k", "cos", "sin"),
    "silu_mul": ("x",),
    "gelu_tanh_mul": ("x",),
    "gelu_mul": ("x",),
    "kv_write": ("k", "v", "slot_mapping"),
    "soft_cap": ("x",),
    "largest": ("logits",),
    "log_softmax": ("logits",),
    "gumbel_noise": ("seeds", "positions", "ids"),
    "apply_token_bitmask": ("logits", "mask"),
}
"""Arguments whose first dimension is the number of tokens, or of requests."""

PER_REQUEST = frozenset({"largest", "log_softmax", "gumbel_noise", "apply_token_bitmask"})
IN_PLACE = {"kv_write": "kv", "apply_token_bitmask": "logits"}
"""Ops that change an argument and give nothing back."""

SEED = 20260
MANY_ROWS = 1030
"""Beyond the grids and blocks of kernels that were only tried with short inputs."""


def cases(declarations: Declarations) -> list[Case]:
    """One case a provider, op and type; and one a provider for what it does not declare."""
    found = []
    schemas = {schema.id: schema for schema in SCHEMAS.values()}
    for spec in declarations.kernels("ops"):
        claim = f"{spec.id} gives the ops that it declares"
        name = f"{spec.id}-provided"
        found.append(Case(area="ops", name=name, level="core", claim=claim, run=partial(_check_provided, spec)))
        found += requirement_cases(declarations, "ops", spec)
        for op in spec.ops:
            if op in schemas:
                found += [_case(spec, schemas[op], dtype) for dtype in sorted(spec.dtypes)]
    return found


def _case(spec: KernelSpec, schema: OpSchema, dtype: str) -> Case:
    return Case(
        area="ops",
        name=f"{spec.id}-{schema.id}-{dtype}",
        level="core",
        claim=f"{spec.id} provides {schema.id} in {dtype}",
        run=partial(_check_op, spec, schema, dtype),
        proves=spec.id,
    )


def _check_provided(spec: KernelSpec, kit: Kit) -> None:
    given = set(kit.load(spec.load).ops())
    missing, extra = sorted(set(spec.ops) - given), sorted(given - set(spec.ops))
    require(not missing, f"{spec.id} declares {', '.join(missing)} and its provider lacks them")
    require(not extra, f"{spec.id} provides {', '.join(extra)} and does not declare them, so nobody will use them")


def _check_op(spec: KernelSpec, schema: OpSchema, dtype: str, kit: Kit) -> None:
    accept_kernel(spec, dtype, schema.id, kit)
    reference = find(schema.reference)
    function = kit.load(spec.load).ops().get(schema.id)
    if function is None:
        raise Lie(f"{spec.id} declares {schema.id} and its provider lacks it")
    scheduling = kit.spec.scheduling
    buckets = scheduling.batch_buckets if schema.name in PER_REQUEST else scheduling.token_buckets
    tested = 0
    for arguments in _inputs(schema, getattr(torch, dtype), kit):
        padded = _padded(schema.name, arguments, buckets)
        if padded is None:
            continue
        tested += 1
        problem = _compare(schema, function, reference, arguments, padded) or _held(schema.name, function, padded)
        if problem:
            shown = describe(arguments)
            raise Lie(f"{spec.id} provides {schema.id} in {dtype} but its result is wrong for {shown}: {problem}")
    if not tested:
        raise NotTested(f"no input fits the buckets {buckets}")


def _inputs(schema: OpSchema, dtype: torch.dtype, kit: Kit) -> list[Arguments]:
    """The contract's inputs, the first of them without any rows, and one of them repeated to many rows."""
    generator = torch.Generator().manual_seed(SEED)
    inputs: list[Arguments] = find(schema.generator)(dtype, kit.torch_device, generator)
    empty = dict(inputs[0])
    for name in ROWS[schema.name]:
        empty[name] = empty[name][:0]
    if IN_PLACE.get(schema.name) == "kv":  # its slots must differ
        return [*inputs, empty]
    rows = ROWS[schema.name]
    longest = max(inputs, key=lambda arguments: arguments[rows[0]].shape[0])
    many = {name: _repeat(value) if name in rows else value for name, value in longest.items()}
    return [*inputs, empty, many]


def _repeat(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(-(-MANY_ROWS // x.shape[0]), *(1 for _ in x.shape[1:]))[:MANY_ROWS]


def _held(name: str, function: Callable[..., Any], padded: Arguments) -> str:
    """What a caller still holds while the op is called again stays as it is."""
    if name in IN_PLACE:
        return ""
    rows = ROWS[name]
    results = tensors(function(**padded))
    kept = [result.clone() for result in results]
    function(**{key: value.flip(0) if key in rows else value for key, value in padded.items()})
    same = all(same_bytes(result, copy) for result, copy in zip(results, kept, strict=True))
    return "" if same else "a later call changes the result of an earlier one"


def _padded(name: str, arguments: Arguments, buckets: Sequence[int]) -> Arguments | None:
    rows = ROWS[name]
    size = bucket_for(arguments[rows[0]].shape[0], buckets)
    if size is None:
        return None
    padded = dict(arguments)
    for row in rows:
        padded[row] = pad_rows(arguments[row], size, -1 if row == "slot_mapping" else 0)
    return padded


def _compare(
    schema: OpSchema,
    function: Callable[..., Any],
    reference: Callable[..., Any],
    arguments: Arguments,
    padded: Arguments,
) -> str:
    """What is wrong with the result, in words; "" when nothing is."""
    changed = IN_PLACE.get(schema.name)
    if changed is not None:
        return _compare_in_place(function, reference, arguments, padded, changed)
    kept = {name: value.clone() for name, value in padded.items() if isinstance(value, torch.Tensor)}
    results = tensors(function(**padded))
    for name, value in kept.items():
        if not same_bytes(padded[name], value):
            return f"it changes its argument {name}"
    expected = tensors(reference(**arguments))
    truth = tensors(reference(**{name: _wide(value) for name, value in arguments.items()}))
    if len(results) != len(expected):
        return f"it gives {len(results)} tensors, not {len(expected)}"
    for got, like, want in zip(results, expected, truth, strict=True):
        if got.dtype != like.dtype:
            return f"its type is {got.dtype}, not {like.dtype}"
        name = str(like.dtype).removeprefix("torch.")
        problem = difference(got[: like.shape[0]], want, *schema.tolerances.get(name, (0.0, 0.0)))
        if problem:
            return problem
    return ""


def _compare_in_place(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    arguments: Arguments,
    padded: Arguments,
    changed: str,
) -> str:
    mine, theirs = {**arguments, changed: _copy(arguments[changed])}, dict(padded)
    if isinstance(theirs[changed], torch.Tensor):
        theirs[changed] = theirs[changed].clone()
    kept = {name: value.clone() for name, value in theirs.items() if isinstance(value, torch.Tensor)}
    reference(**mine)
    if function(**theirs) is not None:
        return "it must work in place and give nothing back"
    for name, value in kept.items():
        if name != changed and not same_bytes(theirs[name], value):
            return f"it changes its argument {name}"
    for got, want in zip(_parts(theirs[changed]), _parts(mine[changed]), strict=True):
        if problem := difference(got[: want.shape[0]], want, 0.0, 0.0):
            return problem
    return ""


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _copy(value: Any) -> Any:
    return value._replace(k=value.k.clone(), v=value.v.clone()) if isinstance(value, KVView) else value.clone()


def _parts(value: Any) -> tuple[torch.Tensor, ...]:
    return (value.k, value.v) if isinstance(value, KVView) else (value,)
