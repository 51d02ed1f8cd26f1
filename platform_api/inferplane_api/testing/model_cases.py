"""Area "model": a tiny random model through core, on the platform and on the reference platform: the same tokens."""

from __future__ import annotations

import gc
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from inferplane_api.testing.attention_matrix import KINDS, head_sizes, plain_point, request_of
from inferplane_api.testing.case import Case, NotTested, require
from inferplane_api.testing.model_checkpoint import NUM_HEADS, NUM_KV_HEADS
from inferplane_api.testing.model_run import (
    NEW_TOKENS,
    NUM_SEQUENCES,
    Setup,
    compare,
    compute_dtype,
    default_setup,
    generate,
    make_prompt,
    open_model,
    smallest,
)
from inferplane_api.testing.requirements import check_of, refuse_device

if TYPE_CHECKING:
    from inferplane_api.spec import AttentionRequest, AttentionSpec, KernelSpec
    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

PROMPT_LENGTHS = (1, 3, 16, 29, 40, 61)
WINDOW = 24
"""Of the model for a backend that has sliding layers only."""


def cases(declarations: Declarations) -> list[Case]:
    """Greedy answers at level core, with core's choice and with every backend that is declared; chunked, preempted and
    from the prefix cache at level full, and whether core would take each kernel."""
    name = declarations.platform
    variants = {
        "tokens": ("core", _check_tokens),
        "chunked": ("full", _check_chunked),
        "prefix-cache": ("full", _check_prefix),
        "preempted": ("full", _check_preempted),
    }
    found = [
        Case(
            area="model",
            name=variant,
            level=level,
            claim=f"{name} gives the reference platform's tokens ({variant})",
            run=partial(_with_core, check),
        )
        for variant, (level, check) in variants.items()
    ]
    if declarations.spec is not None and declarations.spec.runner_seam:
        return found
    for spec in declarations.attention():
        claim = f"{name} gives the reference platform's tokens with attention {spec.id}"
        run = partial(_with_core, partial(_check_attention, spec))
        found.append(Case("model", f"attention-{spec.id}", "core", claim, run, proves=spec.id))
    for kernel in (*declarations.kernels("ops"), *declarations.kernels("linear")):
        claim = f"core takes {kernel.id} for what it declares"
        run = partial(_with_core, partial(_check_taken, kernel))
        found.append(Case("model", f"taken-{kernel.id}", "full", claim, run))
    return found


def _with_core(check: Any, kit: Kit) -> None:
    _ = kit.device  # raises NotTested without one
    if find_spec("inferplane") is None:
        raise NotTested("core is not installed: pip install inferplane", elsewhere=True)
    kit.close()  # a process has one platform object at a time, and core makes its own
    check(kit)
    gc.collect()


def _check_tokens(kit: Kit) -> None:
    prompts = [make_prompt(length) for length in PROMPT_LENGTHS]
    setup = default_setup(kit)
    with open_model(kit) as engine:
        compare(kit, generate(engine, prompts), prompts, "batched")
        compare(kit, generate(engine, prompts[3:4]), prompts[3:4], "alone")
        kit.plans[setup] = engine.plan


def _check_attention(spec: AttentionSpec, kit: Kit) -> None:
    """The tokens with this backend asked for by name; nothing new where core chose it by itself for the same model."""
    refuse_device(spec, _dtype_of(spec, kit), kit)
    setup = attention_setup(spec, kit)
    automatic = kit.plans.get(setup._replace(attention=None))
    if automatic is not None and _attention_of(automatic) == {spec.id}:
        return
    verdict = check_of(spec, kit)(_request_of(spec, setup, kit))
    if not verdict.ok:
        raise NotTested(f"its own check refuses the tiny model: {'; '.join(map(str, verdict.reasons))}")
    kit.close()
    prompts = [make_prompt(length) for length in PROMPT_LENGTHS[-3:]]
    with open_model(kit, setup) as engine:
        used = _attention_of(engine.plan)
        require(used == {spec.id}, f"{spec.id} was asked for, and the plan has attention {', '.join(sorted(used))}")
        compare(kit, generate(engine, prompts), prompts, f"with attention {spec.id}", setup)


def _check_taken(spec: KernelSpec, kit: Kit) -> None:
    """The plan's own record for a type that the kernel declares."""
    dtype = _dtype_of(spec, kit)
    refuse_device(spec, dtype, kit)
    setup = default_setup(kit)._replace(dtype=dtype)
    if setup not in kit.plans:
        with open_model(kit, setup) as engine:
            kit.plans[setup] = engine.plan
    plan = kit.plans[setup]
    if spec.kind == "ops":
        # An op that the device cannot have called is bound to nothing.
        taken = {binding.op: binding.provider for binding in plan.ops if binding.op in spec.ops}
    else:
        taken = {scheme: component for scheme, component in plan.linear if scheme in spec.schemes}
    foreign = any(component.distribution != kit.declarations.plugin.name for component in taken.values())
    if foreign or spec.id not in {component.id for component in taken.values()}:
        what = ", ".join(f"{what} from {each.id}" for what, each in taken.items() if each.id != spec.id) or "none of it"
        # One that stands behind another of the same distribution is for where that one cannot run.
        raise NotTested(f"{spec.id} is not what runs in {dtype}: core takes {what}", elsewhere=foreign or not taken)


def check_option(kit: Kit, name: str, value: bool) -> None:
    """Raise Lie unless the tokens are the same with another value of an option."""
    prompts = [make_prompt(length) for length in PROMPT_LENGTHS[2:4]]
    setup = default_setup(kit)._replace(option=(name, str(value).lower()))
    with open_model(kit, setup) as engine:
        compare(kit, generate(engine, prompts), prompts, "with that option", setup)
    gc.collect()


def _attention_of(plan: Any) -> set[str]:
    return {component.id for component in plan.attention}


def attention_setup(spec: AttentionSpec, kit: Kit) -> Setup:
    """The default where the backend can do that; otherwise with its own heads, its type, or sliding layers only.

    Raises NotTested for a backend of other kinds.
    """
    if not spec.kinds & set(KINDS):
        raise NotTested(f"the tiny model has no layers of kind {', '.join(sorted(spec.kinds))}")
    setup = default_setup(kit)
    if not spec.head_sizes.allows(setup.head_size):
        setup = setup._replace(head_size=smallest(head_sizes(spec)))
    window = None if "full" in spec.kinds else WINDOW
    return setup._replace(dtype=_dtype_of(spec, kit), window=window, attention=spec.id)


def _request_of(spec: AttentionSpec, setup: Setup, kit: Kit) -> AttentionRequest:
    point = plain_point(spec, "full" if setup.window is None else "sliding")._replace(
        dtype=setup.dtype,
        kv_dtype=setup.dtype,
        head_size=setup.head_size,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        window=setup.window,
    )
    request = request_of(point, kit.declarations.platform, kit.device)
    return msgspec.structs.replace(request, page_size=None)


def _dtype_of(spec: AttentionSpec | KernelSpec, kit: Kit) -> str:
    """The device's usual type where it is declared, or else another one that both have."""
    usual = compute_dtype(kit)
    both = spec.dtypes & kit.device.dtypes
    return usual if usual in spec.dtypes else max(both, default=usual)


def _check_chunked(kit: Kit) -> None:
    prompts = [make_prompt(150), make_prompt(90)]
    scheduling = kit.spec.scheduling
    buckets = [bucket for bucket in scheduling.token_buckets if bucket >= NUM_SEQUENCES]
    budget = min([*buckets, scheduling.max_batched_tokens or 32, 32])
    with open_model(kit, max_num_batched_tokens=budget) as engine:
        compare(kit, generate(engine, prompts), prompts, "in chunks")


def _check_prefix(kit: Kit) -> None:
    with open_model(kit) as engine:
        page = max((group.tokens_per_page for group in engine.plan.geometry.groups), default=16)
        prompt = make_prompt(page + page // 2)
        for how in ("for the first time", "from the prefix cache"):
            compare(kit, generate(engine, [prompt]), [prompt], how)
        if not engine.plan.prefix_caching:
            raise NotTested("the platform switches prefix caching off")
        require(engine.stats().prefix_cache_hits > 0, f"{kit.spec.name}: the second time nothing came from the cache")


def _check_preempted(kit: Kit) -> None:
    with open_model(kit) as engine:
        sizes = [group.tokens_per_page for group in engine.plan.geometry.groups]
    if len(sizes) != 1:
        raise NotTested("the platform has no page table of core's")
    page = sizes[0]
    prompts = [make_prompt(max(page, 16) - 4, seed) for seed in range(NUM_SEQUENCES)]
    longest = -(-(len(prompts[0]) + NEW_TOKENS) // page)
    with open_model(kit, num_pages_override=1 + longest * 2 + 1, max_model_len=len(prompts[0]) + NEW_TOKENS) as engine:
        compare(kit, generate(engine, prompts), prompts, "preempted")
        if not engine.stats().num_preemptions:
            raise NotTested("the small pool preempted nothing; the tokens are right")
