"""What five plugins cost at start-up: discovery, probes and selection; and `inferplane plugins`. Prints JSON.

Five packages of the kinds that people install (two platforms, attention, ops, hooks) are written to a folder and put on
the path. A start's selection is measured in a fresh process: `discover` with its children, the validation hooks, then
the choice of platform, attention, ops and linear kernels for a small hybrid model. Its peer is the same with core's own
parts only, in turns, so that the difference is what the plugins cost. `cpu` is the children's processor time. The
file cache is warm (a first, unreported round warms it).

    python benchmarks/discovery.py --runs 10
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

PLATFORM = """
from inferplane_api.spec import *
PLATFORM = PlatformSpec(name="{name}", load="{name}:P", probe="{name}:probe", tier={tier})
def probe(host):
    return ProbeResult(state=ProbeState.PRESENT, devices=(DeviceInfo(name="chip"),))
"""
ATTENTION = """
from inferplane_api.spec import *
ANY = frozenset({"float32", "bfloat16", "float16"})
A = AttentionSpec(id="flashy.paged", load="flashy:A", platforms=frozenset({"*"}), kinds=frozenset({"full", "sliding"}),
                  dtypes=ANY, kv_dtypes=ANY, score=60, check="flashy:check")
def check(request):
    return Verdict()
"""
OPS = """
from inferplane_api.spec import *
OPS = KernelSpec(id="fastops.ops", kind="ops", load="fastops:OPS", platforms=frozenset({"*"}), ops=("rms_norm@1",),
                 dtypes=frozenset({"float32"}), score=60)
"""
HOOKS = """
from inferplane_api.hooks import hookimpl
@hookimpl
def inferplane_validate(config):
    return []
"""
PACKAGES = {
    "chipone": (PLATFORM.format(name="chipone", tier=5), "[inferplane.platforms]\nchipone = chipone:PLATFORM\n"),
    "chiptwo": (PLATFORM.format(name="chiptwo", tier=2), "[inferplane.platforms]\nchiptwo = chiptwo:PLATFORM\n"),
    "flashy": (ATTENTION, "[inferplane.attention]\nflashy.paged = flashy:A\n"),
    "fastops": (OPS, "[inferplane.kernels]\nfastops.ops = fastops:OPS\n"),
    "listener": (HOOKS, "[inferplane.plugins]\nlistener = listener\n"),
}
_SELECT = """
import json, resource, sys, time
from inferplane.config import Config
from inferplane.builtin.descriptor import SAFETENSORS
from inferplane.host.facts import collect_host
from inferplane.plan.hooks import validate
from inferplane.plan.resolve import resolve
from inferplane.plugins.discovery import discover
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.model import LayerSpec, ModelSpec
config = Config.from_flat(json.loads(sys.argv[1]))
kinds = [LayerSpec(kind="full", num_heads=4, num_kv_heads=2, head_size=64),
         LayerSpec(kind="sliding", num_heads=4, num_kv_heads=2, head_size=64, window=512)]
model = ModelSpec(model_type="llama", architecture="LlamaForCausalLM", num_layers=8, hidden_size=64,
                  intermediate_size=128, vocab_size=100, max_position=4096, dtype="float32", layers=tuple(kinds * 4))
started = time.perf_counter()
with discover(collect_host(), config.platform) as discovery:
    found = time.perf_counter()
    validate(config, discovery)
    validated = time.perf_counter()
    plan = resolve(config, model, CheckpointCard(config={}), "/x", SAFETENSORS.id, discovery)
    resolved = time.perf_counter()
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"cpu": usage.ru_utime + usage.ru_stime, "discovery": found - started, "hooks": validated - found,
                  "selection": resolved - validated, "total": resolved - started, "platform": plan.platform_name,
                  "attention": [component.id for component in plan.attention]}))
"""


def write_packages(folder: Path) -> None:
    for name, (source, points) in PACKAGES.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", "Requires-Dist: inferplane-api>=0.1,<0.2"]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "entry_points.txt").write_text(points)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INFERPLANE_")}
    return {**kept, "PYTHONPATH": str(folder)}


def select(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-c", _SELECT, json.dumps(settings)]
    done = subprocess.run(command, env=environment(folder), stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def list_plugins(folder: Path) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "inferplane", "plugins"]
    subprocess.run(command, env=environment(folder), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def bare_interpreter() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import msgspec"], check=True)
    return time.perf_counter() - started


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    five = {"plugins": tuple(PACKAGES), "platform": "chipone"}
    none: dict[str, Any] = {"plugins": (), "platform": "reference"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_packages(folder)
        select(folder, five)
        list_plugins(folder)
        with_plugins, without, listed, bare = [], [], [], []
        for _ in range(arguments.runs):
            with_plugins.append(select(folder, five))
            without.append(select(folder, none))
            listed.append(list_plugins(folder))
            bare.append(bare_interpreter())
    added = [many["total"] - few["total"] for many, few in zip(with_plugins, without, strict=True)]
    report = {
        "runs": arguments.runs,
        "processors": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "five_plugins_seconds": {
            part: spread([run[part] for run in with_plugins])
            for part in ("discovery", "hooks", "selection", "total", "cpu")
        },
        "no_plugin_seconds": spread([run["total"] for run in without]),
        "five_plugins_add_seconds": spread(added),
        "plugins_command_seconds": spread(listed),
        "python_and_msgspec_seconds": spread(bare),
        "chosen": {"platform": with_plugins[0]["platform"], "attention": with_plugins[0]["attention"]},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
