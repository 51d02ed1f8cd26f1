"""The settings of torch that a whole process shares and no plugin may leave changed; knows no plugin."""

from __future__ import annotations

import sys
from typing import Any


class TorchState:
    """A snapshot. Empty while nothing has imported torch.

    The number of threads is not part of it: a platform that computes on the host sets it.
    """

    def __init__(self) -> None:
        self._torch: Any = sys.modules.get("torch")
        self._values = self._read()

    def _read(self) -> dict[str, Any]:
        torch = self._torch
        if torch is None:
            return {}
        return {
            "default dtype": torch.get_default_dtype(),
            "default device": torch.get_default_device(),
            "gradient mode": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "random state": torch.get_rng_state().numpy().tobytes(),
        }

    def restore_and_tell(self) -> list[str]:
        """What has changed since, in words; put back where that is possible, so that it is told once."""
        now = self._read()
        changed = [name for name, value in self._values.items() if now[name] != value]
        if "default dtype" in changed:
            self._torch.set_default_dtype(self._values["default dtype"])
        if "default device" in changed:
            self._torch.set_default_device(self._values["default device"])
        if "gradient mode" in changed:
            self._torch.set_grad_enabled(self._values["gradient mode"])
        if "deterministic algorithms" in changed:
            self._torch.use_deterministic_algorithms(self._values["deterministic algorithms"])
        if "random state" in changed:
            state = self._torch.frombuffer(bytearray(self._values["random state"]), dtype=self._torch.uint8)
            self._torch.set_rng_state(state)
        return [
            f"the {name}" if name == "random state" else f"the {name} from {self._values[name]} to {now[name]}"
            for name in changed
        ]
