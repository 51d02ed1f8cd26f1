"""Digests of the frozen plugins; run as a script, adds those of new ones to digests.json and never changes one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

FOLDER = Path(__file__).parent
FILE = FOLDER / "digests.json"


def digest(plugin: Path) -> str:
    """SHA-256 over names and contents of all files of a plugin."""
    total = hashlib.sha256()
    for path in sorted(plugin.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(f"{path.relative_to(plugin).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def main() -> None:
    """Add what is missing."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    found = {plugin.name: digest(plugin) for plugin in sorted(FOLDER.glob("v*")) if plugin.is_dir()}
    FILE.write_text(json.dumps({**found, **known}, indent=1) + "\n")


if __name__ == "__main__":
    main()
