"""What a distribution imports it also declares, so that a plain `pip install` of it works."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = sorted([*REPOSITORY.glob("*/pyproject.toml"), *REPOSITORY.glob("plugins/*/pyproject.toml")])

TORCH_FOR_TYPES_AND_REFERENCES = {"inferplane-api": {"torch", "inferplane"}}
"""The contract does not depend on torch: whoever asks for its references or runs its models has torch. The conformance
kit runs core's public LLM where core is installed."""
MODEL_PLUGINS = {"inferplane-scripted": {"inferplane", "torch"}}
"""A model plugin runs inside core, and with the torch that core brings."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def distributions_of() -> dict[str, set[str]]:
    return {name: {canonical(each) for each in owners} for name, owners in packages_distributions().items()}


def declared(manifest: Path) -> set[str]:
    project = tomllib.loads(manifest.read_text(encoding="utf-8"))["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in project.get("optional-dependencies", {}).values() for line in extra),
    ]
    return {canonical(re.match(r"[A-Za-z0-9._-]+", line)[0]) for line in lines}


def runtime_imports(path: Path) -> set[str]:
    """Top-level names of every import but those under `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: str(path.parent.relative_to(REPOSITORY)))
def test_imports_are_declared(manifest: Path) -> None:
    package = next(manifest.parent.glob("*/__init__.py")).parent
    name = tomllib.loads(manifest.read_text(encoding="utf-8"))["project"]["name"]
    allowed = declared(manifest) | TORCH_FOR_TYPES_AND_REFERENCES.get(name, set()) | MODEL_PLUGINS.get(name, set())
    undeclared = {
        f"{path.relative_to(REPOSITORY)}: {module}"
        for path in package.rglob("*.py")
        for module in runtime_imports(path)
        if module not in sys.stdlib_module_names and module != package.name
        if not distributions_of().get(module, {canonical(module)}) & allowed
    }
    assert not undeclared


def test_core_leaves_the_torch_build_to_its_user() -> None:
    (line,) = [
        line
        for line in tomllib.loads((REPOSITORY / "core" / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "dependencies"
        ]
        if line.startswith("torch")
    ]
    assert re.fullmatch(r"torch>=[0-9.]+", line)
