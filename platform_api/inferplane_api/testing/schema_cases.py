"""Area "descriptor": every entry point gives the record that its group asks for, under its own name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.specifiers import SpecifierSet

from inferplane_api.internal.inventory import KINDS, PREFIX, admits
from inferplane_api.internal.soundness import torch_mismatch, unsound
from inferplane_api.kv import KVLayout
from inferplane_api.ops import SCHEMAS
from inferplane_api.spec import GROUPS, AttentionSpec, KernelSpec, ModelPluginSpec, PlatformSpec, WeightFormatSpec
from inferplane_api.testing.case import Case, Lie, NotTested, require
from inferplane_api.testing.declarations import PLATFORMS, decoded, installed_plugins

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit
    from inferplane_api.testing.observed import Imported

DTYPES = frozenset({"float32", "bfloat16", "float16"})
KV_DTYPES = DTYPES | {"float8_e4m3fn", "float8_e5m2"}
ATTENTION_KINDS = frozenset({"full", "sliding", "chunked", "latent", "state", "cross", "encoder"})
ATTENTION_FEATURES = frozenset({"sinks", "softcap", "alibi", "prefix-lm", "logsumexp", "non-causal", "kv-fp8"})
TIERS = (0, 1, 5)
WIDENED = {"float": "int"}
"""Type of an option to another one that its default may have."""


def cases(declarations: Declarations) -> list[Case]:
    """A case an entry point, one for the requirement on the contract, and one for namespaces."""
    plugin = declarations.plugin
    found = []
    if declarations.inspection.failure:
        claim = f"{plugin.name} declares {len(plugin.entries)} entry points"
        found.append(_case("process", claim, partial(_raise, f"{claim} but {declarations.inspection.failure}")))
    for item in declarations.inspection.seen.imported:
        name = f"{item.entry.group}:{item.entry.name}"
        found.append(_case(name, f"{plugin.name} declares {name}", partial(_check_entry, item)))
        spec = decoded(item)
        if isinstance(spec, PlatformSpec):
            claim = f"{plugin.name} runs with the torch that is installed"
            found.append(_case(f"torch-{spec.name}", claim, partial(_check_torch, spec, declarations)))
        if isinstance(spec, (WeightFormatSpec, ModelPluginSpec)):
            reason = f"the kit has no cases for what {item.entry.group} holds: test it by its own files"
            untested = _case(f"untested-{name}", f"{plugin.name} declares {name}", partial(_not_tested, reason))
            found.append(untested._replace(level="full"))
    claim = f"{plugin.name} requires a range of inferplane-api"
    found.append(_case("api-range", claim, partial(_check_range, declarations)))
    claim = f"the namespaces of {plugin.name} are its own"
    found.append(_case("namespaces", claim, partial(_check_namespaces, declarations)))
    return found


def _case(name: str, claim: str, run: Callable[[Kit], None]) -> Case:
    return Case(area="descriptor", name=name, level="core", claim=claim, run=run)


def _raise(message: str, kit: Kit) -> None:
    raise Lie(message)


def _not_tested(reason: str, kit: Kit) -> None:
    raise NotTested(reason)


def _check_entry(item: Imported, kit: Kit) -> None:
    entry = item.entry
    where = f"{entry.group} entry {entry.name!r} ({entry.value})"
    require(not item.error, f"{where} cannot be imported: {item.error}")
    known = [f"{PREFIX}{kind}" for kind in KINDS]
    require(entry.group in known, f"{where}: there is no group of that name; known are {', '.join(known)}")
    expected = GROUPS.get(entry.group)
    if expected is None:
        return
    require(item.value is not None, f"{where} must be a {expected.__name__}, it is a {item.type_name}")
    try:
        spec = msgspec.convert(item.value, type=expected)
    except msgspec.ValidationError as error:
        raise Lie(f"{where} has a field of the wrong type: {error}") from None
    own = next(getattr(spec, field) for field in ("id", "model_type", "name") if hasattr(spec, field))
    require(own == entry.name, f"{where} calls itself {own!r}: the entry's name must be the same")
    if hasattr(spec, "id"):
        namespace, dot, rest = spec.id.partition(".")
        require(bool(namespace and dot and rest), f"{where}: an id is <namespace>.<name>")
    for field in ("load", "probe", "check", "describe"):
        path = getattr(spec, field, None)
        if path is not None:
            module, colon, attribute = path.partition(":")
            require(bool(module and colon and attribute), f"{where}: {field}={path!r} is not 'module:attribute'")
    fault = unsound(spec)
    require(fault is None, f"{where} would be refused by core: {fault}")
    for check in (_check_platform, _check_attention, _check_kernel):
        check(spec, where)


def _check_platform(spec: Any, where: str) -> None:
    if not isinstance(spec, PlatformSpec):
        return
    require(spec.tier in TIERS, f"{where}: tier {spec.tier} is not one of {TIERS}")
    scheduling = spec.scheduling
    for field in ("token_buckets", "batch_buckets"):
        buckets = getattr(scheduling, field)
        fine = list(buckets) == sorted(set(buckets)) and all(bucket > 0 for bucket in buckets)
        require(fine, f"{where}: {field}={buckets} must be in rising order and above 0")
    require(scheduling.queue_depth >= 1, f"{where}: queue_depth={scheduling.queue_depth} must be at least 1")
    for field in ("max_chunk", "max_sequences", "max_batched_tokens"):
        value = getattr(scheduling, field)
        require(value is None or value >= 1, f"{where}: {field}={value} must be at least 1")
    for option in spec.options:
        right = option.variable is None or option.variable.startswith("INFERPLANE_")
        require(right, f"{where}: the variable of option {option.name!r} must begin with INFERPLANE_")
        fits = option.default is None or type(option.default).__name__ in (option.type, WIDENED.get(option.type))
        message = f"{where}: the default {option.default!r} of option {option.name!r} is not of type {option.type}"
        require(fits, message)


def _check_attention(spec: Any, where: str) -> None:
    if not isinstance(spec, AttentionSpec):
        return
    _check_names(where, "kinds", spec.kinds, ATTENTION_KINDS)
    _check_names(where, "dtypes", spec.dtypes, DTYPES)
    _check_names(where, "kv_dtypes", spec.kv_dtypes, KV_DTYPES)
    require(spec.features <= ATTENTION_FEATURES, f"{where}: unknown features {sorted(spec.features)}")
    require(bool(spec.platforms), f"{where}: platforms is empty")
    require(bool(spec.layouts), f"{where}: layouts is empty")
    require(all(isinstance(layout, KVLayout) for layout in spec.layouts), f"{where}: layouts are not KVLayout")
    require(0 <= spec.score <= 99, f"{where}: score {spec.score} is not in 0 to 99")
    sizes = (*spec.head_sizes.exact, *spec.page_sizes.exact, spec.head_sizes.multiple_of, spec.page_sizes.multiple_of)
    require(all(size > 0 for size in sizes), f"{where}: head and page sizes must be above 0")


def _check_kernel(spec: Any, where: str) -> None:
    if not isinstance(spec, KernelSpec):
        return
    _check_names(where, "dtypes", spec.dtypes, DTYPES)
    require(bool(spec.platforms), f"{where}: platforms is empty")
    require(0 <= spec.score <= 99, f"{where}: score {spec.score} is not in 0 to 99")
    if spec.kind == "ops":
        known = {schema.id for schema in SCHEMAS.values()}
        unknown = sorted(set(spec.ops) - known)
        require(not unknown, f"{where}: no schema of this contract is called {unknown}")
        require(bool(spec.ops), f"{where}: a provider of ops declares none")
    else:
        require(bool(spec.schemes), f"{where}: a {spec.kind} kernel declares no scheme")


def _check_names(where: str, field: str, names: frozenset[str], known: frozenset[str]) -> None:
    require(bool(names), f"{where}: {field} is empty")
    require(names <= known, f"{where}: {field} has {sorted(names - known)}, known are {sorted(known)}")


def _check_torch(spec: PlatformSpec, declarations: Declarations, kit: Kit) -> None:
    version, plugin = declarations.host.torch_version, declarations.plugin
    for specifier, builds, whose in (
        (spec.requires_torch or None, spec.torch_builds, f"platform {spec.name}"),
        (plugin.torch_range, (), plugin.name),
    ):
        reason = torch_mismatch(specifier, version, builds)
        require(reason is None, f"{whose} does not run with the torch that is installed: {reason}")


def _check_range(declarations: Declarations, kit: Kit) -> None:
    from inferplane_api import API_VERSION

    plugin, text = declarations.plugin, f"inferplane-api{declarations.plugin.api_range}"
    if plugin.api_range is None:
        raise Lie(f"{plugin.name} has no Requires-Dist: inferplane-api, so no version of the contract is known to fit")
    fits = admits(plugin.api_range, API_VERSION)
    require(fits, f"{plugin.name} requires {text}, this is inferplane-api {API_VERSION}")
    upper = any(part.operator in ("<", "<=", "==", "~=") for part in SpecifierSet(plugin.api_range))
    require(upper, f"{plugin.name} requires {text} without an upper bound")


def _check_namespaces(declarations: Declarations, kit: Kit) -> None:
    own = _namespaces(declarations.plugin)
    for other in installed_plugins():
        if other.name != declarations.plugin.name:
            shared = sorted(own & _namespaces(other))
            message = f"{declarations.plugin.name} uses the namespace {', '.join(shared)} of {other.name}"
            require(not shared, message)


def _namespaces(plugin: Any) -> set[str]:
    groups = {PLATFORMS, "inferplane.attention", "inferplane.kernels", "inferplane.quantization"}
    return {entry.name.partition(".")[0] for entry in plugin.entries if entry.group in groups}
