"""The example plugin as a user has it: its wheel beside core's, chosen over the CPU, with the reference's tokens."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHIP = {"INFERPLANE_EXAMPLECHIP_DEVICES": "1"}

GENERATE = """\
import json, sys
from inferplane import LLM, SamplingParams

job = json.load(sys.stdin)
prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
params = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True, logprobs=0, prompt_logprobs=0)
plain = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
results = []
for settings in job["runs"]:
    with LLM(**job["settings"], **settings) as llm:
        rounds = [llm.generate(prompts, plain, use_tqdm=False) for _ in range(2)] + [
            llm.generate(prompts[:3], params, use_tqdm=False)
        ]
        stats = llm.stats()
        results.append({
            "platform": llm.plan.platform_name,
            "attention": [component.id for component in llm.plan.attention],
            "tokens": [[output.outputs[0].token_ids for output in outputs] for outputs in rounds],
            "logprobs": [
                [entry[token].logprob for token, entry in zip(output.outputs[0].token_ids, output.outputs[0].logprobs)]
                + [entry[token].logprob for token, entry in zip(ids, output.prompt_logprobs) if entry]
                for ids, output in zip(job["prompts"], rounds[2])
            ],
            "preemptions": stats.num_preemptions,
            "hits": stats.prefix_cache_hits,
        })
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def plugins(installed: Callable[[str], Path]) -> tuple[Path, ...]:
    return installed("backends_cpu"), installed("plugins/examplechip")


def prompts() -> list[list[int]]:
    """Four that fill their first page soon, three with a page in common, and short ones."""
    dice = random.Random(7)
    stem = [dice.randrange(3, 300) for _ in range(140)]
    lengths = (112, 118, 123, 126, 1, 9, 33)
    own = [[dice.randrange(3, 300) for _ in range(length)] for length in lengths]
    return [*own, *([*stem, 5 + i] for i in range(3))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("model", "few_pages"), [("tiny_llama_dir", 6), ("tiny_gemma3_dir", 10)])
def test_tokens_are_the_references(
    model: str, few_pages: int, thin: Any, plugins: tuple[Path, ...], request: pytest.FixtureRequest
) -> None:
    """Alone and batched, in chunks, preempted, from the prefix cache; and log-probabilities of prompts and outputs."""
    job = {
        "prompts": prompts(),
        "max_tokens": 20,
        "settings": {"model": str(request.getfixturevalue(model)), "dtype": "float32", "max_model_len": 256},
        "runs": [
            {"platform": "reference"},
            {},
            {"max_num_batched_tokens": 40, "max_num_seqs": 3},
            {"num_pages_override": few_pages, "async_scheduling": False},
        ],
    }
    done = subprocess.run(
        [str(thin.binaries / "python"), "-c", GENERATE],
        input=json.dumps(job),
        cwd=thin.root,
        env=thin.variables(plugins, **CHIP),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reference, *runs = json.loads(done.stdout)
    assert reference["platform"] == "reference"
    assert reference["tokens"][0] == reference["tokens"][1]
    for run in runs:
        assert run["platform"] == "examplechip"
        assert set(run["attention"]) == {"examplechip.paged"}
        assert run["tokens"] == reference["tokens"]
        for have, want in zip(run["logprobs"], reference["logprobs"], strict=True):
            assert have == pytest.approx(want, abs=1e-4)
        assert run["hits"] > 0
    assert runs[2]["preemptions"] > 0


def test_explain_and_doctor_say_that_it_is_chosen(
    thin: Any, plugins: tuple[Path, ...], record: Callable, tiny_llama_dir: Path
) -> None:
    arguments = ("explain", "--model", str(tiny_llama_dir), "--json")
    plan = record(thin.run(*arguments, plugins=plugins, environment=CHIP))
    assert plan["platform"]["id"] == "examplechip"
    assert plan["platform"]["distribution"] == "inferplane-examplechip"
    assert plan["warnings"] == []
    decisions = {decision["subject"]: decision for decision in plan["decisions"]}
    assert decisions["platform"]["losers"][0]["id"] in ("cpu", "reference")
    attention = next(decision for subject, decision in decisions.items() if subject.startswith("attention"))
    assert attention["chosen"] == "examplechip.paged"
    refused = {loser["id"]: loser["reasons"] for loser in attention["losers"]}
    assert [reason["code"] for reason in refused["reference.paged"]] == ["attention.device_feature"]
    assert refused["reference.paged"][0]["want"] == "in_place_kv_write"
    assert "attention.device_feature" in [reason["code"] for reason in refused["cpu.sdpa"]]
    assert decisions["op rms_norm@1"]["chosen"] == "examplechip.ops"
    assert decisions["op rope@1"]["chosen"] == "reference.ops"
    assert decisions["op kv_write@1"]["chosen"] == "none"
    assert [group["tokens_per_page"] for group in plan["geometry"]["groups"]] == [128]
    assert plan["limits"]["max_num_batched_tokens"] == 512
    assert plan["limits"]["max_num_seqs"] == 16

    doctor = thin.run("doctor", plugins=plugins, environment=CHIP)
    assert doctor.returncode == 0, doctor.stdout
    assert "platform 'examplechip' would be used: Example Chip 0 (simulated)" in " ".join(doctor.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--attention-backend", "reference.paged"), "in_place_kv_write"),
        (("--attention-backend", "cpu.sdpa"), "in_place_kv_write"),
        (("--dtype", "bfloat16"), "float16, float32"),
        (("--block-size", "16"), "page_size wants 16, has 128"),
        (("--max-num-seqs", "17"), "the device takes at most 16"),
        (("--max-num-batched-tokens", "513"), "the device takes at most 512"),
        (("--platform-option", "memory_mb=1"), "did you mean 'memory_mib'?"),
    ],
)
def test_what_the_chip_cannot_do_is_refused(
    arguments: tuple[str, ...], says: str, thin: Any, plugins: tuple[Path, ...], tiny_llama_dir: Path
) -> None:
    done = thin.run("explain", "--model", str(tiny_llama_dir), *arguments, plugins=plugins, environment=CHIP)
    assert done.returncode == 1
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_without_a_chip_it_is_absent_and_a_bad_variable_is_a_warning(
    thin: Any, plugins: tuple[Path, ...], record: Callable, tiny_llama_dir: Path
) -> None:
    arguments = ("explain", "--model", str(tiny_llama_dir), "--json")
    plan = record(thin.run(*arguments, plugins=plugins))
    assert (plan["platform"]["id"], plan["warnings"]) == ("cpu", [])
    plan = record(thin.run(*arguments, plugins=plugins, environment={"INFERPLANE_EXAMPLECHIP_DEVICES": "two"}))
    assert plan["platform"]["id"] == "cpu"
    (warning,) = plan["warnings"]
    for part in ("inferplane-examplechip 0.1.0", "BROKEN", "INFERPLANE_EXAMPLECHIP_DEVICES='two'", "--disable-plugins"):
        assert part in warning


def test_its_options_reach_the_probe_and_the_record(
    thin: Any, plugins: tuple[Path, ...], record: Callable, tiny_llama_dir: Path
) -> None:
    arguments = ("explain", "--model", str(tiny_llama_dir), "--json")
    flags = ("--platform-option", "devices=1", "--platform-option", "memory_mib=512")
    plan = record(thin.run(*arguments, *flags, plugins=plugins))
    assert (plan["platform"]["id"], plan["device"]["memory_bytes"]) == ("examplechip", 512 * 2**20)
    variable = {"INFERPLANE_EXAMPLECHIP_MEMORY_MIB": "256"}
    plan = record(thin.run(*arguments, *flags[:2], plugins=plugins, environment=variable))
    assert plan["device"]["memory_bytes"] == 256 * 2**20
    settings = {setting["path"]: (setting["value"], setting["source"]) for setting in plan["settings"]}
    assert settings["platform.platform_option.devices"] == ("1", "flag --platform-option")
    assert settings["platform.platform_option.memory_mib"] == ("256", "variable INFERPLANE_EXAMPLECHIP_MEMORY_MIB")
    done = thin.run(*arguments, "--platform-option", "devices=-1", "--platform", "examplechip", plugins=plugins)
    assert done.returncode == 1
    assert "devices wants 0 or more, has -1" in " ".join(done.stderr.split())


def get(url: str, body: dict | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"{}")


@contextmanager
def serving(thin: Any, environment: dict[str, str], log: Path, *arguments: str) -> Iterator[str]:
    """The address of a running server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(thin.binaries / "inferplane"), "serve", *arguments, "--port", str(port)]
    with log.open("w") as stream:
        server = subprocess.Popen(command, cwd=log.parent, env=environment, stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + 120
        while True:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                get(f"http://127.0.0.1:{port}/health")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)


def test_it_serves(thin: Any, plugins: tuple[Path, ...], tiny_llama_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    body = {"model": "tiny", "prompt": "the cat and the", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    arguments = (str(tiny_llama_dir), "--served-model-name", "tiny", "--dtype", "float32")
    texts = []
    for chosen in ((), ("--platform", "reference")):
        with serving(thin, thin.variables(plugins, **CHIP), log, *arguments, *chosen) as address:
            texts.append(get(f"{address}/v1/completions", body)["choices"][0]["text"])
        name = chosen[1] if chosen else "examplechip (inferplane-examplechip 0.1.0"
        assert f"platform {name}" in log.read_text()
    assert texts[0] == texts[1]
