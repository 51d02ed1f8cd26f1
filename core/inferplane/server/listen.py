"""The listening socket, TCP or Unix, and the address to print; knows no protocol above it."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from inferplane.config import ServerConfig


def bind(server: ServerConfig) -> socket.socket:
    """Bind before anything slow, so that a taken address is found at once. Raises InvalidValue."""
    return _bind_tcp(server.host, server.port) if server.uds is None else _bind_unix(server.uds)


def release(server: ServerConfig) -> None:
    """Remove a Unix socket's file."""
    if server.uds is not None:
        Path(server.uds).unlink(missing_ok=True)


def address(server: ServerConfig, listener: socket.socket) -> str:
    """The URL of a TCP listener: `http://127.0.0.1:8000`."""
    scheme = "http" if server.ssl_certfile is None else "https"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except socket.gaierror as error:
        listener.close()
        raise InvalidValue("host", host, f"is no address here: {error.strerror}", remedy="try 127.0.0.1") from error
    except OSError as error:
        listener.close()
        raise InvalidValue(
            "port", port, f"cannot listen on {host}: {error.strerror}", remedy="choose another with --port, or 0"
        ) from error
    return listener


def _bind_unix(path: str) -> socket.socket:
    """Its file is for this user and group; one that a dead server left is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        before = os.umask(0o117)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
    except OSError as error:
        listener.close()
        raise InvalidValue("uds", path, f"cannot listen there: {error.strerror or error}") from error
    except InvalidValue:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidValue("uds", path, "is a file and no socket", remedy="choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise InvalidValue("uds", path, "is in use by a running server", remedy="choose another path")
