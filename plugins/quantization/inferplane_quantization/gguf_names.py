"""From GGUF tensor names to Hugging Face ones, and what llama.cpp's converter did to the values; reads no bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from inferplane_api.errors import InferplaneError
from inferplane_quantization.gguf_config import ROPE_FREQS, Metadata

if TYPE_CHECKING:
    from inferplane_quantization.gguf_file import GGUFHeader

Undo = Literal["nothing", "permutation", "plus_one"]


class Source(NamedTuple):
    """Where a Hugging Face tensor comes from."""

    name: str
    """In the GGUF file."""
    undo: Undo
    """"permutation": rows of a head alternate between its halves (rotary pairs (2i, 2i + 1) instead of (i, i + half)).
    "plus_one": the norm's weight was stored as 1 + w."""
    num_heads: int = 0
    """With undo "permutation"."""


_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class _Rules(NamedTuple):
    layer: dict[str, str] = _LAYER
    permuted: frozenset[str] = frozenset()
    plus_one: bool = False


_RULES = {
    "llama": _Rules(permuted=frozenset(("attn_q", "attn_k"))),
    "qwen2": _Rules(),
    "qwen3": _Rules(),
    "gemma3": _Rules(layer=_GEMMA3_LAYER, plus_one=True),
}

_NAME = re.compile(r"^(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)$")


def tensor_sources(header: GGUFHeader) -> dict[str, Source]:
    """Hugging Face name to source, for all tensors.

    Raises InferplaneError naming a tensor that the architecture does not have: left out, it would change the results.
    """
    meta = Metadata(header)
    rules = _RULES.get(meta.architecture)
    if rules is None:
        raise InferplaneError(
            f"{header.path} holds a model of architecture {meta.architecture!r}, which is not supported",
            code="gguf.architecture",
            remedy=f"supported in GGUF files: {', '.join(sorted(_RULES))}",
        )
    num_heads = meta.need("attention.head_count")
    heads = {"attn_q": num_heads, "attn_k": meta.get("attention.head_count_kv", num_heads)}
    sources = {}
    for name in header.tensors:
        if name == ROPE_FREQS:
            continue
        match = _NAME.match(name)
        module = match["module"] if match else ""
        table = rules.layer if match and match["layer"] else _TOP
        if match is None or module not in table:
            raise InferplaneError(
                f"{header.path}: architecture {meta.architecture!r} has no tensor {name!r}", code="gguf.tensor_unknown"
            )
        target = f"{table[module]}.{match['kind']}"
        if match["layer"]:
            target = f"model.layers.{match['layer']}.{target}"
        if module in rules.permuted:
            sources[target] = Source(name, "permutation", heads[module])
        elif rules.plus_one and module.endswith("norm"):
            sources[target] = Source(name, "plus_one")
        else:
            sources[target] = Source(name, "nothing")
    return sources
