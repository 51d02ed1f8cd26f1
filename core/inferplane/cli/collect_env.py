"""`inferplane collect-env`: what a bug report needs. Imports no torch and no plugin, and shows no secret."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import msgspec

from inferplane import __version__
from inferplane.cli.main import COMMANDS
from inferplane.config.secrets import HIDDEN, is_secret
from inferplane.host.facts import collect_host
from inferplane.plan.render import Table, print_tables
from inferplane.plugins.inventory import list_entry_points
from inferplane_api import API_VERSION

if TYPE_CHECKING:
    from argparse import _SubParsersAction

PACKAGES = (
    "inferplane", "inferplane-api", "torch", "numpy", "msgspec", "pyzmq", "pydantic", "fastapi", "starlette", "uvicorn",
    "httptools", "tokenizers", "jinja2", "safetensors", "huggingface-hub", "httpx", "prometheus-client", "pluggy",
    "transformers",
)  # fmt: skip
"""The core's dependencies, and what is often asked for."""

PREFIXES = ("INFERPLANE_", "VLLM_", "HF_", "TORCH_", "OMP_", "MKL_", "KMP_", "LD_PRELOAD", "PYTORCH_", "MALLOC_")
"""Of variables that change how a model runs; a platform's plugin has its own with our prefix."""


_CREDENTIALS = re.compile(r"//[^/@\s]*@")
"""A name and a password in an address."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser("collect-env", help=COMMANDS["collect-env"], description=COMMANDS["collect-env"])
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the facts."""
    facts = collect()
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(facts)).decode())
        return 0
    print_tables(
        [
            Table(
                title.capitalize(), ("name", "value"), [(name, _shown(value)) for name, value in facts[title].items()]
            )
            for title in ("system", "packages", "plugins", "host", "variables")
        ]
    )
    return 0


def collect() -> dict[str, dict[str, Any]]:
    """Section to name to value."""
    host = collect_host()
    plugins = {f"{entry.kind}:{entry.name}": f"{entry.distribution} {entry.version}" for entry in list_entry_points()}
    return {
        "system": {
            "inferplane": __version__,
            "plugin API": API_VERSION,
            "python": f"{platform.python_version()} ({platform.python_implementation()})",
            "in a virtual environment": sys.prefix != sys.base_prefix,
            "system": platform.platform(),
            "C library": " ".join(platform.libc_ver()).strip() or "unknown",
        },
        "packages": {name: _version(name) for name in PACKAGES},
        "plugins": plugins,
        "host": {**msgspec.to_builtins(host), "cpu_flags": " ".join(sorted(host.cpu_flags))},
        "variables": {
            name: HIDDEN if is_secret(name) else _CREDENTIALS.sub("//", value)
            for name, value in sorted(os.environ.items())
            if name.startswith(PREFIXES)
        },
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
