"""Where the server listens is settled before anything slow."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.config import Config
from inferplane.errors import InvalidValue
from inferplane.server.listen import address, bind, release

if TYPE_CHECKING:
    from pathlib import Path

    from inferplane.config import ServerConfig


def settings(**values: Any) -> ServerConfig:
    return Config.from_flat(values).server


def test_a_taken_port_is_named() -> None:
    with contextlib.closing(bind(settings(port=0))) as first:
        first.listen(1)
        port = first.getsockname()[1]
        with pytest.raises(InvalidValue, match=f"port={port}"):
            bind(settings(port=port))


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidValue, match="host=") as caught:
        bind(settings(host="nosuch.invalid", port=0))
    assert "127.0.0.1" in caught.value.remedy


def test_the_default_is_loopback() -> None:
    with contextlib.closing(bind(settings(port=0))) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        assert address(settings(port=0), listener) == f"http://127.0.0.1:{port}"
        assert address(settings(ssl_certfile="x"), listener) == f"https://127.0.0.1:{port}"


def test_a_unix_socket_is_for_its_user_and_group_and_goes_away(tmp_path: Path) -> None:
    server = settings(uds=str(tmp_path / "s.sock"))
    with contextlib.closing(bind(server)) as listener:
        assert stat.S_IMODE(os.stat(tmp_path / "s.sock").st_mode) == 0o660
        listener.listen(1)
        with pytest.raises(InvalidValue, match="in use"):
            bind(server)
    # What a killed server leaves is no obstacle.
    bind(server).close()
    release(server)
    assert not list(tmp_path.iterdir())


def test_a_file_is_never_replaced_by_a_socket(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("precious")
    with pytest.raises(InvalidValue, match="uds"):
        bind(settings(uds=str(file)))
    assert file.read_text() == "precious"
