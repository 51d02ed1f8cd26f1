"""Names, texts and buckets of what dashboards query; follows vLLM. Holds no number."""

from __future__ import annotations

PREFIX = "inferplane:"
VLLM_PREFIX = "vllm:"

FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
HTTP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
NUM_SEQUENCES = (1, 2, 5, 10, 20)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

ENGINE_GAUGES = {
    "num_requests_running": ("Requests in the running batch.", "num_requests_running"),
    "num_requests_waiting": ("Requests waiting to be scheduled.", "num_requests_waiting"),
    "num_tokens_waiting": ("Prompt tokens of requests that wait to be scheduled.", "num_tokens_waiting"),
    "oldest_waiting_seconds": ("How long the oldest request has waited to be scheduled.", "oldest_waiting_seconds"),
    "kv_cache_usage_perc": ("Share of the cache's pages in use, 0 to 1.", "kv_cache_usage"),
}
"""Name to text and to the field of Stats."""
ENGINE_COUNTERS = {
    "prompt_tokens": ("Prompt tokens computed or found in the cache.", "prompt_tokens"),
    "generation_tokens": ("Generated tokens.", "generation_tokens"),
    "num_preemptions": ("Requests put back into the queue to free cache pages.", "num_preemptions"),
    "prefix_cache_queries": ("Tokens looked up in the prefix cache.", "prefix_cache_queries"),
    "prefix_cache_hits": ("Tokens found in the prefix cache.", "prefix_cache_hits"),
    "corrupted_requests": ("Requests whose logits held NaN.", "corrupted_requests"),
    "engine_restarts": ("How often a dead or hung engine was started again.", "engine_restarts"),
}
STEP_HISTOGRAM = "iteration_tokens_total"

FINISHED = ("stop", "length", "abort", "error")
REJECTIONS = ("queue_requests", "queue_tokens", "queue_text", "queue_timeout")
"""Too many requests or tokens wait, too much text waits for a template or the tokenizer, or one waited too long."""
ABORTS = ("disconnect", "timeout", "shutdown", "engine", "sibling")
"""The client left, the request took longer than it may, the server ends, the engine died or hung, another sequence of
the request failed."""
TOKEN_SOURCES = ("local_compute", "local_cache_hit")

OURS_ALONE = frozenset({"oldest_waiting_seconds", "num_tokens_waiting", "engine_restarts", "request_rejected"}) | {
    *("request_aborted", "selection_info", "reference_ops")
}
"""vLLM has no such name; everything else is shown under its prefix too, where the user wants that."""


def token_buckets(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to the longest context."""
    buckets: list[int] = []
    decade = 1
    while True:
        for factor in (1, 2, 5):
            if factor * decade > max_model_len:
                return tuple(buckets) or (1,)
            buckets.append(factor * decade)
        decade *= 10
