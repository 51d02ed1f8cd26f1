"""Types, limits and options: the rules one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferplane.config import Config
from inferplane.errors import InvalidValue
from inferplane.plan.dtypes import choose_dtype, choose_kv_dtype
from inferplane.plan.limits import LimitsChoice, choose_limits
from inferplane.plan.settings import Settings
from inferplane.plugins.options import platform_options
from inferplane_api.model import LayerSpec, ModelSpec
from inferplane_api.spec import DeviceInfo, Option, PlatformSpec, SchedulingConstraints

F32, BF16, F16 = "float32", "bfloat16", "float16"


@pytest.mark.parametrize(
    ("asked", "checkpoint", "has", "preferred", "dtype", "warns"),
    [
        ("auto", BF16, {F32, BF16, F16}, None, BF16, False),
        ("auto", F16, {F32, BF16, F16}, None, F16, False),
        ("auto", BF16, {F32, F16}, None, F16, True),
        ("auto", F16, {F32, BF16}, None, BF16, True),
        ("auto", F16, {F32}, None, F32, True),
        ("auto", F32, {F32, BF16, F16}, None, BF16, False),
        ("auto", F32, {F32, F16}, None, F16, False),
        ("auto", F32, {F32}, None, F32, False),
        ("auto", F32, {F32, BF16, F16}, F16, F16, False),
        ("auto", BF16, {F32, BF16}, F32, F32, False),
        ("auto", BF16, {F32, BF16}, F16, BF16, False),  # prefers what it does not have
        (F32, BF16, {F32, BF16}, BF16, F32, False),
        (F16, F32, {F32, F16}, None, F16, False),
    ],
)
def test_dtype(asked: str, checkpoint: str, has: set[str], preferred: str | None, dtype: str, warns: bool) -> None:
    choice = choose_dtype(asked, checkpoint, DeviceInfo(dtypes=frozenset(has), preferred_dtype=preferred))
    assert choice.dtype == choice.decision.chosen == dtype
    assert (choice.warning is not None) is warns
    assert choice.decision.reason
    if dtype != checkpoint and asked == "auto":
        assert checkpoint in choice.decision.reason
        assert choice.decision.source == "device"


def test_an_explicit_dtype_that_the_device_lacks() -> None:
    with pytest.raises(InvalidValue, match="dtype='float16'") as caught:
        choose_dtype(F16, F32, DeviceInfo(name="chip", dtypes=frozenset({F32, BF16})))
    assert caught.value.remedy == "chip has bfloat16, float32"


def test_kv_dtype() -> None:
    assert choose_kv_dtype("auto", BF16).dtype == BF16
    assert choose_kv_dtype(F32, BF16).decision.source == "user"
    assert choose_kv_dtype(F32, BF16).dtype == F32


@pytest.fixture
def choose(make_model: Callable[..., ModelSpec]) -> Callable[..., LimitsChoice]:
    def run(values: dict[str, Any], device: dict[str, Any] | None = None, **model: Any) -> LimitsChoice:
        layer = LayerSpec(num_heads=1, num_kv_heads=1, head_size=8)
        settings = Settings(Config.from_flat(values))
        return choose_limits(settings, make_model((layer,), **model), SchedulingConstraints(**device or {}))

    return run


@pytest.mark.parametrize(
    ("values", "device", "sequences", "tokens"),
    [
        ({}, {}, 64, 2048),
        ({}, {"max_sequences": 8, "max_batched_tokens": 512}, 8, 512),
        ({}, {"max_sequences": 1024, "max_batched_tokens": 99999}, 64, 2048),
        ({}, {"batch_buckets": (1, 4, 16), "token_buckets": (16, 256)}, 16, 256),
        ({}, {"batch_buckets": (1, 32), "max_sequences": 8}, 8, 2048),
        ({"max_num_seqs": 100, "max_num_batched_tokens": 4096}, {}, 100, 4096),
        ({"max_num_batched_tokens": 16}, {}, 16, 16),
        ({"max_num_seqs": 4}, {"max_sequences": 8}, 4, 2048),
    ],
)
def test_limits(
    choose: Callable[..., LimitsChoice], values: dict[str, Any], device: dict[str, Any], sequences: int, tokens: int
) -> None:
    limits = choose(values, device).limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (sequences, tokens)


@pytest.mark.parametrize(
    ("values", "device", "texts"),
    [
        ({"max_num_seqs": 9}, {"max_sequences": 8}, ["max_num_seqs=9", "at most 8"]),
        ({"max_num_seqs": 9}, {"batch_buckets": (1, 8)}, ["max_num_seqs=9", "at most 8"]),
        ({"max_num_batched_tokens": 300}, {"token_buckets": (256,)}, ["max_num_batched_tokens=300", "at most 256"]),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, {}, ["max_num_seqs=9", "only 8 tokens"]),
        ({"max_model_len": 5000}, {}, ["max_model_len=5000", "4096"]),
    ],
)
def test_too_much_is_an_error_naming_both(
    choose: Callable[..., LimitsChoice], values: dict[str, Any], device: dict[str, Any], texts: list[str]
) -> None:
    with pytest.raises(InvalidValue) as caught:
        choose(values, device)
    assert all(text in caught.value.message for text in texts)
    assert caught.value.remedy


def test_context(choose: Callable[..., LimitsChoice]) -> None:
    automatic, asked = choose({}), choose({"max_model_len": "1k"})
    assert (automatic.limits.max_model_len, automatic.auto_max_model_len) == (4096, True)
    assert (asked.limits.max_model_len, asked.auto_max_model_len) == (1000, False)


def test_queue_depth(choose: Callable[..., LimitsChoice]) -> None:
    assert choose({}).scheduling.queue_depth == 2
    assert choose({"async_scheduling": False}).scheduling.queue_depth == 1
    assert choose({}, {"queue_depth": 1}).scheduling.queue_depth == 1


def test_a_model_that_cannot_chunk_gets_steps_for_a_whole_prompt(choose: Callable[..., LimitsChoice]) -> None:
    features = frozenset({"no_chunking"})
    assert choose({}, features=features).limits.max_num_batched_tokens == 4096
    assert choose({"max_model_len": 512}, features=features).limits.max_num_batched_tokens == 2048
    with pytest.raises(InvalidValue, match=r"max_num_batched_tokens=256.*4096 tokens"):
        choose({"max_num_batched_tokens": 256}, features=features)


@pytest.mark.parametrize("device", [{"max_batched_tokens": 128}, {"token_buckets": (64, 128)}, {"max_chunk": 128}])
def test_a_whole_prompt_is_no_longer_than_the_devices_step(
    choose: Callable[..., LimitsChoice], device: dict[str, Any]
) -> None:
    features = frozenset({"no_chunking"})
    assert choose({}, device, features=features).limits.max_model_len == 128
    assert choose({"max_model_len": 100}, device, features=features).limits.max_model_len == 100
    with pytest.raises(InvalidValue, match=r"max_model_len=129.*at most 128") as caught:
        choose({"max_model_len": 129}, device, features=features)
    assert "--max-model-len 128" in caught.value.remedy
    assert choose({}, device).limits.max_model_len == 4096, "chunks are not bounded by the context"


def test_a_model_that_cannot_share_its_cache(choose: Callable[..., LimitsChoice]) -> None:
    assert choose({}).prefix_caching
    assert not choose({"enable_prefix_caching": False}).prefix_caching
    choice = choose({}, features=frozenset({"no_prefix_cache"}))
    assert not choice.prefix_caching
    decision = next(each for each in choice.decisions if each.subject == "config cache.enable_prefix_caching")
    assert (decision.chosen, decision.source) == ("False", "checkpoint")


SPEC = PlatformSpec(
    name="acme",
    load="m:P",
    probe="m:p",
    tier=5,
    options=(
        Option(name="power", type="int", default=5, doc="Watts.", variable="INFERPLANE_ACME_POWER"),
        Option(name="ratio", type="float", doc="A share."),
        Option(name="turbo", type="bool", default=False, doc="Faster."),
        Option(name="path", doc="A file."),
    ),
)


def test_options() -> None:
    assert platform_options(SPEC, {}, {}) == {"power": 5, "turbo": False}
    given = {"power": "9", "ratio": "0.5", "turbo": "ON", "path": "/x"}
    assert platform_options(SPEC, given, {}) == {"power": 9, "ratio": 0.5, "turbo": True, "path": "/x"}
    environ = {"INFERPLANE_ACME_POWER": "7"}
    assert platform_options(SPEC, {}, environ)["power"] == 7
    assert platform_options(SPEC, {"power": "8"}, environ)["power"] == 8


def test_option_types_are_kept() -> None:
    values = platform_options(SPEC, {"power": "9", "ratio": "1", "turbo": "1", "path": "1"}, {})
    assert {name: type(value) for name, value in values.items()} == {
        "power": int,
        "ratio": float,
        "turbo": bool,
        "path": str,
    }


@pytest.mark.parametrize(
    ("given", "environ", "texts"),
    [
        ({"powr": "1"}, {}, ["powr=1", "'acme' has no such option", "did you mean 'power'?"]),
        ({"zzz": "1"}, {}, ["zzz=1", "power, ratio, turbo, path"]),
        ({"power": "much"}, {}, ["power=much", "not of type int", "Watts."]),
        ({"turbo": "maybe"}, {}, ["turbo=maybe", "not of type bool"]),
        ({}, {"INFERPLANE_ACME_POWER": "much"}, ["INFERPLANE_ACME_POWER='much'", "not of type int"]),
    ],
)
def test_wrong_options(given: dict[str, str], environ: dict[str, str], texts: list[str]) -> None:
    with pytest.raises(InvalidValue) as caught:
        platform_options(SPEC, given, environ)
    assert all(text in str(caught.value) for text in texts)


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    options = (Option(name="pin", type="int", doc="A number.", variable="INFERPLANE_ACME_SECRET"),)
    spec = PlatformSpec(name="acme", load="m:P", probe="m:p", tier=5, options=options)
    for given, environ in (({"pin": "s3same"}, {}), ({}, {"INFERPLANE_ACME_SECRET": "s3same"})):
        with pytest.raises(InvalidValue) as caught:
            platform_options(spec, given, environ)
        assert "s3same" not in f"{caught.value} {caught.value.__cause__}"
