"""Two strangers' packages add an attention backend and ops to somebody else's platform, and a third listens.

Each is a distribution on the import path that knows `inferplane_api` only. What they compute is what the contract's own
reference computes, so that tokens must not change; that they ran is told by counters of their own.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferplane import LLM, SamplingParams
from inferplane.config import Config
from inferplane.errors import EngineDead, InvalidValue
from inferplane.launch import make_plan
from inferplane.plan.types import Decision, Plan
from inferplane.plugins.inventory import list_entry_points
from inferplane.plugins.lockfile import lock_installed, write_lock

FLASHY = """
from inferplane_api.spec import *
ALL = frozenset({"float32", "bfloat16", "float16"})
SLIDING = AttentionSpec(id="flashy.sliding", load="flashy_run:Counted", platforms=frozenset({"cpu", "acme"}),
                        kinds=frozenset({"sliding"}), dtypes=ALL, kv_dtypes=ALL, score=90, aliases=("FLASHY",))
WIDE = AttentionSpec(id="flashy.wide", load="flashy_run:Counted", platforms=frozenset({"cpu"}),
                     kinds=frozenset({"full", "sliding"}), dtypes=ALL, kv_dtypes=ALL, score=95,
                     head_sizes=HeadSizes(exact=(64, 128)), features=frozenset({"softcap"}))
PICKY = AttentionSpec(id="flashy.picky", load="flashy_run:Counted", platforms=frozenset({"cpu"}),
                      kinds=frozenset({"full"}), dtypes=ALL, kv_dtypes=ALL, score=99, check="flashy:check")
def check(request):
    return Verdict((Reason(code="flashy.heads", field="num_heads", want=str(request.num_heads), have="8"),))
"""
FLASHY_RUN = """
from inferplane_api.reference.attention import PagedAttention
RUNS = []
class Counted(PagedAttention):
    def run(self, *arguments, **options):
        RUNS.append(self._window)
        super().run(*arguments, **options)
"""
FASTOPS = """
from inferplane_api.spec import *
OPS = KernelSpec(id="fastops.ops", kind="ops", load="fastops_run:PROVIDER", platforms=frozenset({"cpu"}),
                 ops=("gelu_tanh_mul@1", "rms_norm@1"), dtypes=frozenset({"float32"}), score=90)
"""
FASTOPS_RUN = """
from inferplane_api.reference import ops
CALLS = []
def gelu_tanh_mul(x):
    CALLS.append(x.shape)
    return ops.gelu_tanh_mul(x)
class Provider:
    def ops(self):
        return {"gelu_tanh_mul@1": gelu_tanh_mul, "rms_norm@1": ops.rms_norm}
PROVIDER = Provider()
"""
LOUD_RUN = """
from inferplane_api.reference import ops
class Provider:
    def __init__(self):
        import inferplane.engine.engine
        inferplane.engine.engine.Engine.step = lambda self: []
    def ops(self):
        return {"rms_norm@1": ops.rms_norm}
PROVIDER = Provider()
"""
LISTENER = """
from inferplane_api.hooks import hookimpl
HEARD = []
class Listener:
    @hookimpl
    def inferplane_worker_start(self, role, rank):
        HEARD.append(f"start {role} {rank}")
    @hookimpl
    def inferplane_worker_stop(self, role):
        HEARD.append(f"stop {role}")
PLUGIN = Listener()
"""
PACKAGES = ("flashy", "fastops", "listener")


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = {"flashy": FLASHY, "flashy_run": FLASHY_RUN, "fastops": FASTOPS, "fastops_run": FASTOPS_RUN}
    for module, source in {**sources, "listener": LISTENER}.items():
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
    points = {
        "flashy": "[inferplane.attention]\nflashy.sliding = flashy:SLIDING\nflashy.wide = flashy:WIDE\n"
        "flashy.picky = flashy:PICKY\n",
        "fastops": "[inferplane.kernels]\nfastops.ops = fastops:OPS\n",
        "listener": "[inferplane.plugins]\nlistener = listener:PLUGIN\n",
    }
    for name, text in points.items():
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nRequires-Dist: inferplane-api>=0.1,<0.2\n"
        )
        (info / "entry_points.txt").write_text(text)
    importlib.invalidate_caches()
    yield
    for module in (*sources, "listener"):
        sys.modules.pop(module, None)


@pytest.fixture
def plan_with(tiny_gemma3_dir: Path) -> Callable[..., Plan]:
    def run(**values: Any) -> Plan:
        settings = {"model": str(tiny_gemma3_dir), "platform": "cpu", "plugins": ("inferplane-cpu", *PACKAGES)}
        return make_plan(Config.from_flat({**settings, **values}), weights=False).plan

    return run


def decisions(plan: Plan) -> dict[str, Decision]:
    """By the first two words of the subject: "attention full"."""
    return {" ".join(each.subject.partition("(")[0].split()[:2]): each for each in plan.decisions}


def reasons(decision: Decision, id: str) -> list[str]:
    (loser,) = (loser for loser in decision.losers if loser.id == id)
    return [str(reason) for reason in loser.reasons]


@pytest.mark.usefixtures("strangers")
def test_the_best_score_that_fits_wins_for_each_group(plan_with: Callable[..., Plan]) -> None:
    plan = plan_with(dtype="float32")
    found = decisions(plan)
    assert found["attention sliding"].chosen == "flashy.sliding"
    assert found["attention full"].chosen == "cpu.native", "one group's backend does not drag the others along"
    (sliding,) = (component for component in plan.attention if component.id == "flashy.sliding")
    assert (sliding.distribution, sliding.version, sliding.load) == ("flashy", "1.2", "flashy_run:Counted")
    assert found["op gelu_tanh_mul@1"].chosen == found["op rms_norm@1"].chosen == "fastops.ops"
    assert found["op rope@1"].chosen == "cpu.native_ops"
    assert found["op soft_cap@1"].chosen == "reference.ops"
    assert reasons(found["op rms_norm@1"], "cpu.ops") == ["selection.score: score wants 90, has 45"]
    assert not {"flashy_run", "fastops_run"} & sys.modules.keys(), "the launcher imports no plugin"


@pytest.mark.usefixtures("strangers")
def test_what_does_not_fit_is_refused_with_reasons(plan_with: Callable[..., Plan]) -> None:
    found = decisions(plan_with(dtype="bfloat16"))
    full = found["attention full"]
    assert reasons(full, "flashy.sliding") == ["attention.kind: kind wants full, has sliding"]
    assert reasons(full, "flashy.wide") == ["attention.head_size: head_size wants 16, has 128, 64"]
    assert reasons(full, "flashy.picky") == ["flashy.heads: num_heads wants 4, has 8"]
    norm = found["op rms_norm@1"]
    assert norm.chosen == "cpu.native_ops"
    assert reasons(norm, "fastops.ops") == ["kernel.dtype: dtype wants bfloat16, has float32"]
    reference = decisions(plan_with(platform="reference"))
    assert reference["attention sliding"].chosen == "reference.paged", "it is for the platforms that it names"
    assert reasons(reference["attention sliding"], "flashy.sliding")[0].startswith("attention.platform: platform wants")


@pytest.mark.usefixtures("strangers")
def test_an_explicit_choice_for_one_kind_of_layers(plan_with: Callable[..., Plan]) -> None:
    found = decisions(plan_with(attention_backend="sliding=cpu.sdpa"))
    assert (found["attention sliding"].chosen, found["attention sliding"].source) == ("cpu.sdpa", "user")
    with pytest.raises(InvalidValue, match=r"flashy\.sliding.*cannot run full.*wants full, has sliding") as caught:
        plan_with(attention_backend="FLASHY")
    assert "cpu.sdpa" in caught.value.remedy


@pytest.mark.usefixtures("strangers")
def test_they_run_and_tokens_do_not_change(tiny_gemma3_dir: Path) -> None:
    prompts = [{"prompt_token_ids": list(range(10, 60))}, {"prompt_token_ids": [7, 8, 9]}]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

    def tokens(*plugins: str) -> list[list[int]]:
        settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "platform": "cpu", "plugins": plugins}
        with LLM(model=str(tiny_gemma3_dir), **settings) as llm:
            return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]

    alone = tokens("inferplane-cpu")
    assert tokens("inferplane-cpu", *PACKAGES) == alone
    flashy, fastops, listener = (sys.modules[name] for name in ("flashy_run", "fastops_run", "listener"))
    assert set(flashy.RUNS) == {32}, "the sliding groups only"
    assert fastops.CALLS
    assert listener.HEARD == ["start engine 0", "stop engine"]


@pytest.mark.usefixtures("strangers")
def test_a_locked_start_stops_at_a_plugin_that_changes_the_core(
    tiny_gemma3_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fastops_run.py").write_text(LOUD_RUN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for the engine's process
    lock = tmp_path / "plugins.lock"
    names = {"inferplane-cpu", "fastops"}
    write_lock(lock_installed(entry for entry in list_entry_points() if entry.distribution in names), lock)
    settings: dict[str, Any] = {"platform": "cpu", "dtype": "float32", "max_model_len": 64, "plugins_mode": "locked"}
    with pytest.raises(EngineDead) as caught:
        LLM(model=str(tiny_gemma3_dir), engine_process=True, plugins_lock=str(lock), **settings)
    assert caught.value.code == "plugin.tampering"
    assert "plugin fastops 1.2 changes the core" in caught.value.message
    assert "inferplane.engine.engine.Engine.step" in caught.value.message
    assert "--disable-plugins fastops" in caught.value.remedy
