"""Which class builds the model, and which format reads its files: by the names that the checkpoint gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane import __version__
from inferplane.errors import InferplaneError
from inferplane.plan.types import Component, Decision, Loser
from inferplane.plugins.inventory import CORE
from inferplane_api.spec import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.plugins.records import FoundFormat, FoundModel


def select_architecture(
    model_type: str, plugins: Sequence[FoundModel], *, required: bool
) -> tuple[Component | None, Decision]:
    """The model's class: the core's registry or a plugin's, never both.

    None where nobody has it and it is not `required`. Raises InferplaneError for an unknown type, and for one that the
    core and a plugin bring.
    """
    from inferplane.models.registry import MODELS

    plugin = next((found for found in plugins if found.spec.model_type == model_type), None)
    own = MODELS.get(model_type)
    subject = f"model {model_type}"
    if own is not None and plugin is not None:
        raise InferplaneError(
            f"model type {model_type!r} is core's and of {plugin.distribution} {plugin.version} too",
            code="model.duplicate",
            remedy=f"--disable-plugins {plugin.distribution}",
        )
    if own is None and plugin is None:
        if required:
            raise _unknown(model_type, sorted(MODELS))
        reason = "the platform brings a runner of its own"
        return None, Decision(subject=subject, chosen="the runner's own", source="checkpoint", reason=reason)
    if plugin is not None:
        load, distribution, version = plugin.spec.load, plugin.distribution, plugin.version
        source = f"plugin {distribution} {version}"
    else:
        load, distribution, version = own or "", CORE, __version__
        source = "checkpoint"
    reason = f"{distribution} {version} has the checkpoint's model_type"
    component = Component(id=model_type, load=load, distribution=distribution, version=version)
    return component, Decision(subject=subject, chosen=load, source=source, reason=reason)


def select_format(
    format_id: str, formats: Sequence[FoundFormat], *, by_user: bool = False
) -> tuple[Component, Decision]:
    """The checkpoint format that reads the model, found from its files or named by the user.

    Raises InferplaneError when it is not installed.
    """
    for found in formats:
        if found.spec.id == format_id:
            weights = Component(
                id=format_id, load=found.spec.load, distribution=found.distribution, version=found.version
            )
            other = Reason(code="format.other", field="format", want=format_id, hint="the files are in one format")
            decision = Decision(
                subject="checkpoint format",
                chosen=format_id,
                source="user" if by_user else "checkpoint",
                reason=f"{found.distribution} {found.version}",
                losers=tuple(Loser(id=each.spec.id, reasons=(other,)) for each in formats if each is not found),
            )
            return weights, decision
    have = ", ".join(found.spec.id for found in formats)
    raise InferplaneError(
        f"checkpoint format {format_id!r} is not installed; installed: {have or 'none'}",
        code="format.unknown",
        remedy="`inferplane plugins` lists what is installed",
    )


def _unknown(model_type: str, known: Sequence[str]) -> InferplaneError:
    return InferplaneError(
        f"model type {model_type!r} is not supported; known are {', '.join(known)}",
        code="model.unknown",
        remedy="install a package that brings it (entry-point group inferplane.models)",
    )
