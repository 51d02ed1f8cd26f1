"""The record of a selection as data: the same for `explain --json`, /server_info and the hook inferplane_selection."""

from __future__ import annotations

from typing import Any

import msgspec

from inferplane.plan.render import startup_line
from inferplane.plan.types import Plan
from inferplane.plugins.inventory import CORE


def reference_ops(plan: Plan) -> tuple[str, ...]:
    """Ops that run on the torch reference although the platform is a plugin's, which may bring faster ones."""
    if plan.platform.distribution == CORE:
        return ()
    return tuple(binding.op for binding in plan.ops if binding.provider.distribution == CORE)


def reference_line(plan: Plan) -> str:
    """`reference_ops` as one line of a log; "" when there are none."""
    ops = reference_ops(plan)
    if not ops:
        return ""
    owner = f"{plan.platform.distribution} {plan.platform.version}"
    return (
        f"{len(ops)} ops run on the torch reference, as no plugin brings them for platform {plan.platform_name} "
        f"({owner}) in {plan.dtype}: {', '.join(ops)}"
    )


def selection_record(plan: Plan) -> dict[str, Any]:
    """JSON types only; no path of this host beyond the user's own settings, and no key."""
    data = msgspec.json.encode(
        {
            "summary": startup_line(plan),
            "platform": plan.platform,
            "device": plan.device,
            "model": plan.model,
            "geometry": plan.geometry,
            "limits": plan.limits,
            "hooks": plan.hooks,
            "settings": plan.settings,
            "decisions": plan.decisions,
            "warnings": plan.warnings,
        }
    )
    record: dict[str, Any] = msgspec.json.decode(data)
    return record
