"""The configuration's fields. Names and values follow vLLM where the meaning is the same. Decides nothing."""

from __future__ import annotations

import json
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


def _items(value: Any) -> Any:
    """Several words, words with commas between, or a JSON list, as vLLM's flags take them."""
    words = _listed(value)
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        return words
    found: list[Any] = []
    for word in words:
        try:
            found += json.loads(word) if word.lstrip().startswith("[") else word.split(",")
        except ValueError:
            raise ValueError(f"{word!r} is no JSON list") from None
    return tuple(item.strip() if isinstance(item, str) else item for item in found)


Items = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_items)]
"""Names that hold no comma."""


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
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] = Field(
        "raw_logprobs",
        description="What is reported as log-probabilities: of the model's own logits, or of what is drawn from.",
    )
    logits_processors: Names = Field(
        (), description="Classes `module:Class` that change logits; installed processors need no setting."
    )
    seed: int = Field(
        0,
        ge=0,
        description="Seed of what draws the seeds of requests without one, and of dummy weights: the same requests in "
        "the same order get the same answers after a restart.",
    )
    generation_config: str = Field(
        "auto", description="`auto`: defaults of sampling come from the model; `vllm`: API defaults; or a folder."
    )
    override_generation_config: dict[str, Any] = Field({}, description="JSON object that wins over the model's file.")
    hf_overrides: dict[str, Any] = Field({}, description="JSON object merged into the model's config.")
    runner: Literal["auto", "generate", "pooling"] = Field(
        "auto", description="`pooling`: embeddings; `auto`: what the checkpoint is made for (see the embeddings page)."
    )
    convert: Literal["auto", "none", "embed"] = Field(
        "auto", description="`embed`: pool a model that is made to generate; `none`: only if it is made to pool."
    )
    pooler_config: dict[str, Any] = Field(
        {}, description="JSON object `{pooling_type, normalize, dimensions}` that wins over the checkpoint's own."
    )
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
    scheduling_policy: Literal["fcfs", "priority", "fair"] = Field(
        "fcfs",
        description="`priority`: lower numbers first; `fair`: equal shares for API keys, or `user`s if there are none.",
    )
    long_prefill_token_threshold: int = Field(0, ge=0, description="Longest prompt chunk of a request; 0: the budget.")
    enforce_eager: bool = Field(False, description="Capture no steps, where the platform otherwise would.")
    async_scheduling: bool = Field(True, description="Plan the next step while the present one runs.")
    max_num_queued_reqs: int = Field(1024, ge=1, description="Waiting requests beyond which the answer is 429.")
    max_num_queued_tokens: Size = Field(
        2**20, ge=1, description="Prompt tokens of waiting requests beyond which the answer is 429."
    )


class ServerConfig(_Section):
    """The HTTP front end."""

    host: str = Field("127.0.0.1", description="Address to listen on; loopback unless told otherwise.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0: a free one.")
    uds: str | None = Field(None, description="Path of a Unix socket to listen on, instead of host and port.")
    root_path: str = Field("", description="Prefix that a proxy in front removes from paths (`/llm`).")
    api_key: Names = Field((), description="Keys of which a request must carry one; none: open.")
    api_key_file: str | None = Field(None, description="File with further keys, one a line; `#` begins a comment.")
    metrics_without_key: bool = Field(False, description="`/metrics` answers without a key, as the health probes do.")
    api_server_count: int = Field(
        1, ge=1, le=64, description="Processes that answer HTTP, in front of one engine (see the operations page)."
    )
    disable_log_stats: bool = Field(False, description="No log line about load every few seconds.")
    log_stats_interval: float = Field(
        5.0, gt=0, description="Seconds between two such lines; while nothing runs, none is written."
    )
    enable_per_request_metrics: bool = Field(
        False, description="Answers say in `metrics` how long the request has waited and run."
    )
    otlp_traces_endpoint: str | None = Field(
        None, description="OpenTelemetry collector for traces, `http://HOST:4318/v1/traces` or `grpc://HOST:4317`."
    )
    enable_vllm_metric_names: bool = Field(
        False, description="`/metrics` shows every number that vLLM has under its name `vllm:` too."
    )
    ssl_keyfile: str | None = Field(None, description="Private key (PEM) of the certificate.")
    ssl_certfile: str | None = Field(None, description="Certificate (PEM) with its chain; turns TLS on.")
    ssl_ca_certs: str | None = Field(None, description="Authorities (PEM) that sign certificates of clients.")
    ssl_cert_reqs: int = Field(
        0,
        ge=0,
        le=2,
        description="Certificates of clients are 0: not asked for, 1: checked if sent, 2: required.",
    )
    enable_ssl_refresh: bool = Field(False, description="Load the certificate again when its files change.")
    allowed_origins: Items = Field(
        (), description="Origins of web pages that may call this server, `*` for all; by default none."
    )
    allowed_methods: Items = Field((), description="Methods that such pages may use; by default GET and POST.")
    allowed_headers: Items = Field((), description="Headers that such pages may send; by default all.")
    allow_credentials: bool = Field(False, description="Such pages may send cookies; needs origins by name.")
    max_body_size: Size = Field(
        64 * 2**20, ge=1, description="Longest request body in bytes (`16M` is accepted); beyond, the answer is 413."
    )
    max_header_size: Size = Field(
        64 * 2**10, ge=1024, description="Longest request head in bytes; beyond, the answer is 431."
    )
    max_header_count: int = Field(128, ge=8, description="Most headers of a request.")
    header_timeout: float = Field(10.0, gt=0, description="Seconds in which a request's head must have arrived.")
    body_timeout: float = Field(
        30.0, gt=0, description="Seconds in which a request's body must have arrived, plus one for every 16 KiB of it."
    )
    send_timeout: float = Field(
        60.0, gt=0, description="Seconds for which a client may take nothing of an answer before it is cut off."
    )
    # Longer than clients (httpx: 5 s) and load balancers (60 s) keep one: whoever closes first loses no request.
    keep_alive_timeout: int = Field(75, ge=1, description="Seconds after which an idle connection is closed.")
    disable_page: bool = Field(False, description="No page for chat and status at `/`.")
    disable_fastapi_docs: bool = Field(False, description="No `/docs`, `/redoc` and `/openapi.json`.")
    enable_tokenizer_info_endpoint: bool = Field(
        False, description="`GET /tokenizer_info` gives the tokenizer's settings and the chat template."
    )
    server_dev_mode: bool = Field(False, description="Routes for developers, such as `POST /reset_prefix_cache`.")
    middleware: Items = Field((), description="ASGI middleware classes, `package.module.Name`; the first is outermost.")
    enable_request_id_headers: bool = Field(False, description="Answers carry `X-Request-Id`: the client's, or ours.")
    enable_log_requests: bool = Field(False, description="Log the prompt and the sampling of every request.")
    enable_log_outputs: bool = Field(False, description="Log generated text too; needs `--enable-log-requests`.")
    max_log_len: int | None = Field(
        None, ge=0, description="Characters of a prompt or an output that are logged; by default all."
    )
    disable_uvicorn_access_log: bool = Field(False, description="No log line per HTTP request.")
    disable_access_log_for_endpoints: Items = Field(
        (), description="Paths without such a line, such as `/health,/metrics`."
    )
    enable_prompt_tokens_details: bool = Field(False, description="Report cached tokens in `usage`.")
    enable_force_include_usage: bool = Field(False, description="Every stream ends with a usage chunk.")
    return_tokens_as_token_ids: bool = Field(False, description="Log-probability tokens as `token_id:N`.")
    trust_request_chat_template: bool = Field(False, description="Accept a chat template from a request.")
    stream_interval: int = Field(
        1, ge=1, description="Tokens per chunk of a stream, after the first; a request may ask for more, not for fewer."
    )
    response_role: str = Field("assistant", description="Role of the answer.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much is logged.")
    shutdown_timeout: float = Field(30.0, ge=0, description="Seconds that running requests get after SIGTERM.")
    hang_timeout: float = Field(
        30.0, gt=0, description="Seconds without a completed step after which health turns red."
    )
    request_timeout: float | None = Field(
        None, gt=0, description="Seconds that a request may take in all; `X-Request-Timeout` asks for less."
    )
    queue_timeout: float | None = Field(
        None, gt=0, description="Seconds that a request may wait to be started; `X-Queue-Timeout` asks for less."
    )
    engine_restarts: int = Field(
        0, ge=0, description="How often a dead or hung engine is started again; waiting requests are kept."
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

    def said(self) -> dict[str, Any]:
        """Field name to value of what was said; what nobody said is not in it."""
        return {name: getattr(section, name) for _, section in self for name in sorted(section.model_fields_set)}

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
