"""GGUF metadata as a Hugging Face config; knows architectures, not tensors' bytes.

Key names as in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What files leave out is said where it is set.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

from inferplane_api.errors import InferplaneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inferplane_quantization.gguf_file import GGUFHeader

ROPE_FREQS = "rope_freqs.weight"
"""Per-frequency divisors, the way a file says rope scaling "llama3"."""

_F32 = 0
_FLOAT_TYPES = {0: "float32", 1: "float16", 30: "bfloat16"}

_END_OF_TURN_TOKENS = frozenset(
    ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>")
)
"""Control tokens that end a turn whether or not the file names them (many files name only one)."""
_UNKNOWN, _CONTROL = 2, 3

_SENTENCEPIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}
"""What old files with a SentencePiece vocabulary leave out, as llama.cpp fills it in."""

_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


class Metadata:
    """The values of one architecture: `get("block_count")` is `<architecture>.block_count`."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header = header
        self.values = header.metadata
        self.architecture = str(header.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default where the file has none."""
        return self.values.get(f"{self.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        """The value. Raises InferplaneError naming the key where the file has none."""
        value = self.get(key)
        if value is None:
            raise InferplaneError(
                f"{self.header.path} lacks the metadata {self.architecture}.{key}", code="gguf.metadata_missing"
            )
        return value


def hf_config(header: GGUFHeader, dtype: str, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    """The file's config.json. `rope_factors`: the values of tensor rope_freqs.weight, where there is one.

    Raises InferplaneError for an architecture that is not known, naming those that are.
    """
    meta = Metadata(header)
    describe = _ARCHITECTURES.get(meta.architecture)
    if describe is None:
        raise InferplaneError(
            f"{header.path} holds a model of architecture {meta.architecture!r}, which is not supported",
            code="gguf.architecture",
            remedy=f"supported in GGUF files: {', '.join(sorted(_ARCHITECTURES))}",
        )
    if meta.get("expert_count"):
        raise InferplaneError(
            f"{header.path} holds a mixture of experts ({meta.architecture}), which is not supported yet",
            code="gguf.architecture",
            remedy="use a dense model",
        )
    config = _common(meta, dtype) | describe(meta)
    scaling = _rope_scaling(meta, rope_factors, config["head_dim"], config["rope_theta"])
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config


def generation_config(header: GGUFHeader) -> dict[str, Any]:
    """The file's generation_config.json: end tokens, and the sampling values it recommends."""
    values = header.metadata
    config: dict[str, Any] = {
        ours: values[f"general.sampling.{theirs}"]
        for theirs, ours in _SAMPLING.items()
        if f"general.sampling.{theirs}" in values
    }
    if eos := eos_token_ids(values):
        config["eos_token_id"] = eos
    if (bos := special_id(values, "bos")) is not None:
        config["bos_token_id"] = bos
    return config


def special_id(values: dict[str, Any], role: str) -> int | None:
    """The id of the token with a role ("bos", "eos", "unknown", ...), or None."""
    stated = values.get(f"tokenizer.ggml.{role}_token_id")
    if stated is not None or values.get("tokenizer.ggml.model") != "llama":
        return stated
    usual = _SENTENCEPIECE_IDS.get(role)
    types = values.get("tokenizer.ggml.token_type") or []
    return usual if usual is not None and usual < len(types) and types[usual] in (_UNKNOWN, _CONTROL) else None


def eos_token_ids(values: dict[str, Any]) -> list[int]:
    """The tokens that end an answer, the file's own EOS first."""
    ids = [i for i in (special_id(values, role) for role in ("eos", "eot", "eom")) if i is not None]
    types = values.get("tokenizer.ggml.token_type") or []
    tokens = values.get("tokenizer.ggml.tokens") or []
    for index, kind in enumerate(types):
        if kind == _CONTROL and tokens[index] in _END_OF_TURN_TOKENS:
            ids.append(index)
    return list(dict.fromkeys(ids))


def weights_dtype(header: GGUFHeader) -> str:
    """The type to compute in: that of the plain matrices if all are plain, else bfloat16."""
    kinds = {t.ggml_type for t in header.tensors.values() if len(t.shape) > 1}
    return _FLOAT_TYPES.get(kinds.pop(), "bfloat16") if len(kinds) == 1 else "bfloat16"


def read_rope_factors(header: GGUFHeader) -> list[float] | None:
    """The values of rope_freqs.weight, or None where the file has none."""
    tensor = header.tensors.get(ROPE_FREQS)
    if tensor is None:
        return None
    if tensor.ggml_type != _F32 or len(tensor.shape) != 1:
        raise InferplaneError(f"{header.path}: {ROPE_FREQS} is not a float32 vector", code="gguf.rope_freqs")
    with header.path.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{tensor.shape[0]}f", file.read(4 * tensor.shape[0])))


def _common(meta: Metadata, dtype: str) -> dict[str, Any]:
    tensors, values = meta.header.tensors, meta.values
    num_heads, hidden = meta.need("attention.head_count"), meta.need("embedding_length")
    num_kv_heads = meta.get("attention.head_count_kv", num_heads)
    for name, count in (("head_count", num_heads), ("head_count_kv", num_kv_heads)):
        if not isinstance(count, int):
            raise InferplaneError(
                f"{meta.header.path}: attention.{name} differs from layer to layer, which is not supported",
                code="gguf.architecture",
            )
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise InferplaneError(f"{meta.header.path} has no tensor token_embd.weight", code="gguf.tensor_missing")
    eos = eos_token_ids(values)
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta.need("feed_forward_length"),
        "num_hidden_layers": meta.need("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": meta.get("attention.key_length", meta.get("rope.dimension_count", hidden // num_heads)),
        "max_position_embeddings": meta.need("context_length"),
        "rms_norm_eps": meta.need("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.get("rope.freq_base", 10000.0),
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": special_id(values, "bos"),
        "eos_token_id": eos[0] if len(eos) == 1 else (eos or None),
        "pad_token_id": values.get("tokenizer.ggml.padding_token_id"),
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def _llama(meta: Metadata) -> dict[str, Any]:
    window = meta.get("attention.sliding_window")
    shared = {"hidden_act": "silu", "mlp_bias": "blk.0.ffn_gate.bias" in meta.header.tensors}
    if window:
        return shared | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    return shared | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def _qwen2(meta: Metadata) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "use_sliding_window": False,
        "attention_bias": True,
    }


def _qwen3(meta: Metadata) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _gemma3(meta: Metadata) -> dict[str, Any]:
    num_layers, head_dim = meta.need("block_count"), meta.get("attention.key_length", 256)
    # The pattern, the local rope base and the query scale are constants of the family that most files leave out:
    # five sliding layers to one full, 1e4, and the head size, except hidden / heads in the 62-layer model.
    pattern = meta.get("attention.sliding_window_pattern", 6)
    query_scale = meta.need("embedding_length") // meta.need("attention.head_count") if num_layers == 62 else head_dim
    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": query_scale,
        "sliding_window": meta.need("attention.sliding_window"),
        "layer_types": _layer_types(pattern, num_layers),
        "rope_local_base_freq": meta.get("rope.freq_base_swa", 10000.0),
        "rope_theta": meta.get("rope.freq_base", 1000000.0),
        "attn_logit_softcapping": meta.get("attn_logit_softcapping"),
        "final_logit_softcapping": meta.get("final_logit_softcapping"),
        "head_dim": head_dim,
    }


def _layer_types(pattern: int | list[Any], num_layers: int) -> list[str]:
    """`pattern`: every n-th layer is full, or a flag per layer that is true for a sliding one."""
    sliding = (
        [bool(p) for p in pattern] if isinstance(pattern, list) else [(i + 1) % pattern != 0 for i in range(num_layers)]
    )
    return ["sliding_attention" if s else "full_attention" for s in sliding]


_ARCHITECTURES: dict[str, Callable[[Metadata], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}


def _rope_scaling(
    meta: Metadata, factors: Sequence[float] | None, head_dim: int, theta: float
) -> dict[str, Any] | None:
    if factors is not None:
        return llama3_scaling(factors, head_dim, theta)
    # Files from before 2024 say `rope.scale_linear`.
    kind = meta.get("rope.scaling.type", "linear" if meta.get("rope.scale_linear") else "none")
    factor = meta.get("rope.scaling.factor", meta.get("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise InferplaneError(
            f"{meta.header.path}: rope scaling {kind!r} is not supported in GGUF files",
            code="gguf.rope_scaling",
            remedy="supported: linear, yarn, and llama3 through rope_freqs.weight",
        )
    scaling = {"rope_type": "yarn", "factor": factor}
    optional = {
        "original_max_position_embeddings": "original_context_length",
        "attention_factor": "attn_factor",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    for ours, theirs in optional.items():
        if (value := meta.get(f"rope.scaling.{theirs}")) is not None:
            scaling[ours] = value
    return scaling


def llama3_scaling(factors: Sequence[float], head_dim: int, theta: float) -> dict[str, Any] | None:
    """The parameters of rope scaling "llama3" that give these divisors; None where all are 1.

    Divisor i is 1 / ((1 - s) / factor + s) with s = (original / wavelength_i - low) / (high - low), clamped to [0, 1].
    Only the ratios of (original, low, high) matter, so low is set to 1; s is linear in 1 / wavelength, and two divisors
    strictly between 1 and factor give the line. Raises InferplaneError where the divisors are of another kind.
    """
    if all(f == 1.0 for f in factors):
        return None
    factor = max(factors)
    inverse_wavelengths = [theta ** (-2 * i / head_dim) / (2 * math.pi) for i in range(len(factors))]
    smooth = [(1 / f - 1 / factor) / (1 - 1 / factor) for f in factors]
    between = [(w, s) for w, s in zip(inverse_wavelengths, smooth, strict=True) if 1e-3 < s < 1 - 1e-3]
    original, high = 8192.0, 4.0
    if len(between) > 1:
        (w0, s0), (w1, s1) = between[0], between[-1]
        slope = (s0 - s1) / (w0 - w1)
        offset = slope * w0 - s0
        original, high = (slope / offset, 1 + 1 / offset) if offset > 0 else (original, high)
    parameters: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": round(factor, 4),
        "low_freq_factor": 1.0,
        "high_freq_factor": round(high, 3),
        "original_max_position_embeddings": round(original),
    }
    for w, f in zip(inverse_wavelengths, factors, strict=True):
        s = min(
            max((parameters["original_max_position_embeddings"] * w - 1) / (parameters["high_freq_factor"] - 1), 0), 1
        )
        if not math.isclose(f, 1 / ((1 - s) / factor + s), rel_tol=1e-3):
            raise InferplaneError(
                f"{ROPE_FREQS} holds rope factors of a kind that is not supported",
                code="gguf.rope_freqs",
                remedy="supported: factors of rope scaling llama3",
            )
    return parameters
