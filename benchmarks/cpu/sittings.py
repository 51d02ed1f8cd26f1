"""One engine's process in one round, and the rows that it yields. Knows sessions and servers; no rounds, no report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import work
from rows import CONTEXT, KV_TOKENS, MAX_SEQS, Measured, Row, decode_rate
from session import CHILD, Session, SessionFailed, end_group, engine_environment
from work import Sizes

START_LIMIT = 600.0
KV_BYTES_A_TOKEN = {"smollm2": 30 * 2 * 3 * 64 * 2, "gemma": 18 * 2 * 1 * 256 * 2}
"""16-bit keys and values of all layers."""

_CHURN = """
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <unordered_map>
int main(int argc, char** argv) {
    std::map<std::string, std::vector<int>> table;
    std::regex pattern("([a-z]+)-([0-9]+)");
    std::unordered_map<int, std::function<int(int)>> calls;
    for (int i = 0; i < argc; ++i) calls[i] = [i](int x) { return x + i; };
    std::mt19937 draw(argc);
    for (auto& [key, list] : table) std::shuffle(list.begin(), list.end(), draw);
    return std::regex_match(argv[0], pattern) ? calls[0](1) : 0;
}
"""


@dataclass(frozen=True)
class Place:
    """Where an engine and its files are."""

    peer: str
    python: str
    models: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def model(self, sitting: str) -> tuple[str, str]:
        """(path, family)."""
        if sitting == "gemma":
            return str(self.models / "gemma-3-270m-q4_k_m.gguf"), "gemma"
        if sitting == "q4":
            return str(self.models / "SmolLM2-135M-Instruct.Q4_1.gguf"), "smollm2"
        names = {"llama_cpp": "smollm2-bf16.gguf", "openvino": "smollm2-openvino"}
        return str(self.models / names.get(self.peer, "smollm2-bf16")), "smollm2"

    def command(self) -> list[str]:
        return [self.python, str(CHILD), self.peer]

    def settings(self, sitting: str) -> dict[str, Any]:
        model, family = self.model(sitting)
        return {
            "model": model,
            "threads": len(os.sched_getaffinity(0)),
            "context": CONTEXT,
            "max_seqs": MAX_SEQS,
            "kv_tokens": KV_TOKENS,
            "kv_bytes": KV_TOKENS * KV_BYTES_A_TOKEN[family],
        }


Result = tuple[dict[str, Any], list[tuple[str, Measured]]]
"""(what the engine says of itself, (row, what was measured))."""


def sit(place: Place, sitting: str, rows: Sequence[Row], sizes: Sizes, round_index: int, log: Path) -> Result:
    """Raises SessionFailed."""
    if sitting == "http":
        return serve_over_http(place, sizes, log)
    with Session(place.command(), log=log, environment=place.environment) as session:
        said = session.load(place.settings(sitting))
        session.generate([(work.prompt("start", 16, round_index, 0), 1)])
        started = time.perf_counter() - session.started
        session.generate([(work.prompt("warm", 40, round_index, 0), 16)])
        measured = []
        for row in rows:
            if row.name == "start":
                measured.append((row.name, Measured([started], {})))
            elif row.name == "rss":
                measured.append((row.name, Measured([session.peak_memory()], {"kv_tokens": KV_TOKENS})))
            elif row.name == "contention":
                measured.append((row.name, beside_compilers(session, sizes, round_index)))
            else:
                assert row.measure is not None
                measured.append((row.name, row.measure(session, sizes, round_index)))
        session.close()
    return said, measured


def perplexities(place: Place, text: str, log: Path) -> dict[str, list[float]]:
    """Of every token: ours on a fixed text, from the three forms of the same weights."""
    found = {}
    for name, sitting, options in (
        ("bf16", "bf16", {}),
        ("Q4_1", "q4", {}),
        ("Q4_1 dequantized", "q4", {"weights": "dequantized"}),
    ):
        with Session(place.command(), log=log, environment=place.environment) as session:
            session.load({**place.settings(sitting), "options": options})
            found[name] = session.score(text)
            session.close()
    return found


def beside_compilers(session: Session, sizes: Sizes, round_index: int) -> Measured:
    """Loaded over unloaded decode, in turns."""
    shares, detail = [], []
    for repeat in range(sizes.repeats):
        once = Sizes(repeats=1, decode_out=sizes.decode_out)
        alone = decode_rate(session, once, round_index, f"alone {repeat}").values[0]
        with busy(2):
            time.sleep(1.0)
            loaded = decode_rate(session, once, round_index, f"loaded {repeat}").values[0]
        shares.append(loaded / alone)
        detail.append({"alone": alone, "loaded": loaded})
    return Measured(shares, {"rates": detail, "busy": "g++ -O2" if shutil.which("g++") else "python loops"})


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """`count` compilers at work at our own priority, again and again; loops of Python where there is no compiler."""
    with tempfile.TemporaryDirectory(prefix="inferplane-busy-") as folder:
        source = Path(folder) / "churn.cpp"
        source.write_text(_CHURN)
        compiler = shutil.which("g++")
        loop = f"while :; do {compiler} -std=c++17 -O2 -c {source} -o /dev/null; done"
        command = ["sh", "-c", loop] if compiler else [sys.executable, "-c", "while True: pass"]
        processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) for _ in range(count)]
        try:
            yield
        finally:
            for process in processes:
                end_group(process)


def server_command(place: Place, port: int) -> list[str]:
    model, family = place.model("http")
    common = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(CONTEXT)]
    common += ["--max-num-seqs", str(MAX_SEQS), "--served-model-name", "model"]
    if place.peer == "vllm":
        # Not its command: that looks up the metadata of "vllm", which the CPU's distribution does not have.
        entry = "vllm.entrypoints.openai.api_server"
        return [place.python, "-m", entry, "--model", model, "--dtype", "bfloat16", *common]
    size = KV_TOKENS * KV_BYTES_A_TOKEN[family]
    return [place.python, "-m", "inferplane", "serve", model, *common, "--kv-cache-memory-bytes", str(size)]


def serve_over_http(place: Place, sizes: Sizes, log: Path) -> Result:
    """A server and its client on the same cores; streamed, 16 requests at a time."""
    from inferplane.bench.datasets import Sample
    from inferplane.bench.drive import Load, drive, make_pool
    from inferplane.bench.statistics import summarize
    from inferplane.errors import InferplaneError

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    requests = work.mixed(sizes.offline)
    samples: list[Any] = [Sample(ids, len(ids), count) for ids, count in requests]  # type: ignore[arg-type]
    load = Load("model", max_concurrency=16, ignore_eos=True, extra_body={"temperature": 0})

    async def run(url: str) -> list[Any]:
        pool = make_pool(f"{url}/v1/completions", None, {}, timeout=600.0)
        try:
            await drive(pool, load, [Sample(work.prompt("warm", 40, 0, 0), 40, 16)] * 2)  # type: ignore[arg-type]
            return await drive(pool, load, samples)
        finally:
            pool.close()

    started = time.perf_counter()
    with log.open("ab") as output:
        server = subprocess.Popen(
            server_command(place, port),
            stdout=output,
            stderr=output,
            env=engine_environment(place.environment),
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for_health(server, url, log)
        healthy = time.perf_counter() - started
        outcomes = asyncio.run(run(url))
    except (InferplaneError, OSError) as error:
        raise SessionFailed(f"{error}, log: {log}") from error
    finally:
        end_group(server)
    figures = summarize(outcomes, percentiles=(99.0,))
    wanted = work.output_tokens(requests)
    if figures["failed"] or figures["total_output_tokens"] != wanted:
        raise SessionFailed(f"{figures['failures']}, {figures['total_output_tokens']} of {wanted} tokens, log: {log}")
    detail = {"healthy_s": healthy, "figures": figures}
    measured = [
        ("http", Measured([figures["output_throughput"]], detail)),
        ("http_ttft", Measured([figures["p99_ttft_ms"]], {"median_ms": figures["median_ttft_ms"]})),
        ("http_itl", Measured([figures["p99_itl_ms"]], {"median_ms": figures["median_itl_ms"]})),
    ]
    return {}, measured


def _wait_for_health(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    import httpx

    deadline = time.perf_counter() + START_LIMIT
    while time.perf_counter() < deadline:
        if server.poll() is not None:
            raise SessionFailed(f"the server ended with status {server.returncode}, log: {log}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    raise SessionFailed(f"no healthy server within {START_LIMIT:g} s, log: {log}")
