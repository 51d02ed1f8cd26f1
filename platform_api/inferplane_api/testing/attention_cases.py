"""Area "attention": what is claimed must pass against a dense oracle, what is not claimed must be refused."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from inferplane_api.errors import Unsupported
from inferplane_api.spec import AttentionRequest, DeviceInfo, SchedulingConstraints, describe_attention_refusal
from inferplane_api.testing.attention_matrix import CACHE_DTYPES, KINDS, SOFTCAP, plain_point, points, request_of
from inferplane_api.testing.attention_scenarios import SCENARIOS, batch_invariance, chunks_and_decode, graph_replay
from inferplane_api.testing.case import Case, Lie, NotTested, require
from inferplane_api.testing.device_cases import CAPTURE
from inferplane_api.testing.requirements import check_of, refuse_device, requirement_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inferplane_api.platform import GraphCapture
    from inferplane_api.spec import AttentionSpec
    from inferplane_api.testing.attention_world import Point
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

UNUSUAL_HEAD_SIZES = (1, 3, 17, 33, 65, 96, 100, 192, 512, 1000, 4096)
UNUSUAL_PAGE_SIZES = (1, 3, 16, 17, 48, 100, 1000)
UNTESTED_FEATURES = {"sinks": "the contract hands no sinks to a backend"}


EVERY_SCENARIO = {**SCENARIOS, "batch-invariant": batch_invariance, "graph-replay": graph_replay}


class Backend(NamedTuple):
    """What a world needs of a backend."""

    load: Callable[[Any], Any]
    scheduling: SchedulingConstraints
    graphs: GraphCapture | None = None


def cases(declarations: Declarations) -> list[Case]:
    """The matrix, the scenarios, and what every backend makes of what it does not declare."""
    found = []
    for spec in declarations.attention():
        found += [case._replace(proves=spec.id) for case in (*_matrix(spec), *_scenarios(spec), *_untested(spec))]
        found += requirement_cases(declarations, "attention", spec)
        found += list(_foreign(spec))
        claim = f"{spec.id} refuses what it does not declare"
        found.append(_case(spec, "refusals", "core", claim, partial(_check_refusals, spec)))
        claim = f"{spec.id} accepts what it declares"
        found.append(_case(spec, "accepts", "core", claim, partial(_check_accepts, spec)))
    return found


def _case(spec: AttentionSpec, name: str, level: str, claim: str, run: Callable[[Kit], None]) -> Case:
    return Case(area="attention", name=f"{spec.id}-{name}", level=level, claim=claim, run=run)


def _matrix(spec: AttentionSpec) -> Iterator[Case]:
    for level, point in points(spec):
        run = partial(_check_point, spec, point, "chunks")
        yield _case(spec, str(point), level, _claim(spec, point), run)


def _scenarios(spec: AttentionSpec) -> Iterator[Case]:
    for kind in KINDS:
        if kind not in spec.kinds or not spec.kv_dtypes & CACHE_DTYPES:
            continue
        for layout in spec.layouts:
            point = plain_point(spec, kind)._replace(layout=layout)
            for name in _names(spec):
                claim = f"{_claim(spec, point)}, {name}"
                yield _case(spec, f"{name}-{point}", "core", claim, partial(_check_point, spec, point, name))


def _names(spec: AttentionSpec) -> list[str]:
    names = [name for name in SCENARIOS if name != "chunks"]
    names += ["batch-invariant"] if spec.batch_invariant else []
    return names if spec.graph_level == "never" else [*names, "graph-replay"]


def _foreign(spec: AttentionSpec) -> Iterator[Case]:
    """What a context or a call can ask of any backend: without it, or with it ignored, the result is plausible."""
    if "full" not in spec.kinds or not spec.kv_dtypes & CACHE_DTYPES:
        return
    plain = plain_point(spec, "full")
    asked = {
        "softcap": ("softcap" in spec.features, plain._replace(softcap=SOFTCAP)),
        "lse": ("logsumexp" in spec.features, plain._replace(lse=True)),
        "window": ("sliding" in spec.kinds, plain._replace(kind="sliding", window=7)),
    }
    for name, (declared, point) in asked.items():
        if not declared:
            claim = f"{spec.id} does not declare a {name}, so it raises Unsupported"
            yield _case(spec, f"undeclared-{name}", "core", claim, partial(_check_foreign, spec, point, plain, name))


def _check_foreign(spec: AttentionSpec, point: Point, plain: Point, name: str, kit: Kit) -> None:
    """Refused, or right after all; never something else."""
    accept(spec, plain, kit)
    try:
        chunks_and_decode(point, make_backend(spec, kit), kit.torch_device)
    except Unsupported:
        return
    except Lie as lie:
        message = f"{spec.id} does not declare a {name}, is given one, and instead of raising Unsupported ignores it"
        raise Lie(f"{message}: {lie}") from None


def _untested(spec: AttentionSpec) -> Iterator[Case]:
    reasons = {f"kind-{kind}": "the kit has no oracle for it" for kind in sorted(spec.kinds - set(KINDS))}
    reasons |= {f"kv-dtype-{dtype}": "the kit scales no cache" for dtype in sorted(spec.kv_dtypes - CACHE_DTYPES)}
    for feature in sorted(spec.features - {"softcap", "logsumexp"}):
        reasons[f"feature-{feature}"] = UNTESTED_FEATURES.get(feature, "the kit has no case for it")
    for name, reason in reasons.items():
        yield _case(spec, name, "full", f"{spec.id} declares {name}", partial(_not_tested, reason))


def _not_tested(reason: str, kit: Kit) -> None:
    raise NotTested(reason)


def _claim(spec: AttentionSpec, point: Point) -> str:
    plain = plain_point(spec, point.kind)
    names = [name for name in VARIED if getattr(point, name) != getattr(plain, name)]
    shown = ", ".join(f"{name} {_shown(getattr(point, name))}" for name in ("kind", *names) if name != "lse")
    return f"{spec.id} declares {shown}" + (", logsumexp" if point.lse else "")


DECLARED = ("kind", "dtype", "kv_dtype", "head_size", "page", "layout")
"""Of a point: what a descriptor lists."""

VARIED = ("dtype", "kv_dtype", "head_size", "page", "num_heads", "num_kv_heads", "window", "softcap", "layout")


def _shown(value: Any) -> str:
    return str(getattr(value, "order", value))


def make_backend(spec: AttentionSpec, kit: Kit) -> Backend:
    """The implementation and the platform's constraints."""
    graphs = kit.platform().graphs() if CAPTURE in kit.device.features else None
    return Backend(load=kit.load(spec.load), scheduling=kit.spec.scheduling, graphs=graphs)


def accept(spec: AttentionSpec, point: Point, kit: Kit) -> None:
    """Raise NotTested when the device or the backend's own check excludes the point."""
    device = kit.device
    refuse_device(spec, point.dtype, kit)
    request = request_of(point, kit.declarations.platform, device)
    verdict = check_of(spec, kit)(request)
    if not verdict.ok:
        raise NotTested(f"its own check refuses this: {'; '.join(map(str, verdict.reasons))}")


def _check_point(spec: AttentionSpec, point: Point, name: str, kit: Kit) -> None:
    accept(spec, point, kit)
    backend = make_backend(spec, kit)
    if name == "graph-replay" and backend.graphs is None:
        raise NotTested("the device captures no graphs")
    try:
        EVERY_SCENARIO[name](point, backend, kit.torch_device)
    except Lie as lie:
        what = "" if name == "chunks" else f" ({name})"
        raise Lie(f"{_claim(spec, point)} but fails{what}: {lie}") from None


def _check_accepts(spec: AttentionSpec, kit: Kit) -> None:
    """The data must accept every point that was made from it, and the check at least one."""
    accepted: list[Point] = []
    check = check_of(spec, kit)
    for _, point in points(spec):
        device = msgspec.structs.replace(kit.device, features=kit.device.features | spec.requires)
        request = request_of(point, kit.declarations.platform, device)
        verdict = describe_attention_refusal(spec, request)
        require(verdict.ok, f"{_claim(spec, point)} but refuses it: {'; '.join(map(str, verdict.reasons))}")
        accepted += [point] if check(request).ok else []
    require(bool(accepted) or not points(spec), f"{spec.id}: its check refuses everything that it declares")
    never = [
        f"{name} {_shown(value)}"
        for name in DECLARED
        for value in dict.fromkeys(getattr(point, name) for _, point in points(spec))
        if value not in {getattr(point, name) for point in accepted}
    ]
    if never:
        raise NotTested(f"its check refuses on this device all that has {', '.join(never)}")


def _check_refusals(spec: AttentionSpec, kit: Kit) -> None:
    kind = next(iter(sorted(spec.kinds)))
    base = plain_point(spec, "full")._replace(kind=kind, window=7 if kind == "sliding" else None)
    device = msgspec.structs.replace(kit.device, features=kit.device.features | spec.requires)
    request = request_of(base, kit.declarations.platform, device)
    check = check_of(spec, kit)
    for field, changed in _unclaimed(spec, request):
        verdict = describe_attention_refusal(spec, changed)
        named = any(reason.field == field for reason in verdict.reasons)
        require(named, f"{spec.id} does not declare {field} {getattr(changed, field, '')} and does not refuse it")
        check(changed)  # raises Lie where it fails or gives no Verdict, as a newer core's request must not make it


def _unclaimed(spec: AttentionSpec, request: AttentionRequest) -> Iterator[tuple[str, AttentionRequest]]:
    """(field, a request that differs from an allowed one in a value of it that the backend does not declare)."""
    values: dict[str, list[Any]] = {
        "kind": [kind for kind in ("full", "sliding", "chunked", "latent", "cross") if kind not in spec.kinds],
        "dtype": [dtype for dtype in ("float32", "bfloat16", "float16", "float64") if dtype not in spec.dtypes],
        "kv_dtype": [dtype for dtype in ("float8_e4m3fn", "float16", "int8") if dtype not in spec.kv_dtypes],
        "head_size": [size for size in UNUSUAL_HEAD_SIZES if not spec.head_sizes.allows(size)],
        "page_size": [size for size in UNUSUAL_PAGE_SIZES if not spec.page_sizes.allows(size)],
        "features": [
            frozenset({name}) for name in ("alibi", "softcap", "sinks", "prefix-lm") if name not in spec.features
        ],
    }
    for field, each in values.items():
        for value in each:
            yield field, msgspec.structs.replace(request, **{field: value})
    if "*" not in spec.platforms:
        yield "platform", msgspec.structs.replace(request, platform="another-platform")
    if spec.requires:
        bare: DeviceInfo = msgspec.structs.replace(request.device, features=frozenset())
        yield "device.features", msgspec.structs.replace(request, device=bare)
