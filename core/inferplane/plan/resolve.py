"""The one place where decisions are made: configuration, model and plugins in, a frozen Plan out. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from inferplane.errors import InvalidValue
from inferplane.plan.dtypes import DtypeChoice, choose_dtype, choose_kv_dtype
from inferplane.plan.geometry import (
    WASTE_WARNING,
    block_size_candidates,
    describe_page_sizes,
    kv_geometry,
    layer_groups,
    page_bytes_for,
    tokens_per_page,
    wasted_share,
)
from inferplane.plan.graphs import choose_graphs
from inferplane.plan.hooks import worker_components
from inferplane.plan.limits import choose_limits
from inferplane.plan.pooling import choose_pooling
from inferplane.plan.provenance import effective_settings
from inferplane.plan.render import warning_text
from inferplane.plan.select_attention import AttentionChoice, GroupNeed, Offer, select_attention
from inferplane.plan.select_kernels import KernelNeed, select_linear, select_ops
from inferplane.plan.select_model import select_architecture, select_format
from inferplane.plan.select_platform import PlatformChoice, Situation, select_platform
from inferplane.plan.select_processors import select_processors
from inferplane.plan.settings import Settings, SourcedPatch
from inferplane.plan.types import Component, Decision, Loser, OpBinding, Plan
from inferplane.plugins.inventory import installed
from inferplane.plugins.modes import LOCKED
from inferplane.plugins.options import option_values, require_declared, resolve_options
from inferplane_api.kv import KVGeometry
from inferplane_api.spec import AttentionRequest, AttentionSpec, DeviceInfo, PageSizes, PlatformSpec, Reason

if TYPE_CHECKING:
    from inferplane.config import Config
    from inferplane.plan.geometry import LayerGroup
    from inferplane.plugins.discovery import Discovery
    from inferplane.plugins.records import FoundAttention
    from inferplane_api.checkpoint import CheckpointCard
    from inferplane_api.model import ModelSpec

ATTENTION_GROUP = "inferplane.attention"


def resolve(
    config: Config,
    model: ModelSpec,
    card: CheckpointCard,
    checkpoint_path: str,
    format_id: str,
    discovery: Discovery,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """Decide everything that an engine process needs to know. Raises InferplaneError with a remedy.

    `discovery` must be open: backends' own checks run in its children.
    """
    platform = choose_platform(config, discovery)
    spec = _spec_of(platform)
    device = platform.found.result.devices[0]
    owner = f"{platform.found.distribution} {platform.found.version}"
    settings = Settings(config, [SourcedPatch(patch, owner) for patch in spec.config_patches])
    given = settings.value("platform.platform_option")
    require_declared(spec, given)
    options = resolve_options(spec, given, environ)
    pooling = choose_pooling(settings, model, card)
    model = pooling.model
    with settings.attributed():
        dtype, kv_dtype = _dtypes(settings, model, device)
        parts = _select_parts(_Target(spec, device, dtype.dtype, kv_dtype.dtype), model, settings, discovery)
        limits = choose_limits(settings, model, spec.scheduling)
        graphs = choose_graphs(settings, spec, device, parts.attention_specs, limits.limits.max_num_seqs)
    architecture, model_decision = select_architecture(
        model.model_type, discovery.models, required=not spec.runner_seam
    )
    named = settings.said("model.quantization") or settings.value("model.load_format") not in ("auto", "dummy")
    weights, format_decision = select_format(format_id, discovery.formats, by_user=named)
    decisions = [
        _plugins(settings, discovery),
        platform.decision,
        model_decision,
        format_decision,
        *pooling.decisions,
        dtype.decision,
        kv_dtype.decision,
    ]
    decisions += [*parts.decisions, graphs.decision, *limits.decisions]
    processors, processors_decision = select_processors(
        settings.value("model.logits_processors"),
        discovery.logits_processors,
        runner_seam=spec.runner_seam,
        locked=settings.value("platform.plugins_mode") == LOCKED,
    )
    decisions += [processors_decision] if processors_decision is not None else []
    recorded = {decision.subject for decision in decisions}
    decisions += [decision for decision in settings.decisions() if decision.subject not in recorded]
    warnings = [*platform.warnings, *_refusals(discovery), *map(warning_text, discovery.problems)]
    warnings += [*([dtype.warning] if dtype.warning else []), *parts.warnings, *limits.warnings]
    return Plan(
        platform=Component(
            id=spec.name, load=spec.load, distribution=platform.found.distribution, version=platform.found.version
        ),
        platform_name=spec.name,
        runner_seam=spec.runner_seam,
        device=device,
        platform_options=option_values(options),
        num_threads=settings.value("platform.threads"),
        checkpoint_path=checkpoint_path,
        checkpoint_format=weights,
        dummy_weights=settings.value("model.load_format") == "dummy",
        card=card,
        model=model,
        architecture=architecture,
        pooler=pooling.pooler,
        matryoshka=pooling.matryoshka,
        lower_case=pooling.lower_case,
        dtype=dtype.dtype,
        kv_dtype=kv_dtype.dtype,
        geometry=parts.geometry,
        attention=parts.attention,
        ops=parts.ops,
        linear=parts.linear,
        graph_rows=graphs.rows,
        limits=limits.limits,
        auto_max_model_len=limits.auto_max_model_len,
        max_pages=settings.value("cache.num_pages_override"),
        memory_limit_bytes=settings.value("cache.kv_cache_memory_bytes"),
        memory_utilization=settings.value("cache.memory_utilization"),
        scheduling=limits.scheduling,
        policy=settings.value("scheduler.scheduling_policy"),
        prefix_caching=limits.prefix_caching,
        long_prefill_token_threshold=settings.value("scheduler.long_prefill_token_threshold"),
        seed=settings.value("model.seed"),
        plugins_mode=settings.value("platform.plugins_mode"),
        logits_processors=processors,
        hooks=worker_components(discovery),
        settings=effective_settings(config, settings, decisions, parts.geometry.block_size, options),
        decisions=tuple(decisions),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _dtypes(settings: Settings, model: ModelSpec, device: DeviceInfo) -> tuple[DtypeChoice, DtypeChoice]:
    """Of weights and activations, and of the cache, recorded as what asked for them."""

    def who(path: str, flag: str) -> dict[str, str]:
        return {"source": settings.source(path), "reason": settings.reason(path) or flag}

    path, kv_path = "model.dtype", "cache.kv_cache_dtype"
    dtype = choose_dtype(settings.value(path), model.dtype, device, **who(path, "--dtype"))
    kv_dtype = choose_kv_dtype(settings.value(kv_path), dtype.dtype, **who(kv_path, "--kv-cache-dtype"))
    return dtype, kv_dtype


def choose_platform(config: Config, discovery: Discovery) -> PlatformChoice:
    """The selection table on what was discovered."""
    situation = Situation(discovery.platforms, discovery.host, discovery.hardware, installed, discovery.left_out)
    return select_platform(situation, config.platform.platform)


class _Target(NamedTuple):
    """What the parts must run on."""

    spec: PlatformSpec
    device: DeviceInfo
    dtype: str
    kv_dtype: str


class _Parts(NamedTuple):
    """Everything that depends on groups of layers."""

    geometry: KVGeometry
    attention: tuple[Component, ...]
    attention_specs: tuple[AttentionSpec, ...]
    ops: tuple[OpBinding, ...]
    linear: tuple[tuple[str, Component], ...]
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]


def _select_parts(target: _Target, model: ModelSpec, settings: Settings, discovery: Discovery) -> _Parts:
    """Attention, pages, ops and linear kernels; on a runner-seam platform pages only, of any size."""
    asked = settings.value("platform.attention_backend")
    if target.spec.runner_seam:
        if asked is not None:
            problem = f"platform {target.spec.name!r} brings its own runner, which chooses its own attention"
            raise InvalidValue("attention_backend", asked, problem, remedy="leave it out")
        geometry, decision = _pages(model, target.kv_dtype, settings, [])
        return _Parts(geometry, (), (), (), (), (decision,), _waste(geometry))
    needs = _needs(target, model, settings)
    refused = [item for item in discovery.refused if item.group == ATTENTION_GROUP]
    preference = target.spec.attention_preference
    offer = Offer(discovery.attention, refused, preference, discovery.check, discovery.left_out)
    choices = select_attention(needs, offer, asked)
    geometry, decision = _pages(model, target.kv_dtype, settings, choices)
    need = KernelNeed(target.spec.name, target.device, target.dtype, discovery.check)
    ops, op_decisions = select_ops(discovery.kernels, need)
    linear, linear_decisions = select_linear(discovery.kernels, need)
    return _Parts(
        geometry,
        tuple(_attention_component(choice.found) for choice in choices),
        tuple(choice.found.spec for choice in choices),
        ops,
        linear,
        (*(choice.decision for choice in choices), decision, *op_decisions, *linear_decisions),
        _waste(geometry),
    )


def _needs(target: _Target, model: ModelSpec, settings: Settings) -> list[GroupNeed]:
    """What each group asks. A block size that is fixed is the page size of the group with the most bytes a token;
    the others may take any multiple of it that fits, which is asked of a backend's page sizes beside the request."""
    groups = layer_groups(model)
    block_size = settings.value("cache.block_size")
    page_bytes = page_bytes_for(groups, target.kv_dtype, block_size) if block_size is not None else 0

    def is_page_size(group: LayerGroup) -> bool:
        return block_size is not None and block_size * group.bytes_per_token(target.kv_dtype) == page_bytes

    def takes_pages(group: LayerGroup, found: FoundAttention) -> Reason | None:
        sizes = found.spec.page_sizes
        if block_size is None or is_page_size(group):
            return None
        if tokens_per_page(group, target.kv_dtype, block_size, page_bytes, sizes) is not None:
            return None
        want = f"a multiple of {block_size} in {page_bytes} bytes"
        return Reason(code="attention.page_size", field="page_size", want=want, have=describe_page_sizes(sizes))

    return [
        GroupNeed(
            group,
            AttentionRequest(
                platform=target.spec.name,
                device=target.device,
                kind=group.kind,
                num_heads=group.num_heads,
                num_kv_heads=group.num_kv_heads,
                head_size=group.head_size,
                dtype=target.dtype,
                kv_dtype=target.kv_dtype,
                page_size=block_size if is_page_size(group) else None,
                window=group.window,
                features=group.features,
            ),
            lambda found, group=group: takes_pages(group, found),  # type: ignore[misc]
        )
        for group in groups
    ]


def _pages(
    model: ModelSpec, kv_dtype: str, settings: Settings, choices: Sequence[AttentionChoice]
) -> tuple[KVGeometry, Decision]:
    """The pool's geometry: with the block size that was fixed, or the first that suits every backend."""
    specs = [choice.found.spec for choice in choices]
    sizes = [spec.page_sizes for spec in specs] or [PageSizes()] * len(layer_groups(model))
    layouts = [spec.layouts[0] for spec in specs]
    fixed = settings.value("cache.block_size")
    candidates = [fixed] if fixed is not None else block_size_candidates(sizes)
    failure: InvalidValue | None = None
    for block_size in candidates:
        try:
            geometry = kv_geometry(model, kv_dtype, block_size, sizes, layouts)
        except InvalidValue as error:
            failure = failure or error
            continue
        tokens = ", ".join(f"{group.kind} {group.tokens_per_page}" for group in geometry.groups)
        return geometry, Decision(
            subject="pages",
            chosen=f"{tokens} tokens" if tokens else "none: no layer keeps keys and values",
            source=settings.source("cache.block_size"),
            reason=f"block size {block_size}; {geometry.page_bytes} bytes a page",
        )
    assert failure is not None
    raise failure


def _waste(geometry: KVGeometry) -> tuple[str, ...]:
    share = wasted_share(geometry)
    if share <= WASTE_WARNING:
        return ()
    return (f"cache: {share:.0%} of every page is unused by one group of layers; another --block-size may fit better",)


def _plugins(settings: Settings, discovery: Discovery) -> Decision:
    """Which distributions could be chosen from, and which are installed and could not."""
    owners = sorted({f"{entry.distribution} {entry.version}" for entry in discovery.entries})
    path = "platform.plugins_mode"
    losers = [
        Loser(id=f"{item.distribution} {item.version}: {', '.join(item.names)}", reasons=(item.reason,))
        for item in discovery.left_out
    ]
    return Decision(
        subject="plugins",
        chosen=settings.value(path),
        source=settings.source(path),
        reason=", ".join(owners) or "none",
        losers=tuple(losers),
    )


def _attention_component(found: FoundAttention) -> Component:
    return Component(id=found.spec.id, load=found.spec.load, distribution=found.distribution, version=found.version)


def _refusals(discovery: Discovery) -> list[str]:
    """One warning a distribution and reason for parts that are no platform."""
    lines: dict[tuple[str, str, str, str], list[str]] = {}
    for item in discovery.refused:
        key = (item.distribution, item.version, item.state.value, str(item.reason))
        lines.setdefault(key, []).append(item.name)
    return [
        f"{', '.join(names)} of {distribution} {version}: {state}: {reason}; remedy: pip install --upgrade "
        f"--force-reinstall --no-deps {distribution}, or uninstall it"
        for (distribution, version, state, reason), names in lines.items()
    ]


def _spec_of(platform: PlatformChoice) -> PlatformSpec:
    spec = platform.found.spec
    assert spec is not None, "a platform that is PRESENT has a descriptor"
    return spec
