"""The record of a selection as data: the same for `explain --json`, /server_info and the hook inferplane_selection."""

from __future__ import annotations

from typing import Any

import msgspec

from inferplane.plan.render import startup_line
from inferplane.plan.types import Plan
from inferplane.plugins.inventory import CORE
from inferplane_api.quant import DENSE


def reference_ops(plan: Plan) -> tuple[str, ...]:
    """Ops ("rope@1") and linear kernels ("linear dense") that run on the torch reference although the platform is a
    plugin's, which may bring faster ones.

    Of linear kernels those for plain weights; for other schemes too where the checkpoint is, or may be, quantized:
    which schemes its tensors have is known when they are read.
    """
    if plan.platform.distribution == CORE:
        return ()
    quantized = plan.model.quantization is not None or plan.checkpoint_format.distribution != CORE
    ops = [binding.op for binding in plan.ops if binding.provider.distribution == CORE]
    ops += [
        f"linear {scheme}"
        for scheme, kernel in plan.linear
        if kernel.distribution == CORE and (scheme == DENSE.name or quantized)
    ]
    return tuple(ops)


def reference_lines(plan: Plan) -> list[str]:
    """One line of a log for each of `reference_ops`."""
    owner = f"{plan.platform.distribution} {plan.platform.version}"
    losers = {decision.subject: decision.losers for decision in plan.decisions}
    lines = []
    for op in reference_ops(plan):
        refused = losers.get(op if op.startswith("linear ") else f"op {op}", ())
        why = "; ".join(f"{loser.id}: {', '.join(map(str, loser.reasons))}" for loser in refused)
        lines.append(
            f"{op} runs on the torch reference: no plugin brings it for platform {plan.platform_name} ({owner}) in "
            f"{plan.dtype}" + (f" ({why})" if why else "")
        )
    return lines


def selection_record(plan: Plan) -> dict[str, Any]:
    """JSON types only; no path of this host beyond the user's own settings, and no key."""
    sections = {
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
    # Sets come from another process in an order of its own: sorted, so that equal plans have equal records.
    encoded = {name: msgspec.json.encode(section, order="deterministic") for name, section in sections.items()}
    return {name: msgspec.json.decode(data) for name, data in encoded.items()}
