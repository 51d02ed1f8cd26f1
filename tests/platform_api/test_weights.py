"""The kit's random weights in ggml's formats, unpacked by the `gguf` package."""

from __future__ import annotations

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType

from inferplane_api.testing.weights_ggml import GENERATORS


@pytest.mark.parametrize("scheme", GENERATORS)
def test_what_is_packed_is_what_was_drawn(scheme: str) -> None:
    weight = GENERATORS[scheme](7, 512, torch.Generator().manual_seed(1), torch.float32)
    kind = GGMLQuantizationType[scheme.removeprefix("ggml.").upper()]
    found = torch.from_numpy(gguf.quants.dequantize(weight.data.numpy(), kind))
    torch.testing.assert_close(found.double(), weight.dequantize(torch.float64), rtol=1e-5, atol=1e-7)
    assert weight.scheme.name == scheme
    assert weight.shape == (7, 512)
