"""Plugins written for earlier versions of the contract, against the contract and core of today."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferplane import LLM
from inferplane.cli.main import main
from inferplane.config import PlatformConfig
from inferplane.host.facts import collect_host
from inferplane.plugins.discovery import discover
from inferplane_api import API_VERSION
from inferplane_api.sampling import SamplingParams
from inferplane_api.spec import ProbeState

FOLDER = Path(__file__).parent
VERSIONS = sorted(path.name for path in FOLDER.glob("v*") if path.is_dir())
PROMPTS = [[5, 6, 7], list(range(40, 90)), [300]]


@pytest.fixture(params=VERSIONS)
def plugin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a frozen platform and package; its distribution is on the path."""
    monkeypatch.syspath_prepend(str(FOLDER / request.param))
    name = f"frozen_{request.param}"
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def distribution(plugin: str) -> str:
    return plugin.replace("_", "-")


def load_digest() -> object:
    spec = importlib.util.spec_from_file_location("frozen_digest", FOLDER / "digest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generate(path: Path, platform: str, plugin: str) -> tuple[list[list[int]], LLM]:
    with LLM(
        str(path),
        platform=platform,
        plugins=(distribution(plugin),),
        dtype="float32",
        max_model_len=128,
        max_num_seqs=4,
    ) as model:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        outputs = model.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs], model


def test_none_was_edited() -> None:
    known = json.loads((FOLDER / "digests.json").read_text())
    module = load_digest()
    assert {name: module.digest(FOLDER / name) for name in VERSIONS} == known, "see README.md: never edit one"


def test_this_minor_version_is_frozen() -> None:
    major, minor, _ = API_VERSION.split(".")
    assert f"v{major}_{minor}" in VERSIONS, "add a plugin for the new minor version, see README.md"


def test_it_is_discovered(plugin: str) -> None:
    config = PlatformConfig(plugins=(distribution(plugin),))
    with discover(collect_host(), config, environ={}) as discovery:
        (platform,) = [found for found in discovery.platforms if found.name == plugin]
        assert platform.state is ProbeState.PRESENT, platform.result.reasons
        owners = [discovery.attention, discovery.kernels, discovery.formats]
        mine = [found.spec.id for kind in owners for found in kind if found.distribution == distribution(plugin)]
        assert sorted(mine) == [f"{plugin}.{part}" for part in ("linear", "loop", "ops", "raw")]
        assert discovery.problems == []


def test_its_parts_are_explained(plugin: str, tiny_llama_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(tiny_llama_dir), "--platform", plugin, "--plugins", distribution(plugin)]
    assert main(["explain", "--json", *flags]) == 0
    record = json.loads(capsys.readouterr().out)
    chosen = {decision["subject"]: decision["chosen"] for decision in record["decisions"]}
    assert chosen["platform"] == plugin
    assert chosen["op rms_norm@1"] == f"{plugin}.ops"
    assert chosen["linear dense"] == chosen[f"linear {plugin}.raw"] == f"{plugin}.linear"
    assert f"{plugin}.loop" in chosen.values()


def test_it_gives_the_tokens_of_the_reference(plugin: str, tiny_llama_dir: Path) -> None:
    want, _ = generate(tiny_llama_dir, "reference", plugin)
    got, model = generate(tiny_llama_dir, plugin, plugin)
    assert got == want
    assert [component.id for component in model.plan.attention] == [f"{plugin}.loop"]
    assert dict(model.plan.linear)["dense"].id == f"{plugin}.linear"
    assert not [warning for warning in model.plan.warnings if distribution(plugin) in warning], "a hook failed"
    assert f"{plugin}.ops" in {binding.provider.id for binding in model.plan.ops}


def test_its_checkpoints_are_read(plugin: str, tiny_llama_dir: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    want, _ = generate(tiny_llama_dir, "reference", plugin)
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama_dir, folder)
    tensors = load_file(folder / "model.safetensors")
    doubled = {name: t * 2 if t.ndim == 2 and ".layers." in name else t for name, t in tensors.items()}
    save_file(doubled, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": plugin}
    (folder / "config.json").write_text(json.dumps(config))
    got, model = generate(folder, plugin, plugin)
    assert got == want
    assert model.plan.checkpoint_format.id == f"{plugin}.raw"


def test_its_check_still_refuses(plugin: str) -> None:
    from inferplane_api.spec import AttentionRequest

    config = PlatformConfig(plugins=(distribution(plugin),))
    with discover(collect_host(), config, environ={}) as discovery:
        (platform,) = [found for found in discovery.platforms if found.name == plugin]
        request = AttentionRequest(
            platform=plugin,
            device=platform.result.devices[0],
            kind="full",
            num_heads=16,
            num_kv_heads=1,
            head_size=16,
            dtype="float32",
            kv_dtype="float32",
        )
        verdict = discovery.check(f"{plugin}.loop", request)
    assert [reason.code for reason in verdict.reasons] == [f"{plugin}.sharing"]


def test_its_hooks_are_called(plugin: str, tiny_llama_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--plugins", distribution(plugin)])
    assert "still here on" in " ".join(capsys.readouterr().out.split())
