"""What an import drags in, seen in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = {contract["id"]: contract for contract in SETTINGS["tool"]["importlinter"]["contracts"]}
TORCH_IS_THEIR_PURPOSE = ("inferplane_api.reference", "inferplane_api.testing")

_IMPORT = """
import importlib, json, pkgutil, sys
names = json.loads(sys.argv[1])
skipped = tuple(json.loads(sys.argv[2]))
seen = []
def visit(name):
    if name.startswith(skipped) or name.endswith("__main__"):
        return
    module = importlib.import_module(name)
    seen.append(name)
    for child in pkgutil.iter_modules(getattr(module, "__path__", ())):
        visit(f"{name}.{child.name}")
for name in names:
    visit(name)
print(json.dumps({"seen": seen, "loaded": sorted(sys.modules)}))
"""


def loaded_by(*modules: str, skipped: tuple[str, ...] = ()) -> tuple[set[str], set[str]]:
    """(modules visited, top-level names loaded) after importing these modules and all below them."""
    command = [sys.executable, "-c", _IMPORT, json.dumps(modules), json.dumps(skipped or ("-",))]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout.splitlines()[-1])
    return set(result["seen"]), {name.split(".")[0] for name in result["loaded"]}


def plainly_loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.split())


@pytest.mark.parametrize("statement", ["import inferplane", "import inferplane_api", "import inferplane_api.spec"])
def test_the_front_doors_are_light(statement: str) -> None:
    assert not plainly_loaded_by(statement) & {"torch", "transformers", "pydantic", "numpy", "fastapi", "jinja2"}


def test_the_thinking_half_loads_neither_torch_nor_transformers() -> None:
    listed = CONTRACTS["no-torch"]["source_modules"]
    seen, loaded = loaded_by(*listed, skipped=TORCH_IS_THEIR_PURPOSE)
    assert {"inferplane.engine.scheduler", "inferplane.cli.main", "inferplane.server.app"} <= seen
    assert not loaded & {"torch", "transformers"}


def _descriptor_modules() -> list[str]:
    modules = set()
    for manifest in [*REPOSITORY.glob("*/pyproject.toml"), *REPOSITORY.glob("plugins/*/pyproject.toml")]:
        groups = tomllib.loads(manifest.read_text(encoding="utf-8"))["project"].get("entry-points", {})
        values = (value for name, group in groups.items() if name.startswith("inferplane.") for value in group.values())
        modules.update(value.partition(":")[0] for value in values)
    return sorted(modules)


@pytest.mark.parametrize("module", _descriptor_modules())
def test_a_descriptor_needs_only_the_contract(module: str) -> None:
    loaded = plainly_loaded_by(f"import {module}")
    own = {module.split(".")[0], "inferplane_api", "msgspec"}
    assert not loaded & {"torch", "transformers", "numpy", "pydantic", "gguf"}
    others = {name for name in loaded if name.startswith("inferplane")} - own
    assert not others
