"""Whether steps are captured, and of how many rows; knows what was declared, not how a device captures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferplane.plan.settings import Settings
from inferplane.plan.types import Decision, Loser
from inferplane_api.spec import AttentionSpec, DeviceInfo, PlatformSpec, Reason

CAPTURE = "graph_capture"
EAGER = "scheduler.enforce_eager"


class GraphChoice(NamedTuple):
    """The numbers of rows, and the record."""

    rows: tuple[int, ...]
    decision: Decision


def choose_graphs(
    settings: Settings,
    platform: PlatformSpec,
    device: DeviceInfo,
    attention: Sequence[AttentionSpec],
    max_num_seqs: int,
) -> GraphChoice:
    """Capture where the platform names sizes, the device can, every attention backend can, and the user did not object.

    Static-shape devices have one shape for every step anyway: token buckets leave nothing to capture apart.
    """
    refusals = []
    if settings.value(EAGER):
        refusals.append(Reason(code="graphs.enforce_eager", hint="--enforce-eager"))
    if CAPTURE not in device.features:
        refusals.append(Reason(code="graphs.device_feature", field="device.features", want=CAPTURE))
    if not platform.scheduling.graph_rows:
        refusals.append(Reason(code="graphs.sizes", field="scheduling.graph_rows", hint="the platform names no sizes"))
    never = sorted({spec.id for spec in attention if spec.graph_level == "never"})
    if never:
        refusals.append(Reason(code="graphs.attention", field="graph_level", want="decode", have=", ".join(never)))
    if not attention and not platform.runner_seam:
        hint = "the layers attend within a step, whose rows a captured one would not know"
        refusals.append(Reason(code="graphs.encoder", field="layers", have="encoder", hint=hint))
    if refusals:
        losers = (Loser(id="decode", reasons=tuple(refusals)),)
        return GraphChoice((), Decision(subject="graphs", chosen="none", source=_source(settings), losers=losers))
    sizes = platform.scheduling.graph_rows
    rows = tuple(size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs)
    reason = f"steps of up to {min(rows[-1], max_num_seqs)} single-token rows, when first met"
    return GraphChoice(rows, Decision(subject="graphs", chosen="decode", source="device", reason=reason))


def _source(settings: Settings) -> str:
    return settings.source(EAGER) if settings.value(EAGER) else "device"
