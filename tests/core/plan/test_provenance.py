"""Where the value of each setting comes from, against what was said where."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferplane.builtin.descriptor import REFERENCE_ATTENTION, REFERENCE_LINEAR, REFERENCE_OPS, SAFETENSORS
from inferplane.config import Config
from inferplane.config.flags import add_config_flags, collect_config
from inferplane.config.parser import Parser
from inferplane.plan.provenance import SECTIONS, public_config
from inferplane.plan.record import selection_record
from inferplane.plan.resolve import resolve
from inferplane.plugins.discovery import Discovery
from inferplane.plugins.records import Found
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.model import LayerSpec
from inferplane_api.spec import ConfigPatch, Option

Make = Callable[..., Any]
LAYER = LayerSpec(num_heads=4, num_kv_heads=2, head_size=64)


@pytest.fixture
def sources(make_host: Make, make_platform: Make, make_model: Make) -> Callable[[Config], dict[str, tuple[str, str]]]:
    """sources(config) is path to (value, source), on a platform that asks for a block size of 32."""
    patch = ConfigPatch(path="cache.block_size", value=32, reason="its pages")

    def run(config: Config) -> dict[str, tuple[str, str]]:
        discovery = Discovery(make_host())
        discovery.platforms.append(make_platform("acme", config_patches=(patch,)))
        for spec, found in (
            (REFERENCE_ATTENTION, discovery.attention),
            (REFERENCE_OPS, discovery.kernels),
            (REFERENCE_LINEAR, discovery.kernels),
            (SAFETENSORS, discovery.formats),
        ):
            found.append(Found(spec=spec, distribution="inferplane", version="0.1.0"))
        plan = resolve(
            config, make_model((LAYER,) * 2), CheckpointCard(config={}), "/x", SAFETENSORS.id, discovery, environ={}
        )
        return {setting.path: (setting.value, setting.source) for setting in plan.settings}

    return run


def parse(*flags: str) -> Config:
    parser = Parser()
    add_config_flags(parser)
    return collect_config(parser.parse_args(flags))


def test_every_setting_of_an_engine_is_there(sources: Callable[[Config], Any]) -> None:
    found = sources(Config())
    expected = {
        f"{section}.{name}"
        for section in SECTIONS
        for name in Config.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
    }
    assert found.keys() == expected
    assert found["model.revision"] == ("none", "default")
    assert found["model.dtype"] == ("bfloat16", "checkpoint")
    assert found["cache.block_size"] == ("32", "plugin acme-dist 1.2")
    assert found["platform.platform"] == ("acme", "automatic")
    assert found["model.max_model_len"] == ("4096", "automatic")
    assert found["cache.enable_prefix_caching"] == ("True", "default")


def test_flags_win_over_the_file_and_say_so(sources: Callable[[Config], Any], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("seed: 3\nblock-size: 64\nmax-model-len: 1k\n")
    found = sources(parse("--config", str(file), "--max-model-len", "2k", "--dtype", "float32"))
    assert found["model.seed"] == ("3", f"file {file}")
    assert found["cache.block_size"] == ("64", f"file {file}"), "the user wins over a plugin's default"
    assert found["model.max_model_len"] == ("2000", "flag --max-model-len")
    assert found["model.dtype"] == ("float32", "flag --dtype")


def test_keywords(sources: Callable[[Config], Any]) -> None:
    found = sources(Config.from_flat({"plugins": ("acme", "beta"), "override_generation_config": {"top_k": 9}}))
    assert found["platform.plugins"] == ("acme, beta", "keyword plugins")
    assert found["model.override_generation_config"] == ('{"top_k": 9}', "keyword override_generation_config")


def test_where_a_value_was_said_is_no_part_of_it() -> None:
    assert parse("--seed", "3") == Config.from_flat({"seed": 3})
    assert parse("--seed", "3") != Config.from_flat({"seed": 4})
    assert parse("--seed", "3").origin("seed") == "flag --seed"
    assert "origins" not in parse("--seed", "3").model_dump()


def test_each_option_of_a_platform_is_a_setting_and_a_secret_is_not_shown(
    make_host: Callable[..., Any], make_platform: Callable[..., Any], make_model: Callable[..., Any]
) -> None:
    options = (
        Option(name="power", type="int", default=5, doc="Watts.", variable="INFERPLANE_ACME_POWER"),
        Option(name="clock", type="float", default=1.5, doc="GHz."),
        Option(name="turbo", type="bool", doc="Faster."),
        Option(name="license", doc="Opens it.", variable="INFERPLANE_ACME_API_KEY"),
        Option(name="access_token", doc="Opens it."),
    )
    discovery = Discovery(make_host())
    discovery.platforms.append(make_platform("acme", options=options, runner_seam=True))
    discovery.formats.append(Found(spec=SAFETENSORS, distribution="inferplane", version="0.1.0"))
    given = ["--platform-option", "access_token=s3same", "--platform-option", "turbo=yes"]
    plan = resolve(
        parse(*given),
        make_model((LAYER,)),
        CheckpointCard(config={}),
        "/x",
        SAFETENSORS.id,
        discovery,
        environ={"INFERPLANE_ACME_POWER": "7", "INFERPLANE_ACME_API_KEY": "s3same"},
    )
    path = "platform.platform_option"
    found = {setting.path: (setting.value, setting.source) for setting in plan.settings}
    assert found[f"{path}.power"] == ("7", "variable INFERPLANE_ACME_POWER")
    assert found[f"{path}.clock"] == ("1.5", "default")
    assert found[f"{path}.turbo"] == ("True", "flag --platform-option")
    assert found[f"{path}.license"] == ("(set, not shown)", "variable INFERPLANE_ACME_API_KEY")
    assert found[f"{path}.access_token"] == ("(set, not shown)", "flag --platform-option")
    assert found[path] == ("access_token, turbo", "flag --platform-option")
    assert "s3same" not in str(selection_record(plan))
    device = msgspec.structs.replace(plan.device, features=frozenset(map(str, range(10, 40))))
    features = selection_record(msgspec.structs.replace(plan, device=device))["device"]["features"]
    assert features == [str(number) for number in range(10, 40)], "in one order, whatever a set's is"
    assert plan.platform_options["license"] == "s3same", "the platform itself gets it"


def test_the_configuration_for_others_has_no_secret() -> None:
    config = Config.from_flat(
        {"api_key": ("s3same",), "platform_option": {"access_token": "s3same", "license": "s3same", "power": "7"}}
    )
    shown = public_config(config, ["license"])
    assert "s3same" not in str(shown)
    assert shown["platform"]["platform_option"] == {
        "access_token": "(set, not shown)",
        "license": "(set, not shown)",
        "power": "7",
    }
    assert shown["model"] == config.model_dump(mode="json")["model"]
    assert config.platform.platform_option["license"] == "s3same", "the configuration itself is not touched"


@pytest.mark.parametrize("as_json", [True, False])
def test_explain_shows_no_secret_of_the_environment(tiny_llama_dir: Path, as_json: bool) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INFERPLANE_")}
    secrets = dict.fromkeys(("INFERPLANE_API_KEY", "HF_TOKEN", "MODELSCOPE_API_TOKEN"), "s3same")
    arguments = ["explain", "--model", str(tiny_llama_dir), "--platform", "reference", *(["--json"] if as_json else [])]
    done = subprocess.run(
        [sys.executable, "-m", "inferplane", *arguments], env={**kept, **secrets}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "reference" in done.stdout
    assert "s3same" not in done.stdout + done.stderr
