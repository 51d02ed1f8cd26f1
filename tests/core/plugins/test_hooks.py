"""The 1:N hooks of real plugins in the launcher: who is called, what a failure does, what reaches the Plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferplane.config import Config
from inferplane.errors import InferplaneError
from inferplane.launch import make_plan
from inferplane.plan.hooks import validate
from inferplane.plan.record import selection_record
from inferplane.plugins.discovery import discover
from inferplane_api.spec import HostInfo

Write = Callable[..., str]

PLUGIN = """
import json, os, signal
from inferplane_api.hooks import Finding, hookimpl
class Plugin:
    @hookimpl
    def HOOK:
        BODY
PLUGIN = Plugin()
"""


@pytest.fixture
def write_hook(write_distribution: Write) -> Callable[[str, str, str], str]:
    """write(distribution, "inferplane_x(self, ...)", body)."""

    def write(name: str, hook: str, body: str) -> str:
        source = PLUGIN.replace("HOOK", hook).replace("BODY", body)
        return write_distribution(name, source, {"plugins": {f"{name}-hooks": "PLUGIN"}})

    return write


def settings(*plugins: str, **values: Any) -> Config:
    return Config.from_flat({"platform": "reference", "plugins": plugins, "load_format": "dummy", **values})


VALIDATE = "inferplane_validate(self, config)"


def test_an_error_finding_refuses_the_start(write_hook: Write, tiny_llama_dir: Path) -> None:
    body = "return [Finding(level='error', subject='policy', message='no seeds here', remedy='leave out --seed')]"
    write_hook("acme-policy", VALIDATE, f"if config['model']['seed'] == 7: {body}")
    with pytest.raises(InferplaneError) as caught:
        make_plan(settings("acme-policy", model=str(tiny_llama_dir), seed=7))
    assert caught.value.code == "config.plugin"
    assert caught.value.message == "acme-policy-hooks of acme-policy 1.2: policy: no seeds here"
    assert caught.value.remedy == "leave out --seed"
    assert make_plan(settings("acme-policy", model=str(tiny_llama_dir), seed=8)).plan.warnings == ()


def test_a_warning_and_a_failing_hook_do_not(write_hook: Write, tiny_llama_dir: Path) -> None:
    write_hook("acme-bad", VALIDATE, "raise KeyError('model')")
    write_hook("acme-dead", VALIDATE, "os.kill(os.getpid(), signal.SIGSEGV)")
    write_hook("acme-good", VALIDATE, "return [Finding(level='warning', subject='acme', message='slow disk')]")
    plan = make_plan(settings("acme-bad", "acme-dead", "acme-good", model=str(tiny_llama_dir))).plan
    assert "acme-good-hooks of acme-good 1.2: acme: slow disk" in plan.warnings
    bad = "plugin acme-bad-hooks of acme-bad 1.2: its hook inferplane_validate failed: plugin.raised (KeyError: 'model'"
    assert any(warning.startswith(bad) for warning in plan.warnings)
    assert any("of acme-dead 1.2" in warning and "SIGSEGV" in warning for warning in plan.warnings)
    assert len(plan.warnings) == 3


def test_a_level_that_does_not_exist_is_the_plugins_fault(write_hook: Write, tiny_llama_dir: Path) -> None:
    write_hook("acme-odd", VALIDATE, "return [Finding(level='fatal', subject='acme', message='stop')]")
    (warning,) = make_plan(settings("acme-odd", model=str(tiny_llama_dir))).plan.warnings
    assert "acme-odd 1.2" in warning
    assert "level='fatal'" in warning


def test_plugins_never_see_a_key(write_hook: Write, tmp_path: Path, host: HostInfo) -> None:
    seen = tmp_path / "seen.json"
    write_hook("acme-spy", VALIDATE, f"open({str(seen)!r}, 'w').write(json.dumps(config))")
    config = settings("acme-spy", api_key=("secret",))
    with discover(host, config.platform, environ={}) as discovery:
        validate(config, discovery)
    assert json.loads(seen.read_text())["server"]["port"] == 8000
    assert "secret" not in seen.read_text()


def test_selection_gets_the_record(write_hook: Write, tmp_path: Path, tiny_llama_dir: Path) -> None:
    seen = tmp_path / "seen.json"
    hook = "inferplane_selection(self, record)"
    write_hook("acme-bad", hook, "raise RuntimeError('full disk')")
    write_hook("acme-seer", hook, f"open({str(seen)!r}, 'w').write(json.dumps(record))")
    plan = make_plan(settings("acme-bad", "acme-seer", model=str(tiny_llama_dir))).plan
    (warning,) = plan.warnings
    assert "acme-bad-hooks of acme-bad 1.2" in warning
    assert "full disk" in warning
    record = selection_record(plan)
    assert json.loads(seen.read_text()) == {**record, "warnings": []}, "told before the failure was known"


def test_a_plugin_that_failed_is_not_called_again(write_distribution: Write, tmp_path: Path, host: HostInfo) -> None:
    marker = tmp_path / "called"
    source = f"""
        from inferplane_api.hooks import hookimpl
        @hookimpl
        def inferplane_validate(config): raise RuntimeError("no")
        @hookimpl
        def inferplane_doctor(host): open({str(marker)!r}, "w")
        @hookimpl
        def inferplane_worker_start(role, rank): pass
    """
    module = write_distribution("acme-module", source, {"plugins": {"acme": "X"}})
    info = next(tmp_path.rglob("entry_points.txt"))
    info.write_text(f"[inferplane.plugins]\nacme = {module}\n")  # a module instead of an object
    with discover(host, settings("acme-module").platform, environ={}) as discovery:
        (plugin,) = discovery.hook_plugins
        assert plugin.spec.hooks == {"inferplane_validate", "inferplane_doctor", "inferplane_worker_start"}
        (answer,) = discovery.call_hook("inferplane_validate", config={})
        assert answer.failure is not None
        assert discovery.call_hook("inferplane_doctor", host=host) == []
    assert not marker.exists()


def test_only_plugins_with_worker_hooks_reach_the_plan(write_hook: Write, tiny_llama_dir: Path) -> None:
    module = write_hook("acme-worker", "inferplane_worker_stop(self, role)", "pass")
    write_hook("acme-seer", "inferplane_selection(self, record)", "pass")
    plan = make_plan(settings("acme-worker", "acme-seer", model=str(tiny_llama_dir))).plan
    (component,) = plan.hooks
    assert (component.id, component.load, component.distribution, component.version) == (
        "acme-worker-hooks",
        f"{module}:PLUGIN",
        "acme-worker",
        "1.2",
    )


def test_a_misspelt_hook_is_broken_with_a_reason(write_hook: Write, host: HostInfo) -> None:
    write_hook("acme-typo", "inferplane_validat(self, config)", "pass")
    with discover(host, settings("acme-typo").platform, environ={}) as discovery:
        assert discovery.hook_plugins == []
        (refused,) = discovery.refused
    assert refused.distribution == "acme-typo"
    assert "inferplane_validat" in str(refused.reason)
