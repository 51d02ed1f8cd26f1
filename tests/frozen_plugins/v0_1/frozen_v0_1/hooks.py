"""The 1:N hooks."""

from __future__ import annotations

from inferplane_api.hooks import Finding, hookimpl


@hookimpl
def inferplane_validate(config):
    if config["model"]["served_model_name"] == ["frozen_v0_1 says no"]:
        return [Finding(level="error", subject="served_model_name", message="no", remedy="another name")]
    return []


@hookimpl
def inferplane_doctor(host):
    return [Finding(level="ok", subject="frozen_v0_1", message=f"still here on {host.os}")]


@hookimpl
def inferplane_worker_start(role, rank):
    assert isinstance(role, str)
    assert isinstance(rank, int)


@hookimpl
def inferplane_worker_stop(role, rank):
    assert isinstance(role, str)
    assert isinstance(rank, int)


@hookimpl
def inferplane_selection(record):
    assert isinstance(record, dict)
