"""Discovery on real distributions in every state of repair. The truth is what each was written to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from inferplane.config import PlatformConfig
from inferplane.errors import InferplaneError
from inferplane.plugins import child_process
from inferplane.plugins.discovery import Discovery, discover
from inferplane.plugins.records import NOT_EXPOSED, FoundPlatform
from inferplane_api import API_VERSION
from inferplane_api.deprecated import Deprecation
from inferplane_api.spec import AttentionRequest, DeviceInfo, HostInfo, PciDevice, ProbeState

Write = Callable[..., str]

HEALTHY = """
from inferplane_api.spec import *
PLATFORM = PlatformSpec(name="{name}", load="{module}.platform:P", probe="{module}:probe", tier=5)
def probe(host):
    return ProbeResult(state=ProbeState.PRESENT, devices=(DeviceInfo(name="chip"),))
"""

BROKEN_PROBE = """
import os, signal, sys, time
from inferplane_api.spec import *
EVIDENCE = Evidence(pci_vendors=(0x1e52,))
PLATFORM = PlatformSpec(name="{name}", load="{module}:P", probe="{module}:probe", tier=5, evidence=EVIDENCE)
def probe(host):
    BODY
"""


def config(*names: str, deny: tuple[str, ...] = ()) -> PlatformConfig:
    """Only these plugins, so that what else is installed does not matter."""
    return PlatformConfig(plugins=names, disable_plugins=deny)  # type: ignore[call-arg]


def find(discovery: Discovery, name: str) -> FoundPlatform:
    return next(found for found in discovery.platforms if found.name == name)


def probe_with(body: str) -> str:
    return BROKEN_PROBE.replace("BODY", body)


def test_healthy(write_platform: Write, host: HostInfo) -> None:
    module = write_platform("acme-npu", HEALTHY)
    with discover(host, config("acme-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
    assert (found.distribution, found.version, found.state) == ("acme-npu", "1.2", ProbeState.PRESENT)
    assert found.result.devices == (DeviceInfo(name="chip"),)
    assert found.spec is not None
    assert (found.spec.load, found.tier) == (f"{module}.platform:P", 5)
    assert module not in sys.modules, "the launcher imports no plugin"
    assert discovery.problems == []


def test_core_brings_the_reference_platform(host: HostInfo) -> None:
    with discover(host, config(), environ={}) as discovery:
        assert [found.name for found in discovery.platforms] == ["reference"]
        assert [found.spec.id for found in discovery.attention] == ["reference.paged"]
        assert {found.spec.id for found in discovery.kernels} == {"reference.ops", "reference.linear"}
        assert [found.spec.id for found in discovery.formats] == ["hf.safetensors"]
        assert {found.distribution for found in discovery.attention} == {"inferplane"}


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("raise OSError('libacme.so: cannot open')", "probe.raised", "OSError: libacme.so: cannot open"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "plugin.crashed", "SIGSEGV"),
        ("print('fatal: no firmware', file=sys.stderr, flush=True); os._exit(3)", "plugin.crashed", "exit status 3"),
        ("print('fatal: no firmware', file=sys.stderr, flush=True); os._exit(3)", "plugin.crashed", "no firmware"),
        ("sys.exit('done')", "probe.raised", "SystemExit: done"),
        ("os.closerange(3, 64); time.sleep(60)", "plugin.noise", "closed the channel"),
        ("return None", "probe.raised", "expected ProbeResult, got NoneType"),
        ("return ProbeResult(state=ProbeState.PRESENT)", "probe.result", "without a device"),
        ("return ProbeResult(state='MAYBE')", "probe.result", "MAYBE"),
    ],
)
def test_a_failing_probe_is_broken_and_its_descriptor_still_known(
    write_platform: Write, host: HostInfo, body: str, code: str, text: str
) -> None:
    write_platform("acme-npu", probe_with(body))
    write_platform("fine-npu", HEALTHY)
    with discover(host, config("acme-npu", "fine-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
        assert find(discovery, "fine").state is ProbeState.PRESENT, "another distribution does not suffer"
    assert found.state is ProbeState.BROKEN
    assert found.result.reasons[0].code == code
    assert text in found.result.reasons[0].hint
    assert found.spec is not None
    assert found.spec.evidence.pci_vendors == (0x1E52,)


def test_an_exception_names_the_place(write_platform: Write, host: HostInfo) -> None:
    module = write_platform("acme-npu", probe_with("raise OSError('x')"))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert f"{module}.py:7" in find(discovery, "acme").result.reasons[0].hint


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_hang_is_broken_and_killed_with_what_it_started(
    write_platform: Write, host: HostInfo, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    body = f"""
    import subprocess
    sleeper = subprocess.Popen(["sleep", "60"])
    open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{sleeper.pid}}")
    time.sleep(60)
"""
    write_platform("acme-npu", probe_with(body.strip()))
    started = time.monotonic()
    with discover(host, config("acme-npu"), environ={}, timeout=1.5) as discovery:
        found = find(discovery, "acme")
    assert time.monotonic() - started < 30
    assert (found.state, found.result.reasons[0].code) == (ProbeState.BROKEN, "plugin.timeout")
    child, sleeper = map(int, pids.read_text().split())
    assert not alive(child)
    deadline = time.monotonic() + 10
    while alive(sleeper) and "zombie" not in _status(sleeper) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(sleeper) or "zombie" in _status(sleeper)


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "zombie"


def test_a_hung_child_does_not_outlive_a_killed_launcher(write_platform: Write, site: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = f"open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    write_platform("acme-npu", probe_with(body))
    launcher = textwrap.dedent("""
        from inferplane.config import PlatformConfig
        from inferplane.host.facts import collect_host
        from inferplane.plugins.discovery import discover
        discover(collect_host(), PlatformConfig(plugins=("acme-npu",)), timeout=2)
    """)
    process = subprocess.Popen([sys.executable, "-c", launcher], env={**os.environ, "PYTHONPATH": str(site)})
    deadline = time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    child = int(pid_file.read_text())
    while alive(child) and "zombie" not in _status(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child) or "zombie" in _status(child)


@pytest.mark.parametrize(
    ("source", "code", "text"),
    [
        ("import no_such_driver", "plugin.import", "ModuleNotFoundError: No module named 'no_such_driver'"),
        ("PLATFORM = (", "plugin.import", "SyntaxError"),
        ("OTHER = 1", "plugin.import", "PLATFORM"),
        ("PLATFORM = 'a string'", "plugin.import", "expected PlatformSpec, got str"),
        ("import os; os.abort()", "plugin.crashed", "SIGABRT"),
        (HEALTHY.replace("tier=5", "tier='five'"), "plugin.descriptor", "$.tier"),
    ],
)
def test_a_descriptor_that_cannot_be_read(
    write_platform: Write, host: HostInfo, source: str, code: str, text: str
) -> None:
    write_platform("acme-npu", source)
    with discover(host, config("acme-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
    assert (found.state, found.spec) == (ProbeState.BROKEN, None)
    assert found.result.reasons[0].code == code
    assert text in str(found.result.reasons[0])
    assert not found.on_host


def test_the_entry_point_has_the_name_of_its_descriptor(write_platform: Write, host: HostInfo) -> None:
    write_platform("acme-npu", HEALTHY.replace("{name}", "other"))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
    assert found.state is ProbeState.BROKEN
    assert str(found.result.reasons[0]) == "plugin.name: entry point wants other, has acme"


def test_noise_on_stdout_breaks_nothing(
    write_platform: Write, host: HostInfo, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = "import os\nprint('hello' * 1000)\nos.write(1, b'\\xff\\xff\\xff\\xff')\nos.system('echo loud')\n"
    write_platform("acme-npu", noise + HEALTHY.replace("def probe(host):", "def probe(host):\n    print('again')"))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert find(discovery, "acme").state is ProbeState.PRESENT
    assert "hello" not in capfd.readouterr().out


def test_a_plugin_that_reads_stdin_gets_nothing(write_platform: Write, host: HostInfo) -> None:
    write_platform("acme-npu", "import sys\nassert sys.stdin.read() == ''\n" + HEALTHY)
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert find(discovery, "acme").state is ProbeState.PRESENT


@pytest.mark.parametrize(
    ("requires", "text"),
    [
        (("inferplane-api>=7",), "api.range: inferplane-api wants >=7, has 0.1.0"),
        (("inferplane-api>=0.1", "torch>=99"), "torch.range: torch wants >=99, has 2.13.0+cpu"),
    ],
)
def test_incompatible_by_metadata_is_read_for_its_evidence_and_not_probed(
    write_platform: Write, host: HostInfo, tmp_path: Path, requires: tuple[str, ...], text: str
) -> None:
    marker, node = tmp_path / "probed", tmp_path / "acme0"
    source = HEALTHY.replace("tier=5", f"tier=5, evidence=Evidence(device_paths=({str(tmp_path / 'acme*')!r},))")
    write_platform(
        "acme-npu",
        source.replace("def probe(host):", f"def probe(host):\n    open({str(marker)!r}, 'w')"),
        requires=requires,
    )
    for here in (False, True):
        if here:
            node.touch()
        with discover(host, config("acme-npu"), environ={}) as discovery:
            found = find(discovery, "acme")
        assert (found.state, found.on_host) == (ProbeState.INCOMPATIBLE, here)
        assert str(found.result.reasons[0]).startswith(text)
        assert "pip install" in found.result.reasons[0].hint
    assert not marker.exists()


def test_incompatible_and_unreadable_leaves_its_hardware_unknown(write_platform: Write, host: HostInfo) -> None:
    write_platform("acme-npu", "from inferplane_api.spec import Tomorrow", requires=("inferplane-api>=7",))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
    assert (found.state, found.on_host) == (ProbeState.INCOMPATIBLE, None)
    assert [reason.code for reason in found.result.reasons] == ["api.range", "plugin.import"]


def test_a_part_of_an_incompatible_plugin_is_not_imported(
    write_distribution: Write, host: HostInfo, tmp_path: Path
) -> None:
    marker = tmp_path / "imported"
    source = f"open({str(marker)!r}, 'w')\n" + FAST + "A = attention('acme.fast')"
    write_distribution("acme-npu", source, {"attention": {"acme.fast": "A"}}, requires=("inferplane-api>=7",))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert discovery.refused[0].state is ProbeState.INCOMPATIBLE
    assert not marker.exists()


def test_incompatible_by_descriptor_is_not_probed(write_platform: Write, host: HostInfo, tmp_path: Path) -> None:
    marker = tmp_path / "probed"
    source = HEALTHY.replace("tier=5", "tier=5, requires_torch='<2'").replace(
        "def probe(host):", f"def probe(host):\n    open({str(marker)!r}, 'w')"
    )
    write_platform("acme-npu", source)
    with discover(host, config("acme-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
    assert found.state is ProbeState.INCOMPATIBLE
    assert found.spec is not None, "its evidence is known, which the selection table needs"
    assert str(found.result.reasons[0]).startswith("torch.range: torch wants <2, has 2.13.0+cpu")
    assert not marker.exists()


def test_a_broken_part_beside_a_healthy_platform(write_distribution: Write, host: HostInfo) -> None:
    source = HEALTHY.format(name="acme", module="acme_npu") + "FAST = 3\n"
    entries = {"platforms": {"acme": "PLATFORM"}, "attention": {"acme.fast": "FAST"}}
    write_distribution("acme-npu", source, entries)
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert find(discovery, "acme").state is ProbeState.PRESENT
    (refused,) = discovery.refused
    assert (refused.name, refused.distribution, refused.version) == ("acme.fast", "acme-npu", "1.2")
    assert "expected AttentionSpec, got int" in str(refused.reason)


FAST = """
from inferplane_api.spec import *
def attention(id, **options):
    return AttentionSpec(id=id, load="x:Y", platforms=frozenset({"*"}), kinds=frozenset({"full"}),
                         dtypes=frozenset({"float32"}), kv_dtypes=frozenset({"float32"}), **options)
"""


def test_an_id_of_two_distributions_is_an_error_naming_both(write_distribution: Write, host: HostInfo) -> None:
    for name in ("acme-npu", "other-npu"):
        write_distribution(name, FAST + "A = attention('acme.fast')", {"attention": {"acme.fast": "A"}})
    with pytest.raises(InferplaneError) as caught:
        discover(host, config("acme-npu", "other-npu"), environ={})
    assert caught.value.code == "plugin.duplicate"
    assert "attention backend 'acme.fast' is claimed by acme-npu 1.2 and other-npu 1.2" in caught.value.message
    assert "--disable-plugins other-npu" in caught.value.remedy


def test_a_namespace_belongs_to_one_distribution(
    write_distribution: Write, write_platform: Write, host: HostInfo
) -> None:
    write_platform("acme-npu", HEALTHY)
    write_distribution("squatter", FAST + "A = attention('acme.slow')", {"attention": {"acme.slow": "A"}})
    with discover(host, config("acme-npu", "squatter"), environ={}, strict=False) as discovery:
        (problem,) = discovery.problems
    assert (problem.level, problem.code) == ("error", "plugin.namespace")
    assert problem.message == "namespace 'acme' is claimed by acme-npu 1.2 and squatter 1.2"


def test_an_id_without_a_namespace_is_refused(write_distribution: Write, host: HostInfo) -> None:
    write_distribution("acme-npu", FAST + "A = attention('fast')", {"attention": {"fast": "A"}})
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert str(discovery.refused[0].reason) == "plugin.id: id wants <namespace>.<name>, has fast"


def test_an_unknown_group_is_a_warning(write_distribution: Write, host: HostInfo) -> None:
    write_distribution("acme-npu", "A = 1", {"attentions": {"acme.fast": "A"}})
    with discover(host, config("acme-npu"), environ={}) as discovery:
        (problem,) = discovery.problems
    assert problem.level == "warning"
    assert "acme-npu 1.2 registers for the unknown group 'inferplane.attentions'" in problem.message
    with discover(host, PlatformConfig(disable_plugins=("acme-npu",)), environ={}) as discovery:
        assert not discovery.problems, "it is not used"


CHECKS = (
    FAST
    + """
import os, time
A = attention("acme.checked", check="acme_npu:check")
def check(request):
    if request.head_size == 1: raise RuntimeError("odd")
    if request.head_size == 2: time.sleep(60)
    if request.head_size == 3: return "yes"
    if request.head_size > 128:
        return Verdict((Reason(code="acme.head", field="head_size", want=str(request.head_size), have="up to 128"),))
    return Verdict()
B = attention("acme.plain")
"""
)


def test_checks_run_in_the_child(write_distribution: Write, host: HostInfo) -> None:
    entries = {"attention": {"acme.checked": "A", "acme.plain": "B"}}
    module = write_distribution("acme-npu", CHECKS, entries)
    request = AttentionRequest(
        platform="acme",
        device=DeviceInfo(),
        kind="full",
        num_heads=1,
        num_kv_heads=1,
        head_size=64,
        dtype="float32",
        kv_dtype="float32",
    )

    def ask(head_size: int) -> str:
        verdict = discovery.check("acme.checked", msgspec.structs.replace(request, head_size=head_size))
        return "; ".join(map(str, verdict.reasons))

    with discover(host, config("acme-npu"), environ={}, timeout=2) as discovery:
        assert discovery.check("acme.plain", request).ok
        assert ask(64) == ""
        assert ask(256) == "acme.head: head_size wants 256, has up to 128"
        assert "RuntimeError: odd" in ask(1)
        assert "expected Verdict, got str" in ask(3)
        assert "plugin.timeout" in ask(2)
        assert "plugin.timeout" in ask(64), "a child that hung once is gone"
        with pytest.raises(KeyError):
            discovery.check("acme.unknown", request)
    assert module not in sys.modules


def test_a_model_plugin_describes_a_config_in_the_child(write_distribution: Write, host: HostInfo) -> None:
    source = """
        from inferplane_api.model import LayerSpec, ModelSpec
        from inferplane_api.spec import ModelPluginSpec
        MODEL = ModelPluginSpec(model_type="acme_lm", load="acme_npu.model:M", describe="acme_npu:describe")
        def describe(config):
            layer = LayerSpec(num_heads=2, num_kv_heads=1, head_size=config["head"])
            return ModelSpec(model_type="acme_lm", architecture="AcmeLM", num_layers=1, hidden_size=8,
                             intermediate_size=8, vocab_size=8, max_position=8, dtype="float32", layers=(layer,))
    """
    write_distribution("acme-npu", source, {"models": {"acme_lm": "MODEL"}})
    with discover(host, config("acme-npu"), environ={}) as discovery:
        described = discovery.describe("acme_lm", {"head": 4})
        assert described is not None
        assert described.layers[0].head_size == 4
        assert discovery.describe("llama", {}) is None
        with pytest.raises(InferplaneError, match=r"'acme_lm' of acme-npu 1\.2 cannot read the config.*KeyError"):
            discovery.describe("acme_lm", {})


def test_hooks_are_called_one_plugin_at_a_time(write_distribution: Write, host: HostInfo) -> None:
    good = """
        from inferplane_api.hooks import Finding, hookimpl
        class Plugin:
            @hookimpl
            def inferplane_doctor(self, host):
                return [Finding(level="warning", subject="acme", message=f"{host.cpu_count} processors")]
        PLUGIN = Plugin()
    """
    bad = good.replace("return [", "raise RuntimeError('no driver'); [")
    write_distribution("acme-good", good, {"plugins": {"good": "PLUGIN"}})
    write_distribution("acme-bad", bad, {"plugins": {"bad": "PLUGIN"}})
    with discover(host, config("acme-good", "acme-bad"), environ={}) as discovery:
        findings = {finding.message: finding.level for finding in discovery.findings("inferplane_doctor", host=host)}
        assert discovery.findings("inferplane_validate", config={}) == []
    assert findings["4 processors"] == "warning"
    (failed,) = (message for message in findings if "no driver" in message)
    assert findings[failed] == "error"


def test_a_crashing_hook_does_not_answer_for_the_rest_of_its_plugin(write_distribution: Write, host: HostInfo) -> None:
    source = """
        import os, signal
        from inferplane_api.hooks import hookimpl
        from inferplane_api.model import LayerSpec, ModelSpec
        from inferplane_api.spec import ModelPluginSpec
        MODEL = ModelPluginSpec(model_type="acme_lm", load="acme_npu.model:M", describe="acme_npu:describe")
        def describe(config):
            layer = LayerSpec(num_heads=2, num_kv_heads=1, head_size=4)
            return ModelSpec(model_type="acme_lm", architecture="AcmeLM", num_layers=1, hidden_size=8,
                             intermediate_size=8, vocab_size=8, max_position=8, dtype="float32", layers=(layer,))
        class Plugin:
            @hookimpl
            def inferplane_doctor(self, host):
                os.kill(os.getpid(), signal.SIGKILL)
        PLUGIN = Plugin()
    """
    write_distribution("acme-npu", source, {"models": {"acme_lm": "MODEL"}, "plugins": {"acme": "PLUGIN"}})
    with discover(host, config("acme-npu"), environ={}) as discovery:
        (answer,) = discovery.call_hook("inferplane_doctor", host=host)
        assert answer.failure is not None
        assert "SIGKILL" in str(answer.failure)
        described = discovery.describe("acme_lm", {})
        assert described is not None
        assert described.layers[0].head_size == 4


def with_device(host: HostInfo, vendor: int, pci_class: int) -> HostInfo:
    device = PciDevice(address="0", vendor=vendor, device=1, pci_class=pci_class)
    return msgspec.structs.replace(host, pci_devices=(device,))


def test_hardware_without_device_nodes_is_not_exposed(write_platform: Write, host: HostInfo) -> None:
    absent = probe_with("return ProbeResult(state=ProbeState.ABSENT, reasons=(Reason(code='acme.none'),))").replace(
        "pci_vendors=(0x1e52,)",
        "pci_vendors=(0x1e52,), device_paths=('/dev/acme*',), container_hint='--device /dev/acme'",
    )
    write_platform("acme-npu", absent)
    with discover(with_device(host, 0x1E52, 0x120000), config("acme-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
    assert (found.state, found.on_host) == (ProbeState.ABSENT, True)
    assert found.result.reasons[0].code == NOT_EXPOSED
    assert found.result.reasons[0].hint == "--device /dev/acme"
    with discover(host, config("acme-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
    assert [reason.code for reason in found.result.reasons] == ["acme.none"]


@pytest.mark.parametrize(
    ("distribution", "vendor", "pci_class", "on_host"),
    [
        ("inferplane-cuda", 0x10DE, 0x030200, True),
        ("inferplane-cuda", 0x1002, 0x120000, False),
        ("acme-npu", 0x1E52, 0x120000, None),  # nobody can tell; selection looks at the bus
        ("acme-npu", 0x1002, 0x120000, None),
    ],
)
def test_evidence_without_a_descriptor(
    write_platform: Write, host: HostInfo, distribution: str, vendor: int, pci_class: int, on_host: bool | None
) -> None:
    write_platform(distribution, "import no_such_driver", platform="thing")
    with discover(with_device(host, vendor, pci_class), config(distribution), environ={}) as discovery:
        assert find(discovery, "thing").on_host is on_host


def test_a_broken_one_that_declares_no_evidence_is_unknown(write_platform: Write, host: HostInfo) -> None:
    write_platform("acme-npu", HEALTHY.replace("    return", "    raise OSError\n    return"))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert find(discovery, "acme").on_host is None


OPTIONS = """
import os
from inferplane_api.spec import *
PLATFORM = PlatformSpec(name="{name}", load="{module}:P", probe="{module}:probe", tier=5, options=(
    Option(name="power", type="int", default=5, doc="Watts.", variable="INFERPLANE_ACME_POWER"),
    Option(name="key", doc="Opens it.", variable="INFERPLANE_ACME_API_KEY"),
))
def probe(host):
    secrets = [name for name in sorted(os.environ) if os.environ[name] == "sesame"]
    return ProbeResult(state=ProbeState.PRESENT, devices=(DeviceInfo(name=f"{host.options} {secrets}"),))
"""


@pytest.mark.parametrize(
    ("given", "environ", "options"),
    [
        ({}, {}, {"power": 5}),
        ({}, {"INFERPLANE_ACME_POWER": "7"}, {"power": 7}),
        ({"power": "8", "of_another_platform": "1"}, {"INFERPLANE_ACME_POWER": "7"}, {"power": 8}),
    ],
)
def test_a_probe_is_told_its_options(
    write_platform: Write, host: HostInfo, given: dict[str, str], environ: dict[str, str], options: dict[str, int]
) -> None:
    write_platform("acme-npu", OPTIONS)
    settings = PlatformConfig(plugins=("acme-npu",), platform_option=given)  # type: ignore[call-arg]
    with discover(host, settings, environ=environ) as discovery:
        (device,) = find(discovery, "acme").result.devices
    assert device.name.startswith(f"{options} ")


def test_a_senseless_option_is_broken_and_not_probed(write_platform: Write, host: HostInfo) -> None:
    write_platform("acme-npu", OPTIONS)
    with discover(host, config("acme-npu"), environ={"INFERPLANE_ACME_POWER": "much"}) as discovery:
        found = find(discovery, "acme")
    assert (found.state, found.result.reasons[0].code) == (ProbeState.BROKEN, "option.value")
    assert found.result.reasons[0].hint == "INFERPLANE_ACME_POWER='much': not of type int: Watts."


def test_a_child_sees_no_secret_but_those_its_platform_declares(
    write_platform: Write, host: HostInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("INFERPLANE_API_KEY", "HF_TOKEN", "ACME_SECRET", "OPENAI_API_KEY", "INFERPLANE_ACME_API_KEY")
    for name in names:
        monkeypatch.setenv(name, "sesame")
    write_platform("acme-npu", OPTIONS)
    with discover(host, config("acme-npu")) as discovery:
        (device,) = find(discovery, "acme").result.devices
    assert device.name == "{'power': 5, 'key': 'sesame'} ['INFERPLANE_ACME_API_KEY']"


def test_an_inspection_that_fails_in_an_unforeseen_way_stops_nobody_else(
    write_platform: Write, host: HostInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferplane.plugins import inspection

    write_platform("acme-npu", HEALTHY)
    write_platform("fine-npu", HEALTHY)
    real = inspection.unsound

    def fail(spec: msgspec.Struct) -> object:
        if getattr(spec, "name", "") == "acme":
            raise RecursionError("too deep")
        return real(spec)

    monkeypatch.setattr(inspection, "unsound", fail)
    with discover(host, config("acme-npu", "fine-npu"), environ={}) as discovery:
        assert find(discovery, "fine").state is ProbeState.PRESENT
        found = find(discovery, "acme")
    assert (found.state, found.result.reasons[0].code) == (ProbeState.BROKEN, "plugin.inspection")
    assert "RecursionError: too deep" in found.result.reasons[0].hint


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("METADATA", b"Metadata-Version: 2.1\nVersion: 1.2\n"),
        ("METADATA", b"Name: acme-npu\nVersion: 1.2\n\xff\xfe"),
        ("entry_points.txt", b"[inferplane.platforms]\nacme\n"),
        ("entry_points.txt", b"[inferplane.platforms]\nacme = acme_npu:PLATFORM\n\xff"),
    ],
)
def test_damaged_metadata_stops_nobody_else(
    write_platform: Write, site: Path, host: HostInfo, file: str, content: bytes
) -> None:
    write_platform("fine-npu", HEALTHY)
    write_platform("acme-npu", HEALTHY)
    (site / "acme_npu-1.2.dist-info" / file).write_bytes(content)
    with discover(host, config("fine-npu"), environ={}) as discovery:
        assert find(discovery, "fine").state is ProbeState.PRESENT
        told = [problem.message for problem in discovery.problems]
    assert len(told) == 1
    assert str(site / "acme_npu-1.2.dist-info") in told[0]


def test_evidence_that_cannot_be_looked_for_stops_nobody_else(write_platform: Write, host: HostInfo) -> None:
    write_platform("acme-npu", HEALTHY.replace("tier=5", "tier=5, evidence=Evidence(device_paths=('/\\0/*',))"))
    write_platform("fine-npu", HEALTHY)
    with discover(host, config("acme-npu", "fine-npu"), environ={}) as discovery:
        assert find(discovery, "fine").state is ProbeState.PRESENT
        assert [found.name for found in discovery.platforms if found.name == "acme"] == ["acme"]


def test_nothing_is_imported_from_the_working_folder(
    write_platform: Write, host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a Python that does not know PYTHONSAFEPATH, which ignoring the environment variable stands for."""
    (tmp_path / "here").mkdir()
    for name in ("msgspec", "struct", "acme_npu"):
        (tmp_path / "here" / f"{name}.py").write_text("raise RuntimeError('of the working folder')")
    write_platform("acme-npu", HEALTHY)
    monkeypatch.chdir(tmp_path / "here")
    real = child_process.child_environment

    def older() -> dict[str, str]:
        environment = real()
        del environment["PYTHONSAFEPATH"]
        return environment

    monkeypatch.setattr(child_process, "child_environment", older)
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert find(discovery, "acme").state is ProbeState.PRESENT


def test_an_unknown_variable_is_an_error_with_a_suggestion(host: HostInfo) -> None:
    with pytest.raises(InferplaneError) as caught:
        discover(host, PlatformConfig(), environ={"INFERPLANE_LOGLEVEL": "x", "OTHER": ""})  # type: ignore[call-arg]
    assert caught.value.code == "variable.unknown"
    assert caught.value.message == "INFERPLANE_LOGLEVEL is not a variable"
    assert caught.value.remedy == "did you mean INFERPLANE_LOG_LEVEL?"


def test_a_declared_variable_is_known(write_platform: Write, host: HostInfo) -> None:
    options = "tier=5, options=(Option(name='power', doc='Watts.', variable='INFERPLANE_ACME_POWER'),)"
    write_platform("acme-npu", HEALTHY.replace("tier=5", options))
    environ = {"INFERPLANE_ACME_POWER": "9", "INFERPLANE_PLUGINS": "acme-npu"}
    with discover(host, PlatformConfig(), environ=environ) as discovery:  # type: ignore[call-arg]
        assert discovery.problems == []
        assert {found.name for found in discovery.platforms} == {"acme", "reference"}


def test_a_typo_in_a_variable_is_an_error_though_a_plugin_was_not_read(write_platform: Write, host: HostInfo) -> None:
    write_platform("acme-npu", HEALTHY)
    with pytest.raises(InferplaneError) as caught:
        discover(host, config(deny=("acme-npu",)), environ={"INFERPLANE_LOGLEVEL": "x"})
    assert caught.value.remedy == "did you mean INFERPLANE_LOG_LEVEL?"


def test_a_variable_of_a_plugin_that_was_not_read_is_a_warning(write_platform: Write, host: HostInfo) -> None:
    write_platform("acme-npu", HEALTHY)
    with discover(host, config(deny=("acme-npu",)), environ={"INFERPLANE_ACME_POWER": "9"}) as discovery:
        assert [(problem.level, problem.code) for problem in discovery.problems] == [("warning", "variable.unknown")]


def test_a_host_that_cannot_start_processes_says_so(
    write_platform: Write, host: HostInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_platform("acme-npu", HEALTHY)

    def refuse(*arguments: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(InferplaneError, match=r"cannot start a process.*temporarily unavailable") as caught:
        discover(host, config("acme-npu"), environ={})
    assert caught.value.remedy


@pytest.mark.parametrize(
    "module", ["inferplane.plugins.child", "inferplane.plugins.discovery", "inferplane.plan.resolve"]
)
def test_discovery_is_light(module: str) -> None:
    """The child imports no heavy package, and the launcher's side imports no torch."""
    heavy = ["torch", "numpy", "transformers"] + (["pydantic", "packaging"] if module.endswith("child") else [])
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_deprecated_field_is_one_warning_with_plugin_and_replacement(
    write_platform: Write, host: HostInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Deprecation(name="PlatformSpec.communicator", since="0.1.0", replacement="comm", removal="0.2.0")
    monkeypatch.setattr("inferplane_api.deprecated.DEPRECATIONS", (fake,))
    write_platform("acme-npu", HEALTHY.replace("tier=5", "tier=5, communicator='acmecc'"))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        (problem,) = discovery.problems
        assert find(discovery, "acme").state is ProbeState.PRESENT
    assert (problem.level, problem.code) == ("warning", "api.deprecated")
    assert problem.message == (
        "'acme' of plugin acme-npu 1.2 uses PlatformSpec.communicator, deprecated since inferplane-api 0.1.0 and gone "
        "in 0.2.0: use comm"
    )


def test_the_oldest_contract_is_read_from_the_metadata(write_distribution: Write, host: HostInfo) -> None:
    entries = {"attention": {"acme.fast": "A"}}
    write_distribution("acme-npu", FAST + "A = attention('acme.fast')", entries, requires=("inferplane-api>=0.1,<9",))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        oldest = {found.spec.id: found.api for found in discovery.attention}
    assert oldest == {"acme.fast": "0.1.0", "reference.paged": API_VERSION}


@pytest.mark.parametrize(
    ("torch", "state"),
    [("2.13.0+cpu", "INCOMPATIBLE"), ("2.13.0+acme5", "PRESENT"), ("2.13.0", "PRESENT")],
)
def test_the_build_of_torch(write_platform: Write, host: HostInfo, torch: str, state: str) -> None:
    write_platform("acme-npu", HEALTHY.replace("tier=5", "tier=5, torch_builds=('acme',)"))
    with discover(msgspec.structs.replace(host, torch_version=torch), config("acme-npu"), environ={}) as discovery:
        found = find(discovery, "acme")
    assert found.state.value == state
    if state == "INCOMPATIBLE":
        assert str(found.result.reasons[0]) == (
            "torch.build: torch build wants acme, has cpu (install a build of torch whose version ends in +acme*)"
        )


def test_a_crash_takes_what_it_started_with_it(write_platform: Write, host: HostInfo, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = f"""import subprocess
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open({str(pid_file)!r}, "w").write(str(helper.pid))
    os.kill(os.getpid(), signal.SIGSEGV)"""
    write_platform("acme-npu", probe_with(body))
    with discover(host, config("acme-npu"), environ={}) as discovery:
        assert find(discovery, "acme").result.reasons[0].code == "plugin.crashed"
    deadline = time.monotonic() + 10
    while alive(int(pid_file.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(int(pid_file.read_text()))


def test_an_alias_that_is_another_distributions_id_is_an_error_naming_both(
    write_distribution: Write, host: HostInfo
) -> None:
    write_distribution(
        "acme-npu", FAST + "A = attention('acme.fast', aliases=('QUICK',))", {"attention": {"acme.fast": "A"}}
    )
    squatting = FAST + "A = attention('other.slow', aliases=('ACME.fast', 'QUICK'))"
    write_distribution("other-npu", squatting, {"attention": {"other.slow": "A"}})
    with discover(host, config("acme-npu", "other-npu"), environ={}, strict=False) as discovery:
        (problem,) = discovery.problems
    assert (problem.level, problem.code) == ("error", "plugin.alias")
    assert problem.message == "attention backend 'ACME.fast' is claimed by acme-npu 1.2 and other-npu 1.2"
