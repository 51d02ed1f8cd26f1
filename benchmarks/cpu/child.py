"""One engine in a process of its own, driven over stdin and stdout with one JSON object a line.

Runs in the engine's own environment, so it needs only the standard library; knows no work and no row.

Verbs, each answered by one line, {"ok": ...} or {"error": "..."}:

    {"verb": "load", "settings": {...}}                        {"versions": {...}, "notes": [...]}
    {"verb": "generate", "requests": [[ids, n], ...], "shared": 0}     {"seconds": s, "outputs": [[ids], ...]}
    {"verb": "score", "text": "..."}                           {"nll": [a token, ...]}
    {"verb": "close"}                                          {}

`generate` is greedy, makes exactly n tokens a request, whatever the end token, and is timed here: what is set up in
`Adapter.prepare` (token arrays, a context of the right size) is not counted, its own queueing and sampling is.
`shared` is the number of leading tokens that all requests have in common, for engines that must be told.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol


class Adapter(Protocol):
    """What `adapters.NAME.Engine` is."""

    def load(self, settings: dict[str, Any]) -> dict[str, Any]: ...

    def prepare(self, requests: list[tuple[list[int], int]], shared: int) -> Callable[[], list[list[int]]]: ...

    def score(self, text: str) -> list[float]:
        """Negative log-likelihood in nats of every token after the first, or NotImplementedError."""
        ...


def answer(engine: Adapter, order: dict[str, Any]) -> dict[str, Any]:
    if order["verb"] == "load":
        return engine.load(order["settings"])
    if order["verb"] == "generate":
        requests = [(list(ids), int(count)) for ids, count in order["requests"]]
        run = engine.prepare(requests, order.get("shared", 0))
        started = time.perf_counter()
        outputs = run()
        seconds = time.perf_counter() - started
        lengths = [len(output) for output in outputs]
        wanted = [count for _, count in requests]
        if lengths != wanted:
            raise RuntimeError(f"made {lengths} tokens where {wanted} were asked for")
        return {"seconds": seconds, "outputs": outputs}
    if order["verb"] == "score":
        return {"nll": engine.score(order["text"])}
    if order["verb"] == "close":
        return {}
    raise RuntimeError(f"unknown verb {order['verb']!r}")


def main() -> None:
    # Engines print to stdout as they like: the protocol keeps the pipe for itself, everything else goes to the log.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Adapter = importlib.import_module(f"adapters.{sys.argv[1]}").Engine()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            reply = {"ok": answer(engine, order)}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if order["verb"] == "close":
            break
    # Some engines hang or crash in their destructors; nothing of the measurement is left to be done.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
