"""Area "patches": neither loading nor using what a distribution offers changes the contract, the kit or core."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from inferplane_api.spec import KernelSpec
from inferplane_api.testing.case import Case, Lie, NotTested, require
from inferplane_api.testing.declarations import decoded, run_child
from inferplane_api.testing.patch_child import Loads, Patched

if TYPE_CHECKING:
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

LOADING_TIMEOUT = 300.0
"""Seconds for a child that imports torch, core and everything that the plugin offers."""

FIELDS = ("load", "probe", "check", "describe")
"""Of a descriptor: what names an object of the plugin's."""

SHOWN = 8
"""Most names in a message."""


def cases(declarations: Declarations) -> list[Case]:
    """One case: everything is loaded in one child."""
    name = declarations.plugin.name
    claim = f"{name} leaves the contract and core as they are"
    return [Case(area="patches", name=name, level="core", claim=claim, run=partial(_check, declarations))]


def late_cases(declarations: Declarations) -> list[Case]:
    """One case, to be run after all others."""
    name = declarations.plugin.name
    claim = f"{name} leaves the contract and core as they are while it is used"
    run = partial(_check_use, declarations)
    return [Case(area="patches", name=f"{name}-in-use", level="core", claim=claim, run=run)]


def _check(declarations: Declarations, kit: Kit) -> None:
    specs = [spec for item in declarations.inspection.seen.imported if (spec := decoded(item)) is not None]
    paths = {path for spec in specs for field in FIELDS if (path := getattr(spec, field, None)) is not None}
    device = kit.device if declarations.present else None
    loads = Loads(
        paths=sorted(paths | {entry.value for entry in declarations.plugin.entries}),
        providers=[spec.load for spec in specs if isinstance(spec, KernelSpec) and spec.kind == "ops"],
        own=list(_own(declarations)),
        platform=None if device is None else kit.spec,
        device=device,
    )
    answer = run_child("inferplane_api.testing.patch_child", msgspec.json.encode(loads), LOADING_TIMEOUT)
    name = declarations.plugin.name
    if isinstance(answer, str):
        raise Lie(f"{name} cannot be loaded: {answer}")
    patched = msgspec.json.decode(answer, type=Patched)
    require(not patched.changed, f"{name} patches {', '.join(patched.changed[:SHOWN])}")
    if patched.errors and not declarations.present:
        raise NotTested(f"not everything can be loaded without the device: {patched.errors[0]}")
    require(not patched.errors, f"{name} declares what cannot be loaded: {'; '.join(patched.errors)}")


def _check_use(declarations: Declarations, kit: Kit) -> None:
    changed = kit.patched(_own(declarations))
    name = declarations.plugin.name
    require(not changed, f"{name} patches {', '.join(changed[:SHOWN])} while it is used")


def _own(declarations: Declarations) -> frozenset[str]:
    specs = [spec for item in declarations.inspection.seen.imported if (spec := decoded(item)) is not None]
    paths = [getattr(spec, field, None) or "" for spec in specs for field in FIELDS]
    modules = {path.partition(":")[0].partition(".")[0] for path in paths}
    # What core and the contract bring themselves may change itself.
    return frozenset({*modules, *declarations.plugin.modules} - {"", "inferplane", "inferplane_api"})
