"""`inferplane plugins new`: writes a distribution with a platform that runs and passes the kit as it is.

It fills in the templates in the folder `scaffold`, and installs nothing.
"""

from __future__ import annotations

import argparse
import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from packaging.version import Version

from inferplane.errors import InferplaneError, InvalidValue
from inferplane.host.hardware import load_hardware_table
from inferplane.plugins.inventory import installed, list_entry_points
from inferplane_api import API_VERSION

PREFIX = "inferplane"
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".github/workflows/test.yml": "ci.yml",
    "$package/__init__.py": "package/init.py",
    "$package/descriptor.py": "package/descriptor.py",
    "$package/probe.py": "package/probe.py",
    "$package/platform.py": "package/platform.py",
    "$package/ops.py": "package/ops.py",
    "tests/test_conformance.py": "tests/test_conformance.py",
    "tests/test_ops.py": "tests/test_ops.py",
}
"""File of the new distribution to its template, without the suffix ".tmpl"."""


class Names(NamedTuple):
    """What the templates are filled with."""

    name: str
    """Of the platform, and the namespace of its ids: "acme_chip"."""
    distribution: str
    """"inferplane-acme-chip"."""
    package: str
    """"inferplane_acme_chip"."""
    class_name: str
    """"AcmeChip"."""
    api: str
    """The versions of the contract that it is written for, ">=0.1,<0.2"."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action's arguments."""
    parser.add_argument("name", metavar="NAME", help="name of the platform: a Python identifier in lower case")
    parser.add_argument("--path", type=Path, metavar="DIR", help="folder to make [./inferplane-NAME]")


def run(arguments: argparse.Namespace) -> int:
    """Write the distribution and say what to do next. Raises InvalidValue for a name or folder that cannot be used."""
    names = make_names(arguments.name)
    folder = arguments.path or Path(names.distribution)
    written = write(names, folder)
    print(f"wrote {len(written)} files; next:\n")
    print(f"  cd {folder}\n  pip install -e '.[dev]'\n  pytest\n  inferplane serve --platform {names.name}")
    return 0


def make_names(name: str) -> Names:
    """The names that follow from the platform's. Raises InvalidValue when it is malformed or taken."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")
        good = near if near and not keyword.iskeyword(near) else "acme"
        raise InvalidValue(
            "name", name, "a platform's name is a Python identifier in lower case", remedy=f"for example {good!r}"
        )
    distribution = f"{PREFIX}-{name.strip('_').replace('_', '-')}"
    if owner := _owner(name, distribution):
        raise InvalidValue(
            "name", name, f"it belongs to the package {owner}", remedy="choose another; it is a namespace of your own"
        )
    class_name = "".join(part.capitalize() for part in name.split("_"))
    return Names(name, distribution, f"{PREFIX}_{name}", class_name, api_range(API_VERSION))


def api_range(version: str) -> str:
    """The versions that cannot break what was written for this one: its minor for 0.x, its major afterwards."""
    major, minor = Version(version).release[:2]
    return f">=0.{minor},<0.{minor + 1}" if major == 0 else f">={major}.{minor},<{major + 1}"


def render(names: Names) -> dict[str, str]:
    """Path in the new distribution to text."""
    values = names._asdict()
    templates = files("inferplane") / "scaffold"
    return {
        Template(path).substitute(values): Template(
            (templates / f"{template}.tmpl").read_text(encoding="utf-8")
        ).substitute(values)
        for path, template in FILES.items()
    }


def write(names: Names, folder: Path) -> list[Path]:
    """Write the files into a new folder. Raises InvalidValue when it exists, InferplaneError when it cannot be made."""
    if folder.exists():
        raise InvalidValue("path", str(folder), "it exists", remedy="name a folder that does not exist, with --path")
    written = []
    try:
        for path, text in render(names).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            written.append(file)
    except OSError as error:
        raise InferplaneError(
            f"{folder} cannot be written: {error.strerror}", code="path.unwritable", remedy="name another with --path"
        ) from error
    return written


def _owner(name: str, distribution: str) -> str | None:
    """The package that a name, or the distribution made from it, belongs to already."""
    for entry in list_entry_points():
        if entry.name.partition(".")[0] == name:
            return entry.distribution
    known = load_hardware_table().for_platform(name)
    if known is not None:
        return known.package
    return distribution if name in (PREFIX, "api") or installed(distribution) else None
