"""Everything a descriptor module needs to declare what a plugin offers: data only, no torch, no device code.

Selection reads these records. What runs is named by `load="module:Class"` and imported only in the engine process,
once it was selected.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

from inferplane_api.kv import AttentionKind, KVLayout

ANY_PLATFORM = "*"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why something was refused. `code` is stable and documented, for example "attention.head_size"."""

    code: str
    field: str = ""
    want: str = ""
    have: str = ""
    hint: str = ""

    def __str__(self) -> str:
        text = self.code
        if self.field:
            text += f": {self.field}"
        if self.want or self.have:
            text += f" wants {self.want or 'nothing'}, has {self.have or 'nothing'}"
        return f"{text} ({self.hint})" if self.hint else text


class Verdict(msgspec.Struct, frozen=True):
    """The answer to "can you do this?": yes when there is no reason against it."""

    reasons: tuple[Reason, ...] = ()

    @property
    def ok(self) -> bool:
        """True when nothing speaks against it."""
        return not self.reasons


class ProbeState(enum.Enum):
    """What a platform's probe found on this host."""

    PRESENT = "PRESENT"
    ABSENT = "ABSENT"
    BROKEN = "BROKEN"
    INCOMPATIBLE = "INCOMPATIBLE"


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one device. Core asks for features, never for a name."""

    index: int = 0
    name: str = ""
    memory_bytes: int = 0
    """Total memory of the device; 0 when it shares the host's."""
    dtypes: frozenset[str] = frozenset({"float32"})
    """Compute types, of {"float32", "bfloat16", "float16"}."""
    features: frozenset[str] = frozenset()
    """Of {graph_capture, sleep, unified_memory, pinned_memory, in_place_kv_write, ...}.

    in_place_kv_write: single token slots of a cache page can be written where they lie. A backend that writes so
    requires it; on a device without it, attention rewrites the pages that a step touches as a whole.
    """
    arch: str = ""
    preferred_dtype: str | None = None
    """What `--dtype auto` becomes for a 16-bit checkpoint on this device; None keeps the checkpoint's."""


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device on the bus, as the host lists it."""

    address: str
    vendor: int
    device: int
    pci_class: int


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the host before any plugin code runs, and what the user set for the probed platform."""

    os: str
    machine: str
    cpu_model: str = ""
    cpu_flags: frozenset[str] = frozenset()
    cpu_count: int = 1
    """Processors that this process may use (affinity and container limits applied)."""
    memory_bytes: int = 0
    """Memory that this process may use (container limits applied)."""
    pci_devices: tuple[PciDevice, ...] = ()
    torch_version: str | None = None
    """From metadata, torch is not imported; None when it is not installed."""
    options: dict[str, str | int | float | bool] = {}
    """In a probe, every `Option` of that platform that has a value: of --platform-option, its variable or its default,
    as `PlatformContext.options` later. Empty elsewhere."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """How the launcher recognises the hardware without this plugin's help."""

    pci_vendors: tuple[int, ...] = ()
    pci_classes: tuple[int, ...] = ()
    """Class codes (upper 8 bits of the PCI class) that count; empty: all of the vendor's devices."""
    device_paths: tuple[str, ...] = ()
    """Glob patterns of device nodes."""
    container_hint: str = ""
    """What to pass to a container so that the device nodes appear."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `probe(host: HostInfo) -> ProbeResult`."""

    state: ProbeState
    devices: tuple[DeviceInfo, ...] = ()
    reasons: tuple[Reason, ...] = ()


class SchedulingConstraints(msgspec.Struct, frozen=True, kw_only=True):
    """What a device asks of the scheduler, as data, so that nobody forks it. Defaults: no constraint."""

    token_buckets: tuple[int, ...] = ()
    """Allowed numbers of tokens in a step, ascending; the runner pads up (see `AttentionBatch`). Empty: any. Every pair
    of buckets that a step can have is run once before the first request."""
    batch_buckets: tuple[int, ...] = ()
    """Allowed numbers of requests in a step, and of rows of logits, ascending. Empty: any."""
    mixed_steps: bool = True
    """False: a step holds either single-token rows or prompt chunks, never both."""
    max_chunk: int | None = None
    """Longest prompt chunk of one request in one step."""
    max_sequences: int | None = None
    max_batched_tokens: int | None = None
    queue_depth: int = 2
    """Steps launched and not collected: 1 synchronous, 2 overlapped."""
    graph_rows: tuple[int, ...] = ()
    """Numbers of single-token rows for which a step is captured (`Platform.graphs`), ascending; a step of such rows is
    padded up to the next, and captured when it first occurs. Empty: nothing is captured."""


PATCHABLE = (
    "model.dtype",
    "model.max_model_len",
    "model.max_logprobs",
    "platform.threads",
    "cache.block_size",
    "cache.kv_cache_dtype",
    "cache.kv_cache_memory_bytes",
    "cache.memory_utilization",
    "cache.num_pages_override",
    "cache.enable_prefix_caching",
    "scheduler.max_num_seqs",
    "scheduler.max_num_batched_tokens",
    "scheduler.long_prefill_token_threshold",
    "scheduler.async_scheduling",
)
"""Every setting that a `ConfigPatch` may name: what a device can know better than a default, and what is read after the
platform was chosen. All else (the model, the plugins, the server) is the user's alone, or was used before.

Of `model` dtype, max_model_len, max_logprobs; of `platform` threads; of `cache` block_size, kv_cache_dtype,
kv_cache_memory_bytes, memory_utilization, num_pages_override, enable_prefix_caching; of `scheduler` max_num_seqs,
max_num_batched_tokens, long_prefill_token_threshold, async_scheduling."""


class ConfigPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a plugin asks for, for one of the settings in `PATCHABLE`; the start is refused for another path.

    A user's explicit value wins over a `default`, and contradicts a `require` that differs with an error. A `require`
    wins over a `default`; two of them on one path are an error naming both plugins. A value that the device or the
    model cannot have is an error that names the plugin; of max_model_len a `default` gives way to the model's."""

    path: str
    """One of `PATCHABLE`: "cache.block_size"."""
    value: Any
    """As the setting's own field takes it, see the configuration page."""
    strength: Literal["default", "require"] = "default"
    reason: str
    """Shown with the value by `inferplane explain`."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of the plugin's own: `--platform-option NAME=VALUE`, or a variable INFERPLANE_<...>."""

    name: str
    type: Literal["str", "int", "float", "bool"] = "str"
    default: str | int | float | bool | None = None
    doc: str
    variable: str | None = None


class PlatformSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device. Entry-point group `inferplane.platforms`; the entry's name equals `name`."""

    name: str
    load: str
    """"module:Class", a `inferplane_api.platform.Platform` constructed with a PlatformContext."""
    probe: str
    """"module:function", `probe(host: HostInfo) -> ProbeResult`; runs in a child process, imports no torch."""
    tier: int
    """0 reference (never automatic), 1 CPU, 5 accelerator."""
    evidence: Evidence = Evidence()
    requires_torch: str = ""
    """Version specifier, for example ">=2.9"."""
    torch_builds: tuple[str, ...] = ()
    """What the local part of torch's version ("cpu" of "2.13.0+cpu") may begin with; empty: any. A version without a
    local part names no build and is taken."""
    attention_preference: tuple[str, ...] = ()
    """Attention ids that win ties of score."""
    scheduling: SchedulingConstraints = SchedulingConstraints()
    config_patches: tuple[ConfigPatch, ...] = ()
    options: tuple[Option, ...] = ()
    communicator: str = ""
    """Name of the torch.distributed backend for core's communicator; "" when the platform brings its own or none."""
    runner_seam: bool = False
    """True: `Platform.create_runner` returns the runner; attention and kernels are not selected."""
    features: frozenset[str] = frozenset()
    """Device features that some device of this platform has, though the one here may lack them: what a backend of the
    same distribution may require."""


class HeadSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Head sizes that a backend takes: listed ones, or multiples up to a maximum; both empty: any."""

    exact: tuple[int, ...] = ()
    multiple_of: int = 1
    max: int | None = None

    def allows(self, head_size: int) -> bool:
        """True when a head of this many elements can be computed."""
        if self.exact:
            return head_size in self.exact
        return head_size % self.multiple_of == 0 and (self.max is None or head_size <= self.max)


class PageSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per page that a backend takes."""

    exact: tuple[int, ...] = ()
    multiple_of: int = 1

    def allows(self, tokens_per_page: int) -> bool:
        """True when pages of this many tokens can be read and written."""
        if self.exact:
            return tokens_per_page in self.exact
        return tokens_per_page % self.multiple_of == 0


class AttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One attention backend. Group `inferplane.attention`; the entry's name equals `id`."""

    id: str
    """"<namespace>.<name>"; a namespace belongs to one distribution."""
    load: str
    """"module:Class", a `inferplane_api.attention.PagedAttention` constructed with an AttentionContext."""
    platforms: frozenset[str]
    """Names of platforms, or {"*"}."""
    kinds: frozenset[AttentionKind]
    dtypes: frozenset[str]
    kv_dtypes: frozenset[str]
    """Types of cached keys and values."""
    head_sizes: HeadSizes = HeadSizes()
    page_sizes: PageSizes = PageSizes()
    features: frozenset[str] = frozenset()
    """Of {sinks, softcap, alibi, prefix-lm, logsumexp, non-causal, kv-fp8}."""
    requires: frozenset[str] = frozenset()
    """Device features that must be there, for example {"in_place_kv_write"}."""
    graph_level: Literal["never", "decode", "uniform", "always"] = "never"
    batch_invariant: bool = False
    layouts: tuple[KVLayout, ...] = (KVLayout(),)
    """In order of preference."""
    score: int = 20
    """0-19 reference, 20-49 portable, 50-79 tuned, 80-99 native for this exact device."""
    aliases: tuple[str, ...] = ()
    check: str | None = None
    """"module:function", `check(AttentionRequest) -> Verdict`, only where data cannot say it; runs in a child."""


class AttentionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one KV group asks of attention. A field added later has a default that asks for nothing."""

    platform: str
    device: DeviceInfo
    kind: AttentionKind
    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: str
    kv_dtype: str
    page_size: int | None = None
    """What the user fixed with --block-size; None: the backend's own sizes decide."""
    window: int | None = None
    features: frozenset[str] = frozenset()


class KernelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A provider of ops or of a linear kernel. Group `inferplane.kernels`; the entry's name equals `id`."""

    id: str
    kind: Literal["ops", "linear", "grouped_linear"]
    load: str
    """kind "ops": "module:OBJECT", an OpProvider; kind "linear": "module:Class", a LinearKernel."""
    platforms: frozenset[str]
    ops: tuple[str, ...] = ()
    """Kind "ops": the schemas it supplies, "rms_norm@1"."""
    schemes: tuple[str, ...] = ()
    """Kinds linear and grouped_linear: QuantScheme names that `pack` takes, "dense", "ggml.q4_1", ..."""
    dtypes: frozenset[str]
    """Activation types."""
    activation_bits: int | None = None
    """Kinds linear and grouped_linear: activations are rounded to integers of so many bits on the way, with a scale for
    each row or for a part of it. None: they are not."""
    requires: frozenset[str] = frozenset()
    score: int = 20
    check: str | None = None
    """"module:function", `check(KernelRequest) -> Verdict`, only where data cannot say it; runs in a child."""


class KernelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's `check` is asked, once for the device and type it would run on."""

    platform: str
    device: DeviceInfo
    dtype: str
    subject: str
    """The op's id or the scheme's name."""


class WeightFormatSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint format. Group `inferplane.quantization`; the entry's name equals `id`."""

    id: str
    load: str
    """"module:Class", a `inferplane_api.checkpoint.WeightFormat`."""
    name: str
    """What `--load-format` / `--quantization` call it."""
    file_suffixes: tuple[str, ...] = ()
    """A checkpoint that is one file, recognised by its suffix, for example (".gguf",)."""
    quant_methods: tuple[str, ...] = ()
    """Values of `quantization_config.quant_method` in config.json that it reads."""
    aliases: tuple[str, ...] = ()


class ModelPluginSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a plugin adds. Group `inferplane.models`; the entry's name equals the model_type."""

    model_type: str
    load: str
    """"module:Class", a model class as `inferplane.models` defines it."""
    describe: str
    """"module:function", `describe(config: dict) -> ModelSpec`; imports no torch."""


class ProcessorParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of a logits processor, as a request may carry it; a request without any of them never meets it."""

    name: str
    type: Literal["str", "int", "float", "bool", "list[str]", "list[int]", "list[float]"]
    """An int is taken for a float."""
    doc: str
    minimum: float | None = None
    """Of a number, or of every number of a list."""
    maximum: float | None = None


class LogitsProcessorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A logits processor. Group `inferplane.logits_processors`; the entry's name equals `id`."""

    id: str
    load: str
    """"module:Class", a `inferplane_api.logits_processors.LogitsProcessor` constructed with a ProcessorContext."""
    parameters: tuple[ProcessorParameter, ...]
    """At least one. A name may belong to several processors: each gets it."""


Descriptor = PlatformSpec | AttentionSpec | KernelSpec | WeightFormatSpec | ModelPluginSpec | LogitsProcessorSpec

GROUPS: dict[str, type[msgspec.Struct]] = {
    "inferplane.platforms": PlatformSpec,
    "inferplane.attention": AttentionSpec,
    "inferplane.kernels": KernelSpec,
    "inferplane.quantization": WeightFormatSpec,
    "inferplane.models": ModelPluginSpec,
    "inferplane.logits_processors": LogitsProcessorSpec,
}
"""Entry-point groups whose values are descriptors, and the type of each."""


def describe_attention_refusal(spec: AttentionSpec, request: AttentionRequest) -> Verdict:
    """Match a request against a backend's declarations; the reasons name every field that does not fit.

    Only data is looked at; `spec.check` is the caller's business.
    """
    reasons: list[Reason] = []

    def refuse(field: str, want: object, have: object) -> None:
        reasons.append(Reason(code=f"attention.{field}", field=field, want=str(want), have=str(have)))

    if ANY_PLATFORM not in spec.platforms and request.platform not in spec.platforms:
        refuse("platform", request.platform, _listed(spec.platforms))
    if request.kind not in spec.kinds:
        refuse("kind", request.kind, _listed(spec.kinds))
    if not spec.head_sizes.allows(request.head_size):
        sizes = spec.head_sizes
        have = _listed(map(str, sizes.exact)) if sizes.exact else f"multiples of {sizes.multiple_of} to {sizes.max}"
        refuse("head_size", request.head_size, have)
    if request.dtype not in spec.dtypes:
        refuse("dtype", request.dtype, _listed(spec.dtypes))
    if request.kv_dtype not in spec.kv_dtypes:
        refuse("kv_dtype", request.kv_dtype, _listed(spec.kv_dtypes))
    if request.page_size is not None and not spec.page_sizes.allows(request.page_size):
        pages = spec.page_sizes
        have = _listed(map(str, pages.exact)) if pages.exact else f"multiples of {pages.multiple_of}"
        refuse("page_size", request.page_size, have)
    if missing := request.features - spec.features:
        refuse("features", _listed(missing), _listed(spec.features))
    if missing := spec.requires - request.device.features:
        reasons.append(
            Reason(
                code="attention.device_feature",
                field="device.features",
                want=_listed(missing),
                have=_listed(request.device.features),
            )
        )
    return Verdict(tuple(reasons))


FIRST = "0.1.0"
"""The first version of the contract."""

_REQUESTED = ("platform", "device", "kind", "num_heads", "num_kv_heads", "head_size", "dtype", "kv_dtype", "page_size")

SINCE: dict[type[msgspec.Struct], dict[str, str]] = {
    AttentionRequest: dict.fromkeys((*_REQUESTED, "window", "features"), FIRST),
    KernelRequest: dict.fromkeys(("platform", "device", "dtype", "subject"), FIRST),
}
"""The version of the contract that each field of a request came with. Fields added later have a default."""


def unknown_requirements(request: msgspec.Struct, built_against: str) -> tuple[Reason, ...]:
    """What a request asks for with fields that a plugin cannot know, being newer than its contract.

    `built_against` is the oldest contract that the plugin admits, "0.1". A field that has its default asks for nothing.
    """
    known = _release(built_against)
    newer = {field: since for field, since in SINCE[type(request)].items() if _release(since) > known}
    if not newer:
        return ()
    defaults = {field.name: field.default for field in msgspec.structs.fields(type(request))}
    return tuple(
        Reason(code="api.unknown_requirement", field=field, want=since, have=built_against)
        for field, since in newer.items()
        if getattr(request, field) != defaults[field]
    )


def _release(version: str) -> tuple[int, ...]:
    """Three numbers, so that "0.1" and "0.1.0" are the same."""
    parts = [int(part) for part in version.split(".")[:3] if part.isdecimal()]
    return (*parts, *(0,) * (3 - len(parts)))


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
