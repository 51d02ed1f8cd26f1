"""Area "runtime": streams, events, and an end without complaint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane_api.testing.case import Case, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

SIZE = 1 << 16


def cases(declarations: Declarations) -> list[Case]:
    """Of a platform on whose device something can run."""
    if declarations.plugin is not declarations.owner or not declarations.present:
        return []
    name = declarations.platform
    return [
        _case("streams", f"{name} gives streams, events and synchronize", _check_streams),
        _case("close", f"{name} closes its platform and makes another one", _check_close),
    ]


def _case(name: str, claim: str, run: Callable[[Kit], None]) -> Case:
    return Case(area="runtime", name=name, level="core", claim=claim, run=run)


def _check_streams(kit: Kit) -> None:
    """What a side stream computed before an event is there when the event, or the device, has been waited for."""
    import torch

    runtime = kit.platform().runtime
    x = torch.arange(SIZE, dtype=torch.float32).to(kit.torch_device)
    out = torch.zeros_like(x)
    runtime.synchronize()
    for wait_for_all in (False, True):
        out.zero_()
        runtime.synchronize()
        with runtime.stream():
            event = runtime.event()
            out.copy_(x * 2 + 1)
            event.record()
        if wait_for_all:
            runtime.synchronize()
        else:
            event.synchronize()
        waited = "synchronize()" if wait_for_all else "its event"
        done = torch.equal(out.cpu(), torch.arange(SIZE, dtype=torch.float32) * 2 + 1)
        require(done, f"{kit.spec.name}: work of a stream is not done when {waited} has been waited for")


def _check_close(kit: Kit) -> None:
    """An engine that ends closes its platform, and a process may make another one after that."""
    import torch

    kit.platform()
    kit.close()
    x = torch.ones(3, device=kit.torch_device)
    kit.platform().runtime.synchronize()
    require(float((x + 1).sum()) == 6.0, f"{kit.spec.name}: after a close, another platform computes 1 + 1 wrong")
