"""Area "patches": loading everything that a distribution offers replaces no function of the contract or of core."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from inferplane_api.testing.case import Case, Lie, NotTested, require
from inferplane_api.testing.declarations import decoded, run_child
from inferplane_api.testing.patch_child import Loads, Patched

if TYPE_CHECKING:
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

LOADING_TIMEOUT = 300.0
"""Seconds for a child that imports torch, core and everything that the plugin offers."""


def cases(declarations: Declarations) -> list[Case]:
    """One case: everything is loaded in one child."""
    name = declarations.plugin.name
    claim = f"{name} leaves the contract and core as they are"
    return [Case(area="patches", name=name, level="core", claim=claim, run=partial(_check, declarations))]


def _check(declarations: Declarations, kit: Kit) -> None:
    specs = [spec for item in declarations.inspection.seen.imported if (spec := decoded(item)) is not None]
    paths = sorted({getattr(spec, field) for spec in specs for field in ("load", "probe") if hasattr(spec, field)})
    device = kit.device if declarations.present else None
    loads = Loads(paths=paths, platform=None if device is None else kit.spec, device=device)
    answer = run_child("inferplane_api.testing.patch_child", msgspec.json.encode(loads), LOADING_TIMEOUT)
    name = declarations.plugin.name
    if isinstance(answer, str):
        raise Lie(f"{name} cannot be loaded: {answer}")
    patched = msgspec.json.decode(answer, type=Patched)
    require(not patched.changed, f"{name} patches {', '.join(patched.changed[:8])}")
    if patched.errors and not declarations.present:
        raise NotTested(f"not everything can be loaded without the device: {patched.errors[0]}")
    require(not patched.errors, f"{name} declares what cannot be loaded: {'; '.join(patched.errors)}")
