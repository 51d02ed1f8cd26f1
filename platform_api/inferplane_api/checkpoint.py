"""What a checkpoint format supplies: the model's card without torch, and its tensors with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

    from inferplane_api.quant import Weight


class CheckpointCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a model needs besides its weights, in Hugging Face terms. Made in a child process, cached as JSON."""

    config: dict[str, Any]
    """As config.json would have it."""
    generation_config: dict[str, Any] = {}
    tokenizer_json: str | None = None
    """Path of a tokenizer.json that the `tokenizers` library loads; None: the checkpoint has no tokenizer."""
    tokenizer_config: dict[str, Any] = {}
    """As tokenizer_config.json: bos_token, eos_token, add_bos_token, chat_template, ..."""
    chat_template: str | None = None
    sentence_transformers: dict[str, Any] = {}
    """What sentence-transformers keeps beside the model, by path in it: "modules.json", "1_Pooling/config.json",
    "sentence_bert_config.json". Empty where the checkpoint is none of its own."""
    files: tuple[str, ...] = ()
    """Paths of the weight files."""


@runtime_checkable
class Checkpoint(Protocol):
    """An opened checkpoint in the engine process. Tensor names are those of the Hugging Face implementation."""

    def names(self) -> Iterable[str]:
        """All tensor names."""

    def tensor(self, name: str) -> torch.Tensor:
        """A plain tensor of any rank, dequantized where needed; a view of the mapped file where possible.
        Raises KeyError for a name that is not there."""

    def weight(self, name: str) -> Weight:
        """A 2-D weight in its own scheme. Raises KeyError."""

    def close(self) -> None:
        """The model has its weights. Tensors that were given stay valid, and their mapping with them, but nobody has
        written to them, so that the pages of the mapping may leave the process's memory until they are read again."""


@runtime_checkable
class WeightFormat(Protocol):
    """Reads a checkpoint's layout; knows no device."""

    def __init__(self) -> None: ...

    def card(self, path: Path, cache: Path) -> CheckpointCard:
        """Read config and tokenizer; imports no torch. Derived files go to `cache`, a folder of this checkpoint's own.
        Raises InferplaneError naming the file and what is wrong with it."""

    def open(self, path: Path) -> Checkpoint:
        """Map the weights."""
