"""Loads what a Plan names, in the process that runs it, and only if it is the version that was planned with."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from inferplane.errors import InferplaneError
from inferplane.plan.types import Component


def load_component(component: Component) -> Any:
    """Import "module:attribute".

    Raises InferplaneError when the distribution's version is not the Plan's, or the import fails, naming distribution
    and version.
    """
    owner = f"{component.distribution} {component.version}"
    reinstall = f"pip install --force-reinstall --no-deps {component.distribution}=={component.version}"
    try:
        present = importlib.metadata.version(component.distribution)
    except importlib.metadata.PackageNotFoundError:
        present = "no version"
    if present != component.version:
        raise InferplaneError(
            f"{component.id} was planned with {owner}, and this process finds {present}",
            code="plan.version",
            remedy="restart, so that everything is planned with what is installed now",
        )
    module, _, attributes = component.load.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for name in attributes.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError, OSError) as error:
        raise InferplaneError(
            f"{component.id} of {owner} cannot be loaded from {component.load!r}: {type(error).__name__}: {error}",
            code="plan.load",
            remedy=reinstall,
        ) from error
    return value
