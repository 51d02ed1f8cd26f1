"""Patches against what the user said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inferplane.config import Config
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.settings import Settings, SourcedPatch
from inferplane_api.spec import PATCHABLE, ConfigPatch

BLOCK, CACHING = "cache.block_size", "cache.enable_prefix_caching"


def patch(path: str, value: Any, strength: Any = "default", owner: str = "acme-npu 1.2") -> SourcedPatch:
    return SourcedPatch(ConfigPatch(path=path, value=value, strength=strength, reason="the device wants it"), owner)


def settings(values: dict[str, Any], *patches: SourcedPatch) -> Settings:
    return Settings(Config.from_flat(values), patches)


def test_without_patches_the_configuration_holds() -> None:
    held = settings({"block_size": 32})
    assert (held.value(BLOCK), held.source(BLOCK)) == (32, "user")
    assert (held.value(CACHING), held.source(CACHING)) == (True, "automatic")
    assert held.decisions() == []


@pytest.mark.parametrize("strength", ["default", "require"])
def test_a_patch_holds_where_the_user_is_silent(strength: str) -> None:
    held = settings({}, patch(BLOCK, 64, strength))
    assert (held.value(BLOCK), held.source(BLOCK)) == (64, "plugin acme-npu 1.2")
    (decision,) = held.decisions()
    assert (decision.subject, decision.chosen, decision.source) == (f"config {BLOCK}", "64", "plugin acme-npu 1.2")
    assert decision.reason == f"{strength}: the device wants it"


def test_the_configuration_is_not_edited() -> None:
    config = Config.from_flat({})
    Settings(config, [patch(BLOCK, 64, "require")])
    assert config == Config.from_flat({})


def test_a_default_gives_way_to_the_user() -> None:
    held = settings({"block_size": 32}, patch(BLOCK, 64))
    assert (held.value(BLOCK), held.decisions()) == (32, [])


def test_a_requirement_contradicts_the_user_with_an_error_naming_both() -> None:
    with pytest.raises(InvalidValue) as caught:
        settings({"block_size": 32}, patch(BLOCK, 64, "require"))
    assert (caught.value.field, caught.value.value) == (BLOCK, 32)
    assert "acme-npu 1.2 requires 64: the device wants it" in caught.value.problem
    assert caught.value.remedy


def test_saying_the_default_is_saying() -> None:
    """The default value, given explicitly, is the user's word."""
    with pytest.raises(InvalidValue, match="requires False"):
        settings({"enable_prefix_caching": True}, patch(CACHING, False, "require"))


def test_agreeing_is_no_contradiction() -> None:
    assert settings({"block_size": 64}, patch(BLOCK, 64, "require")).value(BLOCK) == 64


def test_two_requirements_on_one_path_are_an_error_naming_both() -> None:
    with pytest.raises(InferplaneError) as caught:
        settings({}, patch(BLOCK, 64, "require"), patch(BLOCK, 32, "require", "beta-npu 7"))
    assert "acme-npu 1.2 requires cache.block_size=64" in caught.value.message
    assert "beta-npu 7 requires cache.block_size=32" in caught.value.message
    assert (caught.value.code, bool(caught.value.remedy)) == ("config.conflict", True)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_requirement_beats_a_default_in_any_order(order: tuple[int, int]) -> None:
    patches = [patch(BLOCK, 64, "require"), patch(BLOCK, 32, "default", "beta-npu 7")]
    assert settings({}, *(patches[index] for index in order)).value(BLOCK) == 64


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("cache.blok_size", 1, "'cache.blok_size', which no plugin may"),
        ("nothing", 1, "'nothing', which no plugin may"),
        ("model_fields.x", 1, "which no plugin may"),
        ("server.port", 80, "which no plugin may"),
        ("server.api_key", ("k",), "which no plugin may"),
        ("model.load_format", "dummy", "which no plugin may"),
        ("platform.platform", "acme", "which no plugin may"),
        ("platform.plugins_mode", "auto", "which no plugin may"),
        (BLOCK, "large", "integer"),
        (BLOCK, 0, "greater than or equal to 1"),
    ],
)
def test_a_senseless_patch_names_its_owner(path: str, value: Any, text: str) -> None:
    with pytest.raises(InferplaneError, match=r"acme-npu 1\.2 patches") as caught:
        settings({}, patch(path, value))
    assert text in caught.value.message
    assert (caught.value.code, bool(caught.value.remedy)) == ("config.patch", True)


def test_a_refused_path_comes_with_those_that_can_be_patched() -> None:
    with pytest.raises(InferplaneError) as caught:
        settings({}, patch("cache.blok_size", 16))
    assert all(path in caught.value.message for path in PATCHABLE)
    assert "did its author mean 'cache.block_size'?" in caught.value.remedy


def test_every_patchable_path_is_a_setting() -> None:
    held = settings({})
    assert len(set(PATCHABLE)) == len(PATCHABLE)
    for path in PATCHABLE:
        held.value(path)


@pytest.mark.parametrize(("strength", "own"), [("default", True), ("require", False)])
def test_a_value_that_turns_out_wrong_is_the_plugins_and_not_the_users(strength: str, own: bool) -> None:
    held = settings({}, patch("scheduler.max_num_seqs", 99, strength))
    with pytest.raises(InferplaneError) as caught, held.attributed():
        raise InvalidValue("max_num_seqs", 99, "the device takes at most 8")
    assert caught.value.code == "config.patch"
    assert "acme-npu 1.2 patches scheduler.max_num_seqs with 99" in caught.value.message
    assert "the device takes at most 8" in caught.value.message
    assert ("--max-num-seqs" in caught.value.remedy) is own
    with pytest.raises(InvalidValue, match="dtype"), held.attributed():
        raise InvalidValue("dtype", "x", "said by the user")


def test_the_contract_page_lists_the_patchable_settings() -> None:
    page = (Path(__file__).parents[3] / "docs" / "contract.md").read_text()
    section = page.partition("### `PATCHABLE`")[2].partition("###")[0]
    listed = {
        f"{name}.{field.strip()}"
        for name, fields in re.findall(r"of `(\w+)` ([\w,\s]+)", section, re.IGNORECASE)
        for field in fields.split(",")
        if field.strip()
    }
    assert listed == set(PATCHABLE)
