"""From the start of a process to its first token: `LLM` in process, and `inferplane serve` over HTTP. Prints JSON.

Every measurement is a fresh process; the file cache is warm (a first, unreported round warms it). The clock starts just
before the process is created. `import_seconds` is what `import inferplane` takes inside a fresh interpreter.

    python benchmarks/startup.py --runs 5
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PROMPT = list(range(1000, 1016))
LIMIT = 120.0

_IMPORT = "import time; t = time.perf_counter(); import inferplane; print(time.perf_counter() - t)"
_LLM = """
import json, sys, time
from inferplane import LLM, SamplingParams
llm = LLM(model=sys.argv[1])
loaded = time.time()
params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
llm.generate([{"prompt_token_ids": json.loads(sys.argv[2])}], params, use_tqdm=False)
print(json.dumps({"loaded": loaded, "first": time.time()}))
"""


def measure_import() -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", _IMPORT], stdout=subprocess.PIPE, text=True, check=True)
    return {"import_seconds": float(done.stdout)}


def measure_llm(model: str) -> dict[str, float]:
    started = time.time()
    command = [sys.executable, "-c", _LLM, model, json.dumps(PROMPT)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    return {"llm_loaded": times["loaded"] - started, "llm_first_token": times["first"] - started}


def measure_serve(model: str) -> tuple[dict[str, float], str]:
    """Seconds to a healthy server and to the first token, and the timeline that the server printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        started = time.time()
        command = [sys.executable, "-m", "inferplane", "serve", model, "--port", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not _answers(f"{address}/health"):
                if server.poll() is not None or time.time() - started > LIMIT:
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read()}")
                time.sleep(0.01)
            ready = time.time() - started
            _complete(address)
            first = time.time() - started
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=30)
        log.seek(0)
        timeline = re.findall(r"start-up in seconds: .*", log.read())
    return {"serve_ready": ready, "serve_first_token": first}, timeline[-1] if timeline else ""


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def _complete(address: str) -> None:
    with urllib.request.urlopen(f"{address}/v1/models", timeout=30) as response:
        name = json.load(response)["data"][0]["id"]
    body = {"model": name, "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"{address}/v1/completions", data=data, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="fresh processes of each kind [5]")
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    rounds: list[dict[str, float]] = []
    timeline = ""
    for index in range(arguments.runs + 1):
        served, timeline = measure_serve(arguments.model)
        times = {**measure_import(), **measure_llm(arguments.model), **served}
        if index > 0:
            rounds.append(times)
            print(json.dumps(times), file=sys.stderr, flush=True)
    report: dict[str, Any] = {
        name: round(statistics.median(times[name] for times in rounds), 3) for name in sorted(rounds[0])
    }
    report.update(runs=arguments.runs, model=Path(arguments.model).name, timeline=timeline)
    report["processors"] = len(os.sched_getaffinity(0))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
