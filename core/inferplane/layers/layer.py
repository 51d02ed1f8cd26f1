"""What has parameters: declares tensor names and shapes, reads them; knows nothing about files or kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane_api.errors import InferplaneError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from inferplane_api.checkpoint import Checkpoint


class Layer:
    """A part of a model. Its attributes that are layers, or lists of layers, are its sublayers, in that order."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The checkpoint tensors that this layer itself needs, its sublayers excluded."""
        return {}

    def optional(self) -> frozenset[str]:
        """Tensors that may be there or not: a tied output matrix, for example."""
        return frozenset()

    def read(self, checkpoint: Checkpoint) -> None:
        """Take this layer's own tensors, those of its sublayers excluded."""

    def sublayers(self) -> Iterator[Layer]:
        """The direct parts."""
        for value in vars(self).values():
            if isinstance(value, Layer):
                yield value
            elif isinstance(value, list):
                yield from (item for item in value if isinstance(item, Layer))

    def walk(self) -> Iterator[Layer]:
        """This layer and everything below it, each once."""
        seen: set[int] = set()
        pending: list[Layer] = [self]
        while pending:
            layer = pending.pop()
            if id(layer) in seen:
                continue
            seen.add(id(layer))
            yield layer
            pending.extend(reversed(list(layer.sublayers())))


def read_tensor(
    checkpoint: Checkpoint, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A copy of a tensor, so that the checkpoint's file can be closed. Raises InferplaneError on another shape."""
    tensor = checkpoint.tensor(name)
    check_shape(name, tuple(tensor.shape), shape)
    return tensor.to(device=device, dtype=dtype, copy=True)


def check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise InferplaneError when a tensor does not have the shape that the config calls for."""
    if found != wanted:
        raise InferplaneError(
            f"tensor {name} has shape {list(found)}, the config calls for {list(wanted)}",
            code="checkpoint.shape",
            remedy="config and weights belong to different models: fetch the checkpoint again",
        )
