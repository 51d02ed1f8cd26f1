"""The platform: torch on the host."""

from __future__ import annotations

import os
from contextlib import nullcontext

import torch

from inferplane_api.errors import InvalidValue


class _Event:
    def record(self):
        pass

    def synchronize(self):
        pass


class _Runtime:
    def activate(self):
        pass

    def event(self):
        return _Event()

    def stream(self):
        return nullcontext()

    def synchronize(self):
        pass


class _Memory:
    def free(self):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    def total(self):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def peak(self):
        return 0

    def reset_peak(self):
        pass

    def pinned(self, shape, dtype):
        return torch.empty(tuple(shape), dtype=dtype)

    def region(self, tag):
        return nullcontext()


class FrozenPlatform:
    """Implements `inferplane_api.platform.Platform`."""

    def __init__(self, context):
        if context.options["gain"] != 1.0:
            raise InvalidValue("gain", context.options["gain"], "must be 1", remedy="leave it out")
        self.device = torch.device("cpu")
        self.runtime = _Runtime()
        self.memory = _Memory()
        if context.num_threads is not None:
            torch.set_num_threads(context.num_threads)

    def communicator(self, group):
        return None

    def graphs(self):
        return None

    def create_runner(self, context):
        return None

    def close(self):
        pass
