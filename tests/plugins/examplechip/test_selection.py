"""The selection table through installed wheels: each state, with and without the hardware, asked for and not.

For each case: exit status, what was chosen, and whether the message names distribution, version, reason and remedy.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FAILED = 1
"""Exit status of a refusal."""

DESCRIPTOR = """\
from inferplane_api.spec import Evidence, PlatformSpec

PLATFORM = PlatformSpec(
    name="{name}",
    load="{name}_inferplane.platform:Platform",
    probe="{name}_inferplane.probe:probe",
    tier=5,
    evidence=Evidence(
        pci_vendors=(0x1ACE,), device_paths=("/nonexistent/{name}*",), container_hint="docker run --device /dev/{name}"
    ),
)
"""

PROBE = """\
import os, signal, time
from inferplane_api.spec import DeviceInfo, HostInfo, ProbeResult, ProbeState, Reason


def probe(host: HostInfo) -> ProbeResult:
    BODY
"""

PRESENT = """device = DeviceInfo(name="{name} 9000", features=frozenset({"in_place_kv_write"}))
    return ProbeResult(state=ProbeState.PRESENT, devices=(device,))"""


class Variant(NamedTuple):
    """A vendor's distribution that goes wrong in one way."""

    state: str
    reason: str
    probe: str = PRESENT
    descriptor: str = DESCRIPTOR
    api: str = "inferplane-api>=0.1,<0.2"


FAILURES = {
    "raises": Variant("BROKEN", "driver 7 is older than 9", 'raise RuntimeError("driver 7 is older than 9")'),
    "crashes": Variant("BROKEN", "SIGSEGV", "os.kill(os.getpid(), signal.SIGSEGV)"),
    "unreadable": Variant(
        "BROKEN", "libacme.so.2", descriptor="raise ImportError('libacme.so.2: cannot open shared object file')\n"
    ),
    "tomorrow": Variant("INCOMPATIBLE", "inferplane-api", api="inferplane-api>=7"),
}
HANGS = Variant("BROKEN", "no answer in time", "time.sleep(3600)")


@pytest.fixture(scope="module")
def plugin(vendor: Callable[..., Path]) -> Callable[[str], Path]:
    """`plugin(name)`: a variant, or one that is PRESENT or ABSENT; each is built once."""
    made: dict[str, Path] = {}
    variants = {
        **FAILURES,
        "hangs": HANGS,
        "first": Variant("PRESENT", ""),
        "second": Variant("PRESENT", ""),
        "away": Variant("ABSENT", "", "return ProbeResult(state=ProbeState.ABSENT)"),
    }

    def make(name: str) -> Path:
        if name not in made:
            _, _, probe, descriptor, api = variants[name]
            made[name] = vendor(name, descriptor, api=api, probe=PROBE.replace("BODY", probe))
        return made[name]

    return make


@pytest.fixture
def explain(
    thin: Any, installed: Callable[[str], Path], tiny_llama_dir: Path, bus: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`explain(*plugins, platform=None, visible=False)`: beside the CPU plugin."""

    def run(
        *plugins: Path, platform: str | None = None, visible: bool = False, cpu: bool = True
    ) -> subprocess.CompletedProcess[str]:
        arguments = ["explain", "--model", str(tiny_llama_dir), "--json"]
        arguments += ["--platform", platform] if platform else []
        every = (*plugins, installed("backends_cpu")) if cpu else plugins
        # Without a folder of its own the test would see the bus of the machine it runs on.
        root = bus if visible else bus.parent
        return thin.run(*arguments, plugins=every, environment={"TEST_SYS_ROOT": str(root)})

    return run


def chosen(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """The platform, and all warnings as one line."""
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    return record["platform"]["id"], " ".join(" ".join(record["warnings"]).split())


def refusal(done: subprocess.CompletedProcess[str], *, as_json: bool = True) -> str:
    assert done.returncode == FAILED, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.split())
    if as_json:
        error = json.loads(done.stdout)["error"]
        assert all(" ".join(error[part].split()) in text for part in ("message", "remedy"))
    else:
        assert done.stdout == ""
    return text


def assert_named(text: str, name: str, variant: Variant) -> None:
    for part in (f"{name}-inferplane 1.2.3", variant.state, variant.reason, f"{name}-inferplane", "pip install"):
        assert part in text, (part, text)


@pytest.mark.parametrize("name", FAILURES)
def test_failing_and_its_hardware_is_here_refuses_the_start(name: str, plugin: Any, explain: Any) -> None:
    text = refusal(explain(plugin(name), visible=True))
    assert_named(text, name, FAILURES[name])
    assert "--platform cpu" in text


@pytest.mark.parametrize("name", FAILURES)
def test_failing_without_its_hardware_is_one_warning(name: str, plugin: Any, explain: Any) -> None:
    platform, warnings = chosen(explain(plugin(name)))
    assert platform == "cpu"
    assert_named(warnings, name, FAILURES[name])
    assert warnings.count(FAILURES[name].state) == 1
    assert f"--disable-plugins {name}-inferplane" in warnings


def test_of_another_contract_with_a_device_node_refuses_the_start(
    vendor: Callable[..., Path], explain: Any, tmp_path: Path
) -> None:
    """What shows its hardware is known from its descriptor alone, which is read though it is not used."""
    node = tmp_path / "nodes" / "acme0"
    descriptor = DESCRIPTOR.replace("/nonexistent/{name}*", str(node))
    plugin = vendor("morrow", descriptor, api="inferplane-api>=7", probe=PROBE.replace("BODY", PRESENT))
    variant = FAILURES["tomorrow"]
    platform, warnings = chosen(explain(plugin))
    assert platform == "cpu"
    assert_named(warnings, "morrow", variant)
    node.parent.mkdir()
    node.touch()
    text = refusal(explain(plugin))
    assert_named(text, "morrow", variant)
    assert "its hardware is on this host" in text
    assert "--platform cpu" in text


def test_what_cannot_be_read_is_said_to_be_unknown(plugin: Any, explain: Any) -> None:
    _, warnings = chosen(explain(plugin("unreadable")))
    assert "whether its hardware is on this host is unknown" in warnings
    text = refusal(explain(plugin("unreadable"), visible=True))
    assert "unknown, and the bus shows an accelerator that may be it (1ace:0001 at 0000:01:00.0)" in text


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("name", FAILURES)
def test_failing_and_asked_for_is_an_error(name: str, visible: bool, plugin: Any, explain: Any) -> None:
    assert_named(refusal(explain(plugin(name), platform=name, visible=visible)), name, FAILURES[name])


@pytest.mark.parametrize("name", FAILURES)
def test_a_lesser_platform_on_request_runs_with_a_warning(name: str, plugin: Any, explain: Any) -> None:
    platform, warnings = chosen(explain(plugin(name), platform="cpu", visible=True))
    assert platform == "cpu"
    assert_named(warnings, name, FAILURES[name])


def test_a_hanging_probe_is_ended_and_told_like_any_other(
    plugin: Any, thin: Any, installed: Any, tiny_llama_dir: Path, bus: Path
) -> None:
    """All four at once, since each waits for the limit."""
    cases = [("hangs", False), ("hangs", True), (None, False), (None, True)]
    running = []
    for platform, visible in cases:
        root = str(bus if visible else bus.parent)
        environment = thin.variables((plugin("hangs"), installed("backends_cpu")), TEST_SYS_ROOT=root)
        asked = ["--platform", platform] if platform else []
        arguments = ["explain", "--model", str(tiny_llama_dir), "--json", *asked]
        running.append(thin.start(*arguments, environment=environment))
    done = [subprocess.CompletedProcess((), 0, *process.communicate(timeout=100)) for process in running]
    for result, process in zip(done, running, strict=True):
        result.returncode = process.returncode
    asked_for, asked_for_here, automatic, automatic_here = done
    assert_named(refusal(asked_for), "hangs", HANGS)
    assert_named(refusal(asked_for_here), "hangs", HANGS)
    text = refusal(automatic_here)
    assert_named(text, "hangs", HANGS)
    assert "--platform cpu" in text
    platform, warnings = chosen(automatic)
    assert platform == "cpu"
    assert_named(warnings, "hangs", HANGS)


@pytest.mark.parametrize("platform", [None, "first"])
def test_present_is_chosen_over_the_cpu(platform: str | None, plugin: Any, explain: Any) -> None:
    assert chosen(explain(plugin("first"), platform=platform, visible=True)) == ("first", "")


def test_two_present_of_one_tier_are_a_choice_for_the_user(plugin: Any, explain: Any) -> None:
    both = plugin("first"), plugin("second")
    text = refusal(explain(*both))
    for part in ("first-inferplane 1.2.3", "second-inferplane 1.2.3", "--platform first", "--platform second"):
        assert part in text
    assert chosen(explain(*both, platform="second")) == ("second", "")


@pytest.mark.parametrize("visible", [True, False])
def test_failing_beside_one_that_is_present_is_a_warning(visible: bool, plugin: Any, explain: Any) -> None:
    platform, warnings = chosen(explain(plugin("raises"), plugin("first"), visible=visible))
    assert platform == "first"
    assert_named(warnings, "raises", FAILURES["raises"])


def test_visible_without_device_nodes_names_the_container_flag(plugin: Any, explain: Any) -> None:
    platform, warnings = chosen(explain(plugin("away"), visible=True))
    assert platform == "cpu"
    for part in ("away-inferplane 1.2.3", "ABSENT", "device.not_exposed", "docker run --device /dev/away"):
        assert part in warnings
    assert "docker run --device /dev/away" in refusal(explain(plugin("away"), platform="away", visible=True))


def test_absent_is_quiet_and_an_error_when_asked_for(plugin: Any, explain: Any) -> None:
    assert chosen(explain(plugin("away"))) == ("cpu", "")
    text = refusal(explain(plugin("away"), platform="away"))
    assert "away-inferplane 1.2.3 is ABSENT" in text


def test_nothing_present_tells_what_was_found_and_what_to_install(plugin: Any, explain: Any) -> None:
    text = refusal(explain(plugin("away"), plugin("raises"), cpu=False))
    for part in ("away-inferplane 1.2.3 is ABSENT", "raises-inferplane 1.2.3 is BROKEN", "pip install inferplane-cpu"):
        assert part in text


def test_hardware_whose_package_is_missing_gives_the_pip_line(
    thin: Any, installed: Any, tiny_llama_dir: Path, tmp_path: Path
) -> None:
    device = tmp_path / "bus" / "pci" / "devices" / "0000:01:00.0"
    device.mkdir(parents=True)
    for name, value in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        (device / name).write_text(f"{value}\n")
    arguments = ["explain", "--model", str(tiny_llama_dir), "--json"]
    cpu, environment = (installed("backends_cpu"),), {"TEST_SYS_ROOT": str(tmp_path)}
    platform, warnings = chosen(thin.run(*arguments, plugins=cpu, environment=environment))
    assert platform == "cpu"
    assert "pip install inferplane-cuda" in warnings
    assert "pip install inferplane-cuda" in refusal(thin.run(*arguments, environment=environment))
    asked = thin.run(*arguments, "--platform", "cuda", plugins=cpu, environment=environment)
    assert "pip install inferplane-cuda" in refusal(asked)


def test_a_refusal_is_the_same_when_serving(
    plugin: Any, thin: Any, installed: Any, tiny_llama_dir: Path, bus: Path
) -> None:
    done = thin.run(
        *("serve", str(tiny_llama_dir), "--port", "0"),
        plugins=(plugin("raises"), installed("backends_cpu")),
        environment={"TEST_SYS_ROOT": str(bus)},
    )
    text = refusal(done, as_json=False)
    assert_named(text, "raises", FAILURES["raises"])
    assert "--platform cpu" in text
