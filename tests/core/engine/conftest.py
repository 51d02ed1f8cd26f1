"""A runner without a model: page tables and a simulated cache prove that every row reads what it should."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.engine.engine import Engine
from inferplane.messages import Request
from inferplane.plan.types import Component, Plan
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.kv import NULL_PAGE, KVGeometry, KVGroupSpec
from inferplane_api.model import LayerSpec, ModelSpec
from inferplane_api.runner import RunnerLimits
from inferplane_api.sampling import SamplingParams
from inferplane_api.spec import DeviceInfo, SchedulingConstraints
from inferplane_api.step import StepResult, TokenLogprobs

if TYPE_CHECKING:
    from inferplane_api.step import NewRequest, StepPlan

VOCAB = 41
EOS = 0


def extend(chain: list[int], tokens: list[int]) -> None:
    """chain[p] stands for everything that a model computes at position p: a function of tokens 0 … p."""
    for token in tokens[len(chain) :]:
        chain.append(hash((chain[-1] if chain else 17, token)))


def next_token(link: int) -> int:
    """The token that follows a prefix."""
    return (link >> 7) % VOCAB


def pooled_vector(links: dict[int, int], num_prompt: int, pooling_type: str) -> list[float]:
    """What pooling gives when the positions of a prompt have these links (modulo 97)."""
    positions = {"CLS": [0], "LAST": [num_prompt - 1], "MEAN": list(range(num_prompt))}[pooling_type]
    return [sum(links[p] for p in positions) / len(positions), float(num_prompt)]


class SlotState:
    """What the runner remembers of a slot's request."""

    def __init__(self, new: NewRequest, num_groups: int) -> None:
        self.request_id = new.request_id
        self.params = new.params
        self.num_prompt = new.num_prompt_tokens
        self.tokens = list(new.token_ids)
        self.chain: list[int] = []
        self.tables: list[dict[int, int]] = [{} for _ in range(num_groups)]
        self.pooling = new.pooling
        self.computed: dict[int, int] = {}
        """Position to link, of what was computed (and not found in the cache) for a pooled request."""


class Row:
    """A row as it was launched: the pages it writes and reads are fixed from then on."""

    def __init__(self, state: SlotState, start: int, count: int, remember: bool) -> None:
        self.state = state
        self.start = start
        self.count = count
        self.pages = [dict(table) for table in state.tables] if remember else []


class SimRunner:
    """Implements Runner. Nothing is computed before `collect`, so tokens are unknown while steps are in flight."""

    def __init__(self, geometry: KVGeometry, limits: RunnerLimits, num_pages: int, memory: bool = True) -> None:
        """Without memory, tokens come from what the slots are told, and no page is looked at: ten times faster."""
        self.has_memory = memory
        self.groups = geometry.groups
        self.limits = limits
        self.num_pages = num_pages
        self.slots: dict[int, SlotState] = {}
        self.memory: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.in_flight: deque[tuple[StepPlan, list[Row]]] = deque()
        self.plans: list[StepPlan] = []
        self.failures: dict[tuple[str, int], Exception] = {}
        """(call, step id) to the exception it raises."""
        self.corrupt: set[tuple[str, int]] = set()
        """(request id, number of known tokens) whose logits are bad."""
        self.pools = True
        """False: a runner that knows nothing of pooling."""
        self.broken: set[str] = set()
        """Pooled requests whose vector is NaN."""
        self.tolerant = False
        """After a failed step, slots may be named as removed twice."""

    def launch(self, plan: StepPlan) -> tuple[StepPlan, list[Row]]:
        if ("launch", plan.step_id) in self.failures:
            self.tolerant = True
            raise self.failures["launch", plan.step_id]
        assert plan.slots, "empty steps are not launched"
        self._apply(plan)
        columns = zip(plan.slots, plan.starts, plan.counts, strict=True)
        rows = [Row(self.slots[slot], start, count, self.has_memory) for slot, start, count in columns]
        self._check_shape(plan)
        if self.has_memory:
            self._check_reuse(rows)
        self.plans.append(plan)
        self.in_flight.append((plan, rows))
        return plan, rows

    def sample(self, handle: Any, inputs: Any) -> None:
        if ("sample", handle[0].step_id) in self.failures:
            self.in_flight.pop()
            self.tolerant = True
            raise self.failures["sample", handle[0].step_id]

    def collect(self, handle: Any) -> StepResult:
        plan, rows = self.in_flight.popleft()
        assert handle[0] is plan, "collected in launch order"
        if ("collect", plan.step_id) in self.failures:
            self.tolerant = True
            raise self.failures["collect", plan.step_id]
        for row in rows:
            assert row.start + row.count <= len(row.state.tokens), "a token that nobody knows"
            extend(row.state.chain, row.state.tokens)
        for act in (self._write, self._read) if self.has_memory else ():
            for row in rows:
                act(row)
        return self._result(plan, rows)

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.removed:
            assert self.slots.pop(slot, None) is not None or self.tolerant, f"slot {slot} was not in use"
        for new in plan.added:
            assert new.slot not in self.slots, f"slot {new.slot} is in use"
            self.slots[new.slot] = SlotState(new, len(self.groups))
        for slot, group, index, page in zip(
            plan.page_slots, plan.page_groups, plan.page_indices, plan.page_ids, strict=True
        ):
            assert 0 <= page < self.num_pages
            self.slots[slot].tables[group][index] = page

    def _check_shape(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert len(plan.slots) == len(set(plan.slots)) <= self.limits.max_num_seqs
        assert all(0 <= slot < self.limits.max_num_seqs for slot in plan.slots)
        assert min(plan.counts) >= 1
        assert [n > 1 for n in plan.counts] == sorted(n > 1 for n in plan.counts), "single-token rows first"
        assert plan.sample_rows == sorted(set(plan.sample_rows))

    def _check_reuse(self, rows: list[Row]) -> None:
        """No page may be written for one request while a step in flight touches it for another."""
        touched: dict[int, set[int]] = {}
        for _, flying in self.in_flight:
            for row in flying:
                for index, group in enumerate(self.groups):
                    for position in self._visible(row, group):
                        touched.setdefault(self._page(row, index, position), set()).add(id(row.state))
        for row in rows:
            for index in range(len(self.groups)):
                for position in range(row.start, row.start + row.count):
                    page = self._page(row, index, position)
                    assert page != NULL_PAGE, f"no page to write position {position} to"
                    assert touched.get(page, {id(row.state)}) == {id(row.state)}, f"page {page} is reused in flight"

    def _visible(self, row: Row, group: KVGroupSpec) -> range:
        first = 0 if group.window is None else max(0, row.start - group.window + 1)
        return range(first, row.start + row.count)

    def _page(self, row: Row, index: int, position: int) -> int:
        return row.pages[index].get(position // self.groups[index].tokens_per_page, NULL_PAGE)

    def _write(self, row: Row) -> None:
        for index, group in enumerate(self.groups):
            for position in range(row.start, row.start + row.count):
                place = self._page(row, index, position), position % group.tokens_per_page
                self.memory[place] = (index, position, row.state.chain[position])

    def _read(self, row: Row) -> None:
        for index, group in enumerate(self.groups):
            for position in self._visible(row, group):
                page = self._page(row, index, position)
                found = self.memory.get((page, position % group.tokens_per_page))
                assert found == (index, position, row.state.chain[position]), (
                    f"{row.state.request_id}: group {index} position {position} page {page} holds {found}"
                )

    def _result(self, plan: StepPlan, rows: list[Row]) -> StepResult:
        tokens, corrupted = [], []
        logprobs: list[list[TokenLogprobs] | None] = []
        for i, index in enumerate(plan.sample_rows):
            row = rows[index]
            state = row.state
            assert row.start + row.count == len(state.tokens), "only the newest token's logits are sampled"
            if (state.request_id, len(state.tokens)) in self.corrupt:
                corrupted.append(i)
            token = next_token(state.chain[len(state.tokens) - 1])
            state.tokens.append(token)
            tokens.append([token])
            asked = state.params.logprobs is not None
            logprobs.append([TokenLogprobs(token, -token / VOCAB, 1, [token], [-token / VOCAB])] if asked else None)
        return StepResult(
            step_id=plan.step_id,
            tokens=tokens,
            logprobs=logprobs if any(logprobs) else None,
            prompt_logprobs=self._prompt_logprobs(rows) or None,
            pooled=self._pooled(rows) if self.pools else None,
            corrupted=corrupted,
        )

    def _pooled(self, rows: list[Row]) -> dict[int, list[float]] | None:
        """As a runner that keeps of earlier chunks what their positions gave, and no page."""
        found: dict[int, list[float]] = {}
        for i, row in enumerate(rows):
            state, end = row.state, row.start + row.count
            if state.pooling is None:
                continue
            state.computed.update({p: state.chain[p] % 97 for p in range(row.start, end)})
            if end < state.num_prompt:
                continue
            found[i] = pooled_vector(state.computed, state.num_prompt, state.pooling.pooling_type)
            if state.request_id in self.broken:
                found[i][-1] = float("nan")
        return found or None

    def _prompt_logprobs(self, rows: list[Row]) -> dict[int, list[TokenLogprobs]]:
        found = {}
        for i, row in enumerate(rows):
            state = row.state
            end = min(row.start + row.count, state.num_prompt - 1)
            if state.params.prompt_logprobs is not None and row.start < state.num_prompt:
                found[i] = [
                    TokenLogprobs(state.tokens[p], -float(state.chain[p - 1] % 97), 1, [], [])
                    for p in range(row.start + 1, end + 1)
                ]
        return found


def make_geometry(groups: list[tuple[int, int | None]], block_size: int) -> KVGeometry:
    """groups: (tokens per page, window or None)."""
    return KVGeometry(
        page_bytes=1024,
        block_size=block_size,
        groups=tuple(
            KVGroupSpec(
                index=i,
                kind="full" if window is None else "sliding",
                layers=(i,),
                tokens_per_page=size,
                num_heads=1,
                num_kv_heads=1,
                head_size=8,
                dtype="float32",
                window=window,
            )
            for i, (size, window) in enumerate(groups)
        ),
    )


def make_plan(
    *,
    groups: list[tuple[int, int | None]] | None = None,
    block_size: int = 4,
    max_model_len: int = 64,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 32,
    depth: int = 2,
    features: frozenset[str] = frozenset(),
    constraints: dict[str, Any] | None = None,
    auto_max_model_len: bool = False,
    **fields: Any,
) -> Plan:
    """A Plan of which only the engine's part means something."""
    geometry = make_geometry([(4, None)] if groups is None else groups, block_size)
    part = Component(id="test.none", load="none:none", distribution="none", version="0")
    model = ModelSpec(
        model_type="test",
        architecture="Test",
        num_layers=len(geometry.groups),
        hidden_size=8,
        intermediate_size=8,
        vocab_size=VOCAB,
        max_position=4096,
        dtype="float32",
        layers=tuple(LayerSpec(num_heads=1, num_kv_heads=1, head_size=8) for _ in geometry.groups),
        features=features,
    )
    return Plan(
        platform=part,
        platform_name="test",
        runner_seam=True,
        device=DeviceInfo(),
        checkpoint_path="",
        checkpoint_format=part,
        card=CheckpointCard(config={}),
        model=model,
        architecture=None,
        dtype="float32",
        kv_dtype="float32",
        geometry=geometry,
        attention=(),
        ops=(),
        linear=(),
        limits=RunnerLimits(
            max_model_len=max_model_len, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        ),
        auto_max_model_len=auto_max_model_len,
        scheduling=SchedulingConstraints(queue_depth=depth, **(constraints or {})),
        **fields,
    )


def make_request(request_id: str, prompt: list[int], **fields: Any) -> Request:
    """Fields of Request or of SamplingParams."""
    names = ("priority", "cache_salt", "client_id", "eos_token_ids", "share", "queue_timeout", "pooling", "follows")
    own = {k: fields.pop(k) for k in names if k in fields}
    own = {"client_id": "client", "eos_token_ids": (EOS,), **own}
    return Request(request_id=request_id, prompt_token_ids=prompt, params=SamplingParams(**fields), seed=1, **own)


def expected(request: Request, max_model_len: int) -> tuple[list[int], str, int | None]:
    """(tokens, finish_reason, stop_reason) of a request that runs alone, from the definition of the model."""
    params = request.params
    tokens = list(request.prompt_token_ids)
    chain: list[int] = []
    limit = min(len(tokens) + (params.max_tokens or 0), max_model_len)
    output: list[int] = []
    while len(tokens) < limit:
        extend(chain, tokens)
        token = next_token(chain[-1])
        tokens.append(token)
        output.append(token)
        if len(output) >= params.min_tokens:
            if token in request.eos_token_ids and not params.ignore_eos:
                return output, "stop", None
            if token in params.stop_token_ids:
                return output, "stop", token
    return output, "length", None


class Outcome:
    """Everything that the deltas of one request said."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.deltas: list[Any] = []

    @property
    def last(self) -> Any:
        return self.deltas[-1]


class Harness:
    """An engine on a SimRunner, and what came out of it."""

    def __init__(self, num_pages: int = 65, memory: bool = True, **plan: Any) -> None:
        self.plan = make_plan(**plan)
        self.runner = SimRunner(self.plan.geometry, self.plan.limits, num_pages, memory)
        self.now = 0.0
        self.engine = Engine(self.plan, self.runner, num_pages, clock=lambda: self.now)
        self.scheduler = self.engine._scheduler
        self.outcomes: dict[str, Outcome] = {}

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.engine.submit(request)

    def step(self) -> None:
        for _, delta in self.engine.step():
            outcome = self.outcomes.setdefault(delta.request_id, Outcome())
            assert not outcome.deltas or outcome.last.finish_reason is None, "a delta after the last one"
            outcome.tokens += delta.token_ids
            outcome.deltas.append(delta)
        self.scheduler.check()

    def run(self, limit: int = 10_000) -> dict[str, Outcome]:
        """Until nothing is left to do."""
        for _ in range(limit):
            if not self.engine.has_work():
                self.check_idle()
                return self.outcomes
            self.step()
        raise AssertionError(f"still busy after {limit} steps")

    def check_idle(self) -> None:
        """Nothing is held when nothing runs."""
        pool = self.scheduler.pool
        pool.check()
        assert pool.num_free == pool.num_pages - 1
        assert pool.usage == 0.0
        assert self.engine.oldest_launch is None

    def result(self, request_id: str) -> tuple[list[int], str, int | None]:
        outcome = self.outcomes[request_id]
        return outcome.tokens, outcome.last.finish_reason, outcome.last.stop_reason


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """What the tests of the engine share."""
    return SimpleNamespace(
        EOS=EOS,
        VOCAB=VOCAB,
        Harness=Harness,
        SimRunner=SimRunner,
        expected=expected,
        geometry=make_geometry,
        plan=make_plan,
        request=make_request,
        extend=extend,
        pooled_vector=pooled_vector,
    )
