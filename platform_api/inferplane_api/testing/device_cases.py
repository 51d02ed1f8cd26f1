"""Area "graphs": a captured function gives what an eager one gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane_api.testing.case import Case, NotTested, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

CAPTURE = "graph_capture"
SIZES = (1, 8)


def graph_cases(declarations: Declarations) -> list[Case]:
    """One case where capture is declared."""
    probe = declarations.probe
    if declarations.plugin is not declarations.owner or probe is None or not declarations.present:
        return []
    name = declarations.platform
    if CAPTURE not in probe.devices[0].features:
        return [_case("graphs", "capture", f"{name} captures graphs", "full", _not_declared)]
    return [_case("graphs", "capture", f"{name} declares {CAPTURE}", "full", _check_capture)]


def _case(area: str, name: str, claim: str, level: str, run: Callable[[Kit], None]) -> Case:
    return Case(area=area, name=name, level=level, claim=claim, run=run)


def _not_declared(kit: Kit) -> None:
    raise NotTested(f"the device does not declare {CAPTURE}")


def _check_capture(kit: Kit) -> None:
    import torch

    graphs = kit.platform().graphs()
    if graphs is None:
        require(False, f"{kit.spec.name} declares {CAPTURE} and graphs() gives None")
        return
    for size in kit.spec.scheduling.token_buckets or SIZES:
        x = torch.zeros((size, 16), device=kit.torch_device)
        out = torch.zeros_like(x)

        def function(x: torch.Tensor = x, out: torch.Tensor = out) -> None:
            out.copy_(torch.tanh(x * 2 + 1).cumsum(-1))

        replay = graphs.capture((size,), function)
        for seed in range(3):
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
            function()
            kit.platform().runtime.synchronize()
            eager = out.clone()
            out.zero_()
            replay()
            kit.platform().runtime.synchronize()
            same = torch.allclose(out.cpu(), eager.cpu(), rtol=1e-6, atol=1e-6)
            require(same, f"{kit.spec.name} declares {CAPTURE} and a replay with new inputs differs from eager")
