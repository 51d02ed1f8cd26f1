"""The contract between the Inferplane core and its plugins. Light: importing it imports no torch."""

from inferplane_api.errors import InferplaneError, InvalidValue, Unsupported
from inferplane_api.kv import KVGeometry, KVGroupSpec, KVLayout, KVView
from inferplane_api.model import LayerSpec, ModelSpec
from inferplane_api.pooling import PoolingParams
from inferplane_api.sampling import RepetitionDetection, SamplingParams
from inferplane_api.spec import (
    AttentionRequest,
    AttentionSpec,
    ConfigPatch,
    DeviceInfo,
    Evidence,
    HeadSizes,
    HostInfo,
    KernelRequest,
    KernelSpec,
    LogitsProcessorSpec,
    ModelPluginSpec,
    Option,
    PageSizes,
    PlatformSpec,
    ProbeResult,
    ProbeState,
    ProcessorParameter,
    Reason,
    SchedulingConstraints,
    Verdict,
    WeightFormatSpec,
)
from inferplane_api.step import NewRequest, SampleInputs, StepPlan, StepResult, TokenLogprobs

API_VERSION = "0.1.0"
"""Semantic version of the contract; equals the distribution's version."""

__all__ = [
    "API_VERSION",
    "AttentionRequest",
    "AttentionSpec",
    "ConfigPatch",
    "DeviceInfo",
    "Evidence",
    "HeadSizes",
    "HostInfo",
    "InferplaneError",
    "InvalidValue",
    "KVGeometry",
    "KVGroupSpec",
    "KVLayout",
    "KVView",
    "KernelRequest",
    "KernelSpec",
    "LayerSpec",
    "LogitsProcessorSpec",
    "ModelPluginSpec",
    "ModelSpec",
    "NewRequest",
    "Option",
    "PageSizes",
    "PlatformSpec",
    "PoolingParams",
    "ProbeResult",
    "ProbeState",
    "ProcessorParameter",
    "Reason",
    "RepetitionDetection",
    "SampleInputs",
    "SamplingParams",
    "SchedulingConstraints",
    "StepPlan",
    "StepResult",
    "TokenLogprobs",
    "Unsupported",
    "Verdict",
    "WeightFormatSpec",
]
