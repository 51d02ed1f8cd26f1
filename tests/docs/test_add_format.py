"""Two strangers' wheels, a checkpoint format and a linear kernel, meet in a scheme that neither has heard of otherwise.

The truth is the same model with the dequantized weights in plain safetensors.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from inferplane import LLM
from inferplane.cli.main import main
from inferplane_api.sampling import SamplingParams

FORMAT, KERNEL = "acme4-checkpoints", "int4-cpu-kernels"
SCHEME = "int4.g32.sym"
OFFICIAL = ("inferplane-cpu", "inferplane-quantization")
PROMPTS = [[5, 6, 7], list(range(40, 75)), [300]]
ANNOUNCEMENT = f"no kernel for {SCHEME} weights"


class Pair(NamedTuple):
    """A model twice."""

    packed: Path
    dense: Path


@pytest.fixture
def site(
    repository: Path,
    install_wheel: Callable[[Path, Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """A folder on the import path with both wheels."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("INFERPLANE_CACHE", str(tmp_path / "cache"))
    for name in ("acme4", "int4_cpu"):
        install_wheel(repository / "docs" / "examples" / name, folder)
    yield folder
    for name in [name for name in sys.modules if name.startswith(("acme4_checkpoints", "int4_cpu_kernels"))]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def models(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A tiny Llama with 4-bit matrices, once as acme4 stores them and once as plain numbers."""
    pair = Pair(*(tmp_path_factory.mktemp(name) / "model" for name in Pair._fields))
    random = np.random.default_rng(3)
    tensors = load_file(tiny_llama_dir / "model.safetensors")
    stored, plain = {}, {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and ".layers." in name:
            codes = random.integers(-8, 8, tensor.shape)
            scales = random.uniform(0.02, 0.08, (tensor.shape[0], tensor.shape[1] // 32)).astype(np.float16)
            plain[name] = (codes * np.repeat(scales.astype(np.float64), 32, axis=1)).astype(np.float32)
            shifts = np.arange(0, 32, 4, dtype=np.uint64)
            nibbles = (codes + 8).astype(np.uint64).reshape(tensor.shape[0], -1, 8)
            words = np.bitwise_or.reduce(nibbles << shifts, axis=2).astype(np.uint32).view(np.int32)
            stem = name.removesuffix(".weight")
            stored[f"{stem}.qweight"] = np.ascontiguousarray(words.T)
            stored[f"{stem}.scales"] = np.ascontiguousarray(scales.T)
        else:
            stored[name] = plain[name] = tensor
    for folder, content in ((pair.packed, stored), (pair.dense, plain)):
        shutil.copytree(tiny_llama_dir, folder)
        save_file(content, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((pair.packed / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "acme4", "bits": 4, "group_size": 32}
    (pair.packed / "config.json").write_text(json.dumps(config))
    return pair


@pytest.fixture
def announced() -> Iterator[list[str]]:
    """What the linear layers log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("inferplane.layers.linear")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def settings(*plugins: str) -> dict:
    return {
        "platform": "cpu",
        "plugins": (*OFFICIAL, *plugins),
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 4,
    }


def tokens(model: LLM) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    outputs = model.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def generate(path: Path, *plugins: str) -> tuple[list[list[int]], LLM]:
    with LLM(str(path), **settings(*plugins)) as model:
        return tokens(model), model


@pytest.fixture(scope="module")
def truth(models: Pair) -> list[list[int]]:
    """The tokens of the plain model."""
    return generate(models.dense)[0]


@pytest.mark.usefixtures("site")
def test_they_meet_in_the_scheme(models: Pair, truth: list[list[int]], announced: list[str]) -> None:
    got, model = generate(models.packed, FORMAT, KERNEL)
    assert got == truth
    assert model.plan.checkpoint_format.distribution == FORMAT
    assert dict(model.plan.linear)[SCHEME].distribution == KERNEL
    assert "int4_cpu_kernels.linear" in sys.modules
    assert announced == []


@pytest.mark.usefixtures("site")
def test_without_the_kernel_it_runs_dequantized_and_says_so_once(
    models: Pair, truth: list[list[int]], announced: list[str]
) -> None:
    got, _ = generate(models.packed, FORMAT)
    assert got == truth
    assert "int4_cpu_kernels.linear" not in sys.modules
    assert len(announced) == 1
    assert ANNOUNCEMENT in announced[0]


@pytest.mark.usefixtures("site")
def test_explain_shows_the_kernel_and_what_it_beat(models: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--platform", "cpu", "--plugins", *OFFICIAL, FORMAT, KERNEL]
    assert main(["explain", "--json", "--model", str(models.packed), *flags]) == 0
    record = json.loads(capsys.readouterr().out)
    decision = next(each for each in record["decisions"] if each["subject"] == f"linear {SCHEME}")
    assert (decision["chosen"], decision["score"]) == ("int4cpu.linear", 50)
    assert {loser["id"]: loser["reasons"][0]["code"] for loser in decision["losers"]} == {
        "reference.linear": "selection.score"
    }


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("model", "flags", "words"),
    [
        ("packed", ["--quantization", "acme5"], ["did you mean 'acme4'?", "installed are: acme4, gguf, safetensors"]),
        ("packed", ["--quantization", "dummy"], ["no such format is installed"]),
        ("packed", ["--load-format", "dumy"], ["did you mean 'dummy'?", "also auto, dummy"]),
        ("packed", ["--quantization", "gguf"], ["quantization='gguf'", "is a folder", ".gguf"]),
        ("packed", ["--load-format", "safetensors"], ["is quantized with acme4, which this format does not read"]),
        ("dense", ["--quantization", "acme4"], ["quantization='acme4'", "the checkpoint is not quantized"]),
    ],
)
def test_a_format_that_does_not_fit_is_an_error(
    model: str, flags: list[str], words: list[str], models: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(getattr(models, model))
    assert main(["explain", "--model", path, "--platform", "cpu", "--plugins", *OFFICIAL, FORMAT, *flags]) == 1
    error = " ".join(capsys.readouterr().err.split())
    for word in words:
        assert word in error


@pytest.mark.usefixtures("site")
def test_an_explicit_format_that_fits_is_taken(models: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--platform", "cpu", "--plugins", *OFFICIAL, FORMAT, "--quantization", "acme4"]
    assert main(["explain", "--model", str(models.packed), *flags]) == 0
    assert "acme4.folder" in capsys.readouterr().out


def test_without_the_format_the_method_is_named(models: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--platform", "cpu", "--plugins", *OFFICIAL]
    assert main(["explain", "--model", str(models.packed), *flags]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "is quantized with 'acme4', which no installed format reads" in error
    assert "installed are: gguf, safetensors" in error


@pytest.mark.usefixtures("site")
def test_what_the_format_says_against_a_checkpoint_is_the_error(
    models: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(models.packed, other)
    config = json.loads((other / "config.json").read_text())
    config["quantization_config"]["group_size"] = 64
    (other / "config.json").write_text(json.dumps(config))
    assert main(["explain", "--model", str(other), "--platform", "cpu", "--plugins", *OFFICIAL, FORMAT]) == 1
    assert "groups of 32 weights, this one says 64" in capsys.readouterr().err


def test_the_kit_proves_the_kernel(site: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    flags = ["--inferplane-platform", "cpu", "--inferplane-distribution", KERNEL, "--inferplane-report", str(report)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "inferplane_api.testing"]
    done = subprocess.run(
        [*command, *flags, "-k", "linear"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    cases = [case for case in json.loads(report.read_text())["cases"] if case["area"] == "linear"]
    assert cases
    assert {case["outcome"] for case in cases} == {"passed"}
    assert all(SCHEME in case["id"] for case in cases)
