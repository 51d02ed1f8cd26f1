"""Records to select from, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferplane.plugins.records import Found, FoundPlatform
from inferplane_api.model import LayerSpec, ModelSpec
from inferplane_api.spec import (
    AttentionSpec,
    DeviceInfo,
    Evidence,
    HostInfo,
    KernelSpec,
    PciDevice,
    PlatformSpec,
    ProbeResult,
    ProbeState,
    Reason,
)

DTYPES = frozenset({"float32", "bfloat16", "float16"})
FEATURES = frozenset({"in_place_kv_write"})


@pytest.fixture(scope="session")
def make_platform() -> Callable[..., FoundPlatform]:
    """make(name, state, tier=..., on_host=..., reasons=..., described=...) by "<name>-dist" 1.2."""

    def make(
        name: str,
        state: str = "PRESENT",
        *,
        tier: int = 5,
        on_host: bool | None = False,
        reasons: tuple[Reason, ...] = (),
        described: bool = True,
        vendor: int | None = None,
        distribution: str | None = None,
        device: DeviceInfo | None = None,
        **spec: Any,
    ) -> FoundPlatform:
        present = state == "PRESENT"
        device = device or DeviceInfo(name=f"{name} device", dtypes=DTYPES, features=FEATURES)
        evidence = Evidence(pci_vendors=(vendor,) if vendor is not None else ())
        return FoundPlatform(
            name=name,
            distribution=distribution or f"{name}-dist",
            version="1.2",
            spec=PlatformSpec(name=name, load="m:P", probe="m:p", tier=tier, evidence=evidence, **spec)
            if described
            else None,
            result=ProbeResult(
                state=ProbeState(state),
                devices=(device,) if present else (),
                reasons=reasons if present or reasons else (Reason(code=f"{name}.reason", hint=f"fix {name}"),),
            ),
            on_host=on_host,
        )

    return make


@pytest.fixture(scope="session")
def make_host() -> Callable[..., HostInfo]:
    """make((vendor, class), ...) is a host with these devices on its bus."""

    def make(*devices: tuple[int, int]) -> HostInfo:
        listed = tuple(
            PciDevice(address=str(index), vendor=vendor, device=1, pci_class=pci_class << 16)
            for index, (vendor, pci_class) in enumerate(devices)
        )
        return HostInfo(os="linux", machine="x86_64", pci_devices=listed, torch_version="2.13.0")

    return make


@pytest.fixture(scope="session")
def make_attention() -> Callable[..., Found[AttentionSpec]]:
    """make(id, **fields) is a backend that takes everything unless a field says less."""

    def make(id: str, **fields: Any) -> Found[AttentionSpec]:
        defaults: dict[str, Any] = {
            "load": f"{id}:A",
            "platforms": frozenset({"*"}),
            "kinds": frozenset({"full", "sliding"}),
            "dtypes": DTYPES,
            "kv_dtypes": DTYPES,
            "features": frozenset({"softcap", "sinks"}),
        }
        spec = AttentionSpec(id=id, **{**defaults, **fields})
        return Found(spec=spec, distribution=f"{id.partition('.')[0]}-dist", version="1.2")

    return make


@pytest.fixture(scope="session")
def make_kernel() -> Callable[..., Found[KernelSpec]]:
    """make(id, kind, **fields) is a kernel that runs anywhere unless a field says less."""

    def make(id: str, kind: str, **fields: Any) -> Found[KernelSpec]:
        defaults: dict[str, Any] = {"load": f"{id}:K", "platforms": frozenset({"*"}), "dtypes": DTYPES}
        spec = KernelSpec(id=id, kind=kind, **{**defaults, **fields})
        return Found(spec=spec, distribution=f"{id.partition('.')[0]}-dist", version="1.2")

    return make


@pytest.fixture(scope="session")
def make_model() -> Callable[..., ModelSpec]:
    """make(layers, **fields); a layer is a LayerSpec."""

    def make(layers: tuple[LayerSpec, ...], **fields: Any) -> ModelSpec:
        defaults: dict[str, Any] = {
            "model_type": "llama",
            "architecture": "LlamaForCausalLM",
            "num_layers": len(layers),
            "hidden_size": 64,
            "intermediate_size": 128,
            "vocab_size": 100,
            "max_position": 4096,
            "dtype": "bfloat16",
        }
        return ModelSpec(layers=layers, **{**defaults, **fields})

    return make


@pytest.fixture(scope="session")
def gemma_layers() -> tuple[LayerSpec, ...]:
    """The 18 layers of Gemma 3 270M: every sixth sees all tokens, the others 512."""
    sliding = LayerSpec(kind="sliding", num_heads=4, num_kv_heads=1, head_size=256, window=512)
    full = LayerSpec(kind="full", num_heads=4, num_kv_heads=1, head_size=256)
    return tuple(full if index % 6 == 5 else sliding for index in range(18))
