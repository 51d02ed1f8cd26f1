"""Where the server listens is settled before anything slow."""

from __future__ import annotations

import contextlib

import pytest

from inferplane.errors import InvalidValue
from inferplane.launch import _listen


def test_a_taken_port_is_named() -> None:
    with contextlib.closing(_listen("127.0.0.1", 0)) as first:
        first.listen(1)
        port = first.getsockname()[1]
        with pytest.raises(InvalidValue, match=f"port={port}"):
            _listen("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidValue, match="host=") as caught:
        _listen("nosuch.invalid", 0)
    assert "127.0.0.1" in caught.value.remedy
