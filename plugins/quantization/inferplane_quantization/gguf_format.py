"""GGUF as a checkpoint format: the card from the metadata, the tensors from the mapped file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane_api.checkpoint import CheckpointCard
from inferplane_quantization import gguf_config, gguf_tokenizer
from inferplane_quantization.gguf_file import read_header, split_files

if TYPE_CHECKING:
    from pathlib import Path

    from inferplane_api.checkpoint import Checkpoint
    from inferplane_quantization.gguf_file import GGUFHeader

_TOKENS = "tokenizer.ggml.tokens"


class GGUFFormat:
    """Reads one GGUF file, or the parts of a split one when given any of them."""

    def card(self, path: Path, cache: Path) -> CheckpointCard:
        """The model's config, tokenizer (written to `cache`) and chat template. Imports no torch.

        Raises InferplaneError naming the file and what is not supported or wrong.
        """
        files = split_files(path)
        headers = [read_header(file) for file in files]
        header = _merge_tables(headers)
        values = header.metadata
        dtype = gguf_config.weights_dtype(header)
        config = gguf_config.hf_config(header, dtype, _rope_factors(headers))
        tokenizer = None
        if _TOKENS in values and values.get("tokenizer.ggml.model") != "no_vocab":
            cache.mkdir(parents=True, exist_ok=True)
            tokenizer = cache / "tokenizer.json"
            gguf_tokenizer.write_tokenizer_json(values, path, tokenizer)
        return CheckpointCard(
            config=config,
            generation_config=gguf_config.generation_config(header),
            tokenizer_json=str(tokenizer) if tokenizer else None,
            tokenizer_config=gguf_tokenizer.tokenizer_config(values, path) if tokenizer else {},
            chat_template=gguf_tokenizer.chat_template(values),
            files=tuple(str(file) for file in files),
        )

    def open(self, path: Path) -> Checkpoint:
        """Map the weights. Raises InferplaneError for a tensor that the architecture does not have."""
        from inferplane_quantization.gguf_checkpoint import GGUFCheckpoint

        return GGUFCheckpoint(split_files(path))


def _merge_tables(headers: list[GGUFHeader]) -> GGUFHeader:
    """The metadata of the first part with the tensors of all."""
    tensors = {name: tensor for header in headers for name, tensor in header.tensors.items()}
    return headers[0]._replace(tensors=tensors)


def _rope_factors(headers: list[GGUFHeader]) -> list[float] | None:
    """Read before the tables are merged: a tensor's offset is one in its own part."""
    return next((f for f in map(gguf_config.read_rope_factors, headers) if f is not None), None)
