"""Folders with config.json and safetensors files whose matrices are 4-bit integers with a scale for 32 inputs.

A matrix NAME.weight [out, in] is stored as NAME.qweight, int32 [in / 8, out], whose word w of column o holds weights
8 w ... 8 w + 7 of output o from the lowest four bits upwards, each plus 8; and NAME.scales, float16 [in / 32, out].
Knows no device.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.errors import InferplaneError

if TYPE_CHECKING:
    from pathlib import Path

    from acme4_checkpoints.weights import Acme4Checkpoint

GROUP_SIZE = 32


class Acme4Format:
    """Implements `inferplane_api.checkpoint.WeightFormat`. The path is the folder."""

    def __init__(self) -> None:
        pass

    def card(self, path: Path, cache: Path) -> CheckpointCard:
        """What is known without the weights; runs in a child process and imports no torch."""
        config = _read(path / "config.json")
        group_size = config["quantization_config"].get("group_size", GROUP_SIZE)
        if group_size != GROUP_SIZE:
            raise InferplaneError(
                f"{path / 'config.json'}: acme4 has groups of {GROUP_SIZE} weights, this one says {group_size}",
                code="acme4.group_size",
                remedy=f"quantize the model again with group_size={GROUP_SIZE}",
            )
        tokenizer = path / "tokenizer.json"
        settings = _read(path / "tokenizer_config.json", optional=True)
        return CheckpointCard(
            config=config,
            generation_config=_read(path / "generation_config.json", optional=True),
            tokenizer_json=str(tokenizer) if tokenizer.is_file() else None,
            tokenizer_config=settings,
            chat_template=settings.get("chat_template"),
            files=tuple(str(file) for file in sorted(path.glob("*.safetensors"))),
        )

    def open(self, path: Path) -> Acme4Checkpoint:
        """The weights, in the engine process."""
        from acme4_checkpoints.weights import Acme4Checkpoint

        return Acme4Checkpoint(sorted(path.glob("*.safetensors")))


def _read(file: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not file.is_file():
        return {}
    try:
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InferplaneError(f"{file}: {error}", code="checkpoint.bad_file", remedy="fetch the model again") from error
    return value
