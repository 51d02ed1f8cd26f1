"""What happens to requests in a world: chunks, decoding, mixed steps, shared pages, freed pages, padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from inferplane_api.testing.attention_world import Row, World
from inferplane_api.testing.buckets import most_rows, most_tokens
from inferplane_api.testing.case import Lie, NotTested
from inferplane_api.testing.compare import difference, same_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.testing.attention_world import Point

SHORTEST = 12
"""Tokens that count as a prompt's unit where a page is smaller."""


MANY_ROWS = 33
LARGE_SCORE = 300


def largest_chunk(backend: Any) -> int:
    """Tokens of a prompt that may stand in one step."""
    most: int = most_tokens(backend.scheduling)
    return min(most, backend.scheduling.max_chunk or most)


def serve(world: World, prompts: list[int], backend: Any) -> list[torch.Tensor]:
    """Compute every token of every request: chunks of odd lengths, then single tokens; mixed where that is allowed."""
    largest, step, outs = largest_chunk(backend), 0, []
    budget = most_tokens(backend.scheduling)
    sizes = (7, max(24, 3 * world.point.page // 4), 5)
    while any(request.remaining for request in world.requests):
        pairs = list(zip(world.requests, prompts, strict=True))
        decodes = [Row(request, 1) for request, prompt in pairs if request.remaining and request.done >= prompt]
        # A request joins at every second step, so that prompts meet requests that are further on.
        joined = [(request, prompt) for index, (request, prompt) in enumerate(pairs) if 2 * index <= step]
        waiting = [(request, prompt - request.done) for request, prompt in joined if request.done < prompt]
        chunks = [
            Row(request, min(left, sizes[(step + index) % 3], largest)) for index, (request, left) in enumerate(waiting)
        ]
        rows = _fit(decodes, chunks, budget, most_rows(backend.scheduling), mixed=backend.scheduling.mixed_steps)
        if rows:
            outs.append(world.step(rows))
        step += 1
    return outs


def _fit(decodes: list[Row], chunks: list[Row], budget: int, most_rows: int, *, mixed: bool) -> list[Row]:
    """The step's rows, those with one token first."""
    candidates = [*decodes, *chunks] if mixed else (chunks or decodes)
    rows: list[Row] = []
    for row in candidates:
        if len(rows) < most_rows and sum(each.tokens for each in rows) + row.tokens <= budget:
            rows.append(row)
    return sorted(rows, key=lambda row: row.tokens != 1)


def chunks_and_decode(point: Point, backend: Any, device: torch.device) -> None:
    """Three requests, one of them longer than a page, one that ends with a page."""
    unit = max(point.page, SHORTEST)
    prompts = [unit + unit // 2 + 1, 5, 2 * unit]
    serve(World(point, [prompts[0] + 3, prompts[1] + 2, prompts[2] + 1], backend, device), prompts, backend)


def shared_pages(point: Point, backend: Any, device: torch.device) -> None:
    """A row reads pages that a later row of the same step fills: all writes come before any read."""
    if most_rows(backend.scheduling) < 2:
        raise NotTested("a step of this device has one row")
    whole = -(-SHORTEST // point.page) * point.page
    tokens = min(4, largest_chunk(backend), most_tokens(backend.scheduling) // 2)
    for count in (tokens, 1) if backend.scheduling.mixed_steps else (tokens,):
        world = World(point, [whole + 4, whole + 4], backend, device)
        writer, reader = world.requests
        for name in ("k", "v"):
            getattr(reader, name)[:whole] = getattr(writer, name)[:whole]
        reader.pages[: whole // point.page] = writer.pages[: whole // point.page]
        while writer.done < whole - tokens:
            world.step([Row(writer, min(largest_chunk(backend), whole - tokens - writer.done))])
        reader.done = whole
        try:
            world.step([Row(reader, count), Row(writer, tokens)])
        except Lie as lie:
            raise Lie(f"a row reads pages before another row of the same step has written them: {lie}") from None


def permuted_pages(point: Point, backend: Any, device: torch.device) -> None:
    """Which pages a request gets changes nothing."""
    unit = max(point.page, SHORTEST)
    prompts = [unit + 3, 5]
    outs = [
        serve(World(point, [prompts[0] + 2, prompts[1] + 2], backend, device, seed), prompts, backend)
        for seed in (1, 2)
    ]
    for first, second in zip(*outs, strict=True):
        if problem := difference(first, second.double(), *point.tolerance):
            raise Lie(f"the result depends on which pages are used: {problem}")


def padded_rows(point: Point, backend: Any, device: torch.device) -> None:
    """Rows of nobody point at the null page, and their tokens are not written."""
    if most_rows(backend.scheduling) < 2:
        raise NotTested("a step of this device has one row")
    world = World(point, [SHORTEST + 3, 3], backend, device)
    first, second = world.requests
    world.step([Row(first, min(SHORTEST, largest_chunk(backend), most_tokens(backend.scheduling) - 1))], padding=1)
    world.step([Row(second, min(2, largest_chunk(backend)))], padding=1)
    rows = [Row(first, 1), Row(second, 1)]
    world.step(rows[: most_rows(backend.scheduling) - 1], padding=1)


def written_by_another_layer(point: Point, backend: Any, device: torch.device) -> None:
    """k and v are None where another layer has written them."""
    world = World(point, [SHORTEST + 1], backend, device)
    request = world.requests[0]
    while request.remaining > 1:
        world.step([Row(request, min(request.remaining - 1, largest_chunk(backend)))], reuse=True)
    world.step([Row(request, 1)], reuse=True)


def batch_invariance(point: Point, backend: Any, device: torch.device) -> None:
    """A request's bits are the same alone and beside others."""
    if most_rows(backend.scheduling) < 2:
        raise NotTested("a step of this device has one row")
    lengths, prompts = [SHORTEST + 2, 7], [SHORTEST, 5]
    alone = World(point, lengths, backend, device)
    beside = World(point, lengths, backend, device)
    for world in (alone, beside):
        for request, prompt in zip(world.requests, prompts, strict=True):
            while request.done < prompt:
                world.step([Row(request, min(prompt - request.done, largest_chunk(backend)))])
    together = beside.step([Row(request, 1) for request in beside.requests])
    for index, request in enumerate(alone.requests):
        single = alone.step([Row(request, 1)])
        if not same_bytes(single[0], together[index]):
            raise Lie("it declares batch_invariant and a request's bits change with the batch")


def many_rows(point: Point, backend: Any, device: torch.device) -> None:
    """More requests in a step than there are lanes in a small grid, of different lengths."""
    count = min(MANY_ROWS, most_rows(backend.scheduling), most_tokens(backend.scheduling))
    world = World(point, [1 + 5 * index % 7 for index in range(count)], backend, device)
    while any(request.remaining for request in world.requests):
        world.step([Row(request, 1) for request in world.requests if request.remaining])


def large_scores(point: Point, backend: Any, device: torch.device) -> None:
    """Scores whose exponential overflows, or vanishes, though their softmax is the plainest: all are equal."""
    prompts = [SHORTEST, 5]
    world = World(point, [prompts[0] + 2, prompts[1] + 2], backend, device)
    size = (LARGE_SCORE / point.scale) ** 0.5
    for request, sign in zip(world.requests, (1, -1), strict=True):
        request.q.zero_()[..., 0] = sign * size
        request.k.zero_()[..., 0] = size
    try:
        serve(world, prompts, backend)
    except Lie as lie:
        raise Lie(f"scores of {LARGE_SCORE} or -{LARGE_SCORE} overflow an exponential: {lie}") from None


def graph_replay(point: Point, backend: Any, device: torch.device) -> None:
    """A captured decode step, replayed for later steps, after `plan` has seen each."""
    if most_rows(backend.scheduling) < 2:
        raise NotTested("a step of this device has one row")
    world = World(point, [SHORTEST + 8, 8], backend, device)
    for request, prompt in zip(world.requests, (SHORTEST, 3), strict=True):
        while request.done < prompt:
            world.step([Row(request, min(prompt - request.done, largest_chunk(backend)))])
    world.begin_capture(backend.graphs)
    for _ in range(5):
        world.step([Row(request, 1) for request in world.requests])


SCENARIOS: dict[str, Callable[[Point, Any, torch.device], None]] = {
    "chunks": chunks_and_decode,
    "shared-pages": shared_pages,
    "permuted-pages": permuted_pages,
    "padded-rows": padded_rows,
    "k-v-none": written_by_another_layer,
    "many-rows": many_rows,
    "large-scores": large_scores,
}
"""By the name that a case has."""
