"""Which types the processor multiplies with instructions of its own; reads flags, imports no torch."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Processor flags (x86, ARM) that mean bfloat16 products at more than float32's speed."""

FLOAT16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "asimdhp"})
"""The same for float16."""

_FLAGS_OF = {"bfloat16": BFLOAT16_FLAGS, "float16": FLOAT16_FLAGS}


def multiplies_natively(dtype: str, flags: Set[str]) -> bool:
    """True for float32, and for a 16-bit type that has instructions; without them torch emulates the product."""
    return dtype not in _FLAGS_OF or bool(_FLAGS_OF[dtype] & flags)


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Flags of the first processor; empty where the host does not list them."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()
