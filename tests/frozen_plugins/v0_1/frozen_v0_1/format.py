"""Folders whose matrices are stored twice as large as they are: float32, handed out as bytes."""

from __future__ import annotations

import json

from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.quant import DENSE, QuantScheme, Weight

SCHEME = QuantScheme(name="frozen_v0_1.raw", bits=32, group_size=0, symmetric=True, scale_dtype="float32")


class RawFormat:
    """Implements `inferplane_api.checkpoint.WeightFormat`."""

    def __init__(self):
        pass

    def card(self, path, cache):
        tokenizer = path / "tokenizer.json"
        return CheckpointCard(
            config=json.loads((path / "config.json").read_text()),
            generation_config={},
            tokenizer_json=str(tokenizer) if tokenizer.exists() else None,
            tokenizer_config={},
            chat_template=None,
            files=tuple(str(file) for file in sorted(path.glob("*.safetensors"))),
        )

    def open(self, path):
        return _RawCheckpoint(path / "model.safetensors")


class _RawCheckpoint:
    def __init__(self, file):
        from safetensors import safe_open

        self._file = safe_open(file, framework="pt", device="cpu")

    def names(self):
        return list(self._file.keys())

    def tensor(self, name):
        if name not in self.names():
            raise KeyError(name)
        return self._file.get_tensor(name)

    def weight(self, name):
        import torch

        stored = self.tensor(name)
        shape = tuple(stored.shape)
        if ".layers." not in name:
            return Weight(scheme=DENSE, shape=shape, data=stored, dequantize=stored.to)
        return Weight(
            scheme=SCHEME,
            shape=shape,
            data=stored.contiguous().view(torch.uint8).reshape(shape[0], -1),
            dequantize=lambda dtype: (stored / 2).to(dtype),
            extras={"gain": torch.tensor(2.0)},
        )

    def close(self):
        self._file = None
