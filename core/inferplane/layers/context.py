"""What a model is built with; knows nothing about how its parts were chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from inferplane.layers.linear import LinearFactory
from inferplane.layers.ops import Ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from inferplane_api.attention import PagedAttention
    from inferplane_api.model import ModelSpec

__all__ = ["LinearFactory", "ModelContext", "Ops"]


class ModelContext(NamedTuple):
    """The arguments of a model class."""

    config: dict[str, Any]
    """The checkpoint's config, as config.json has it."""
    spec: ModelSpec
    ops: Ops
    linear: LinearFactory
    attention: Sequence[PagedAttention]
    """Per model layer; the layers of one KV group share an object. Empty for an encoder, whose layers are in none."""
    dtype: torch.dtype
    """Of weights and activations."""
    device: torch.device
