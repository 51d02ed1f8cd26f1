"""The native kernels of one instruction set after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from inferplane_cpu.native import executor
from inferplane_cpu.native.library import instruction_sets


@pytest.fixture(params=instruction_sets())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each that this processor has, on two threads."""
    threads = torch.get_num_threads()
    executor.configure(2, isa=request.param)
    yield request.param
    executor.configure(1)
    torch.set_num_threads(threads)
