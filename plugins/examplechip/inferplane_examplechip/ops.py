"""The ops that the chip has a program for; core's reference runs the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from inferplane_examplechip.chip import require_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """As the schema rms_norm@1 says. x [T, ..., D] with T of the token buckets; other sizes raise InferplaneError."""
    require_compiled(x.shape[0])
    normalised = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], eps=eps)
    if offset == 0.0:
        return weight * normalised.to(x.dtype)
    return (normalised * (offset + weight.float())).to(x.dtype)


class ExampleChipOps:
    """Implements `inferplane_api.ops.OpProvider`."""

    def ops(self) -> Mapping[str, Callable[..., Any]]:
        """What the descriptor declares."""
        return {"rms_norm@1": rms_norm}


PROVIDER = ExampleChipOps()
