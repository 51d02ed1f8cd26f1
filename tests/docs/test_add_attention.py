"""The example of docs/add-attention.md, as a wheel: against the dense oracle, through the kit, and in a model."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from inferplane import LLM
from inferplane.cli.main import main
from inferplane_api.attention import AttentionContext
from inferplane_api.batch import AttentionBatch
from inferplane_api.kv import KVGroupSpec, KVView
from inferplane_api.reference.attention import dense_attention
from inferplane_api.sampling import SamplingParams

DISTRIBUTION, BACKEND = "blockwise-attention", "blockwise.paged"
PAGE, HEADS, KV_HEADS, HEAD_SIZE = 16, 4, 2, 8
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(
    repository: Path, install_wheel: Callable[[Path, Path], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Where the wheel is unpacked."""
    site = tmp_path_factory.mktemp("site")
    install_wheel(repository / "docs" / "examples" / "blockwise", site)
    return site


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The wheel, on the import path of this process."""
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.startswith("blockwise_attention")]:
        del sys.modules[name]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("window", [None, 5, 40])
def test_against_the_dense_oracle(window: int | None) -> None:
    backend = importlib.import_module("blockwise_attention.attention").BlockwiseAttention
    group = KVGroupSpec(
        index=0,
        kind="full" if window is None else "sliding",
        layers=(0,),
        tokens_per_page=PAGE,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        dtype="float32",
        window=window,
    )
    attention = backend(AttentionContext(group, HEADS, 0.25, torch.float32, CPU, 256, 8, 8))
    generator = torch.Generator().manual_seed(5)
    lengths, queries = [1, 50, 33, 64], [1, 1, 33, 20]
    tables = torch.tensor([[7, 0, 0, 0], [3, 9, 1, 12], [2, 5, 11, 0], [4, 10, 6, 8]], dtype=torch.int32)
    keys, values = (
        [torch.randn((length, KV_HEADS, HEAD_SIZE), generator=generator) for length in lengths] for _ in range(2)
    )
    k_cache, v_cache = (torch.full((13, PAGE, KV_HEADS, HEAD_SIZE), torch.nan) for _ in range(2))
    slots = []
    for row, (length, query) in enumerate(zip(lengths, queries, strict=True)):
        where = [int(tables[row, t // PAGE]) * PAGE + t % PAGE for t in range(length)]
        old = torch.tensor(where[: length - query], dtype=torch.int64)
        k_cache.flatten(0, 1)[old] = keys[row][: length - query]
        v_cache.flatten(0, 1)[old] = values[row][: length - query]
        slots += where[length - query :]
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    batch = AttentionBatch(
        query_start=torch.from_numpy(starts),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        page_table=tables,
        slot_mapping=torch.tensor([*slots, -1]),
        query_start_host=starts,
        seq_lens_host=np.array(lengths, dtype=np.int32),
        num_decode_rows=2,
        max_query_len=33,
        max_seq_len=64,
    )
    q = torch.randn((len(slots) + 1, HEADS, HEAD_SIZE), generator=generator)
    new_k, new_v = (
        torch.cat(
            [*(of[row][len(of[row]) - queries[row] :] for row in range(4)), torch.full((1, KV_HEADS, HEAD_SIZE), 9.0)]
        )
        for of in (keys, values)
    )
    out, lse = torch.empty_like(q), torch.empty((len(q), HEADS))
    attention.plan(batch)
    attention.run(q, new_k, new_v, KVView(k_cache, v_cache, group.layout, PAGE), out, lse=lse)
    want, want_lse = dense_attention(
        q, keys, values, query_start=starts.tolist(), seq_lens=lengths, scale=0.25, window=window
    )
    assert torch.allclose(out[:-1].double(), want[:-1], rtol=1e-5, atol=1e-6)
    assert torch.allclose(lse[:-1].double(), want_lse[:-1], rtol=1e-5, atol=1e-6)
    assert torch.isnan(k_cache[0]).all(), "the padded token was written"


def test_the_kit_is_green(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    flags = ["--inferplane-platform", "cpu", "--inferplane-distribution", DISTRIBUTION, "--inferplane-level", "core"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "inferplane_api.testing"]
    done = subprocess.run(
        [*command, *flags, "--inferplane-report", str(report)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    result = json.loads(report.read_text())
    assert (result["distribution"], result["level_reached"], result["failed"]) == (DISTRIBUTION, "core", 0)
    assert any(case["area"] == "attention" and case["outcome"] == "passed" for case in result["cases"])


def generate(path: Path, backend: str | None) -> tuple[list[int], LLM]:
    with LLM(
        str(path),
        platform="cpu",
        attention_backend=backend,
        plugins=("inferplane-cpu", DISTRIBUTION),
        dtype="float32",
        max_model_len=128,
        max_num_seqs=2,
    ) as model:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        (output,) = model.generate([{"prompt_token_ids": list(range(20, 60))}], params, use_tqdm=False)
        return list(output.outputs[0].token_ids), model


@pytest.mark.usefixtures("site")
def test_it_is_taken_when_asked_for_and_gives_the_same_tokens(tiny_llama_dir: Path) -> None:
    want, ordinary = generate(tiny_llama_dir, None)
    got, model = generate(tiny_llama_dir, BACKEND)
    assert [component.id for component in ordinary.plan.attention] == ["cpu.native"]
    assert [component.id for component in model.plan.attention] == [BACKEND]
    assert got == want


@pytest.mark.usefixtures("site")
def test_explain_says_why_it_is_not_the_automatic_choice(
    tiny_llama_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--platform", "cpu", "--plugins", "inferplane-cpu", DISTRIBUTION]
    assert main(["explain", "--json", "--model", str(tiny_llama_dir), *flags]) == 0
    record = json.loads(capsys.readouterr().out)
    decision = next(each for each in record["decisions"] if each["chosen"] == "cpu.native")
    loser = next(each for each in decision["losers"] if each["id"] == BACKEND)
    assert loser["reasons"][0]["code"] == "selection.score"


@pytest.mark.usefixtures("site")
def test_it_is_refused_where_it_cannot_run(tiny_llama_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--platform", "reference", "--plugins", DISTRIBUTION, "--attention-backend", BACKEND]
    assert main(["explain", "--model", str(tiny_llama_dir), *flags]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "attention.platform" in error
    assert "reference.paged" in error
