"""Reads what selection and memory planning need out of a model's config.json; imports no torch, reads no weights.

Defaults of absent fields are those of the Hugging Face config classes.
"""

from __future__ import annotations

from typing import Any

from inferplane.layers.activations import gated_op
from inferplane.layers.rope_parameters import RopeParameters, rope_parameters
from inferplane.models.fields import Fields
from inferplane_api.errors import InvalidValue
from inferplane_api.model import LayerSpec, ModelSpec

_ROTARY_DEFAULTS: dict[str, tuple[int, int | None]] = {
    "llama": (2048, None),
    "mistral": (131_072, None),
    "qwen2": (32_768, None),
    "qwen3": (32_768, 128),
    "gemma3_text": (131_072, 256),
}
"""Per model type: max_position_embeddings, and head_dim (None: hidden_size / num_attention_heads)."""

_GEMMA3_THETA = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}


def llama(config: dict[str, Any]) -> ModelSpec:
    """Every layer sees all tokens."""
    fields = Fields(config)
    layer = _layer(fields, num_kv_heads=None)
    qkv_and_output = bool(config.get("attention_bias", False))
    biases = _biases(fields, layer, qkv=qkv_and_output, output=qkv_and_output, mlp=bool(config.get("mlp_bias", False)))
    return _spec(fields, [layer] * fields.integer("num_hidden_layers"), extra=biases, eos=2, bos=1)


def mistral(config: dict[str, Any]) -> ModelSpec:
    """Every layer sees a window, or all tokens where `sliding_window` is null; transformers' default is 4096."""
    fields = Fields(config)
    layer = _layer(fields, num_kv_heads=8, window=fields.optional_integer("sliding_window", 4096))
    return _spec(fields, [layer] * fields.integer("num_hidden_layers"), eos=2, bos=1)


def qwen2(config: dict[str, Any]) -> ModelSpec:
    """With `use_sliding_window`, layers from `max_window_layers` on (or as `layer_types` says) see a window."""
    fields = Fields(config)
    layers = _qwen_layers(fields)
    return _spec(fields, layers, extra=_biases(fields, layers[0], qkv=True))


def qwen3(config: dict[str, Any]) -> ModelSpec:
    """As Qwen 2; queries and keys are normalised per head."""
    fields = Fields(config)
    layers = _qwen_layers(fields)
    bias = bool(config.get("attention_bias", False))
    extra = _biases(fields, layers[0], qkv=bias, output=bias) + 2 * layers[0].head_size
    return _spec(fields, layers, extra=extra)


def gemma3_text(config: dict[str, Any]) -> ModelSpec:
    """Layers that see a window and, every `sliding_window_pattern`-th, layers that see all tokens."""
    config = gemma3_text_config(config)
    fields = Fields(config)
    if config.get("use_bidirectional_attention"):
        raise InvalidValue("use_bidirectional_attention", True, "bidirectional Gemma 3 models are not supported")
    softcap = config.get("attn_logit_softcapping")
    scale = fields.number("query_pre_attn_scalar", 256.0) ** -0.5
    window = fields.optional_integer("sliding_window", 4096)
    pattern = fields.integer("sliding_window_pattern", 6)
    num_layers = fields.integer("num_hidden_layers")
    types = fields.layer_types(num_layers)
    types = types or ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(num_layers)]
    layers = [
        _layer(fields, num_kv_heads=4, window=window if kind == "sliding_attention" else None, scale=scale, cap=softcap)
        for kind in types
    ]
    bias = bool(config.get("attention_bias", False))
    norms = 2 * fields.integer("hidden_size") + 2 * layers[0].head_size
    extra = norms + _biases(fields, layers[0], qkv=bias, output=bias)
    return _spec(fields, layers, extra=extra, eos=1, bos=2, tied=True)


def gemma3_text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The text part of a Gemma 3 config: of "gemma3" (text and vision) the `text_config` and what stands above it.

    What the whole model says about its vocabulary and weights counts more than what its text part says.
    """
    if config.get("model_type") != "gemma3":
        return config
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise InvalidValue("text_config", text, "must be an object: it describes the language model")
    inherited = ("dtype", "torch_dtype", "eos_token_id", "bos_token_id", "tie_word_embeddings", "quantization_config")
    above = {name: config[name] for name in inherited if config.get(name) is not None}
    return {**text, **above, "model_type": "gemma3_text", "architectures": config.get("architectures")}


def rope_of(config: dict[str, Any], layer_type: str | None = None) -> RopeParameters:
    """The rotary parameters of a model type that this module describes.

    For Gemma 3 they differ by layer type: before transformers 5, `rope_local_base_freq` was the base of the sliding
    layers and `rope_theta` and `rope_scaling` were about the full ones.
    """
    fields = Fields(config)
    max_position, _ = _ROTARY_DEFAULTS[config["model_type"]]
    max_position = fields.integer("max_position_embeddings", max_position)
    if config["model_type"] != "gemma3_text":
        return rope_parameters(config, head_size=_head_size(fields), max_position=max_position)
    layer_type = layer_type or "full_attention"
    if layer_type == "sliding_attention":
        nested = {k: v for k, v in (config.get("rope_parameters") or {}).items() if k == layer_type}
        config = {"rope_theta": config.get("rope_local_base_freq"), "rope_parameters": nested}
    return rope_parameters(
        config,
        head_size=_head_size(fields),
        max_position=max_position,
        layer_type=layer_type,
        default_theta=_GEMMA3_THETA[layer_type],
    )


def _head_size(fields: Fields) -> int:
    _, default = _ROTARY_DEFAULTS[fields.text("model_type")]
    hidden, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_size = fields.optional_integer("head_dim", default)
    if head_size is not None:
        return head_size
    if hidden % num_heads:
        raise InvalidValue(
            "hidden_size", hidden, f"is not a multiple of num_attention_heads={num_heads}, and there is no head_dim"
        )
    return hidden // num_heads


def _layer(
    fields: Fields,
    *,
    num_kv_heads: int | None,
    window: int | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> LayerSpec:
    num_heads = fields.integer("num_attention_heads")
    num_kv = fields.optional_integer("num_key_value_heads", num_kv_heads)
    num_kv = num_heads if num_kv is None else num_kv
    if num_heads % num_kv:
        raise InvalidValue("num_key_value_heads", num_kv, f"does not divide num_attention_heads={num_heads}")
    return LayerSpec(
        kind="full" if window is None else "sliding",
        num_heads=num_heads,
        num_kv_heads=num_kv,
        head_size=_head_size(fields),
        window=window,
        features=frozenset() if cap is None else frozenset({"softcap"}),
        scale=scale,
        softcap=cap,
    )


def _qwen_layers(fields: Fields) -> list[LayerSpec]:
    num_layers = fields.integer("num_hidden_layers")
    window = fields.optional_integer("sliding_window", 4096) if fields.config.get("use_sliding_window") else None
    first_windowed = fields.integer("max_window_layers", 28, minimum=0)
    types = fields.layer_types(num_layers)
    types = types or ["sliding_attention" if i >= first_windowed else "full_attention" for i in range(num_layers)]
    return [_layer(fields, num_kv_heads=32, window=window if kind == "sliding_attention" else None) for kind in types]


def _biases(fields: Fields, layer: LayerSpec, *, qkv: bool = False, output: bool = False, mlp: bool = False) -> int:
    """Bias parameters of a layer."""
    hidden, inner = fields.integer("hidden_size"), fields.integer("intermediate_size")
    num_qkv = (layer.num_heads + 2 * layer.num_kv_heads) * layer.head_size
    return num_qkv * qkv + hidden * output + (2 * inner + hidden) * mlp


def _spec(
    fields: Fields,
    layers: list[LayerSpec],
    *,
    extra: int = 0,
    eos: int | None = None,
    bos: int | None = None,
    tied: bool = False,
) -> ModelSpec:
    """Put together what all these decoders have; `extra` parameters a layer, the rest are a type's defaults."""
    config = fields.config
    hidden, inner = fields.integer("hidden_size"), fields.integer("intermediate_size")
    vocab, tied = fields.integer("vocab_size"), bool(config.get("tie_word_embeddings", tied))
    layer = layers[0]
    attention = 2 * (layer.num_heads + layer.num_kv_heads) * layer.head_size * hidden
    per_layer = attention + 3 * hidden * inner + 2 * hidden + extra
    model_type = fields.text("model_type")
    fields.number("rms_norm_eps", 1e-6)
    gated_op("hidden_act", config.get("hidden_act") or "silu")
    gated_op("hidden_activation", config.get("hidden_activation") or "gelu_pytorch_tanh")
    rope = rope_of(config)
    return ModelSpec(
        model_type=model_type,
        architecture=fields.architecture(),
        num_layers=len(layers),
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocab,
        # Gemma 3's max_position_embeddings already counts its linear scaling
        max_position=rope.max_position if model_type == "gemma3_text" else rope.extended_max_position,
        dtype=fields.dtype(),
        layers=tuple(layers),
        tie_word_embeddings=tied,
        num_parameters=len(layers) * per_layer + hidden + vocab * hidden * (1 if tied else 2),
        eos_token_ids=fields.token_ids("eos_token_id", eos),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", bos)), None),
        quantization=fields.quantization(),
    )
