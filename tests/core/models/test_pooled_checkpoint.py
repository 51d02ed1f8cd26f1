"""Which of a checkpoint's tensors a model sees that only pools."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from inferplane.layers.loading import pooled_checkpoint

DECODER: Any = SimpleNamespace(layers=(SimpleNamespace(kind="full"), SimpleNamespace(kind="sliding")))
ENCODER: Any = SimpleNamespace(layers=(SimpleNamespace(kind="encoder"),))


class Names:
    """A checkpoint of scalars that tell their own names."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def names(self) -> tuple[str, ...]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        return torch.tensor(self._names.index(name))


def seen(spec: Any, *names: str) -> dict[str, str]:
    """Name to the checkpoint's own name of it."""
    checkpoint: Any = Names(*names)
    found = pooled_checkpoint(spec, checkpoint)
    return {name: names[int(found.tensor(name))] for name in found.names()}


def test_a_whole_decoder_loses_its_output_matrix() -> None:
    names = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    assert seen(DECODER, *names) == {name: name for name in names[:2]}


def test_a_bare_decoder_gets_the_names_of_a_whole_one() -> None:
    assert seen(DECODER, "embed_tokens.weight", "layers.0.mlp.up_proj.weight") == {
        "model.embed_tokens.weight": "embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight": "layers.0.mlp.up_proj.weight",
    }


def test_an_encoder_is_left_as_it_is() -> None:
    assert seen(ENCODER, "embeddings.word_embeddings.weight", "lm_head.weight") == {
        "embeddings.word_embeddings.weight": "embeddings.word_embeddings.weight",
        "lm_head.weight": "lm_head.weight",
    }
