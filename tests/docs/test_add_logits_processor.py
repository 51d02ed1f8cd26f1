"""The example of docs/add-logits-processor.md, as a wheel, against transformers; and processors that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inferplane import LLM
from inferplane.errors import InferplaneError, InvalidValue
from inferplane_api.sampling import SamplingParams

FAULTY = '''
class Faulty:
    """Fails where it is told to."""

    def __init__(self, context):
        self.where = {}

    def add(self, request):
        if request.arguments.get("fail") == "add":
            raise RuntimeError("not with me")
        if request.arguments.get("fail") not in {None, "remove", "apply", "shape", "everything", "sampled"}:
            raise ValueError(f"fail={request.arguments['fail']!r} is no place to fail at")
        self.where[request.slot] = request.arguments.get("fail")
        return "fail" in request.arguments

    def remove(self, slot):
        if self.where.pop(slot) == "remove":
            raise ValueError("not with me")

    def apply(self, logits, slots):
        for slot in slots:
            if self.where[slot] == "apply":
                raise RuntimeError("not with me")
            if self.where[slot] == "shape":
                return logits[:, 1:]
            if self.where[slot] == "everything":
                return logits - float("inf")
        logits += 0.0
        return logits

    def sampled(self, slots, token_ids):
        if any(self.where[slot] == "sampled" for slot in slots):
            raise ValueError("not with me")
'''


@pytest.fixture(scope="module")
def site(
    repository: Path, install_wheel: Callable[[Path, Path], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install_wheel(repository / "docs" / "examples" / "norepeat", folder)
    (folder / "faulty_module.py").write_text(FAULTY)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.startswith(("norepeat_processor", "faulty_module"))]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def llm(site: Path, tiny_llama_dir: Path) -> Iterator[LLM]:
    settings: dict[str, Any] = {"platform": "cpu", "dtype": "float32", "max_model_len": 128}
    with LLM(str(tiny_llama_dir), logits_processors=["faulty_module:Faulty"], **settings) as llm:
        yield llm


def prompt_of(ids: list[int]) -> dict[str, Any]:
    return {"prompt_token_ids": ids}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_example_is_what_transformers_does(llm: LLM, tiny_llama_dir: Path, size: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    prompts = [[7, 8, 7], [100, 101, 102, 101, 102], [9]]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, extra_args={"no_repeat_ngram_size": size})
    plain = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = llm.generate([*map(prompt_of, prompts), prompt_of([9])], [params] * 3 + [plain])
    unlike = llm.generate(prompt_of([9]), plain)[0].outputs[0].token_ids
    assert outputs[3].outputs[0].token_ids == unlike, "a request that does not ask is left alone"
    for prompt, output in zip(prompts, outputs, strict=False):
        expected = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=24, no_repeat_ngram_size=size, eos_token_id=None
        )
        assert output.outputs[0].token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("where", ["add", "apply", "sampled", "shape", "everything"])
def test_a_failure_ends_its_request_with_the_name_and_no_other(llm: LLM, where: str) -> None:
    plain = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    alone = llm.generate(prompt_of([9, 10]), plain)[0].outputs[0].token_ids
    bad = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, extra_args={"fail": where})
    driver, deltas = llm._driver, {"good": [], "bad": []}  # type: ignore[var-annotated]
    from inferplane.client.requests import build_requests

    for name, params in (("good", plain), ("bad", bad)):
        (request,) = build_requests([9, 10], params, llm._limits, client_id=driver.client_id, request_id=name)
        driver.submit(request)
    ended: set[str] = set()
    while len(ended) < 2:
        for delta in driver.poll():
            deltas[delta.request_id].append(delta)
            ended |= {delta.request_id} if delta.finish_reason else set()
    last = deltas["bad"][-1]
    assert last.finish_reason == "error"
    if where == "everything":
        assert "nothing was left" in last.error
    else:
        assert last.error_code == "logits_processor"
        assert "faulty_module:Faulty failed" in last.error
    assert [token for delta in deltas["good"] for token in delta.token_ids] == alone
    again = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, extra_args={"fail": "remove"})
    assert llm.generate(prompt_of([9, 10]), again)[0].outputs[0].token_ids == alone, "the engine goes on"


def test_a_value_that_a_processor_refuses_is_the_callers_mistake(llm: LLM) -> None:
    plain = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    alone = llm.generate(prompt_of([9, 10]), plain)[0].outputs[0].token_ids
    with pytest.raises(InvalidValue, match="fail='nowhere' is no place to fail at") as caught:
        llm.generate([[9, 10]], SamplingParams(extra_args={"fail": "nowhere"}))
    assert caught.value.field == "extra_args"
    assert caught.value.value == {"fail": "nowhere"}
    assert "faulty_module:Faulty" in caught.value.problem
    assert llm.generate(prompt_of([9, 10]), plain)[0].outputs[0].token_ids == alone, "the engine goes on"


@pytest.fixture(scope="module")
def url(site: Path, tiny_llama_dir: Path) -> Iterator[str]:
    """A server whose engine is a process of its own and finds the class by itself."""
    command = [sys.executable, "-m", "inferplane", "serve", str(tiny_llama_dir), "--platform", "cpu", "--port", "0"]
    command += ["--dtype", "float32", "--max-model-len", "128", "--logits-processors", "faulty_module:Faulty"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True) as it:
        assert it.stdout is not None
        try:
            ready = next((line for line in it.stdout if line.startswith("Ready: ")), "")
            assert ready, "the server ended before it was ready"
            yield ready.split(" on ")[1].split()[0]
        finally:
            it.terminate()
            it.wait(30)


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
@pytest.mark.parametrize("body", [{}, {"n": 2}, {"stream": True}], ids=str)
def test_a_value_that_a_processor_refuses_is_a_400(url: str, route: str, body: dict[str, Any]) -> None:
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if route.startswith("chat") else {"prompt": "Hi"}
    ask = {"max_tokens": 4, **prompt, **body}
    for arguments, status in (({"fail": "nowhere"}, 400), ({"fail": "add"}, 500), ({"fail": "remove"}, 200)):
        answer = httpx.post(f"{url}/{route}", json={**ask, "vllm_xargs": arguments})
        if status == 200:
            assert answer.status_code == 200, answer.text
            continue
        if body.get("stream") and answer.status_code == 200:
            (line,) = [line for line in answer.text.splitlines() if '"error"' in line]
            error = json.loads(line.removeprefix("data: "))["error"]
        else:
            assert answer.status_code == status, answer.text
            error = answer.json()["error"]
        assert "faulty_module:Faulty" in error["message"]
        if status == 400:
            assert (error["type"], error["param"], error["code"]) == (
                "invalid_request_error", "vllm_xargs", "invalid_value",
            )  # fmt: skip
            assert "fail='nowhere' is no place to fail at" in error["message"]
        else:
            assert (error["type"], error["code"]) == ("server_error", "logits_processor")


def test_the_edge_holds_parameters_to_the_descriptor(llm: LLM) -> None:
    for value in (0, 65, "3", 2.5, True, [3]):
        with pytest.raises(InvalidValue) as caught:
            llm.generate([[1]], SamplingParams(extra_args={"no_repeat_ngram_size": value}))
        assert caught.value.field == "extra_args.no_repeat_ngram_size"


def test_what_cannot_be_a_processor_stops_the_start(site: Path, tiny_llama_dir: Path) -> None:
    settings: dict[str, Any] = {"platform": "cpu", "dtype": "float32", "max_model_len": 128}
    with pytest.raises(InvalidValue, match="module:Class"):
        LLM(str(tiny_llama_dir), logits_processors=["faulty_module"], **settings)
    with pytest.raises(InferplaneError, match="faulty_module:Missing"):
        LLM(str(tiny_llama_dir), logits_processors=["faulty_module:Missing"], **settings)


def test_the_page_shows_the_files(repository: Path) -> None:
    page = (repository / "docs" / "add-logits-processor.md").read_text()
    blocks = [block for block in page.split("```")[1::2] if 'title="' in block]
    assert len(blocks) == 4
    for block in blocks:
        head, _, code = block.partition("\n")
        file = head.split('title="')[1].rstrip('"')
        assert code.rstrip() in (repository / "docs" / "examples" / file).read_text(), file
