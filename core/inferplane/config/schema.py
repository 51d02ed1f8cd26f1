"""The configuration's fields. Names and values follow vLLM where the meaning is the same. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

DEFAULT_MODEL = "smollm2"

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def parse_size(value: Any) -> Any:
    """A count with a unit, as vLLM reads it: "32k" is 32 000 and "32K" is 32 768."""
    if isinstance(value, str) and value.strip()[-1:] in _UNITS:
        text = value.strip()
        try:
            return int(float(text[:-1]) * _UNITS[text[-1]])
        except ValueError:
            return value
    return value


Size = Annotated[int, BeforeValidator(parse_size)]


def _listed(value: Any) -> Any:
    """One name may be given without a list around it."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)]
"""None of them empty: an unset variable in a script must not become a name, or a key that everybody has."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelConfig(_Section):
    """Which model, and how it is read."""

    model: str = Field(DEFAULT_MODEL, description="Local path, hub id, `pypi:NAME[==VERSION][#FILE]`, or `smollm2`.")
    served_model_name: Names = Field((), description="Names in the API; the first is the one in responses.")
    revision: str | None = Field(None, description="Branch, tag or commit on the hub.")
    download_dir: str | None = Field(None, description="Where downloads go; the hub client's own cache by default.")
    use_modelscope: bool = Field(False, description="Fetch from ModelScope instead of the Hugging Face Hub.")
    tokenizer: str | None = Field(
        None, description="Local path or hub id of the tokenizer; the model's own by default."
    )
    load_format: str = Field(
        "auto", description="`auto`, `dummy` (random weights), or an installed checkpoint format (see `plugins`)."
    )
    quantization: str | None = Field(None, description="Force a weight format; a mismatch is an error.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type of weights and activations; `auto`: the device's preference, else 16 bit.",
    )
    max_model_len: Size | None = Field(
        None,
        ge=1,
        description="Longest context in tokens (`32k` is accepted); by default what the model and memory allow.",
    )
    max_logprobs: int = Field(20, ge=-1, description="Most log-probabilities a request may ask for; -1: no limit.")
    seed: int = Field(0, ge=0, description="Seed of dummy weights. A request without a seed of its own draws one.")
    generation_config: str = Field(
        "auto", description="`auto`: defaults of sampling come from the model; `vllm`: API defaults; or a folder."
    )
    override_generation_config: dict[str, Any] = Field({}, description="JSON object that wins over the model's file.")
    hf_overrides: dict[str, Any] = Field({}, description="JSON object merged into the model's config.")
    chat_template: str | None = Field(None, description="A Jinja file or the template itself; the model's by default.")
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        "auto", description="What the template gets as message content: text, or the list of parts."
    )


class PlatformConfig(_Section):
    """What runs it."""

    platform: str | None = Field(None, description="Name of a platform; by default the best that is present.")
    attention_backend: str | None = Field(
        None, description="Id or alias of an attention backend; an error if it cannot run."
    )
    platform_option: dict[str, str] = Field({}, description="NAME=VALUE settings of the platform's own.")
    threads: int | None = Field(None, ge=1, description="Host threads for computing; by default the platform decides.")
    plugins: tuple[str, ...] | None = Field(
        None, description="Only these plugin distributions or entry points are used."
    )
    disable_plugins: tuple[str, ...] = Field((), description="Plugins that are never used.")
    plugins_mode: Literal["auto", "listed", "locked"] = Field(
        "auto",
        description="`auto`: what is installed; `listed`: only what `--plugins` names; `locked`: only the lock file's.",
    )
    plugins_lock: str = Field(
        "inferplane-plugins.lock", description="The lock file of mode `locked` (see `inferplane plugins lock`)."
    )


class CacheConfig(_Section):
    """The paged key-value cache."""

    block_size: int | None = Field(None, ge=1, description="Tokens per page; by default what the backend prefers (16).")
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="`auto`: the model's."
    )
    kv_cache_memory_bytes: Size | None = Field(None, ge=1, description="Size of the cache; overrides the utilization.")
    memory_utilization: float = Field(
        0.9, gt=0, le=1, description="Most of the *free* memory that weights, cache and work space may take together."
    )
    num_pages_override: int | None = Field(None, ge=2, description="Exact number of pages (for tests).")
    enable_prefix_caching: bool = Field(True, description="Reuse the cache of a shared prefix.")


class SchedulerConfig(_Section):
    """Who runs when."""

    max_num_seqs: int | None = Field(None, ge=1, description="Most requests in a step (64).")
    max_num_batched_tokens: Size | None = Field(None, ge=1, description="Most tokens in a step (2048).")
    scheduling_policy: Literal["fcfs", "priority"] = Field("fcfs", description="`priority`: lower numbers first.")
    long_prefill_token_threshold: int = Field(0, ge=0, description="Longest prompt chunk of a request; 0: the budget.")
    async_scheduling: bool = Field(True, description="Plan the next step while the present one runs.")
    max_num_queued_reqs: int = Field(1024, ge=1, description="Waiting requests beyond which the answer is 429.")


class ServerConfig(_Section):
    """The HTTP front end."""

    host: str = Field("127.0.0.1", description="Address to listen on; loopback unless told otherwise.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0: a free one.")
    api_key: Names = Field((), description="Keys of which a request must carry one; none: open.")
    enable_prompt_tokens_details: bool = Field(False, description="Report cached tokens in `usage`.")
    enable_force_include_usage: bool = Field(False, description="Every stream ends with a usage chunk.")
    return_tokens_as_token_ids: bool = Field(False, description="Log-probability tokens as `token_id:N`.")
    trust_request_chat_template: bool = Field(False, description="Accept a chat template from a request.")
    response_role: str = Field("assistant", description="Role of the answer.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much is logged.")
    shutdown_timeout: float = Field(30.0, ge=0, description="Seconds that running requests get after SIGTERM.")
    hang_timeout: float = Field(
        30.0, gt=0, description="Seconds without a completed step after which health turns red."
    )


class Origins(dict[str, str]):
    """Where each value was said. No part of what was said: two configurations with equal values are equal."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origins)


class Config(_Section):
    """Everything a user can say."""

    model: ModelConfig = ModelConfig()  # type: ignore[call-arg]
    platform: PlatformConfig = PlatformConfig()  # type: ignore[call-arg]
    cache: CacheConfig = CacheConfig()  # type: ignore[call-arg]
    scheduler: SchedulerConfig = SchedulerConfig()  # type: ignore[call-arg]
    server: ServerConfig = ServerConfig()  # type: ignore[call-arg]

    _origins: Origins = PrivateAttr(default_factory=Origins)

    def origin(self, name: str) -> str:
        """Where the value of a field was said: "flag --seed", "file FILE" or "keyword seed"."""
        return self._origins.get(name, f"keyword {name}")

    @classmethod
    def from_flat(cls, values: dict[str, Any], origins: Mapping[str, str] | None = None) -> Config:
        """Build from field names without sections, as `LLM(...)`, the flags and the YAML file give them.

        `origins` says where the value of a field was said, see `origin`.

        Raises InvalidValue naming the field for an unknown name (with a suggestion) or a bad value.
        """
        from inferplane.config.flat import config_from_flat

        config = config_from_flat(cls, values)
        config._origins.update(origins or {})
        return config
