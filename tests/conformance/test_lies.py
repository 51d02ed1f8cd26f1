"""The kit itself: a plugin that is true to its word passes, and every planted lie is caught and named."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inferplane_api.testing.case import LEVELS, NotTested, prove
from inferplane_api.testing.declarations import declare
from inferplane_api.testing.generate import generate
from inferplane_api.testing.kit import Kit

ENTRY_POINTS = """\
[inferplane.platforms]
acme = acme_chip.descriptor:PLATFORM

[inferplane.kernels]
acme.ops = acme_chip.descriptor:OPS
acme.linear = acme_chip.descriptor:LINEAR

[inferplane.attention]
acme.loop = acme_chip.descriptor:ATTENTION

"""
"""The distribution's own; a test appends to it."""

SLOW_AREAS = {"patches", "communicator", "model", "attention", "kv-layout"}


class Planted(NamedTuple):
    """One lie: the line that tells it, the case that must catch it, and what the message must name."""

    file: str
    old: str
    new: str
    case: str
    says: tuple[str, ...]
    only: bool = True
    """No other case fails: the kit blames what is wrong and nothing else."""


LIES = {
    "rms_norm forgets eps": Planted(
        "kernels",
        "keepdim=True) + eps)",
        "keepdim=True))",
        "ops/acme.ops-rms_norm@1-float32",
        ("acme.ops provides rms_norm@1 in float32", "result is wrong", "eps"),
        only=False,
    ),
    "rms_norm is slightly off in float16 only": Planted(
        "kernels",
        "wide = x.float()",
        "wide = x.float() * (1.01 if x.dtype == torch.float16 else 1.0) ** 2 - 0.05 * (x.dtype == torch.float16)",
        "ops/acme.ops-rms_norm@1-float16",
        ("rms_norm@1 in float16", "max error"),
    ),
    "silu_mul leaves another default type": Planted(
        "kernels",
        "    gate, up = x.chunk(2, dim=-1)\n",
        "    gate, up = x.chunk(2, dim=-1)\n    torch.set_default_dtype(torch.float64)\n",
        "ops/acme.ops-silu_mul@1-float32",
        ("silu_mul@1", "changes torch for the whole process", "default dtype from torch.float32 to torch.float64"),
        only=False,
    ),
    "silu_mul draws a random number": Planted(
        "kernels",
        "    gate, up = x.chunk(2, dim=-1)\n",
        "    gate, up = x.chunk(2, dim=-1)\n    torch.rand(1)\n",
        "ops/acme.ops-silu_mul@1-float32",
        ("silu_mul@1", "changes torch for the whole process", "random state"),
        only=False,
    ),
    "a stream is no context": Planted(
        "platform",
        "        return nullcontext()\n\n    def synchronize(self):\n        pass\n\n\nclass Memory",
        "        return None\n\n    def synchronize(self):\n        pass\n\n\nclass Memory",
        "runtime/streams",
        ("acme gives streams, events and synchronize",),
    ),
    "close complains": Planted(
        "platform",
        "    def close(self):\n        pass",
        "    def close(self):\n        raise RuntimeError('the queue is not empty')",
        "runtime/close",
        ("acme closes its platform", "raises RuntimeError: the queue is not empty"),
        only=False,
    ),
    "an event cannot be waited for": Planted(
        "platform",
        "    def record(self):\n        pass\n\n    def synchronize(self):\n        pass\n",
        "    def record(self):\n        pass\n",
        "runtime/streams",
        ("acme gives streams, events and synchronize", "synchronize"),
    ),
    "silu_mul works in place": Planted(
        "kernels",
        "    gate, up = x.chunk(2, dim=-1)\n",
        "    gate, up = x.chunk(2, dim=-1)\n    gate.mul_(1.5)\n",
        "ops/acme.ops-silu_mul@1-float32",
        ("silu_mul@1", "changes its argument x"),
        only=False,
    ),
    "silu_mul fails without rows": Planted(
        "kernels",
        "    gate, up = x.chunk(2, dim=-1)\n",
        "    gate, up = x.chunk(2, dim=-1)\n    assert len(x), 'no rows'\n",
        "ops/acme.ops-silu_mul@1-float32",
        ("silu_mul@1", "raises AssertionError: no rows"),
        only=False,
    ),
    "kv_write writes padded tokens": Planted(
        "kernels",
        "ops.kv_write(k, v, kv, slot_mapping)",
        "ops.kv_write(k, v, kv, slot_mapping.abs())",
        "ops/acme.ops-kv_write@1-float32",
        ("acme.ops provides kv_write@1",),
        only=False,
    ),
    "silu_mul gives the same memory at every call": Planted(
        "kernels",
        "silu_mul(x):\n    gate, up = x.chunk(2, dim=-1)\n    return (",
        "silu_mul(x, held={}):\n    gate, up = x.chunk(2, dim=-1)\n"
        "    return held.setdefault((x.shape, x.dtype), torch.empty_like(up)).copy_(",
        "ops/acme.ops-silu_mul@1-float32",
        ("silu_mul@1", "a later call changes the result"),
        only=False,
    ),
    "silu_mul has a grid of 128 rows": Planted(
        "kernels",
        "    gate, up = x.chunk(2, dim=-1)\n",
        "    gate, up = x.clone().chunk(2, dim=-1)\n    up[128:] = 0\n",
        "ops/acme.ops-silu_mul@1-float32",
        ("silu_mul@1", "x[1030, 128]"),
        only=False,
    ),
    "silu_mul has a block of 1024 columns": Planted(
        "kernels",
        "    gate, up = x.chunk(2, dim=-1)\n",
        "    gate, up = x.clone().chunk(2, dim=-1)\n    up[:, 1024:] = 0\n",
        "ops/acme.ops-silu_mul@1-float32",
        ("silu_mul@1", "max error"),
        only=False,
    ),
    "the linear kernel gives the same memory at every call": Planted(
        "kernels",
        "return y if bias is None else y + bias",
        "y = y if bias is None else y + bias\n"
        "        return self.__dict__.setdefault(y.shape, torch.empty_like(y)).copy_(y)",
        "linear/acme.linear-dense-float32",
        ("acme.linear", "a later call changes the result"),
        only=False,
    ),
    "attention has a grid of eight rows": Planted(
        "attention",
        "enumerate(self.batch.seq_lens_host.tolist())",
        "enumerate(self.batch.seq_lens_host.tolist()[:8])",
        "attention/acme.loop-many-rows-full-float32-head16-page16-4x2-htd",
        ("acme.loop", "many-rows"),
    ),
    "attention's softmax overflows": Planted(
        "attention",
        "scores.softmax(-1)",
        "(scores.exp() / scores.exp().sum(-1, keepdim=True))",
        "attention/acme.loop-large-scores-full-float32-head16-page16-4x2-htd",
        ("acme.loop", "large-scores", "exponential"),
    ),
    "pinned memory has one type": Planted(
        "platform",
        "dtype=dtype)",
        "dtype=torch.float32)",
        "memory/pinned",
        ("memory.pinned()", "torch.int64"),
    ),
    "an op is declared and not provided": Planted(
        "kernels", '"silu_mul@1": silu_mul, ', "", "ops/acme.ops-provided", ("silu_mul@1", "lacks"), only=False
    ),
    "an op that no schema describes": Planted(
        "descriptor",
        '"silu_mul@1"',
        '"silu_mul@7"',
        "descriptor/inferplane.kernels:acme.ops",
        ("silu_mul@7", "no schema"),
        only=False,
    ),
    "attention ignores the window": Planted(
        "attention",
        "self.window = context.group.window",
        "self.window = None",
        "attention/acme.loop-sliding-float32-head16-page16-4x2-window7-htd",
        ("acme.loop declares kind sliding", "out is wrong"),
        only=False,
    ),
    "attention reads before other rows' writes": Planted(
        "attention",
        "        if k is not None:\n            self.write(k, v, kv, self.batch.slot_mapping)\n"
        "        for row, length in enumerate(self.batch.seq_lens_host.tolist()):\n"
        "            start, end = self.batch.query_start_host[row : row + 2].tolist()\n",
        "        for row, length in enumerate(self.batch.seq_lens_host.tolist()):\n"
        "            start, end = self.batch.query_start_host[row : row + 2].tolist()\n"
        "            if k is not None:\n"
        "                self.write(k[start:end], v[start:end], kv, self.batch.slot_mapping[start:end])\n",
        "attention/acme.loop-shared-pages-full-float32-head16-page16-4x2-htd",
        ("acme.loop", "before another row of the same step has written them"),
        only=False,
    ),
    "attention claims a head size that it cannot do": Planted(
        "descriptor",
        "HeadSizes(exact=(16, 64))",
        "HeadSizes(exact=(16, 64, 96))",
        "attention/acme.loop-full-float32-head96-page16-4x2-htd",
        ("acme.loop declares", "head_size 96 but fails", "max error"),
        only=False,
    ),
    "attention sees the future": Planted(
        "attention",
        "torch.arange(first, position + 1)",
        "torch.arange(first, int(self.batch.seq_lens_host[row]))",
        "attention/acme.loop-full-float32-head16-page16-4x2-htd",
        ("out is wrong",),
        only=False,
    ),
    "attention ignores the scale": Planted(
        "attention",
        "self.context.scale * torch",
        "q.shape[-1] ** -0.5 * torch",
        "attention/acme.loop-full-float32-head16-page16-4x2-htd",
        ("out is wrong",),
        only=False,
    ),
    "attention swaps the groups of heads": Planted(
        "attention",
        "keys = keys.float().repeat_interleave(group, dim=1)",
        "keys = keys.float().repeat(1, group, 1)",
        "attention/acme.loop-full-float32-head16-page16-4x2-htd",
        ("out is wrong",),
        only=False,
    ),
    "attention lets unrelated pages leak": Planted(
        "attention",
        "values.float().repeat_interleave(group, dim=1)",
        "values.float().repeat_interleave(group, dim=1) + 0 * kv.v.float().sum()",
        "attention/acme.loop-full-float32-head16-page16-4x2-htd",
        ("unrelated pages",),
        only=False,
    ),
    "attention declares softcap and ignores it": Planted(
        "attention",
        "if self.context.softcap is not None:",
        "if self.context.softcap == 0:",
        "attention/acme.loop-full-float32-head16-page16-4x2-softcap3-htd",
        ("softcap 3", "out is wrong"),
        only=False,
    ),
    "logsumexp has base 2": Planted(
        "attention",
        "torch.logsumexp(scores, dim=-1)",
        "torch.logsumexp(scores, dim=-1) * 1.4427",
        "attention/acme.loop-full-float32-head16-page16-4x2-lse-htd",
        ("logsumexp", "lse is wrong"),
        only=False,
    ),
    "attention skips a row of out": Planted(
        "attention",
        "for token in range(start, end):",
        "for token in range(start + (end - start == 5), end):",
        "attention/acme.loop-full-float32-head16-page16-4x2-htd",
        ("unwritten out",),
        only=False,
    ),
    "attention writes padded tokens to the null page": Planted(
        "attention",
        "kv_write(k, v, kv, slots)",
        "kv_write(k + 1, v, kv, slots.clamp(min=0)), kv_write(k, v, kv, slots)",
        "attention/acme.loop-padded-rows-full-float32-head16-page16-4x2-htd",
        ("null page",),
        only=False,
    ),
    "attention claims bits that do not depend on the batch": Planted(
        "attention",
        "scores = self.context.scale * torch",
        "scores = (self.context.scale + 1e-7 * len(self.batch.seq_lens)) * torch",
        "attention/acme.loop-batch-invariant-full-float32-head16-page16-4x2-htd",
        ("batch_invariant",),
        only=False,
    ),
    "attention bakes a page table into its graph": Planted(
        "attention",
        "        self.batch = batch\n",
        "        self.batch = batch if batch.max_query_len > 1 or not hasattr(self, 'first') else self.first\n"
        "        if batch.max_query_len == 1:\n            self.first = self.batch\n",
        "attention/acme.loop-graph-replay-full-float32-head16-page16-4x2-htd",
        ("graph-replay", "out is wrong"),
        only=False,
    ),
    "the layout is declared htd and written thd": Planted(
        "attention",
        "kv_write(k, v, kv, slots)",
        "shape = kv.k.shape[:1] + (kv.k.shape[2], kv.k.shape[1], kv.k.shape[3])\n"
        "        strides = (kv.k.stride(0), shape[2] * shape[3], shape[3], 1)\n"
        "        k_view, v_view = (x.as_strided(shape, strides, x.storage_offset()) for x in (kv.k, kv.v))\n"
        "        from inferplane_api.kv import KVLayout\n"
        "        kv_write(k, v, kv._replace(k=k_view, v=v_view, layout=KVLayout(order='thd')), slots)",
        "kv-layout/acme.loop-htd-k_v_planes-float32",
        ("acme.loop declares the layout htd and writes k elsewhere",),
        only=False,
    ),
    "the linear kernel adds half of the bias": Planted(
        "kernels",
        "y + bias",
        "y + bias / 2",
        "linear/acme.linear-dense-float32",
        ("acme.linear declares scheme dense", "with a bias", "max error"),
        only=False,
    ),
    "the linear kernel forgets stacked weights": Planted(
        "kernels",
        "for weight in packed]",
        "for weight in packed[:1]]",
        "linear/acme.linear-ggml.q8_0-float32",
        ("acme.linear declares scheme ggml.q8_0", "three stacked weights", "shape"),
        only=False,
    ),
    "the descriptor imports torch": Planted(
        "descriptor",
        "from inferplane_api.kv import KVLayout",
        "import torch\nfrom inferplane_api.kv import KVLayout",
        "import/descriptor-modules-acme_chip.descriptor",
        ("acme_chip.descriptor imports", "torch"),
        only=False,
    ),
    "the descriptor prints": Planted(
        "descriptor",
        "PLATFORM = ",
        "print('acme driver 7.1')\nPLATFORM = ",
        "import/descriptor-stdout-acme_chip.descriptor",
        ("prints on stdout", "acme driver 7.1"),
    ),
    "the descriptor changes the environment": Planted(
        "descriptor",
        "PLATFORM = ",
        "import os\nos.environ['OMP_PROC_BIND'] = 'true'\nPLATFORM = ",
        "import/descriptor-environment-acme_chip.descriptor",
        ("variable OMP_PROC_BIND",),
    ),
    "the descriptor starts a thread": Planted(
        "descriptor",
        "PLATFORM = ",
        "import threading\nthreading.Thread(target=threading.Event().wait, name='acme-watch', daemon=True).start()\n"
        "PLATFORM = ",
        "import/descriptor-threads-acme_chip.descriptor",
        ("leaves threads", "acme-watch"),
    ),
    "the descriptor is slow": Planted(
        "descriptor",
        "PLATFORM = ",
        "import time\ntime.sleep(1.1)\nPLATFORM = ",
        "import/descriptor-seconds-acme_chip.descriptor",
        ("takes 1.",),
    ),
    "the descriptor ends the process": Planted(
        "descriptor",
        "PLATFORM = ",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nPLATFORM = ",
        "descriptor/process",
        ("acme-chip", "signal 11"),
        only=False,
    ),
    "the descriptor cannot be imported": Planted(
        "descriptor",
        "PLATFORM = ",
        "import libacme_is_missing\nPLATFORM = ",
        "descriptor/inferplane.platforms:acme",
        ("cannot be imported", "libacme_is_missing"),
        only=False,
    ),
    "the descriptor calls itself something else": Planted(
        "descriptor",
        'id="acme.loop"',
        'id="acme.flash"',
        "descriptor/inferplane.attention:acme.loop",
        ("'acme.flash'", "must be the same"),
    ),
    "a field has the wrong type": Planted(
        "descriptor",
        "score=60,\n)\n\nLINEAR",
        "score='best',\n)\n\nLINEAR",
        "descriptor/inferplane.kernels:acme.ops",
        ("acme.ops", "wrong type", "score"),
    ),
    "the probe raises": Planted(
        "probe",
        "    device = ",
        "    raise OSError('libacme.so: cannot open')\n    device = ",
        "probe/state-acme_chip.probe:probe",
        ("probe acme_chip.probe:probe gives no answer: OSError: libacme.so",),
        only=False,
    ),
    "the probe ends the process": Planted(
        "probe",
        "    device = ",
        "    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)\n    device = ",
        "probe/state-acme_chip.probe:probe",
        ("probe acme_chip.probe:probe gives no answer", "signal 11"),
        only=False,
    ),
    "the probe raises where the chip is not": Planted(
        "probe",
        "    device = ",
        "    [flag for flag in host.torch_version.split('.')]\n    device = ",
        "probe/bare-host-acme_chip.probe:probe",
        ("gives no answer: AttributeError",),
    ),
    "the probe says PRESENT without a device": Planted(
        "probe",
        "devices=(device,)",
        "devices=()",
        "probe/state-acme_chip.probe:probe",
        ("PRESENT without a device",),
        only=False,
    ),
    "the probe changes its mind": Planted(
        "probe",
        "    device = ",
        "    import itertools\n    global asked\n    asked = globals().get('asked', 0) + 1\n    device = ",
        "probe/twice-acme_chip.probe:probe",
        ("then something else",),
        only=False,
    ),
    "the probe imports torch": Planted(
        "probe",
        "    device = ",
        "    import torch\n    device = ",
        "import/probe-modules-acme_chip.probe:probe",
        ("imports", "torch"),
        only=False,
    ),
    "the device prefers a type that it lacks": Planted(
        "probe",
        'name="acme chip",',
        'name="acme chip", preferred_dtype="bfloat16",',
        "probe/devices-acme_chip.probe:probe",
        ("prefers bfloat16",),
    ),
    "free memory is more than there is": Planted(
        "platform",
        "return psutil.virtual_memory().available",
        "return psutil.virtual_memory().available + psutil.virtual_memory().total",
        "memory/numbers",
        ("more than memory.total()",),
    ),
    "free memory does not depend on what is held": Planted(
        "platform",
        "return psutil.virtual_memory().available",
        "return 2**31",
        "memory/held",
        ("does not measure what is held", "memory.free() says 2147483648 bytes before and 2147483648 while"),
    ),
    "the peak is the same all the time": Planted(
        "platform",
        "        return self.most\n",
        "        return 2**28\n",
        "memory/held",
        ("does not measure what is held", "memory.peak() says 268435456 bytes before and 268435456 while"),
    ),
    "what is given back is never free again": Planted(
        "platform",
        "        return psutil.virtual_memory().available\n",
        "        self.lowest = min(psutil.virtual_memory().available, getattr(self, 'lowest', 2**60)) - 2**26\n"
        "        return self.lowest\n",
        "memory/held",
        ("blocks were given back, and memory.free() stays at",),
    ),
    "there is more memory than the host has": Planted(
        "platform",
        "return psutil.virtual_memory().total",
        "return 2**50",
        "memory/numbers",
        ("memory.total() = 1125899906842624 is more than the host's",),
    ),
    "the platform needs a torch of the future": Planted(
        "descriptor",
        "tier=5)",
        "tier=5, requires_torch='>=77')",
        "descriptor/torch-acme",
        ("platform acme does not run with the torch that is installed", ">=77"),
    ),
    "the platform's torch range is none": Planted(
        "descriptor",
        "tier=5)",
        "tier=5, requires_torch='newest')",
        "descriptor/inferplane.platforms:acme",
        ("would be refused by core", "requires_torch", "newest"),
        only=False,
    ),
    "an option's default is of another type": Planted(
        "descriptor",
        "tier=5)",
        "tier=5, options=(__import__('inferplane_api').Option(name='fast', type='bool', default='yes', doc='d'),))",
        "descriptor/inferplane.platforms:acme",
        ("the default 'yes' of option 'fast' is not of type bool",),
    ),
    "a backend requires what no device of its platform has": Planted(
        "descriptor",
        "batch_invariant=True",
        "batch_invariant=True, requires=frozenset({'matrix_unit'})",
        "attention/acme.loop-requires",
        ("acme.loop requires matrix_unit", "nothing can use it"),
    ),
    "an op provider requires what no device of its platform has": Planted(
        "descriptor",
        'ops=("rms_norm@1"',
        'requires=frozenset({"matrix_unit"}), ops=("rms_norm@1"',
        "ops/acme.ops-requires",
        ("acme.ops requires matrix_unit", "nothing can use it"),
    ),
    "attention ignores a softcap that it does not declare": Planted(
        "descriptor",
        'features=frozenset({"softcap", "logsumexp"})',
        'features=frozenset({"logsumexp"})',
        "attention/acme.loop-undeclared-softcap",
        ("does not declare a softcap", "instead of raising Unsupported ignores it"),
    ),
    "the probe's check of a kernel gives no verdict": Planted(
        "descriptor",
        'schemes=("dense"',
        'check="builtins:repr", schemes=("dense"',
        "linear/acme.linear-dense-float32",
        ("acme.linear: its check returns a str, not a Verdict",),
        only=False,
    ),
    "a replayed graph gives old results": Planted(
        "platform",
        "        return function\n",
        "        function()\n        kept = [cell.clone() for cell in function.__defaults__]\n"
        "        return lambda: function.__defaults__[1].copy_(kept[1])\n",
        "graphs/capture",
        ("graph_capture", "differs from eager"),
    ),
}


def quick(case: Any) -> bool:
    return case.area not in SLOW_AREAS and case.id not in ("memory/held", "memory/baseline")


def test_a_plugin_that_is_true_to_its_word_passes(install_acme: Callable, run_kit: Callable) -> None:
    install_acme()
    outcomes = run_kit(lambda case: (case.area, case.level) not in {("communicator", "full"), ("attention", "full")})
    assert not outcomes.failed
    assert not outcomes.skipped
    areas = {case.partition("/")[0] for case in outcomes.passed}
    expected = "descriptor import probe patches ops attention kv-layout linear graphs memory model runtime"
    assert areas == set(expected.split())


@pytest.mark.parametrize("planted", LIES.values(), ids=LIES)
def test_a_lie_is_caught_and_named(planted: Planted, install_acme: Callable, run_kit: Callable) -> None:
    changes = [(planted.old, planted.new)]
    if "changes its mind" in planted.new or "asked = " in planted.new:
        changes.append(('name="acme chip"', 'name=f"acme chip {asked}"'))
    also = {"attention": [("softcap is not None:", "softcap == 0:")]} if "undeclared-softcap" in planted.case else {}
    install_acme({planted.file: changes, **also})
    outcomes = run_kit(lambda case: case.id == planted.case or (planted.only and quick(case)))
    assert planted.case in outcomes.failed, f"not caught; failed: {outcomes.failed}"
    message = outcomes.failed[planted.case]
    assert all(text in message for text in planted.says), message
    if planted.only:
        assert list(outcomes.failed) == [planted.case]


@pytest.mark.parametrize(
    ("file", "target", "named"),
    [
        (
            "kernels",
            "import inferplane.layers.norm as m\nm.RMSNorm.__call__ = print",
            "inferplane.layers.norm.RMSNorm.__call__",
        ),
        ("kernels", "import inferplane_api.reference.ops as m\nm.rope = print", "inferplane_api.reference.ops.rope"),
        (
            "platform",
            "import inferplane.server.validation as m\nm.added = 1\nm.bad_value = print",
            "inferplane.server.validation.bad_value",
        ),
        ("attention", "import inferplane.sources.cache as m\nm.Path = None", "inferplane.sources.cache.Path"),
        (
            "kernels",
            "import inferplane_api.testing.compare as m\nm.difference.__code__ = (lambda *a: '').__code__",
            "inferplane_api.testing.compare.difference",
        ),
        (
            "hooks",
            "import inferplane.config.schema as m\nm.Config.__init__ = print",
            "inferplane.config.schema.Config.__init__",
        ),
        (
            "asked",
            "from inferplane_api.ops import SCHEMAS\nSCHEMAS['silu_mul'] = SCHEMAS['rms_norm']",
            "inferplane_api.ops.SCHEMAS.silu_mul",
        ),
    ],
    ids=["core", "contract", "server", "a constant", "the kit", "hooks", "a table, by a check"],
)
def test_a_patch_is_caught_and_named(
    install_acme: Callable, run_kit: Callable, site: Path, file: str, target: str, named: str
) -> None:
    """Wherever the plugin's code is: also in a module of hooks, or of a check, that nothing else imports."""
    points = f"{ENTRY_POINTS}[inferplane.plugins]\nacme-hooks = acme_chip.hooks\n"
    install_acme(
        {
            "descriptor": [("batch_invariant=True", 'batch_invariant=True, check="acme_chip.asked:check"')],
            **({file: [("import torch\n", f"import torch\n{target}\n")]} if file not in ("hooks", "asked") else {}),
        },
        entry_points=points,
    )
    for name in ("hooks", "asked"):
        line = target if name == file else ""
        (site / "acme_chip" / f"{name}.py").write_text(f"{line}\ndef check(request):\n    pass\n")
    outcomes = run_kit(lambda case: case.area == "patches" and not case.name.endswith("in-use"))
    assert outcomes.failed["patches/acme-chip"].startswith(f"acme-chip patches {named}")


def test_a_patch_while_it_is_used_is_caught_and_named(install_acme: Callable, run_kit: Callable) -> None:
    patch = "import inferplane_api.testing.compare as m\n    m.difference = lambda *arguments: ''"
    install_acme({"kernels": [("    gate, up = x", f"    {patch}\n    gate, up = x")]})
    try:
        outcomes = run_kit(lambda case: case.area == "patches" or "silu_mul@1-float32" in case.id)
    finally:
        importlib.reload(importlib.import_module("inferplane_api.testing.compare"))
    assert list(outcomes.failed) == ["patches/acme-chip-in-use"]
    says = "acme-chip patches inferplane_api.testing.compare.difference while it is used"
    assert outcomes.failed["patches/acme-chip-in-use"] == says


def test_a_hook_that_does_not_exist(install_acme: Callable, run_kit: Callable, site: Path) -> None:
    install_acme(entry_points=f"{ENTRY_POINTS}\n[inferplane.plugins]\nacme-hooks = acme_chip.hooks\n")
    source = "from inferplane_api.hooks import hookimpl\n@hookimpl\ndef inferplane_docter(host): pass\n"
    (site / "acme_chip" / "hooks.py").write_text(source)
    outcomes = run_kit(lambda case: case.area == "descriptor")
    assert list(outcomes.failed) == ["descriptor/inferplane.plugins:acme-hooks"]
    assert "inferplane_docter" in outcomes.failed["descriptor/inferplane.plugins:acme-hooks"]


def test_a_group_that_does_not_exist(install_acme: Callable, run_kit: Callable) -> None:
    install_acme(entry_points=f"{ENTRY_POINTS}\n[inferplane.kernals]\nacme.x = acme_chip.descriptor:OPS\n")
    outcomes = run_kit(lambda case: case.area == "descriptor")
    assert list(outcomes.failed) == ["descriptor/inferplane.kernals:acme.x"]
    assert "no group of that name" in outcomes.failed["descriptor/inferplane.kernals:acme.x"]


OPTION = (
    "tier=5)",
    "tier=5, options=(__import__('inferplane_api').Option(name='fast', type='bool', default=False, doc='d'),))",
)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        (
            "platform",
            ("        self.memory = Memory()\n", "        self.memory = [Memory()][context.options['fast']]\n"),
            "raises IndexError",
        ),
        (
            "probe",
            (
                "return ProbeResult(state=ProbeState.PRESENT, devices=(device,))",
                "return ProbeResult(state=ProbeState.PRESENT, devices=(device,) * (1 + host.options['fast']))",
            ),
            "device indices [0, 0]",
        ),
        (
            "platform",
            (
                "        self.memory = Memory()\n",
                "        self.memory = Memory()\n"
                "        import acme_chip.kernels as kernels\n"
                "        kernels.FACTOR = 1.0 + context.options['fast']\n",
            ),
            "with that option: the log-probability of token 0 is off",
        ),
    ],
    ids=["the platform cannot be made", "the probe goes wrong", "other tokens"],
)
def test_an_option_that_breaks_the_platform(
    install_acme: Callable, run_kit: Callable, file: str, change: tuple[str, str], says: str
) -> None:
    factor = ("* (weight.float() + offset)).to(x.dtype)", "* (weight.float() + offset) * FACTOR).to(x.dtype)")
    install_acme(
        {
            "descriptor": [OPTION],
            "kernels": [factor, ("import torch\n", "import torch\n\nFACTOR = 1.0\n")],
            file: [change],
        }
    )
    outcomes = run_kit(lambda case: case.area == "options" or case.id in ("memory/numbers", "probe/devices"))
    assert list(outcomes.failed) == ["options/fast"]
    assert outcomes.failed["options/fast"].startswith("acme with the option fast=true")
    assert says in outcomes.failed["options/fast"]


def test_an_option_of_which_no_other_value_is_known_is_reported(install_acme: Callable, run_kit: Callable) -> None:
    install_acme({"descriptor": [(OPTION[0], OPTION[1].replace("'bool', default=False", "'int', default=4"))]})
    outcomes = run_kit(lambda case: case.area == "options")
    assert outcomes.skipped == {"options/fast": "the declaration does not say which other int it may have than 4"}


def install_second_backend(install_acme: Callable, attention: str = "", **fields: str) -> None:
    """acme.slow: one that core would not choose by itself, with fields and code of its own."""
    given = ", ".join(f"{name}={value}" for name, value in {"id": "'acme.slow'", "score": "30", **fields}.items())
    last = "scores.softmax(-1), values).to(out.dtype)\n"
    install_acme(
        {
            "descriptor": [
                ("OPS = ", f"import msgspec\nSECOND = msgspec.structs.replace(ATTENTION, {given})\n\nOPS = ")
            ],
            "attention": [(last, last + attention)],
        },
        entry_points=f"{ENTRY_POINTS}acme.slow = acme_chip.descriptor:SECOND\n",
    )


def test_every_backend_runs_the_model(install_acme: Callable, run_kit: Callable) -> None:
    """Every part keeps its word, in sizes that the kit tries, and a model with the second backend is wrong."""
    slow = (
        "\n\nclass Slow(LoopAttention):\n"
        "    def run(self, q, k, v, kv, out, **named):\n"
        "        super().run(q, k, v, kv, out, **named)\n"
        "        out.mul_(-1 if len(q) > 100 else 1)\n"
    )
    install_second_backend(install_acme, slow, load="'acme_chip.attention:Slow'")
    outcomes = run_kit(
        lambda case: (
            (case.area == "model" and case.level == "core")
            or case.id == "attention/acme.slow-full-float32-head16-page16-4x2-htd"
        )
    )
    assert list(outcomes.failed) == ["model/attention-acme.slow"]
    assert "with attention acme.slow: token" in outcomes.failed["model/attention-acme.slow"]


def test_a_backend_with_sliding_layers_only_runs_a_model_of_such_layers(
    install_acme: Callable, run_kit: Callable
) -> None:
    install_second_backend(install_acme, kinds="frozenset({'sliding'})", head_sizes="HeadSizes(exact=(64,))")
    outcomes = run_kit(lambda case: case.id == "model/attention-acme.slow")
    assert outcomes.passed == ["model/attention-acme.slow"]


def test_a_kernel_that_core_does_not_take_is_reported(install_acme: Callable, run_kit: Callable) -> None:
    """Behind another one of the same distribution, which is a reserve; behind somebody else's, which nobody runs."""
    second = "SECOND = msgspec.structs.replace(OPS, id='acme.slow', score=30, dtypes=frozenset({'float32'}))\n"
    install_acme(
        {"descriptor": [("LINEAR = ", f"import msgspec\n{second}\nLINEAR = ")]},
        entry_points=ENTRY_POINTS.replace("acme.ops", "acme.slow = acme_chip.descriptor:SECOND\nacme.ops"),
    )
    outcomes = run_kit(lambda case: case.name.startswith("taken-"))
    assert outcomes.passed == ["model/taken-acme.ops", "model/taken-acme.linear"]
    says = outcomes.skipped["model/taken-acme.slow"]
    assert says.startswith("acme.slow is not what runs in float32: core takes")
    assert "silu_mul@1 from acme.ops" in says


def test_a_kernel_behind_somebody_elses_is_not_proven(install_acme: Callable, tmp_path: Path) -> None:
    install_acme({"descriptor": [("score=60,\n)\n\nLINEAR", "score=1,\n)\n\nLINEAR")]})
    declarations = declare("acme")
    (case,) = [case for case in generate(declarations) if case.id == "model/taken-acme.ops"]
    with pytest.raises(NotTested, match=r"rms_norm@1 from reference.ops") as raised:
        prove(case, Kit(declarations, "full", tmp_path))
    assert raised.value.elsewhere, "its level stays open"


def test_a_platform_with_other_tokens_is_caught(install_acme: Callable, run_kit: Callable) -> None:
    """Every part keeps its word, in sizes that the kit tries, and the whole does not."""
    lie = "(wide * scale * (weight.float() + offset) * (1 + 0.2 * (17 < x.shape[0] < 1000))).to(x.dtype)"
    install_acme({"kernels": [("(wide * scale * (weight.float() + offset)).to(x.dtype)", lie)]})
    outcomes = run_kit(lambda case: case.id in ("ops/acme.ops-rms_norm@1-float32", "model/tokens"))
    assert list(outcomes.failed) == ["model/tokens"]
    assert "acme in float32, a prompt of 1 tokens batched" in outcomes.failed["model/tokens"]


def test_a_namespace_of_someone_else(install_acme: Callable, run_kit: Callable) -> None:
    points = "[inferplane.platforms]\nacme = acme_chip.descriptor:PLATFORM\n[inferplane.kernels]\n"
    install_acme(entry_points=f"{points}cpu.fast = acme_chip.descriptor:OPS\n")
    outcomes = run_kit(lambda case: case.area == "descriptor")
    assert "namespace cpu of inferplane-cpu" in outcomes.failed["descriptor/namespaces"]


@pytest.mark.parametrize(
    ("requires", "says"),
    [("torch", "no Requires-Dist"), ("inferplane-api>=0.1", "upper bound"), ("inferplane-api>=7,<8", "requires")],
)
def test_the_range_of_the_contract(install_acme: Callable, run_kit: Callable, requires: str, says: str) -> None:
    install_acme(requires=requires)
    outcomes = run_kit(lambda case: case.area == "descriptor")
    assert list(outcomes.failed) == ["descriptor/api-range"]
    assert says in outcomes.failed["descriptor/api-range"]


@pytest.mark.parametrize(
    ("check", "case", "says"),
    [
        ("return Verdict((Reason(code='acme.no'),))", "attention/acme.loop-accepts", "refuses everything"),
        ("return True", "attention/acme.loop-accepts", "returns a bool, not a Verdict"),
    ],
)
def test_a_check_that_lies(install_acme: Callable, run_kit: Callable, check: str, case: str, says: str) -> None:
    source = f"from inferplane_api.spec import Reason, Verdict\ndef check(request):\n    {check}\n"
    install_acme(
        {
            "descriptor": [("batch_invariant=True", 'batch_invariant=True, check="acme_chip.probe:check"')],
            "probe": [("from inferplane_api.spec", f"{source}from inferplane_api.spec")],
        }
    )
    outcomes = run_kit(lambda each: each.id == case)
    assert says in outcomes.failed[case]


def test_a_check_may_exclude_some_of_what_data_allows(install_acme: Callable, run_kit: Callable) -> None:
    source = (
        "from inferplane_api.spec import Reason, Verdict\n"
        "def check(request):\n"
        "    return Verdict((Reason(code='acme.window'),) if request.window == 1 else ())\n"
    )
    install_acme(
        {
            "descriptor": [("batch_invariant=True", 'batch_invariant=True, check="acme_chip.probe:check"')],
            "probe": [("from inferplane_api.spec", f"{source}from inferplane_api.spec")],
        }
    )
    outcomes = run_kit(lambda case: case.area == "attention" and case.level == "core")
    assert not outcomes.failed
    assert outcomes.skipped
    assert all("window1" in case and "acme.window" in reason for case, reason in outcomes.skipped.items())


def test_a_probe_may_use_what_python_brings(install_acme: Callable, run_kit: Callable) -> None:
    """ctypes is how a driver is asked, and is native code of the standard library."""
    install_acme({"probe": [("    device = ", "    import ctypes\n    import _decimal\n    device = ")]})
    outcomes = run_kit(lambda case: case.area in ("probe", "import"))
    assert not outcomes.failed


def test_ids_are_unique_and_levels_known(install_acme: Callable) -> None:
    install_acme()
    cases = generate(declare("acme"))
    ids = [case.id for case in cases]
    assert len(ids) == len(set(ids))
    assert {case.level for case in cases} == set(LEVELS)


def test_a_platform_with_a_runner_of_its_own_is_spared_what_core_would_not_use(install_acme: Callable) -> None:
    install_acme({"descriptor": [('name="acme", ', 'name="acme", runner_seam=True, ')]})
    areas = {case.area for case in generate(declare("acme"))}
    assert areas == {"descriptor", "import", "probe", "patches", "memory", "model"}


def test_an_overlay_is_tested_on_the_platform_it_is_for(install_acme: Callable, run_kit: Callable) -> None:
    """Somebody else's platform, this distribution's attention; the platform itself is not on trial."""
    points = "[inferplane.attention]\nacme.loop = acme_chip.descriptor:ATTENTION\n"
    lie = {"attention": [("self.window = context.group.window", "self.window = None")]}
    install_acme(
        lie
        | {
            "descriptor": [
                (
                    'load="acme_chip.attention:LoopAttention",\n    platforms=frozenset({"acme"})',
                    'load="acme_chip.attention:LoopAttention",\n    platforms=frozenset({"reference"})',
                )
            ]
        },
        entry_points=points,
    )
    outcomes = run_kit(
        lambda case: case.area not in ("patches", "model") and case.level == "core" and "head64" not in case.id,
        "reference",
        "acme-chip",
    )
    assert {case.partition("/")[0] for case in outcomes.passed} == {"descriptor", "import", "attention", "kv-layout"}
    assert outcomes.failed
    assert all(case.startswith("attention/acme.loop") and "sliding" in case for case in outcomes.failed)


def test_an_unknown_distribution(install_acme: Callable) -> None:
    install_acme()
    with pytest.raises(LookupError, match=r"no plugin distribution 'acme-chop'; installed: .*acme-chip"):
        declare("acme", "acme-chop")


def test_without_core_the_model_is_not_tested(
    install_acme: Callable, run_kit: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_acme()
    monkeypatch.setattr("inferplane_api.testing.model_cases.find_spec", lambda name: None)
    outcomes = run_kit(lambda case: case.area == "model")
    assert set(outcomes.skipped.values()) == {"core is not installed: pip install inferplane"}


@pytest.mark.parametrize(
    ("file", "case"),
    [("descriptor", "descriptor/process"), ("probe", "probe/state-acme_chip.probe:probe")],
)
def test_a_hang_is_caught_and_named(
    install_acme: Callable, run_kit: Callable, monkeypatch: pytest.MonkeyPatch, file: str, case: str
) -> None:
    monkeypatch.setattr("inferplane_api.testing.declarations.TIMEOUT", 3.0)
    line = {"descriptor": "PLATFORM = ", "probe": "    device = "}[file]
    indent = " " * (len(line) - len(line.lstrip()))
    install_acme({file: [(line, f"{indent}import time\n{indent}time.sleep(60)\n{line}")]})
    outcomes = run_kit(lambda each: each.id == case)
    assert "its process hangs: no answer in 3 s" in outcomes.failed[case]


@pytest.mark.parametrize(
    "constraints",
    [
        "token_buckets=(8, 32), batch_buckets=(1, 4), mixed_steps=False",
        "batch_buckets=(2,), max_chunk=5",
        "max_sequences=2, max_batched_tokens=9",
    ],
)
def test_cases_fit_what_a_device_asks_of_the_scheduler(
    install_acme: Callable, run_kit: Callable, constraints: str
) -> None:
    """Sizes outside the buckets fail here, as they would on a compiled device."""
    install_acme(
        {
            "descriptor": [
                ("KernelSpec, PageSizes, PlatformSpec", "KernelSpec, PageSizes, PlatformSpec, SchedulingConstraints"),
                ("tier=5)", f"tier=5, scheduling=SchedulingConstraints({constraints}))"),
            ],
            "attention": [
                (
                    "        self.batch = batch\n",
                    "        from acme_chip.descriptor import PLATFORM\n"
                    "        asked = PLATFORM.scheduling\n"
                    "        rows, tokens = len(batch.seq_lens), len(batch.slot_mapping)\n"
                    "        assert rows in (asked.batch_buckets or (rows,)), rows\n"
                    "        assert tokens in (asked.token_buckets or (tokens,)), tokens\n"
                    "        assert batch.max_query_len <= (asked.max_chunk or 10**6), batch.max_query_len\n"
                    "        assert rows <= (asked.max_sequences or 10**6), rows\n"
                    "        assert tokens <= (asked.max_batched_tokens or 10**6), tokens\n"
                    "        self.batch = batch\n",
                )
            ],
        }
    )
    outcomes = run_kit(lambda case: case.level == "core" and case.area in ("attention", "ops", "kv-layout", "model"))
    assert not outcomes.failed
    assert len(outcomes.passed) > 40
