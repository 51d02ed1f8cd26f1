"""One op."""

from __future__ import annotations


def rms_norm(x, weight, eps, offset=0.0):
    wide = x.float()
    normalised = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (normalised * (offset + weight.float())).to(x.dtype)


class _Provider:
    def ops(self):
        return {"rms_norm@1": rms_norm}


PROVIDER = _Provider()
