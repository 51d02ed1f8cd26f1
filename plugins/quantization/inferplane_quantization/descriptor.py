"""What this distribution offers, as data; imports nothing heavy."""

from __future__ import annotations

from inferplane_api.spec import WeightFormatSpec

GGUF = WeightFormatSpec(
    id="gguf.file",
    load="inferplane_quantization.gguf_format:GGUFFormat",
    name="gguf",
    file_suffixes=(".gguf",),
    aliases=("ggml",),
)
