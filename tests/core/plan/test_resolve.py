"""The whole resolution on hand-made discoveries: what the Plan holds, and that nothing is decided in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from inferplane.builtin.descriptor import REFERENCE_ATTENTION, REFERENCE_LINEAR, REFERENCE_OPS, SAFETENSORS
from inferplane.config import Config
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.record import reference_line, reference_ops
from inferplane.plan.resolve import resolve
from inferplane.plan.types import Plan
from inferplane.plugins.discovery import Discovery
from inferplane.plugins.records import Found, Problem, Refused
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.kv import KVLayout
from inferplane_api.model import LayerSpec
from inferplane_api.ops import SCHEMAS
from inferplane_api.spec import (
    ConfigPatch,
    DeviceInfo,
    ModelPluginSpec,
    Option,
    PageSizes,
    ProbeState,
    Reason,
    SchedulingConstraints,
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
    assert plan.model_load == "inferplane.models.llama:LlamaForCausalLM"
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
    }
    expected |= {"linear dense", "linear *", "config model.max_model_len", "config scheduler.max_num_seqs"}
    expected |= {"config scheduler.max_num_batched_tokens", "config cache.enable_prefix_caching"}
    assert set(subjects) == expected | {f"op {schema.id}" for schema in SCHEMAS.values()}


def test_ops_on_the_reference_are_one_line_where_the_platform_is_a_plugins(plan_for: Callable[..., Plan]) -> None:
    plan = plan_for()
    ops = [binding.op for binding in plan.ops]
    assert list(reference_ops(plan)) == ops
    assert len(ops) > 10
    assert reference_line(plan) == (
        f"{len(ops)} ops run on the torch reference, as no plugin brings them for platform acme (acme-dist 1.2) in "
        f"bfloat16: {', '.join(ops)}"
    )
    own = msgspec.structs.replace(plan.platform, distribution="inferplane")
    assert reference_line(msgspec.structs.replace(plan, platform=own)) == ""


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
    assert (plan.runner_seam, plan.attention, plan.ops, plan.linear, plan.model_load) == (True, (), (), (), "")
    assert [group.tokens_per_page for group in plan.geometry.groups] == [7, 35]
    with pytest.raises(InvalidValue, match="brings its own runner"):
        plan_for({"attention_backend": "reference.paged"})


def test_a_model_of_a_plugin(plan_for: Callable[..., Plan], discovery: Discovery) -> None:
    spec = ModelPluginSpec(model_type="acme_lm", load="acme.model:M", describe="acme.model:describe")
    discovery.models.append(Found(spec=spec, distribution="acme-models", version="3"))
    plan = plan_for(model_type="acme_lm")
    assert plan.model_load == "acme.model:M"
    decision = next(each for each in plan.decisions if each.subject == "model acme_lm")
    assert decision.source == "plugin acme-models 3"


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
    (broken, odd) = plan_for().warnings
    assert broken == "flash.paged, flash.other of flash-kernels 9.1: BROKEN: plugin.import (ImportError: libflash.so)"
    assert odd == "something odd"
