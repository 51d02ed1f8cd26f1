"""A linear kernel for plain weights and for this plugin's own scheme."""

from __future__ import annotations

import torch


class RawLinear:
    """Implements `inferplane_api.quant.LinearKernel`."""

    def __init__(self, device, dtype):
        self._device = device
        self._dtype = dtype

    def pack(self, weights):
        parts = []
        for weight in weights:
            if weight.scheme.name == "dense":
                parts.append(weight.data.to(self._device, self._dtype))
            else:
                raw = weight.data.view(torch.float32).reshape(weight.shape)
                parts.append((raw / weight.extras["gain"]).to(self._device, self._dtype))
        return torch.cat(parts)

    def apply(self, x, packed, bias):
        y = x @ packed.t()
        return y if bias is None else y + bias
