"""What the server itself costs: streamed tokens per second and CPU time per token, with an engine that takes no time.

`inferplane serve` on the scripted platform (`inferplane-scripted`: the real scheduler, channel and tokenizer, a runner
that only recites) streams to a client in a process of its own, which counts events and parses nothing. Every request
has stop strings, asks for usage, and is measured by the metrics. For comparison the same client reads a bare FastAPI
StreamingResponse of the same bytes in the same run. CPU time is that of the process over the measured requests, so it
says the same on a busy machine, where tokens per second do not. Prints JSON.

    python benchmarks/server_overhead.py --concurrency 64 --runs 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

WORDS = (" the", " quick", " brown", " fox", " jumps", " over", " a", " lazy", " dog", ",", " and", " so", " on", ".")
STOPS = ["the end of it", "\n\nUser:", "</s>"]
BARE = "bare"


class Reader(asyncio.Protocol):
    """One connection: posts the body again and again, counts what comes back."""

    def __init__(self, request: bytes, repeats: int, done: asyncio.Future[None]) -> None:
        self._request = request
        self._left = repeats
        self._done = done
        self._tail = b""
        """The last bytes before, in which an event or the end may begin."""
        self.events = 0
        self.status = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.status = self.status or data[:12]
        data = self._tail + data
        # Five bytes cannot hold the six that are counted.
        self.events += data.count(b"data: ")
        self._tail = data[-5:]
        # The last chunk of an answer is empty.
        if self._tail == b"0\r\n\r\n":
            self._tail = b""
            self._left -= 1
            if self._left:
                self._transport.write(self._request)
            elif not self._done.done():
                self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or ConnectionError("the server closed the connection"))


async def drive(url: str, body: bytes, concurrency: int, repeats: int) -> dict[str, Any]:
    """All connections at once; events and seconds."""
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    loop = asyncio.get_running_loop()
    ends = [loop.create_future() for _ in range(concurrency)]
    readers = [Reader(request, repeats, end) for end in ends]
    began, cpu_before = time.perf_counter(), time.process_time()
    for reader in readers:
        await loop.create_connection(lambda reader=reader: reader, parts.hostname, parts.port)
    await asyncio.gather(*ends)
    seconds = time.perf_counter() - began
    assert {reader.status for reader in readers} == {b"HTTP/1.1 200"}, {reader.status for reader in readers}
    cpu = time.process_time() - cpu_before
    return {"events": sum(reader.events for reader in readers), "seconds": seconds, "client_cpu": cpu}


def serve_bare(num_chunks: int, size: int) -> None:
    """FastAPI as its documentation shows it: an async generator, one chunk for each token."""
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    app = FastAPI()
    chunk = b"data: " + b"x" * (size - 8) + b"\n\n"

    async def chunks() -> Any:
        for _ in range(num_chunks):
            yield chunk

    @app.post("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(chunks(), media_type="text/event-stream")

    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"Ready: bare on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", http="httptools")).run(sockets=[listener])


class Started:
    """A server process, ready."""

    def __init__(self, command: list[str]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close(); a pipe would fill up
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Ready: "):
                self.url = line.split(" on ")[1].split()[0].removesuffix("/v1")
                break
        else:
            self._log.seek(0)
            raise RuntimeError(self._log.read())
        self.handle = psutil.Process(self.process.pid)

    def engine(self) -> psutil.Process | None:
        children = self.handle.children(recursive=True)
        return next((child for child in children if "inferplane.engine.process" in child.cmdline()), None)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._log.close()


def cpu_seconds(process: psutil.Process | None) -> float:
    times = process.cpu_times() if process is not None else None
    return times.user + times.system if times is not None else 0.0


def measure(server: Started, path: str, body: dict[str, Any], concurrency: int, repeats: int) -> dict[str, Any]:
    """One run of the client in its own process."""
    engine = server.engine()
    before = cpu_seconds(server.handle), cpu_seconds(engine)
    command = [sys.executable, __file__, "--drive", server.url + path, str(concurrency), str(repeats)]
    done = subprocess.run(command, input=json.dumps(body), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    found["server_cpu"] = cpu_seconds(server.handle) - before[0]
    found["engine_cpu"] = cpu_seconds(engine) - before[1]
    return dict(found)


def summarize(found: list[dict[str, Any]], tokens: int) -> dict[str, float]:
    """Medians over the runs."""
    return {
        "tokens_per_second": round(statistics.median(tokens / run["seconds"] for run in found)),
        "server_cpu_us_per_token": round(statistics.median(run["server_cpu"] / tokens * 1e6 for run in found), 2),
        "engine_cpu_us_per_token": round(statistics.median(run["engine_cpu"] / tokens * 1e6 for run in found), 2),
        "client_cpu_us_per_token": round(statistics.median(run["client_cpu"] / tokens * 1e6 for run in found), 2),
    }


def requests(max_tokens: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """What is measured, by name."""
    common = {"model": "scripted", "max_tokens": max_tokens, "ignore_eos": True, "stream": True, "stop": STOPS}
    common["stream_options"] = {"include_usage": True}
    chat = {**common, "messages": [{"role": "user", "content": "Hello"}]}
    return {
        "chat": ("/v1/chat/completions", chat),
        "completions": ("/v1/completions", {**common, "prompt": "Hello"}),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from inferplane_scripted.checkpoint import VOCAB_SIZE, write_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "model", words=WORDS, max_position=2 * arguments.max_tokens + 256)
        script = Path(folder) / "script.json"
        tokens = list(range(VOCAB_SIZE, VOCAB_SIZE + len(WORDS)))
        script.write_text(json.dumps({"default": tokens, "delay": arguments.step_ms / 1000}))
        serve = ["-m", "inferplane", "serve", str(model), "--platform", "scripted", "--port", "0"]
        serve += ["--served-model-name", "scripted", "--platform-option", f"script={script}"]
        serve += ["--max-num-seqs", str(arguments.concurrency), *arguments.flags]
        servers = {"inferplane": Started(serve)}
        servers[BARE] = Started([__file__, "--bare", str(arguments.max_tokens), str(arguments.chunk_bytes)])
        try:
            return compare(servers, arguments)
        finally:
            for server in servers.values():
                server.close()


def compare(servers: dict[str, Started], arguments: argparse.Namespace) -> dict[str, Any]:
    """In turns, so that a slow moment hits all."""
    kinds = requests(arguments.max_tokens)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in [*kinds, BARE]}
    for number in range(arguments.runs + 1):
        for name in found:
            server = servers[BARE if name == BARE else "inferplane"]
            path, body = ("/stream", {}) if name == BARE else kinds[name]
            measured = measure(server, path, body, arguments.concurrency, arguments.repeats)
            if number:  # the first one warms up
                found[name].append(measured)
    streams = arguments.concurrency * arguments.repeats
    tokens = streams * arguments.max_tokens
    extra = {"chat": 3, "completions": 2, BARE: 0}  # roles, usage, [DONE]
    for name, runs in found.items():
        counted = {measured["events"] for measured in runs}
        assert counted == {tokens + extra[name] * streams}, f"{name}: {counted} events for {tokens} tokens"
    return {
        "cores": len(os.sched_getaffinity(0)),
        "concurrency": arguments.concurrency,
        "tokens_per_run": tokens,
        "runs": arguments.runs,
        **{name: summarize(runs, tokens) for name, runs in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=4, help="requests of each connection in one run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=0.0, help="what the engine waits in every step")
    parser.add_argument("--chunk-bytes", type=int, default=215, help="size of the bare stream's chunks")
    parser.add_argument("--drive", nargs=3, metavar=("URL", "CONCURRENCY", "REPEATS"), help=argparse.SUPPRESS)
    parser.add_argument("--bare", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="behind --: flags for `inferplane serve`")
    arguments = parser.parse_args()
    if arguments.bare:
        serve_bare(*arguments.bare)
    elif arguments.drive:
        url, concurrency, repeats = arguments.drive
        body = sys.stdin.buffer.read()
        print(json.dumps(asyncio.run(drive(url, body, int(concurrency), int(repeats)))))
    else:
        print(json.dumps(run(arguments), indent=2))


if __name__ == "__main__":
    main()
