"""What all routes of one application share. Knows the service's parts, no HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from inferplane.cells import NUM_RUNNING, Cells
from inferplane.client.pooling import embeds, generates
from inferplane.client.requests import Limits, RequestSeeds
from inferplane.metrics import Metrics
from inferplane.plan.record import reference_ops
from inferplane.server.errors import ApiError, from_engine
from inferplane.server.logprobs import TokenNames
from inferplane.server.request_log import RequestLog
from inferplane.server.text_work import TextWork
from inferplane.telemetry import Tracing

if TYPE_CHECKING:
    from inferplane.config import ServerConfig
    from inferplane.launch_types import Service


RETRY_WHILE_STARTING = "5"
"""Seconds."""


class ServerContext:
    """Made once per application by `create_app`."""

    def __init__(self, service: Service) -> None:
        prepared = service.prepared
        plan = prepared.plan
        self.prepared = prepared
        self.client = service.client
        self.created = int(time.time())
        self.names = TokenNames(prepared.tokenizer)
        self._cells = service.cells or Cells.private()
        self._num_running = 0
        self.text = TextWork(lambda: self.metrics.rejected("queue_text"))
        self.warned: set[str] = set()
        self.draw_seed = RequestSeeds(prepared.config.model.seed, self._cells.index)
        self.request_log = RequestLog(prepared.config.server)
        self.metrics = Metrics(
            model_name=prepared.served_names[0],
            engine=0,
            max_model_len=plan.limits.max_model_len,
            stats=lambda: service.client.stats,
            cells=self._cells,
            vllm_names=prepared.config.server.enable_vllm_metric_names,
        )
        endpoint = self.server.otlp_traces_endpoint
        self.tracing = None if endpoint is None else Tracing.to(endpoint)
        self._describe()

    @property
    def server(self) -> ServerConfig:
        """The user's settings of the server."""
        return self.prepared.config.server

    @property
    def num_running(self) -> int:
        """API requests under way in this process."""
        return self._num_running

    @num_running.setter
    def num_running(self, value: int) -> None:
        self._num_running = value
        self._cells.own[NUM_RUNNING] = value

    @property
    def load(self) -> int:
        """API requests under way in all processes."""
        return int(self._cells.total(NUM_RUNNING))

    @property
    def max_model_len(self) -> int:
        """What fits, once it was measured."""
        if self.client.state == "ready":
            return self.client.capacity.max_model_len
        return self.prepared.plan.limits.max_model_len

    def limits(self) -> Limits:
        """What requests are validated against. Raises ApiError 503 while the engine is not ready."""
        self.require_ready()
        plan = self.prepared.plan
        return Limits(
            max_model_len=self.client.capacity.max_model_len,
            vocab_size=plan.model.vocab_size,
            eos_token_ids=self.prepared.defaults.eos_token_ids or plan.model.eos_token_ids,
            max_logprobs=plan.limits.max_logprobs,
            priorities=plan.policy == "priority",
            logprobs_mode=self.prepared.config.model.logprobs_mode,
        )

    def require_task(self, task: Literal["generate", "embed"]) -> None:
        """Raises ApiError 400 where the engine was started for the other one."""
        plan = self.prepared.plan
        if task == ("generate" if plan.pooler is None else "embed"):
            return
        error = generates(plan) if task == "embed" else embeds(plan)
        raise ApiError(400, f"{error.message}; {error.remedy}", code="unsupported_task", param="model")

    def require_ready(self) -> None:
        """Raises ApiError 503 with the reason."""
        state = self.client.state
        if state == "ready":
            return
        if state == "starting":
            again = self.client.num_restarts > 0
            raise ApiError(
                503, "the engine is being started again" if again else "the engine is still starting",
                code="engine_starting", kind="server_error", headers={"Retry-After": RETRY_WHILE_STARTING},
            )  # fmt: skip
        default = "the server is shutting down" if state == "closed" else "the engine is gone"
        raise from_engine(None if state == "closed" else self.client.failure, default)

    def _describe(self) -> None:
        plan, client = self.prepared.plan, self.client
        decisions = [
            {"subject": decision.subject, "chosen": decision.chosen, "source": decision.source}
            for decision in plan.decisions
        ]
        self.metrics.info("selection_info", "What was chosen for this engine; 1.", lambda: decisions)
        on_reference = [{"op": op} for op in reference_ops(plan)]
        self.metrics.info(
            "reference_ops",
            "Ops and linear kernels that run on the torch reference although the platform is a plugin's; 1.",
            lambda: on_reference,
        )
        cache = {
            "block_size": str(plan.geometry.block_size),
            "cache_dtype": plan.kv_dtype,
            "enable_prefix_caching": str(plan.prefix_caching),
            "page_bytes": str(plan.geometry.page_bytes),
        }

        def measured() -> list[dict[str, str]]:
            # vLLM's label for the pages, which scalers multiply with block_size.
            pages = str(client.capacity.num_pages) if client.state == "ready" else ""
            return [{**cache, "num_gpu_blocks": pages}]

        self.metrics.info("cache_config_info", "How the cache is laid out; 1.", measured)
