"""The whole resolution on hand-made discoveries: what the Plan holds, and that nothing is decided in silence."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from inferplane.builtin.descriptor import REFERENCE_ATTENTION, REFERENCE_LINEAR, REFERENCE_OPS, SAFETENSORS
from inferplane.config import Config
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.load import components_of
from inferplane.plan.record import reference_lines, reference_ops
from inferplane.plan.resolve import resolve
from inferplane.plan.types import Component, Plan
from inferplane.plugins.discovery import Discovery
from inferplane.plugins.records import Found, Problem, Refused
from inferplane.plugins.variables import unknown_variables
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.kv import KVLayout
from inferplane_api.model import LayerSpec
from inferplane_api.ops import SCHEMAS
from inferplane_api.spec import (
    PATCHABLE,
    ConfigPatch,
    DeviceInfo,
    ModelPluginSpec,
    Option,
    PageSizes,
    ProbeState,
    Reason,
    SchedulingConstraints,
    WeightFormatSpec,
)

Make = Callable[..., Any]

CARD = CheckpointCard(config={"model_type": "llama"})
LAYER = LayerSpec(num_heads=4, num_kv_heads=2, head_size=64)
DTYPES = frozenset({"float32", "bfloat16", "float16"})


def core(spec: Any) -> Found[Any]:
    return Found(spec=spec, distribution="inferplane", version="0.1.0")


@pytest.fixture
def discovery(make_host: Make, make_platform: Make) -> Discovery:
    """Core's own parts and one accelerator."""
    found = Discovery(make_host())
    found.platforms.append(make_platform("acme"))
    found.attention.append(core(REFERENCE_ATTENTION))
    found.kernels += [core(REFERENCE_OPS), core(REFERENCE_LINEAR)]
    found.formats.append(core(SAFETENSORS))
    return found


@pytest.fixture
def plan_for(discovery: Discovery, make_model: Make) -> Callable[..., Plan]:
    def run(values: dict[str, Any] | None = None, layers: tuple[LayerSpec, ...] = (LAYER,) * 2, **model: Any) -> Plan:
        config = Config.from_flat(values or {})
        return resolve(config, make_model(layers, **model), CARD, "/models/x", SAFETENSORS.id, discovery, environ={})

    return run


def test_the_reference_runs_everything_where_nothing_better_is_there(plan_for: Callable[..., Plan]) -> None:
    plan = plan_for()
    assert (plan.platform_name, plan.platform.distribution, plan.platform.version) == ("acme", "acme-dist", "1.2")
    assert [component.id for component in plan.attention] == ["reference.paged"]
    assert {binding.op for binding in plan.ops} == {schema.id for schema in SCHEMAS.values()}
    assert dict(plan.linear).keys() == {"dense", "*"}
    assert plan.architecture == Component(
        id="llama",
        load="inferplane.models.llama:LlamaForCausalLM",
        distribution="inferplane",
        version=importlib.metadata.version("inferplane"),
    )
    assert (plan.dtype, plan.kv_dtype, plan.checkpoint_path) == ("bfloat16", "bfloat16", "/models/x")
    assert plan.checkpoint_format.load == SAFETENSORS.load
    assert plan.warnings == ()
    assert plan.card == CARD


def test_every_choice_is_recorded(plan_for: Callable[..., Plan]) -> None:
    subjects = [decision.subject for decision in plan_for().decisions]
    assert len(subjects) == len(set(subjects))
    expected = {
        "plugins",
        "platform",
        "model llama",
        "checkpoint format",
        "dtype",
        "kv dtype",
        "attention full x2",
        "pages",
        "graphs",
    }
    expected |= {"linear dense", "linear *", "config model.max_model_len", "config scheduler.max_num_seqs"}
    expected |= {"config scheduler.max_num_batched_tokens", "config cache.enable_prefix_caching"}
    expected |= {"config model.runner", "config model.convert"}
    assert set(subjects) == expected | {f"op {schema.id}" for schema in SCHEMAS.values()}


def test_each_op_on_the_reference_is_a_line_where_the_platform_is_a_plugins(
    plan_for: Callable[..., Plan], discovery: Discovery, make_kernel: Make
) -> None:
    rope = make_kernel("acme.rope", "ops", score=50, ops=("rope@1",), dtypes=frozenset({"float16"}))
    silu = make_kernel("acme.silu", "ops", ops=("silu_mul@1",), score=50)
    discovery.kernels += [rope, silu]
    plan = plan_for()
    schemas = {schema.id for schema in SCHEMAS.values()}
    expected = [binding.op for binding in plan.ops if binding.op != "silu_mul@1"]
    assert set(expected) == schemas - {"silu_mul@1"}
    assert list(reference_ops(plan)) == [*expected, "linear dense"], "no scheme but the plain one is in the checkpoint"
    lines = reference_lines(plan)
    assert len(lines) == len(schemas)
    text = "rope@1 runs on the torch reference: no plugin brings it for platform acme (acme-dist 1.2) in bfloat16"
    (line,) = [line for line in lines if line.startswith("rope@1 ")]
    assert line == f"{text} (acme.rope: kernel.dtype: dtype wants bfloat16, has float16)"
    assert lines[-1].startswith("linear dense runs on the torch reference")
    own = msgspec.structs.replace(plan.platform, distribution="inferplane")
    assert reference_lines(msgspec.structs.replace(plan, platform=own)) == []


def test_linear_kernels_of_plugins_are_not_on_the_reference(
    plan_for: Callable[..., Plan], discovery: Discovery, make_kernel: Make
) -> None:
    fast = make_kernel("acme.dense", kind="linear", ops=(), schemes=("dense",), score=50)
    packed = make_kernel("other.int4", kind="linear", ops=(), schemes=("int4",), platforms=frozenset({"other"}))
    discovery.kernels += [fast, packed]
    assert not [op for op in reference_ops(plan_for()) if op.startswith("linear")]
    assert reference_ops(plan_for(quantization="awq"))[-2:] == ("linear int4", "linear *")


def test_a_plan_survives_the_wire(plan_for: Callable[..., Plan]) -> None:
    plan = plan_for()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan


def test_the_users_values_are_in_the_plan(plan_for: Callable[..., Plan]) -> None:
    plan = plan_for(
        {
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "max_logprobs": 5,
            "num_pages_override": 77,
            "kv_cache_memory_bytes": 10**6,
            "memory_utilization": 0.5,
            "scheduling_policy": "priority",
            "long_prefill_token_threshold": 64,
            "async_scheduling": False,
            "seed": 3,
            "threads": 2,
            "load_format": "dummy",
            "kv_cache_dtype": "float32",
            "block_size": 32,
        }
    )
    limits = plan.limits
    assert (limits.max_model_len, limits.max_num_seqs) == (1024, 8)
    assert (limits.max_num_batched_tokens, limits.max_logprobs) == (256, 5)
    assert not plan.auto_max_model_len
    assert (plan.max_pages, plan.memory_limit_bytes, plan.memory_utilization) == (77, 10**6, 0.5)
    assert (plan.policy, plan.long_prefill_token_threshold, plan.scheduling.queue_depth) == ("priority", 64, 1)
    assert (plan.seed, plan.num_threads, plan.dummy_weights, plan.kv_dtype) == (3, 2, True, "float32")
    assert [group.tokens_per_page for group in plan.geometry.groups] == [32]


def test_gemma_is_two_groups_in_one_pool(
    plan_for: Callable[..., Plan], gemma_layers: tuple[LayerSpec, ...], discovery: Discovery, make_attention: Make
) -> None:
    discovery.attention.append(
        make_attention("fast.full", kinds=frozenset({"full"}), score=60, layouts=(KVLayout(order="htd"),))
    )
    plan = plan_for(layers=gemma_layers, model_type="gemma3_text")
    assert [component.id for component in plan.attention] == ["reference.paged", "fast.full"]
    assert [(group.tokens_per_page, group.layout.order) for group in plan.geometry.groups] == [(16, "thd"), (80, "htd")]
    assert plan.geometry.block_size == 16


def test_the_backends_page_size_decides_where_the_user_is_silent(
    plan_for: Callable[..., Plan], discovery: Discovery, make_attention: Make
) -> None:
    discovery.attention.append(make_attention("big.paged", score=60, page_sizes=PageSizes(exact=(64, 128))))
    plan = plan_for()
    assert ([group.tokens_per_page for group in plan.geometry.groups], plan.attention[0].id) == ([64], "big.paged")
    plan = plan_for({"block_size": 16})
    assert ([group.tokens_per_page for group in plan.geometry.groups], plan.attention[0].id) == (
        [16],
        "reference.paged",
    )
    with pytest.raises(InvalidValue, match=r"attention\.page_size: page_size wants 16, has 128, 64"):
        plan_for({"block_size": 16, "attention_backend": "big.paged"})


def test_a_fixed_block_size_lets_the_smaller_group_take_a_multiple(
    plan_for: Callable[..., Plan],
    gemma_layers: tuple[LayerSpec, ...],
    discovery: Discovery,
    make_attention: Make,
) -> None:
    """Of 80 tokens that fit, the backend takes 64; one that needs 128 cannot, and says so."""
    full = frozenset({"full"})
    discovery.attention.append(make_attention("fast.full", kinds=full, score=60, page_sizes=PageSizes(exact=(64,))))
    discovery.attention.append(make_attention("huge.full", kinds=full, score=90, page_sizes=PageSizes(exact=(128,))))
    plan = plan_for({"block_size": 16}, gemma_layers, model_type="gemma3_text")
    assert [group.tokens_per_page for group in plan.geometry.groups] == [16, 64]
    assert plan.attention[1].id == "fast.full"
    decision = next(each for each in plan.decisions if each.subject == "attention full x3")
    (reason,) = next(loser for loser in decision.losers if loser.id == "huge.full").reasons
    assert (reason.code, reason.have) == ("attention.page_size", "128")
    assert any("20% of every page is unused" in warning for warning in plan.warnings)


def test_a_patch_of_the_platform_is_used_and_recorded(
    plan_for: Callable[..., Plan], discovery: Discovery, make_platform: Make
) -> None:
    patch = ConfigPatch(path="cache.block_size", value=48, strength="require", reason="its pages are 48 tokens")
    discovery.platforms[:] = [make_platform("acme", config_patches=(patch,))]
    plan = plan_for()
    assert [group.tokens_per_page for group in plan.geometry.groups] == [48]
    decision = next(each for each in plan.decisions if each.subject == "config cache.block_size")
    assert (decision.chosen, decision.source) == ("48", "plugin acme-dist 1.2")
    with pytest.raises(InvalidValue, match=r"acme-dist 1\.2 requires 48: its pages are 48 tokens"):
        plan_for({"block_size": 16})


def test_the_device_decides_types_and_limits(
    plan_for: Callable[..., Plan], discovery: Discovery, make_platform: Make
) -> None:
    features = frozenset({"in_place_kv_write"})
    device = DeviceInfo(name="chip", dtypes=frozenset({"float32", "float16"}), features=features)
    scheduling = SchedulingConstraints(batch_buckets=(1, 8), token_buckets=(8, 128), mixed_steps=False)
    option = Option(name="power", type="int", default=5, doc="Watts.")
    discovery.platforms[:] = [make_platform("acme", device=device, scheduling=scheduling, options=(option,))]
    plan = plan_for({"platform_option": {"power": "7"}})
    assert (plan.dtype, plan.device, plan.platform_options) == ("float16", device, {"power": 7})
    assert (plan.limits.max_num_seqs, plan.limits.max_num_batched_tokens) == (8, 128)
    assert plan.scheduling == scheduling
    assert any("computing in float16" in warning for warning in plan.warnings)


def test_attention_is_asked_with_the_chosen_types(
    plan_for: Callable[..., Plan], discovery: Discovery, make_attention: Make
) -> None:
    discovery.attention.append(make_attention("half.paged", score=60, kv_dtypes=frozenset({"bfloat16"})))
    assert plan_for().attention[0].id == "half.paged"
    assert plan_for({"kv_cache_dtype": "float32"}).attention[0].id == "reference.paged"
    assert plan_for({"dtype": "float32"}).attention[0].id == "reference.paged"


def test_a_runner_seam_selects_no_parts_and_has_pages(
    plan_for: Callable[..., Plan], discovery: Discovery, make_platform: Make, gemma_layers: tuple[LayerSpec, ...]
) -> None:
    discovery.platforms[:] = [make_platform("acme", runner_seam=True)]
    plan = plan_for({"block_size": 7}, gemma_layers, model_type="never_heard_of")
    assert (plan.runner_seam, plan.attention, plan.ops, plan.linear, plan.architecture) == (True, (), (), (), None)
    assert [group.tokens_per_page for group in plan.geometry.groups] == [7, 35]
    with pytest.raises(InvalidValue, match="brings its own runner"):
        plan_for({"attention_backend": "reference.paged"})


def test_a_model_of_a_plugin(plan_for: Callable[..., Plan], discovery: Discovery) -> None:
    spec = ModelPluginSpec(model_type="acme_lm", load="acme.model:M", describe="acme.model:describe")
    discovery.models.append(Found(spec=spec, distribution="acme-models", version="3"))
    plan = plan_for(model_type="acme_lm")
    assert plan.architecture == Component(id="acme_lm", load="acme.model:M", distribution="acme-models", version="3")
    assert plan.architecture in set(components_of(plan)), "watched for changes of the core"
    decision = next(each for each in plan.decisions if each.subject == "model acme_lm")
    assert (decision.chosen, decision.source) == ("acme.model:M", "plugin acme-models 3")
    assert decision.reason == "acme-models 3 has the checkpoint's model_type"


def test_a_plugin_may_not_shadow_a_model_of_core(plan_for: Callable[..., Plan], discovery: Discovery) -> None:
    spec = ModelPluginSpec(model_type="llama", load="acme.model:M", describe="acme.model:describe")
    discovery.models.append(Found(spec=spec, distribution="acme-models", version="3"))
    with pytest.raises(InferplaneError, match=r"'llama' is core's and of acme-models 3 too") as caught:
        plan_for()
    assert caught.value.remedy == "--disable-plugins acme-models"


def test_unknown_models_and_formats(plan_for: Callable[..., Plan], discovery: Discovery, make_model: Make) -> None:
    with pytest.raises(InferplaneError, match=r"'never_heard_of' is not supported; known are .*llama"):
        plan_for(model_type="never_heard_of")
    with pytest.raises(InferplaneError, match=r"format 'x\.y' is not installed; installed: hf\.safetensors"):
        resolve(Config.from_flat({}), make_model((LAYER,)), CARD, "/m", "x.y", discovery, environ={})


def test_what_failed_and_was_not_needed_is_a_warning(plan_for: Callable[..., Plan], discovery: Discovery) -> None:
    for name in ("flash.paged", "flash.other"):
        discovery.refused.append(
            Refused(
                group="inferplane.attention",
                name=name,
                distribution="flash-kernels",
                version="9.1",
                state=ProbeState.BROKEN,
                reason=Reason(code="plugin.import", hint="ImportError: libflash.so"),
            )
        )
    discovery.problems.append(Problem(level="warning", code="x", message="something odd"))
    discovery.problems += unknown_variables({"INFERPLANE_LOG_LEVL": "debug"}, [])
    (broken, odd, typo) = plan_for().warnings
    assert broken == (
        "flash.paged, flash.other of flash-kernels 9.1: BROKEN: plugin.import (ImportError: libflash.so); remedy: "
        "pip install --upgrade --force-reinstall --no-deps flash-kernels, or uninstall it"
    )
    assert odd == "something odd"
    assert typo == "INFERPLANE_LOG_LEVL is not a variable; remedy: did you mean INFERPLANE_LOG_LEVEL?"


PATCHES: dict[str, tuple[Any, Callable[[Plan], Any], Any]] = {
    "model.dtype": ("float32", lambda plan: plan.dtype, "float32"),
    "model.max_model_len": (512, lambda plan: plan.limits.max_model_len, 512),
    "model.max_logprobs": (7, lambda plan: plan.limits.max_logprobs, 7),
    "platform.threads": (3, lambda plan: plan.num_threads, 3),
    "cache.block_size": (48, lambda plan: plan.geometry.groups[0].tokens_per_page, 48),
    "cache.kv_cache_dtype": ("float32", lambda plan: plan.kv_dtype, "float32"),
    "cache.kv_cache_memory_bytes": (10**6, lambda plan: plan.memory_limit_bytes, 10**6),
    "cache.memory_utilization": (0.4, lambda plan: plan.memory_utilization, 0.4),
    "cache.num_pages_override": (33, lambda plan: plan.max_pages, 33),
    "cache.enable_prefix_caching": (False, lambda plan: plan.prefix_caching, False),
    "scheduler.max_num_seqs": (5, lambda plan: plan.limits.max_num_seqs, 5),
    "scheduler.max_num_batched_tokens": (300, lambda plan: plan.limits.max_num_batched_tokens, 300),
    "scheduler.long_prefill_token_threshold": (9, lambda plan: plan.long_prefill_token_threshold, 9),
    "scheduler.async_scheduling": (False, lambda plan: plan.scheduling.queue_depth, 1),
}
"""Path to a value, where an engine process reads it, and what it reads then."""


def test_every_patchable_path_is_observed_below() -> None:
    assert PATCHES.keys() == set(PATCHABLE)


@pytest.mark.parametrize("strength", ["default", "require"])
@pytest.mark.parametrize("path", PATCHES)
def test_a_patch_has_an_effect_and_one_record(
    path: str, strength: Any, plan_for: Callable[..., Plan], discovery: Discovery, make_platform: Make
) -> None:
    value, read, expected = PATCHES[path]
    assert read(plan_for()) != expected
    patch = ConfigPatch(path=path, value=value, strength=strength, reason="the chip is so")
    discovery.platforms[:] = [make_platform("acme", config_patches=(patch,))]
    plan = plan_for()
    assert read(plan) == expected
    (setting,) = [setting for setting in plan.settings if setting.path == path]
    assert (setting.value, setting.source) == (str(value), "plugin acme-dist 1.2")
    subjects = {"model.dtype": "dtype", "cache.kv_cache_dtype": "kv dtype"}
    (decision,) = [each for each in plan.decisions if each.subject == subjects.get(path, f"config {path}")]
    assert (decision.chosen, decision.source) == (str(value), "plugin acme-dist 1.2")
    assert decision.reason == f"{strength}: the chip is so"


@pytest.mark.parametrize("path", PATCHES)
def test_a_patch_never_replaces_what_the_user_said(
    path: str, plan_for: Callable[..., Plan], discovery: Discovery, make_platform: Make
) -> None:
    """The user says what holds without the patch, for paths without such a value another than the patch's."""
    value, read, expected = PATCHES[path]
    said = {
        "dtype": "bfloat16",
        "max_model_len": 600,
        "threads": 2,
        "block_size": 16,
        "kv_cache_dtype": "bfloat16",
        "kv_cache_memory_bytes": 2 * 10**6,
        "num_pages_override": 44,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 400,
    }
    field = path.partition(".")[2]
    section = getattr(Config(), path.partition(".")[0])
    own = said.get(field, getattr(section, field))
    assert own != value
    untouched = read(plan_for({field: own}))
    patch = ConfigPatch(path=path, value=value, reason="the chip is so")
    discovery.platforms[:] = [make_platform("acme", config_patches=(patch,))]
    assert read(plan_for({field: own})) == untouched != expected
    required = msgspec.structs.replace(patch, strength="require")
    discovery.platforms[:] = [make_platform("acme", config_patches=(required,))]
    with pytest.raises(InvalidValue, match=r"acme-dist 1\.2 requires .*: the chip is so"):
        plan_for({field: own})


@pytest.mark.parametrize(("path", "value"), [("server.port", 80), ("model.load_format", "dummy"), ("model.seed", 4)])
def test_a_patch_of_anything_else_refuses_the_start(
    path: str, value: Any, plan_for: Callable[..., Plan], discovery: Discovery, make_platform: Make
) -> None:
    patch = ConfigPatch(path=path, value=value, reason="it likes that")
    discovery.platforms[:] = [make_platform("acme", config_patches=(patch,))]
    with pytest.raises(InferplaneError, match=rf"acme-dist 1\.2 patches '{path}', which no plugin may") as caught:
        plan_for()
    assert caught.value.code == "config.patch"


def test_a_patch_that_the_device_or_the_model_cannot_have(
    plan_for: Callable[..., Plan], discovery: Discovery, make_platform: Make
) -> None:
    def patched(path: str, value: Any, strength: Any) -> None:
        patch = ConfigPatch(path=path, value=value, strength=strength, reason="big")
        scheduling = SchedulingConstraints(max_sequences=8)
        discovery.platforms[:] = [make_platform("acme", config_patches=(patch,), scheduling=scheduling)]

    patched("scheduler.max_num_seqs", 99, "default")
    with pytest.raises(InferplaneError, match=r"acme-dist 1\.2 patches scheduler\.max_num_seqs with 99 \(big\): .*8"):
        plan_for()
    assert plan_for({"max_num_seqs": 4}).limits.max_num_seqs == 4
    patched("model.max_model_len", 10**6, "default")
    plan = plan_for()
    assert (plan.limits.max_model_len, plan.auto_max_model_len) == (4096, True), "a default for any model"
    patched("model.max_model_len", 10**6, "require")
    with pytest.raises(InferplaneError, match=r"patches model\.max_model_len .* longest context is 4096"):
        plan_for()


def test_groups_that_differ_in_their_heads_only_are_both_recorded(plan_for: Callable[..., Plan]) -> None:
    wide = msgspec.structs.replace(LAYER, head_size=128)
    plan = plan_for(layers=(LAYER, wide, LAYER, wide))
    attention = [each.subject for each in plan.decisions if each.subject.startswith("attention ")]
    assert attention == ["attention full x2 (head_size 64)", "attention full x2 (head_size 128)"]
    subjects = [each.subject for each in plan.decisions]
    assert len(subjects) == len(set(subjects))


def test_prefix_caching_that_was_asked_for_and_cannot_be_is_told(plan_for: Callable[..., Plan]) -> None:
    features = frozenset({"no_prefix_cache"})
    assert plan_for(features=features).warnings == ()
    plan = plan_for({"enable_prefix_caching": True}, features=features)
    (warning,) = plan.warnings
    assert "no prefix caching, although user asks for it" in warning
    assert not plan.prefix_caching


def test_formats_that_do_not_read_the_checkpoint_are_recorded(
    plan_for: Callable[..., Plan], discovery: Discovery
) -> None:
    spec = WeightFormatSpec(id="acme.packed", name="packed", load="acme:F")
    discovery.formats.append(Found(spec=spec, distribution="acme-formats", version="2"))

    def decision(values: dict[str, Any]) -> Any:
        return next(each for each in plan_for(values).decisions if each.subject == "checkpoint format")

    automatic = decision({})
    assert (automatic.chosen, automatic.source) == (SAFETENSORS.id, "checkpoint")
    (loser,) = automatic.losers
    assert (loser.id, loser.reasons[0].code) == ("acme.packed", "format.other")
    for values in ({"quantization": "safetensors"}, {"load_format": "safetensors"}):
        assert decision(values).source == "user"
    assert decision({"load_format": "dummy"}).source == "checkpoint"
