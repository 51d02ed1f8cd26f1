"""Certificates: checked before anything slow starts, and loaded again when their files change. Knows no HTTP."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING

from inferplane.errors import InvalidValue
from inferplane.log import get_logger

if TYPE_CHECKING:
    from inferplane.config import ServerConfig

log = get_logger(__name__)

REFRESH_SECONDS = 10.0
"""How often the files are looked at."""


def tls_context(server: ServerConfig) -> ssl.SSLContext | None:
    """The server's side of TLS 1.2 or newer; None without a certificate. Raises InvalidValue naming the flag."""
    if server.ssl_certfile is None:
        for field in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "enable_ssl_refresh"):
            if value := getattr(server, field):
                raise InvalidValue(field, value, "does nothing without a certificate", remedy="add --ssl-certfile")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Set before the certificate: an unreadable file must name its own flag.
    for field in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        _require_readable(field, getattr(server, field))
    try:
        context.load_cert_chain(server.ssl_certfile, server.ssl_keyfile)
    except (ssl.SSLError, OSError) as error:
        problem = f"cannot be used with ssl_keyfile={server.ssl_keyfile!r}: {error}"
        remedy = "give the certificate and its own private key in PEM, the key without a pass phrase"
        raise InvalidValue("ssl_certfile", server.ssl_certfile, problem, remedy=remedy) from error
    if server.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(server.ssl_ca_certs)
        except (ssl.SSLError, OSError) as error:
            raise InvalidValue("ssl_ca_certs", server.ssl_ca_certs, f"holds no certificate: {error}") from error
    elif server.ssl_cert_reqs:
        problem = "no authority is known that could have signed a client's certificate"
        raise InvalidValue("ssl_cert_reqs", server.ssl_cert_reqs, problem, remedy="add --ssl-ca-certs")
    context.verify_mode = ssl.VerifyMode(server.ssl_cert_reqs)
    return context


def _require_readable(field: str, path: str | None) -> None:
    if path is None:
        return
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise InvalidValue(field, path, f"cannot be read: {error.strerror}") from error


async def refresh_forever(server: ServerConfig, context: ssl.SSLContext, seconds: float = REFRESH_SECONDS) -> None:
    """Load certificate and key into the context when they change; new connections use them. Runs until cancelled.

    What cannot be loaded is a warning, and the former certificate stays.
    """
    seen = _stamps(server)
    while True:
        await asyncio.sleep(seconds)
        now = _stamps(server)
        if now == seen:
            continue
        try:
            # Tried apart first: half a pair must not end up in the context that serves.
            tls_context(server)
            context.load_cert_chain(str(server.ssl_certfile), server.ssl_keyfile)
        except (InvalidValue, ssl.SSLError, OSError) as error:
            log.warning("the changed certificate is not used: %s", error)
            continue
        seen = now
        log.info("the certificate has been loaded again")


def _stamps(server: ServerConfig) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    for path in (server.ssl_certfile, server.ssl_keyfile):
        try:
            status = os.stat(path or "")
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_ino))
    return found
