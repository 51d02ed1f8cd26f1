"""The made-up chip: the host's processor."""

from contextlib import nullcontext

import psutil
import torch


class Event:
    def record(self):
        pass

    def synchronize(self):
        pass


class Runtime:
    def activate(self):
        pass

    def event(self):
        return Event()

    def stream(self):
        return nullcontext()

    def synchronize(self):
        pass


class Memory:
    """The host's."""

    most = 0

    def free(self):
        return psutil.virtual_memory().available

    def total(self):
        return psutil.virtual_memory().total

    def peak(self):
        self.most = max(self.most, psutil.Process().memory_info().rss)
        return self.most

    def reset_peak(self):
        self.most = 0

    def pinned(self, shape, dtype):
        return torch.empty(tuple(shape), dtype=dtype)

    def region(self, tag):
        return nullcontext()


class Graphs:
    def capture(self, key, function):
        return function


class Platform:
    def __init__(self, context):
        self.device = torch.device("cpu")
        self.runtime = Runtime()
        self.memory = Memory()

    def communicator(self, group):
        return None

    def graphs(self):
        return Graphs()

    def create_runner(self, context):
        return None

    def close(self):
        pass
