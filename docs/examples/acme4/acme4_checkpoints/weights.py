"""An opened acme4 checkpoint: plain tensors as they are, matrices in the scheme int4.g32.sym."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from inferplane_api.quant import DENSE, QuantScheme, Weight

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCHEME = QuantScheme(name="int4.g32.sym", bits=4, group_size=32, scale_dtype="float16")
PACKED, SCALES = ".qweight", ".scales"


class Acme4Checkpoint:
    """Implements `inferplane_api.checkpoint.Checkpoint`."""

    def __init__(self, files: list[Path]) -> None:
        self._files: dict[str, Any] = {}
        for file in files:
            opened: Any = safe_open(file, framework="pt", device="cpu")
            self._files |= dict.fromkeys(opened.keys(), opened)

    def names(self) -> Iterable[str]:
        """The names of the plain model: NAME.weight for NAME.qweight and NAME.scales."""
        return [
            name.removesuffix(PACKED) + ".weight" if name.endswith(PACKED) else name
            for name in self._files
            if not name.endswith(SCALES)
        ]

    def tensor(self, name: str) -> torch.Tensor:
        """A plain tensor; a matrix dequantized."""
        if name in self._files:
            return self._stored(name)
        return self.weight(name).dequantize(torch.float32)

    def weight(self, name: str) -> Weight:
        """A matrix: stored as int32 [in / 8, out], handed out as int4.g32.sym has it, [out, in / 2] bytes."""
        if name in self._files:
            dense = self._stored(name)
            return Weight(DENSE, (dense.shape[0], dense.shape[1]), dense, dense.to)
        stem = name.removesuffix(".weight")
        words = self._stored(stem + PACKED)
        data = words.t().contiguous().view(torch.uint8)  # the lowest byte of a word comes first
        scales = self._stored(stem + SCALES).t().contiguous()
        shape = (data.shape[0], 2 * data.shape[1])
        return Weight(SCHEME, shape, data, partial(dequantize, data, scales), {"scales": scales})

    def close(self) -> None:
        """Unmap the files."""
        self._files.clear()

    def _stored(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor


def dequantize(data: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """data [out, in / 2] uint8, scales [out, in / 32] gives [out, in]."""
    codes = torch.stack((data & 15, data >> 4), dim=-1).flatten(1).to(torch.float32) - 8
    grouped = codes.view(len(codes), -1, 32) * scales.to(torch.float32)[:, :, None]
    return grouped.flatten(1).to(dtype)
