"""Typed access to a config.json: a field that is missing or makes no sense is an error that names it."""

from __future__ import annotations

from typing import Any

from inferplane_api.errors import InvalidValue

DTYPES = ("float32", "bfloat16", "float16")
LAYER_TYPES = ("full_attention", "sliding_attention")


class Fields:
    """A config and its typed fields. All methods raise InvalidValue naming the field."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number; without a default the field must be there."""
        value = self.config.get(name)
        value = default if value is None else value
        if value is None:
            raise InvalidValue(name, None, "is missing from the model's config")
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not float(value).is_integer()
            or value < minimum
        ):
            raise InvalidValue(name, value, f"must be a whole number of at least {minimum}")
        return int(value)

    def optional_integer(self, name: str, default: int | None) -> int | None:
        """A positive whole number; an absent field is the default, an explicit null is None."""
        if name not in self.config:
            return default
        return None if self.config[name] is None else self.integer(name)

    def number(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise InvalidValue(name, value, "must be a positive number")
        return float(value)

    def text(self, name: str) -> str:
        """A string that must be there."""
        value = self.config.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidValue(name, value, "must be a name")
        return value

    def dtype(self) -> str:
        """Of the weights: `dtype` (transformers 5) or `torch_dtype` (before); float32 where neither is given."""
        name = "dtype" if self.config.get("dtype") is not None else "torch_dtype"
        value = str(self.config.get(name) or "float32").removeprefix("torch.")
        if value not in DTYPES:
            raise InvalidValue(name, self.config[name], f"must be one of {', '.join(DTYPES)}")
        return value

    def token_ids(self, name: str, default: int | None) -> tuple[int, ...]:
        """One token id or several; an absent field is the default, null is none."""
        value = self.config.get(name, default)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
            raise InvalidValue(name, value, "must be a token id or a list of them")
        return tuple(ids)

    def layer_types(self, num_layers: int) -> list[str] | None:
        """The kind of each layer, where the config lists them."""
        value = self.config.get("layer_types")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num_layers:
            raise InvalidValue("layer_types", value, f"must list one kind for each of the {num_layers} layers")
        for kind in value:
            if kind not in LAYER_TYPES:
                raise InvalidValue("layer_types", kind, f"must be one of {', '.join(LAYER_TYPES)}")
        return value

    def architecture(self) -> str:
        """The first of `architectures`; "" where there is none."""
        value = self.config.get("architectures") or [""]
        return str(value[0])

    def quantization(self) -> str | None:
        """`quantization_config.quant_method`, None for plain weights."""
        value = self.config.get("quantization_config")
        if value is None:
            return None
        method = value.get("quant_method") if isinstance(value, dict) else None
        if not isinstance(method, str):
            raise InvalidValue("quantization_config", value, "must be an object with a quant_method")
        return method
