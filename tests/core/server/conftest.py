"""A service whose engine is a script in this process: prescribed deltas, no scheduler, no channel."""

from __future__ import annotations

import asyncio
import math
import struct
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from inferplane.config import Config
from inferplane.errors import EngineDead, InferplaneError, QueueFull
from inferplane.launch_types import Prepared, Service
from inferplane.messages import Delta, Stats
from inferplane.plan.types import Component, Decision, Plan
from inferplane.server.app import create_app
from inferplane.text.chat_template import ChatTemplate
from inferplane.text.generation_defaults import SamplingDefaults
from inferplane.text.tokenizer import Tokenizer
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.kv import KVGeometry
from inferplane_api.model import LayerSpec, ModelSpec
from inferplane_api.pooling import PoolingParams
from inferplane_api.runner import Capacity, RunnerLimits
from inferplane_api.spec import DeviceInfo, SchedulingConstraints
from inferplane_api.step import TokenLogprobs
from inferplane_scripted.checkpoint import EOS, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from inferplane.messages import Request

MODEL_NAME = "tiny"
ALIAS = "tiny-alias"
MAX_MODEL_LEN = 128
WORDS = ("Hello", " world", "STOP", " ST", "OP!", "é", "日本")


def halving(token: int, vocab_size: int, limit: int) -> TokenLogprobs:
    """The token has probability 1/2, its successor 1/4, and so on; the last candidate is impossible."""
    count = vocab_size if limit < 0 else limit
    ids = [(token + rank) % vocab_size for rank in range(count)]
    return TokenLogprobs(token, math.log(0.5), 1, ids, [(rank + 1) * math.log(0.5) for rank in range(count)])


class FakeStream:
    """Implements RequestStream over prescribed deltas; all sequences take turns."""

    def __init__(self, client: FakeClient, requests: list[Request]) -> None:
        self._client = client
        self._queues = [client.deltas(request) for request in requests]
        self._ids = [request.request_id for request in requests]
        self._open = set(range(len(requests)))
        self._failed = asyncio.Event()
        self._error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self._error = error
        self._failed.set()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        given = 0
        while self._open:
            for index in sorted(self._open):
                if index not in self._open:
                    continue
                if self._client.die_after == given:
                    raise EngineDead("the scripted engine died", code="engine.dead", remedy="start it again")
                if self._client.hang_after == given:
                    self._client.hanging.set()
                    await self._failed.wait()
                    assert self._error is not None
                    raise self._error
                given += 1
                delta = self._queues[index].pop(0)
                if delta.finish_reason is not None:
                    self._open.discard(index)
                await asyncio.sleep(0)
                yield index, delta

    async def steps(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        step: list[tuple[int, Delta]] = []
        failure: Exception | None = None
        try:
            async for item in self:
                step.append(item)
                if len(step) == self._client.deltas_at_once:
                    yield step
                    step = []
        except InferplaneError as error:
            failure = error
        if step:
            yield step
        if failure is not None:
            raise failure

    def abort(self, index: int | None = None) -> None:
        indices = sorted(self._open) if index is None else [index] if index in self._open else []
        self._open.difference_update(indices)
        self._client.aborted += [self._ids[i] for i in indices]


class FakeClient:
    """Implements EngineClient."""

    def __init__(self, vocab_size: int) -> None:
        self.client_id = "fake"
        self.state = "ready"
        self.failure: Any = None
        self.num_restarts = 0
        self.stats = Stats(num_requests_running=3, prompt_tokens=11, generation_tokens=22, kv_cache_usage=0.25)
        self.engine_timeline = [("weights", 0.5)]
        self.vocab_size = vocab_size
        self.outputs: dict[tuple[int, ...] | None, list[int]] = {None: list(b"Hello")}
        self.error: str | None = None
        self.tokens_per_delta = 1
        self.deltas_at_once = 1
        self.die_after: int | None = None
        self.hang_after: int | None = None
        self.hanging = asyncio.Event()
        self.full = False
        self.submitted: list[Request] = []
        self.aborted: list[str] = []

    @property
    def capacity(self) -> Capacity:
        assert self.state == "ready"
        geometry = KVGeometry(page_bytes=64, groups=(), block_size=16)
        return Capacity(max_model_len=MAX_MODEL_LEN, num_pages=9, max_num_seqs=8, kv_tokens=128, geometry=geometry)

    def submit(self, requests: list[Request]) -> FakeStream:
        if self.full:
            raise QueueFull("too much is waiting", retry_after=2.0)
        if self.failure is not None:
            raise self.failure
        self.submitted += requests
        return FakeStream(self, requests)

    def deltas(self, request: Request) -> list[Delta]:
        """One delta a step: the prescribed ids, an end-of-text id ends it, and so does max_tokens."""
        prompt = tuple(request.prompt_token_ids)
        ids = self.outputs.get(prompt, self.outputs[None])
        params = request.params
        found: list[Delta] = []
        size = self.tokens_per_delta
        for start in range(0, max(len(ids), 1), size):
            piece = ids[start : start + size][: (params.max_tokens or 0) - start]
            delta = Delta(request_id=request.request_id, token_ids=piece)
            if params.logprobs is not None:
                delta.logprobs = [halving(token, self.vocab_size, params.logprobs) for token in piece]
            if not found:
                delta.num_cached_tokens, delta.queue_seconds = min(len(prompt) - 1, 2), 0.001
                if params.prompt_logprobs is not None:
                    scores = [halving(token, self.vocab_size, params.prompt_logprobs) for token in prompt[1:]]
                    delta.prompt_logprobs = [None, *scores]
            if piece and piece[-1] in request.eos_token_ids:
                delta.finish_reason = "stop"
            elif piece and piece[-1] in params.stop_token_ids:
                delta.finish_reason, delta.stop_reason = "stop", piece[-1]
            elif start + len(piece) >= (params.max_tokens or 0) or start + size >= len(ids):
                delta.finish_reason = "length"
            found.append(delta)
            if delta.finish_reason is not None:
                break
        if self.error is not None:
            found[-1].finish_reason, found[-1].error = "error", self.error
        return found

    async def control(self, name: str, **arguments: Any) -> Any:
        raise AssertionError("no route calls this")

    def abort_open(self) -> None:
        raise AssertionError("no route calls this")

    async def close(self, *, at_once: bool = False) -> None:
        self.state = "closed"


class Harness:
    """An application, its engine, and an HTTP client on it."""

    def __init__(self, service: Service) -> None:
        self.engine: Any = service.client
        self.service = service
        self.app = create_app(service)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL_NAME, "prompt": "Hi", **body})

    async def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Hi"}]
        return await self.http.post("/v1/chat/completions", json={"model": MODEL_NAME, "messages": messages, **body})


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny", words=WORDS)


@pytest.fixture(scope="session")
def make(checkpoint: Path) -> Callable[..., Harness]:
    """`make(tokenizer=True, generation_config=..., api_key=...)`: settings of the server by name."""

    def build(*, tokenizer: bool = True, generation_config: dict[str, Any] | None = None, **settings: Any) -> Harness:
        import json

        tokenizer_config = json.loads((checkpoint / "tokenizer_config.json").read_text())
        template = tokenizer_config["chat_template"]
        card = CheckpointCard(
            config=json.loads((checkpoint / "config.json").read_text()),
            generation_config=generation_config or {},
            tokenizer_json=str(checkpoint / "tokenizer.json"),
            tokenizer_config=tokenizer_config,
            chat_template=template,
        )
        plan = make_plan(card)
        config = Config.from_flat({"model": str(checkpoint), **settings})
        prepared = Prepared(
            config=config,
            plan=plan,
            tokenizer=Tokenizer.from_card(card) if tokenizer else None,
            chat_template=ChatTemplate.from_card(card, None, "auto") if tokenizer else None,
            defaults=SamplingDefaults.from_card(
                card, config.model.generation_config, config.model.override_generation_config
            ),
            served_names=(MODEL_NAME, ALIAS),
            timeline=[("probe", 0.25)],
        )
        return Harness(Service(prepared, FakeClient(plan.model.vocab_size)))  # type: ignore[arg-type]

    return build


@pytest.fixture
def server(make: Callable[..., Harness]) -> Harness:
    return make()


@pytest.fixture(scope="session")
def one_server(make: Callable[..., Harness]) -> Harness:
    return make()


@pytest.fixture
def shared(one_server: Harness) -> Harness:
    """The same application for many tests that change nothing of it."""
    one_server.engine.submitted.clear()
    return one_server


class PoolingEngine:
    """What the fake client of a model that embeds answers: two numbers that tell prompts apart."""

    def __init__(self, client: Any) -> None:
        self.error: tuple[str, str] | None = None
        self.finish = "stop"
        client.deltas = self.deltas

    def deltas(self, request: Request) -> list[Delta]:
        delta = Delta(request_id=request.request_id, finish_reason=self.finish, num_cached_tokens=1, queue_seconds=0.25)
        if self.error is not None:
            delta.finish_reason, (delta.error, delta.error_code) = "error", self.error
        elif self.finish == "stop":
            delta.pooled = struct.pack("<2f", len(request.prompt_token_ids) / 3, request.prompt_token_ids[0] / 7)
        return [delta]


@pytest.fixture(scope="session")
def embedder(make: Callable[..., Any]) -> Callable[..., Any]:
    """`embedder(matryoshka=..., **settings)`: the application of a model that embeds."""

    def build(*, matryoshka: tuple[int, ...] | None = None, tokenizer: bool = True, **settings: Any) -> Any:
        harness = make(tokenizer=tokenizer, **settings)
        prepared = harness.service.prepared
        pooler = PoolingParams(pooling_type="MEAN")
        plan = msgspec.structs.replace(prepared.plan, pooler=pooler, matryoshka=matryoshka)
        built = type(harness)(Service(prepared._replace(plan=plan), harness.engine))
        built.pooling = PoolingEngine(built.engine)
        return built

    return build


def make_plan(card: CheckpointCard) -> Plan:
    vocab_size = card.config["vocab_size"]
    component = Component(id="scripted", load="x:Y", distribution="inferplane-scripted", version="0.1.0")
    return Plan(
        platform=component,
        platform_name="scripted",
        runner_seam=True,
        device=DeviceInfo(),
        checkpoint_path="/nowhere",
        checkpoint_format=component,
        card=card,
        model=ModelSpec(
            model_type="scripted_bigram",
            architecture="ScriptedBigramForCausalLM",
            num_layers=1,
            hidden_size=vocab_size,
            intermediate_size=0,
            vocab_size=vocab_size,
            max_position=2 * MAX_MODEL_LEN,
            dtype="float32",
            layers=(LayerSpec(num_heads=1, num_kv_heads=1, head_size=32),),
            eos_token_ids=(EOS,),
        ),
        architecture=None,
        dtype="float32",
        kv_dtype="float32",
        geometry=KVGeometry(page_bytes=64, groups=(), block_size=16),
        attention=(),
        ops=(),
        linear=(),
        limits=RunnerLimits(max_model_len=2 * MAX_MODEL_LEN, max_num_seqs=8, max_num_batched_tokens=64, max_logprobs=5),
        auto_max_model_len=True,
        scheduling=SchedulingConstraints(),
        decisions=(Decision(subject="platform", chosen="scripted", source="user"),),
        warnings=("a warning",),
    )
