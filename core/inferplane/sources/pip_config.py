"""Where pip would look for packages on this machine, read as pip reads it; asks no index itself."""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from inferplane.errors import InferplaneError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_INDEX = "https://pypi.org/simple"
_SECTIONS = ("global", "download")


class PipConfig(NamedTuple):
    """The settings that decide where a package comes from."""

    indexes: tuple[str, ...] = (DEFAULT_INDEX,)
    """Base URLs of simple indexes, the main one first; empty with `no-index`."""
    find_links: tuple[str, ...] = ()
    """Folders, files or URLs of pages with links."""
    cert: str | None = None
    """A bundle of certificate authorities."""
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    proxy: str | None = None
    timeout: float = 15.0


def read_pip_config(environ: Mapping[str, str] = os.environ, files: list[Path] | None = None) -> PipConfig:
    """Read pip's configuration files and PIP_… variables; later files and then variables win, as with pip."""
    values: dict[str, str] = {}
    for path in config_files(environ) if files is None else files:
        values |= _read_file(path)
    for name, value in environ.items():
        if name.startswith("PIP_") and value and name != "PIP_CONFIG_FILE":
            values[name[4:].lower().replace("_", "-")] = value
    indexes: tuple[str, ...] = ()
    if not _is_true(values.get("no-index", "")):
        main = values.get("index-url") or values.get("pypi-url") or DEFAULT_INDEX
        indexes = (main.strip(), *values.get("extra-index-url", "").split())
    return PipConfig(
        indexes=tuple(dict.fromkeys(indexes)),
        find_links=tuple(values.get("find-links", "").split()),
        cert=values.get("cert") or None,
        client_cert=values.get("client-cert") or None,
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        proxy=values.get("proxy") or None,
        timeout=_number(values.get("default-timeout") or values.get("timeout") or "15"),
    )


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """The files that pip reads, in its order: global, user, environment, PIP_CONFIG_FILE."""
    explicit = environ.get("PIP_CONFIG_FILE")
    if explicit == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "win32":
        files = [
            Path(environ.get("PROGRAMDATA", "C:\\ProgramData")) / "pip" / "pip.ini",
            home / "pip" / "pip.ini",
            Path(environ.get("APPDATA", home)) / "pip" / "pip.ini",
            Path(sys.prefix) / "pip.ini",
        ]
    else:
        system = environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        files = [Path(folder) / "pip" / "pip.conf" for folder in reversed(system.split(os.pathsep)) if folder]
        files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf"]
        if sys.platform == "darwin":
            files += [home / "Library" / "Application Support" / "pip" / "pip.conf"]
        files += [Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"]
        files += [Path(sys.prefix) / "pip.conf"]
    return files + ([Path(explicit)] if explicit else [])


def _read_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, configparser.Error, UnicodeDecodeError) as error:
        raise InferplaneError(
            f"pip's configuration file {path} cannot be read: {error}",
            code="source.pip_config",
            remedy="correct the file, or set PIP_CONFIG_FILE to another one",
        ) from error
    values: dict[str, str] = {}
    for section in _SECTIONS:
        if parser.has_section(section):
            values |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    return values


def _is_true(value: str) -> bool:
    return value.strip().lower() in {"1", "true", "yes", "on", "y", "t"}


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 15.0
