"""Fits a checkpoint to a model: every tensor is used or refused by name; also makes random weights."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from inferplane_api.errors import InferplaneError
from inferplane_api.quant import DENSE, Weight

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from inferplane.layers.layer import Layer
    from inferplane_api.checkpoint import Checkpoint
    from inferplane_api.model import ModelSpec

_HARMLESS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "embed_positions.weights")
"""Ends of the names of buffers that old checkpoints hold and that follow from the config."""
_SHOWN = 8


def load_parameters(model: Layer, checkpoint: Checkpoint) -> None:
    """Read every tensor that the model's layers declare.

    Raises InferplaneError naming missing and unexpected tensors, or a tensor of the wrong shape.
    """
    layers = list(model.walk())
    wanted = {name for layer in layers for name in layer.shapes()}
    optional = {name for layer in layers for name in layer.optional()}
    present = set(checkpoint.names())
    missing = sorted(wanted - present)
    unexpected = sorted(name for name in present - wanted - optional if not name.endswith(_HARMLESS))
    problems = [
        f"{label} {_listed(names)}" for label, names in (("misses", missing), ("has unexpected", unexpected)) if names
    ]
    if problems:
        raise InferplaneError(
            f"the checkpoint does not fit {type(model).__name__}: it {' and '.join(problems)}",
            code="checkpoint.tensors",
            remedy="check that config and weights belong together, and that the download is complete",
        )
    for layer in layers:
        layer.read(checkpoint)


def _listed(names: list[str]) -> str:
    text = ", ".join(names[:_SHOWN])
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN} more"


class RenamedCheckpoint:
    """A checkpoint seen under other names; what the mapping does not name is hidden."""

    def __init__(self, checkpoint: Checkpoint, original_names: Mapping[str, str]) -> None:
        self._checkpoint = checkpoint
        self._original_names = dict(original_names)

    def names(self) -> Iterable[str]:
        """The new names."""
        return self._original_names

    def tensor(self, name: str) -> torch.Tensor:
        """As `Checkpoint.tensor`."""
        return self._checkpoint.tensor(self._original_names[name])

    def weight(self, name: str) -> Weight:
        """As `Checkpoint.weight`."""
        return self._checkpoint.weight(self._original_names[name])

    def close(self) -> None:
        """As `Checkpoint.close`."""
        self._checkpoint.close()


def pooled_checkpoint(spec: ModelSpec, checkpoint: Checkpoint) -> Checkpoint:
    """A decoder's checkpoint for pooling alone: without its output matrix, which nothing uses, and with the names that
    the whole model gives its tensors where the checkpoint is of the bare decoder (`LlamaModel`: no "model." before).

    An encoder's checkpoint, and one with other names (`model.` is what decoders have), is left as it is.
    """
    names = list(checkpoint.names())
    if all(layer.kind == "encoder" for layer in spec.layers):
        return checkpoint
    bare = "embed_tokens.weight" in names
    kept = [name for name in names if name != "lm_head.weight"]
    return RenamedCheckpoint(checkpoint, {f"model.{name}" if bare else name: name for name in kept})


class DummyCheckpoint:
    """Random weights for a model (`--load-format dummy`): a function of the seed and each tensor's name.

    Weights of norms are one, everything else is normal with deviation 0.02, the usual initialisation.
    """

    def __init__(self, model: Layer, dtype: torch.dtype, seed: int = 0) -> None:
        self._shapes = {name: shape for layer in model.walk() for name, shape in layer.shapes().items()}
        self._dtype = dtype
        self._seed = seed

    def names(self) -> Iterable[str]:
        """What the model asks for."""
        return self._shapes

    def tensor(self, name: str) -> torch.Tensor:
        """A new random tensor, the same each time."""
        shape = self._shapes[name]
        if name.lower().endswith("norm.weight"):
            return torch.ones(shape, dtype=self._dtype)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        return (torch.randn(shape, generator=generator) * 0.02).to(self._dtype)

    def weight(self, name: str) -> Weight:
        """The tensor as a dense weight."""
        data = self.tensor(name)
        return Weight(DENSE, (data.shape[0], data.shape[1]), data, data.to)

    def close(self) -> None:
        """Nothing to close."""
