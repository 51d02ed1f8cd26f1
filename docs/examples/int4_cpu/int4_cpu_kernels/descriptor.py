"""What this package offers, as data; imports nothing heavy."""

from __future__ import annotations

from inferplane_api.spec import KernelSpec

LINEAR = KernelSpec(
    id="int4cpu.linear",
    kind="linear",
    load="int4_cpu_kernels.linear:Int4Linear",
    platforms=frozenset({"cpu"}),
    schemes=("int4.g32.sym",),
    dtypes=frozenset({"float32", "bfloat16", "float16"}),
    score=50,
)
