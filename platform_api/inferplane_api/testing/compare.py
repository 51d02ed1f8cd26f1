"""Compares tensors and says in words how they differ; knows no op."""

from __future__ import annotations

from typing import Any

import torch


def difference(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> str:
    """The largest error, in words; "" when every element of `got` is within atol + rtol * |want|.

    Both are looked at in float64 on the host; NaN and infinities must be in the same places.
    """
    if got.shape != want.shape:
        return f"its shape is {list(got.shape)}, not {list(want.shape)}"
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    close = torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    if bool(close.all()):
        return ""
    wrong = int((~close).sum())
    if int((~torch.isfinite(got) & torch.isfinite(want)).sum()):
        return f"{wrong} of {got.numel()} elements are wrong, some not finite"
    error = float((got - want)[~close].abs().nan_to_num(posinf=float("inf")).max())
    return f"max error {error:.3g} in {wrong} of {got.numel()} elements, allowed {atol:g} + {rtol:g} x |value|"


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a result: one, or those of a tuple or list."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [item for item in value if isinstance(item, torch.Tensor)]
    return []


def describe(arguments: dict[str, Any]) -> str:
    """Arguments as a message shows them: "x[3, 64], eps=1e-06"."""
    parts = []
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            parts.append(f"{name}{list(value.shape)}")
        elif isinstance(value, (bool, int, float)) or value is None:
            parts.append(f"{name}={value}")
    return ", ".join(parts)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True when two tensors of one shape and type hold the same bits, NaN included."""
    return torch.equal(a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8))
