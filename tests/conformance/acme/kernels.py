"""Ops and the linear kernel of the made-up chip."""

import torch

from inferplane_api.reference import ops


def rms_norm(x, weight, eps, offset=0.0):
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * (weight.float() + offset)).to(x.dtype)


def silu_mul(x):
    gate, up = x.chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(x.dtype)


def kv_write(k, v, kv, slot_mapping):
    ops.kv_write(k, v, kv, slot_mapping)


class Provider:
    def ops(self):
        return {"rms_norm@1": rms_norm, "silu_mul@1": silu_mul, "kv_write@1": kv_write}


PROVIDER = Provider()


class Linear:
    def __init__(self, device, dtype):
        self.dtype = dtype

    def pack(self, weights):
        return [weight.dequantize(self.dtype) for weight in weights]

    def apply(self, x, packed, bias):
        y = torch.cat([x @ weight.T for weight in packed], dim=-1)
        return y if bias is None else y + bias
