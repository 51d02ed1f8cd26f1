"""The record of a selection as data: the same for `explain --json`, /server_info and the hook inferplane_selection."""

from __future__ import annotations

from typing import Any

import msgspec

from inferplane.plan.render import startup_line
from inferplane.plan.types import Plan


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
