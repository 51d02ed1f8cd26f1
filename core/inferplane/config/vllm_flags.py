"""vLLM's flags and variables, and what each means here. A flag that exists here needs no entry: it means the same.

Where it does not quite, `REMARKS` says how; tests hold every entry against the configuration's fields.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from inferplane.config.annotations import settings
from inferplane.config.parser import Foreign

Status = Literal["same", "alias", "differs", "not needed", "not yet"]

_LATER = "not in this version"


class VllmFlag(NamedTuple):
    """One flag of vLLM."""

    flag: str
    status: Status
    ours: str = ""
    """For an alias, the flag here."""
    advice: str = ""
    """What to do; for a flag that is the same, what nevertheless differs."""
    short: tuple[str, ...] = ()
    """Its other spellings."""


REMARKS = {
    "--host": "loopback unless told otherwise; `--host 0.0.0.0` is vLLM's default",
    "--api-key": "holds for every route but the health probes; `x-api-key` is accepted too",
    "--model": "optional: without a model, the small default model is served",
    "--dtype": "`half` is `float16`, and `float` is `float32`",
    "--max-model-len": "by default what the model and memory allow, not an error when it does not fit",
    "--seed": "of what draws the seeds of requests without one, and of dummy weights",
    "--logits-processors": "`module:Class`; vLLM's classes have another interface",
    "--block-size": "by default what the attention backend prefers",
    "--kv-cache-dtype": "no 8-bit types yet",
    "--max-num-seqs": "64 by default",
    "--max-num-batched-tokens": "2048 by default",
    "--allowed-origins": "none by default, not `*`",
    "--allowed-methods": "GET and POST by default, not `*`",
    "--convert": "`embed` and `none`; no `classify` yet",
    "--pooler-config": "`pooling_type` CLS, LAST or MEAN, `normalize` and `dimensions`; nothing else yet",
    "--attention-backend": "vLLM's names (such as `FLASHINFER`) are aliases where the backend is installed; one "
    "that cannot run is an error",
    "--scheduling-policy": "`fair` too: equal shares for API keys",
    "--load-format": "`auto`, `dummy`, or an installed checkpoint format",
    "--otlp-traces-endpoint": "the scheme says how: `http://` is OTLP over HTTP, `grpc://` over gRPC",
    "--quantization": "forces a weight format; a mismatch is an error",
}

_SAME = """
--model --tokenizer --revision --download-dir --load-format --dtype --seed --max-model-len --quantization
--max-logprobs --logprobs-mode --logits-processors --stream-interval --served-model-name
--generation-config --override-generation-config --hf-overrides --runner --convert --pooler-config --chat-template
--chat-template-content-format --block-size --kv-cache-memory-bytes --kv-cache-dtype --enable-prefix-caching
--max-num-batched-tokens --max-num-seqs --scheduling-policy --async-scheduling --long-prefill-token-threshold
--max-num-queued-reqs --max-num-queued-tokens --attention-backend --host --port --uds --root-path --api-key
--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --enable-ssl-refresh --allowed-origins --allowed-methods
--allowed-headers --allow-credentials --middleware --disable-fastapi-docs --enable-tokenizer-info-endpoint
--enable-request-id-headers --enable-log-requests --enable-log-outputs --max-log-len --disable-uvicorn-access-log
--disable-access-log-for-endpoints --enable-prompt-tokens-details --enable-force-include-usage
--return-tokens-as-token-ids --trust-request-chat-template --response-role
""".split()  # noqa: SIM905

_PLUGIN = "comes with a plugin: see `inferplane plugins`"

_OTHERS = (
    VllmFlag("--num-gpu-blocks-override", "alias", "--num-pages-override"),
    VllmFlag(
        "--gpu-memory-utilization",
        "differs",
        advice="it is a share of all of the device's memory; --memory-utilization is a share of what is free when the "
        "server starts, which on an otherwise empty device is nearly the same number",
    ),
    VllmFlag("--uvicorn-log-level", "differs", advice="use --log-level, which holds for the whole program"),
    VllmFlag(
        "--trust-remote-code",
        "not needed",
        advice="leave it out: code of a checkpoint is never run; a model type of its own comes with a plugin",
    ),
    VllmFlag("--task", "differs", advice="use --runner generate or --runner pooling"),
    VllmFlag("--enable-chunked-prefill", "not needed", advice="leave it out: prompts are always computed in chunks"),
    VllmFlag("--tokenizer-mode", "not needed", advice="leave it out: the tokenizer is always the fast one"),
    VllmFlag("--model-impl", "not needed", advice="leave it out: the model type decides"),
    VllmFlag("--prefix-caching-hash-algo", "not needed", advice="leave it out: the hash is always a cryptographic one"),
    VllmFlag("--enable-server-load-tracking", "not needed", advice="leave it out: GET /load always answers"),
    VllmFlag("--disable-hybrid-kv-cache-manager", "not needed", advice="leave it out: groups of layers share one pool"),
    VllmFlag(
        "--disable-log-requests",
        "not needed",
        advice="leave it out: requests are logged with --enable-log-requests only",
    ),
    VllmFlag("--swap-space", "not needed", advice="leave it out: preempted requests are computed again"),
    VllmFlag("--device", "differs", advice="use --platform; by default the best that is present is taken"),
    VllmFlag("--kv-cache-dtype-skip-layers", "not yet", advice=_LATER),
    VllmFlag("--default-chat-template-kwargs", "not yet", advice="send chat_template_kwargs in the request"),
    VllmFlag("--log-config-file", "not yet", advice="use --log-level; lines go to standard error"),
    VllmFlag("--max-num-partial-prefills", "not yet", advice="use --long-prefill-token-threshold"),
    VllmFlag("--disable-log-stats", "not yet", advice="use --log-level warning"),
    VllmFlag("--otlp-traces-endpoint", "not yet", advice=_LATER),
    VllmFlag("--api-server-count", "not yet", advice="one process answers HTTP", short=("-asc",)),
    VllmFlag("--headless", "not yet", advice=_LATER),
    VllmFlag("--grpc", "not yet", advice="use the HTTP API"),
    VllmFlag("--enable-offline-docs", "not yet", advice="/openapi.json is always served from here"),
    VllmFlag("--log-error-stack", "not yet", advice="use --log-level debug"),
    VllmFlag("--profiler-config", "not yet", advice=_LATER),
    VllmFlag("--enable-sleep-mode", "not yet", advice=_LATER),
    VllmFlag("--enable-prompt-embeds", "not yet", advice=_LATER),
    VllmFlag("--allowed-local-media-path", "not yet", advice="there is no image, audio or video input yet"),
    VllmFlag("--allowed-media-domains", "not yet", advice="there is no image, audio or video input yet"),
    VllmFlag("--limit-mm-per-prompt", "not yet", advice="there is no image, audio or video input yet"),
    VllmFlag("--reasoning-parser", "not yet", advice="the answer's text holds the reasoning"),
    VllmFlag("--enable-auto-tool-choice", "not yet", advice="tools reach the chat template; calls are not parsed"),
    VllmFlag("--tool-call-parser", "not yet", advice="tools reach the chat template; calls are not parsed"),
    VllmFlag("--tool-parser-plugin", "not yet", advice="tools reach the chat template; calls are not parsed"),
    VllmFlag("--tool-server", "not yet", advice=_LATER),
    VllmFlag("--structured-outputs-config", "not yet", advice=_LATER),
    VllmFlag("--cpu-offload-gb", "not yet", advice="use a smaller type or a quantized checkpoint"),
    VllmFlag("--kv-offloading-size", "not yet", advice=_LATER),
    VllmFlag("--kv-offloading-backend", "not yet", advice=_LATER),
    VllmFlag("--kv-transfer-config", "not yet", advice=_LATER),
    VllmFlag("--tensor-parallel-size", "not yet", advice="one device runs the model", short=("-tp",)),
    VllmFlag("--pipeline-parallel-size", "not yet", advice="one device runs the model", short=("-pp",)),
    VllmFlag("--data-parallel-size", "not yet", advice="start several servers behind a proxy", short=("-dp",)),
    VllmFlag("--data-parallel-rpc-port", "not yet", advice="start several servers behind a proxy"),
    VllmFlag("--decode-context-parallel-size", "not yet", advice="one device runs the model", short=("-dcp",)),
    VllmFlag("--prefill-context-parallel-size", "not yet", advice="one device runs the model", short=("-pcp",)),
    VllmFlag("--enable-expert-parallel", "not yet", advice="one device runs the model"),
    VllmFlag("--all2all-backend", "not yet", advice="one device runs the model"),
    VllmFlag("--enable-eplb", "not yet", advice="one device runs the model"),
    VllmFlag("--distributed-executor-backend", "not yet", advice="one device runs the model"),
    VllmFlag("--nnodes", "not yet", advice="one device runs the model"),
    VllmFlag("--node-rank", "not yet", advice="one device runs the model"),
    VllmFlag("--master-addr", "not yet", advice="one device runs the model"),
    VllmFlag("--master-port", "not yet", advice="one device runs the model"),
    VllmFlag("--enable-lora", "not yet", advice="merge the adapter into the checkpoint"),
    VllmFlag("--lora-modules", "not yet", advice="merge the adapter into the checkpoint"),
    VllmFlag("--max-loras", "not yet", advice="merge the adapter into the checkpoint"),
    VllmFlag("--max-lora-rank", "not yet", advice="merge the adapter into the checkpoint"),
    VllmFlag("--max-cpu-loras", "not yet", advice="merge the adapter into the checkpoint"),
    VllmFlag("--speculative-config", "not yet", advice=_LATER, short=("-sc",)),
    VllmFlag(
        "--compilation-config", "not yet", advice="a platform decides what it compiles; " + _PLUGIN, short=("-O",)
    ),
)

VARIABLES = {
    "VLLM_API_KEY": ("read", "as INFERPLANE_API_KEY, where that says nothing"),
    "VLLM_LOGGING_LEVEL": ("read", "as INFERPLANE_LOG_LEVEL, where that says nothing"),
    "VLLM_SERVER_DEV_MODE": ("read", "as INFERPLANE_SERVER_DEV_MODE, where that says nothing"),
    "VLLM_USE_MODELSCOPE": ("read", "as INFERPLANE_USE_MODELSCOPE, where that says nothing"),
    "HF_TOKEN": ("same", "read by the hub client"),
    "HF_HUB_OFFLINE": ("same", "read by the hub client"),
    "VLLM_PLUGINS": ("not read", "names other plugins; use INFERPLANE_PLUGINS"),
    "VLLM_HOST_IP": ("not read", "there is one host; use --host"),
    "VLLM_LOGGING_CONFIG_PATH": ("not read", "use --log-level"),
    "VLLM_LOG_STATS_INTERVAL": ("read", "as INFERPLANE_LOG_STATS_INTERVAL, where that says nothing"),
    "VLLM_BATCH_INVARIANT": ("not read", "a request draws the same noise whatever its neighbours"),
    "VLLM_MAX_N_SEQUENCES": ("not read", "use n in the request"),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": ("not read", "adapters are not in this version"),
    "VLLM_LORA_RESOLVER_CACHE_DIR": ("not read", "adapters are not in this version"),
    "VLLM_IMAGE_FETCH_TIMEOUT": ("not read", "there is no image input yet"),
    "VLLM_VIDEO_FETCH_TIMEOUT": ("not read", "there is no video input yet"),
    "VLLM_AUDIO_FETCH_TIMEOUT": ("not read", "there is no audio input yet"),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": ("not read", "there is no media input yet"),
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": ("not read", "tool calls are not parsed yet"),
}
"""Variable to whether it is read, and what to do."""


def vllm_flags() -> list[VllmFlag]:
    """Every flag of vLLM that is known here, by name. One that has become a flag here is the same."""
    ours = own_flags()
    listed = {entry.flag: entry for entry in _OTHERS}
    rows = [VllmFlag(flag, "same", advice=REMARKS.get(flag, "")) for flag in [*_SAME, *(ours & listed.keys())]]
    return sorted(rows + [entry for flag, entry in listed.items() if flag not in ours])


def own_flags() -> set[str]:
    """The flags of the configuration's fields."""
    return {"--" + name.replace("_", "-") for name in settings()}


def foreign(flag: str) -> Foreign | None:
    """What a flag that does not exist here means, whether or not it is negated or has a key of its object after it."""
    name = flag.partition(".")[0].replace("_", "-") if flag.startswith("--") else flag
    asked = {name, name.replace("--no-", "--", 1)}
    for entry in vllm_flags():
        if entry.status != "same" and (asked & {entry.flag, *entry.short} or _is_glued(flag, entry)):
            return Foreign(entry.ours or None, _ANSWERS[entry.status] + entry.advice)
    return None


_ANSWERS = {
    "alias": "",
    "same": "",
    "differs": "it means something else: ",
    "not needed": "",
    "not yet": "not here yet: ",
}


def foreign_setting(name: str) -> Foreign | None:
    """The same for a key of the YAML file or a keyword."""
    return foreign("--" + name.replace("_", "-"))


def _is_glued(flag: str, entry: VllmFlag) -> bool:
    """-O3 and -tp8."""
    return any(flag.startswith(short) and flag[len(short) :].isdigit() for short in entry.short)
