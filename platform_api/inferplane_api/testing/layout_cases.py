"""Area "kv-layout": what a backend writes is found where the declared layout says, and nothing else changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from inferplane_api.testing.attention_cases import accept, make_backend
from inferplane_api.testing.attention_matrix import KINDS, plain_point, same_dtypes
from inferplane_api.testing.attention_scenarios import largest_chunk
from inferplane_api.testing.attention_world import Row, World
from inferplane_api.testing.case import Case, Lie, NotTested, require
from inferplane_api.testing.compare import same_bytes

if TYPE_CHECKING:
    from inferplane_api.spec import AttentionSpec
    from inferplane_api.testing.attention_world import Point
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

TOKENS = 21


def cases(declarations: Declarations) -> list[Case]:
    """One case a backend, layout and type of cache."""
    return [
        Case(
            area="kv-layout",
            name=f"{spec.id}-{layout.order}-{layout.content}-{dtype}",
            level="core",
            claim=f"{spec.id} declares the layout {layout.order}",
            run=partial(_check, spec, point),
            proves=spec.id,
        )
        for spec in declarations.attention()
        for kind in KINDS[: 1 if KINDS[0] in spec.kinds else None]
        if kind in spec.kinds
        for layout in spec.layouts
        for dtype in same_dtypes(spec)
        for point in [plain_point(spec, kind)._replace(layout=layout, dtype=dtype, kv_dtype=dtype)]
    ]


def _check(spec: AttentionSpec, point: Point, kit: Kit) -> None:
    accept(spec, point, kit)
    if point.layout.content != "k_v_planes":
        raise NotTested(f"the kit reads no layout with content {point.layout.content}")
    backend = make_backend(spec, kit)
    world = World(point, [TOKENS], backend, kit.torch_device)
    request = world.requests[0]
    while request.remaining:
        before, done = world.pool.clone(), request.done
        outcome = ""
        try:
            world.step([Row(request, min(request.remaining, 8, largest_chunk(backend)))])
        except Lie as lie:
            outcome = str(lie)
            request.done = max(request.done, done)
        _compare(spec, world, before, done)
        require(not outcome, f"{spec.id}, layout {point.layout.order}: {outcome}")


def _compare(spec: AttentionSpec, world: World, before: torch.Tensor, done: int) -> None:
    """Read the step's tokens through the view; put them into the pool as it was; it must be the pool as it is."""
    point, request = world.point, world.requests[0]
    count = int((world.slots >= 0).sum())
    expected = before.clone()
    for name, view in (("k", world.view.k), ("v", world.view.v)):
        new = getattr(request, name)[done : done + count].to(view.dtype).to(view.device)
        plane = expected.as_strided(view.shape, view.stride(), view.storage_offset())
        for token, slot in enumerate(world.slots[:count].tolist()):
            page, place = divmod(slot, point.page)
            where = (page, place) if point.layout.order == "thd" else (page, slice(None), place)
            plane[where] = new[token]
            found = view[where]
            message = f"{spec.id} declares the layout {point.layout.order} and writes {name} elsewhere"
            require(same_bytes(found, new[token]), message)
    message = f"{spec.id} declares the layout {point.layout.order} and writes outside the step's slots"
    require(same_bytes(expected, world.pool), message)
