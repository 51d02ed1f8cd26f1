"""Half an hour of mixed requests against one `inferplane serve`: do memory and descriptors of its processes stay flat?

A fixed number of clients sends completions, conversations and embeddings (whichever the model serves), streamed or not,
with stop strings, log-probabilities, several choices, seeds and bodies that are refused, and leaves in the middle of
some. Every few seconds the resident memory, the descriptors and the threads of each process are read. After the
warm-up a line is fitted through each: the verdict is "flat" where it rises over the measured time by less than
--memory-tolerance of the mean (or 4 MiB, whichever is more) and by fewer than 4 descriptors and 2 threads. Prints JSON.

    python benchmarks/soak.py --minutes 30 --concurrency 32
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

MEBIBYTE = 2**20
SLACK = {"rss": 4 * MEBIBYTE, "descriptors": 4, "threads": 2}
"""What a process may gain over the measured time and still count as flat."""
CONTEXT = 512
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "and",
    "then",
    "it",
    "sleeps",
    "for",
    "the",
    "rest",
    "of",
    "this",
    "long",
    "warm",
    "day",
]

Samples = dict[str, list[tuple[float, dict[str, int]]]]


def make_tiny_model(folder: Path) -> Path:
    """A random Llama of two layers with a byte tokenizer and a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from inferplane_scripted.checkpoint import EOS, VOCAB_SIZE, write_checkpoint

    write_checkpoint(folder)  # for its tokenizer
    # Words are split as real tokenizers split them. Without that a whole prompt is one word, and the library's cache of
    # words grows by every prompt until it is full: by 46 MB, seen to stand still after 30,000 prompts.
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["pre_tokenizer"]["use_regex"] = True
    file.write_text(json.dumps(tokenizer))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=CONTEXT, bos_token_id=EOS, eos_token_id=EOS,
        initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


class Server:
    """One `inferplane serve`; its log goes to a file."""

    def __init__(self, model: str, flags: list[str], log: Path) -> None:
        command = [sys.executable, "-m", "inferplane", "serve", model, "--port", "0", "--served-model-name", "soak"]
        with log.open("w") as errors:
            self.process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Ready: "):
                self.url = line.split(" on ")[1].split("/v1")[0]
                return
        raise RuntimeError(log.read_text())

    def processes(self) -> dict[str, psutil.Process]:
        """By what they do."""
        parent = psutil.Process(self.process.pid)
        found = {"server": parent}
        for child in parent.children(recursive=True):
            module = next((word for word in child.cmdline() if word.startswith("inferplane.")), "other")
            name = module.removeprefix("inferplane.")
            found[f"{name} {child.pid}" if name in found else name] = child
        return found

    def close(self) -> None:
        """Drain and end."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()


class Load:
    """What the clients do, drawn from one seeded generator."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.endpoints: list[str] = []
        self.stopping = False

    async def probe(self) -> None:
        """Which endpoints this model serves. Raises RuntimeError where it serves none."""
        bodies: dict[str, dict[str, Any]] = {
            "completions": {"prompt": "a", "max_tokens": 1},
            "chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
            "embeddings": {"input": "a"},
        }
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as client:
            for path, body in bodies.items():
                if (await client.post(f"/v1/{path}", json={"model": "soak", **body})).status_code == 200:
                    self.endpoints.append(path)
        if not self.endpoints:
            raise RuntimeError("the server answers none of " + ", ".join(bodies))

    async def client(self) -> None:
        """One after the other, now and then over a new connection."""
        while not self.stopping:
            async with httpx.AsyncClient(base_url=self._url, timeout=120) as client:
                for _ in range(self._rng.randint(1, 20)):
                    if self.stopping:
                        return
                    kind, body = self.draw()
                    leaves = self._rng.random() < 0.15
                    try:
                        self.outcomes[await self._send(client, kind, body, leaves)] += 1
                    except httpx.HTTPError as error:
                        self.outcomes[f"connection: {type(error).__name__}"] += 1

    async def _send(self, client: httpx.AsyncClient, kind: str, body: dict[str, Any], leaves: bool) -> str:
        if not body.get("stream"):
            sending = client.post(f"/v1/{kind}", json=body)
            if not leaves:
                return f"{kind} {(await sending).status_code}"
            try:
                async with asyncio.timeout(self._rng.random() * 0.5):
                    return f"{kind} {(await sending).status_code}"
            except TimeoutError:
                return f"{kind} left"
        stay = self._rng.randint(0, 20) if leaves else 10**9
        seen = 0
        async with client.stream("POST", f"/v1/{kind}", json=body) as answer:
            async for line in answer.aiter_lines():
                seen += line.startswith("data: ")
                if seen > stay:
                    return f"{kind} stream left"
                if line.startswith('data: {"error"'):
                    return f"{kind} stream error"
        return f"{kind} stream {answer.status_code}"

    def draw(self) -> tuple[str, dict[str, Any]]:
        """An endpoint and a body for it."""
        rng = self._rng
        kind = rng.choice(self.endpoints)
        if kind == "embeddings":
            inputs = [self._text(100) for _ in range(rng.randint(1, 8))]
            return kind, {"model": "soak", "input": inputs, "encoding_format": rng.choice(["float", "base64"])}
        body: dict[str, Any] = {"model": "soak", "max_tokens": rng.randint(1, 96)}
        if kind == "completions":
            body["prompt"] = self._text(250) if rng.random() < 0.8 else [self._text(80), self._text(80)]
        else:
            roles = ["user", "assistant"] * 2
            turns = roles[: rng.choice([1, 3])]
            body["messages"] = [{"role": role, "content": self._text(60)} for role in turns]
        if rng.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": rng.random() < 0.5}}
        options: list[dict[str, Any]] = [
            {"stop": ["a", "the e", "\n"]},
            {"logprobs": 3} if kind == "completions" else {"logprobs": True, "top_logprobs": 3},
            {"n": rng.randint(2, 4), "temperature": 1.0},
            {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "seed": rng.randint(0, 9)},
            {"temperature": 0.0},
            {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
            {"logit_bias": {"97": 5, "98": -100}},
            {"min_tokens": 1, "ignore_eos": True},
        ]
        for option in options:
            if rng.random() < 0.2:
                body |= option
        if rng.random() < 0.02:
            body["temperature"] = -1
        return kind, body

    def _text(self, most: int) -> str:
        length = self._rng.randint(1, most)
        return " ".join(self._rng.choices(WORDS, k=length))[:length]


def read(process: psutil.Process) -> dict[str, int]:
    with process.oneshot():
        return {
            "rss": process.memory_info().rss,
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
        }


async def sample(server: Server, samples: Samples, interval: float, end: float) -> None:
    """Read every process until the time is over; what ends meanwhile has no more rows."""
    start = time.monotonic()
    while (now := time.monotonic()) < end:
        for name, process in server.processes().items():
            with contextlib.suppress(psutil.Error):
                samples.setdefault(name, []).append((now - start, read(process)))
        await asyncio.sleep(min(interval, max(0.0, end - time.monotonic())))


def slope(points: list[tuple[float, int]]) -> float:
    """Of the least-squares line, per second."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def judge(samples: Samples, warmup: float, tolerance: float) -> dict[str, Any]:
    """Per process and measure: first, last, most, slope per hour, and whether it is flat."""
    report: dict[str, Any] = {}
    for name, rows in samples.items():
        kept = [row for row in rows if row[0] >= warmup]
        if len(kept) < 3:
            report[name] = {"samples": len(kept)}
            continue
        seconds = kept[-1][0] - kept[0][0]
        report[name] = {"samples": len(kept)}
        for measure, slack in SLACK.items():
            points = [(at, values[measure]) for at, values in kept]
            each = [value for _, value in points]
            per_second = slope(points)
            allowed = max(slack, tolerance * sum(each) / len(each)) if measure == "rss" else slack
            unit = MEBIBYTE if measure == "rss" else 1
            report[name][measure] = {
                "first": round(each[0] / unit, 2),
                "last": round(each[-1] / unit, 2),
                "most": round(max(each) / unit, 2),
                "slope_per_hour": round(per_second * 3600 / unit, 3),
                "flat": per_second * seconds < allowed,
            }
    return report


async def gauges(url: str) -> dict[str, float]:
    """What the server says of itself once nobody asks for anything."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        text = (await client.get("/metrics")).text
    wanted = ("inferplane:num_requests_running", "inferplane:num_requests_waiting", "inferplane:kv_cache_usage_perc")
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(wanted)]
    return {name.split("{")[0].removeprefix("inferplane:"): float(value) for name, value in lines}


async def run(arguments: argparse.Namespace, server: Server) -> dict[str, Any]:
    load = Load(server.url, arguments.seed)
    await load.probe()
    samples: Samples = {}
    end = time.monotonic() + arguments.minutes * 60
    clients = [asyncio.create_task(load.client()) for _ in range(arguments.concurrency)]
    try:
        await sample(server, samples, arguments.interval, end)
    finally:
        load.stopping = True
        await asyncio.gather(*clients, return_exceptions=True)
        if arguments.samples is not None:
            arguments.samples.write_text(json.dumps(samples))
    await asyncio.sleep(2)
    processes = judge(samples, arguments.warmup * 60, arguments.memory_tolerance)
    failures = {what: n for what, n in load.outcomes.items() if what.startswith("connection") or " 5" in what}
    measured = [row[key] for row in processes.values() for key in SLACK if key in row]
    return {
        "minutes": arguments.minutes,
        "concurrency": arguments.concurrency,
        "endpoints": load.endpoints,
        "requests": sum(load.outcomes.values()),
        "outcomes": dict(sorted(load.outcomes.items())),
        "failures": failures,
        "at_rest": await gauges(server.url),
        "processes": processes,
        "verdict": "flat" if measured and all(each["flat"] for each in measured) else "not flat",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--interval", type=float, default=10, help="seconds between two samples")
    parser.add_argument("--warmup", type=float, default=6, help="minutes that are not judged")
    parser.add_argument("--memory-tolerance", type=float, default=0.02, help="share of the mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="what to serve; by default a tiny random Llama that is made on the spot")
    parser.add_argument("--log", type=Path, help="where the server's log goes")
    parser.add_argument("--samples", type=Path, help="write all samples there, as JSON")
    parser.add_argument("--json", type=Path, help="write the result there too")
    parser.add_argument("flags", nargs="*", help="behind --: flags for `inferplane serve`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or str(make_tiny_model(Path(folder) / "model"))
        server = Server(model, arguments.flags, arguments.log or Path(folder) / "server.log")
        try:
            result = asyncio.run(run(arguments, server))
        finally:
            server.close()
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text)
    return 0 if result["verdict"] == "flat" and not result["failures"] else 1


if __name__ == "__main__":
    sys.exit(main())
