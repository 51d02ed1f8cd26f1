"""Settings of the HTTP edge that only reading a file or looking at two fields can judge; imports no web framework."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inferplane.errors import InvalidValue
from inferplane.server.tls import tls_context
from inferplane.telemetry import check_endpoint

if TYPE_CHECKING:
    from inferplane.config import ServerConfig


def load_keys(server: ServerConfig) -> tuple[str, ...]:
    """The keys of the flags and of the file. Raises InvalidValue for a file that cannot be read or holds none."""
    if server.api_key_file is None:
        return server.api_key
    path = Path(server.api_key_file)
    if path.exists() and not path.is_file():
        # Such as a pipe, which is empty when another process reads it again.
        problem = "is no ordinary file, and every process of the server reads it"
        raise InvalidValue("api_key_file", server.api_key_file, problem, remedy="write the keys to a file")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', None) or 'is not UTF-8'}"
        raise InvalidValue("api_key_file", server.api_key_file, problem) from error
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        # An empty file must not open the server to everybody.
        raise InvalidValue("api_key_file", server.api_key_file, "holds no key", remedy="write one key a line")
    return (*server.api_key, *keys)


def check_settings(server: ServerConfig) -> None:
    """Called before anything slow starts. Raises InvalidValue naming the flag, with a remedy."""
    load_keys(server)
    tls_context(server)
    check_endpoint(server.otlp_traces_endpoint)
    if server.allow_credentials and (not server.allowed_origins or "*" in server.allowed_origins):
        problem = "would let every web page act as the user who looks at it"
        remedy = "name the origins with --allowed-origins"
        raise InvalidValue("allow_credentials", value=True, problem=problem, remedy=remedy)
    for origin in server.allowed_origins:
        if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.count("/") != 2):
            remedy = "write it as https://host or http://host:port, without a path"
            raise InvalidValue("allowed_origins", origin, "is no origin", remedy=remedy)
    if server.root_path and (not server.root_path.startswith("/") or server.root_path.endswith("/")):
        remedy = "write it as /prefix"
        raise InvalidValue("root_path", server.root_path, "must begin and may not end with a slash", remedy=remedy)
    if server.enable_log_outputs and not server.enable_log_requests:
        raise InvalidValue(
            "enable_log_outputs", value=True, problem="does nothing alone", remedy="add --enable-log-requests"
        )
