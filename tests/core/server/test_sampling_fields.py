"""What the fields of a request become at the engine, and how answers with n, intervals, echoes and beams look."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from inferplane.errors import QueueFull
from inferplane.messages import Delta
from inferplane.plan.types import Component, PlannedProcessor
from inferplane_api.sampling import RepetitionDetection
from inferplane_api.spec import ProcessorParameter
from inferplane_api.step import TokenLogprobs

HELLO, WORLD, EOS = 259, 260, 256
HALF = math.log(0.5)


def chunks_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]


async def test_fields_reach_the_engine(server: Any) -> None:
    answer = await server.complete(
        bad_words=["a", "bc"],
        logprobs=1,
        logprob_token_ids=[5, 6],
        logprobs_mode="processed_logits",
        repetition_detection={"max_pattern_size": 4},
    )
    assert answer.status_code == 200
    (request,) = server.engine.submitted
    params = request.params
    # Bytes are tokens here, and a word behind a space is longer than the bare one.
    assert params.bad_words_token_ids == ((97,), (98, 99))
    assert params.logprob_token_ids == (5, 6)
    assert params.logprobs_mode == "processed_logits"
    assert params.repetition_detection == RepetitionDetection(max_pattern_size=4, min_pattern_size=1, min_count=2)


async def test_what_asks_for_nothing_is_nothing(server: Any) -> None:
    answer = await server.complete(
        bad_words=[],
        logprob_token_ids=[],
        repetition_detection={"max_pattern_size": 0},
        vllm_xargs={},
        use_beam_search=False,
        length_penalty=1,
        early_stopping=False,
        stream_interval=1,
    )
    assert answer.status_code == 200, answer.text
    params = server.engine.submitted[0].params
    assert not params.bad_words_token_ids
    assert params.logprob_token_ids is params.repetition_detection is params.extra_args is None


async def test_the_servers_mode_holds_where_a_request_names_none(make: Any) -> None:
    server = make(logprobs_mode="raw_logits")
    await server.complete(logprobs=1)
    await server.complete(logprobs=1, logprobs_mode="raw_logprobs")
    assert [request.params.logprobs_mode for request in server.engine.submitted] == ["raw_logits", "raw_logprobs"]


async def test_named_tokens_are_in_the_answer(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deltas = server.engine.deltas

    def with_named(request: Any) -> Any:
        found = deltas(request)
        for delta in found:
            for entry in delta.logprobs or ():
                entry.listed_ids, entry.listed_logprobs = [WORLD, HELLO], [-3.0, HALF]
        return found

    monkeypatch.setattr(server.engine, "deltas", with_named)
    server.engine.outputs[None] = [HELLO]
    answer = await server.complete(logprobs=0, logprob_token_ids=[WORLD, HELLO])
    assert answer.json()["choices"][0]["logprobs"]["top_logprobs"] == [{"Hello": HALF, " world": -3.0}]
    answer = await server.chat(logprobs=True, top_logprobs=1, logprob_token_ids=[WORLD, HELLO])
    top = answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert [(entry["token"], entry["logprob"]) for entry in top] == [("Hello", HALF), (" world", -3.0)]
    ChatCompletion.model_validate_json(answer.text, strict=True)


async def test_equal_seeds_of_the_server_give_equal_seeds_to_requests(make: Any) -> None:
    def seeds(server: Any) -> list[int]:
        return [request.seed for request in server.engine.submitted]

    first, same, other = make(seed=3), make(seed=3), make(seed=4)
    for server in (first, same, other):
        for n in (1, 3, 1):
            await server.complete(n=n)
        await server.complete(seed=-1)
        await server.complete(seed=77)
    assert seeds(first) == seeds(same) != seeds(other)
    assert len(set(seeds(first))) == 7
    assert seeds(first)[-1] == 77


async def test_the_first_of_n_scores_the_prompt_for_all(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    answer = await server.complete(n=3, echo=True, logprobs=0, prompt_logprobs=0)
    requests = server.engine.submitted
    assert [request.params.prompt_logprobs for request in requests] == [0, None, None]
    assert [request.follows for request in requests] == ["", requests[0].request_id, requests[0].request_id]
    for choice in answer.json()["choices"]:
        assert choice["logprobs"]["tokens"] == ["H", "i", "Hello"]
        assert choice["prompt_logprobs"][0] is None
        assert list(choice["prompt_logprobs"][1]) == ["105"]
    streamed = await server.complete(n=2, echo=True, logprobs=0, stream=True)
    firsts = {found["choices"][0]["index"]: found["choices"][0] for found in reversed(chunks_of(streamed.text))}
    assert all(choice["logprobs"]["tokens"] == ["H", "i", "Hello"] for choice in firsts.values())


@pytest.mark.parametrize(
    ("server_interval", "asked", "sizes"), [(1, 3, [1, 3, 2]), (2, None, [1, 2, 2, 1]), (1, 1, [1] * 6)]
)
async def test_a_stream_in_larger_chunks(make: Any, server_interval: int, asked: int | None, sizes: list[int]) -> None:
    server = make(stream_interval=server_interval)
    server.engine.outputs[None] = [*b"abcde", EOS]
    answer = await server.complete(stream=True, stream_interval=asked, return_token_ids=True, logprobs=0)
    choices = [found["choices"][0] for found in chunks_of(answer.text)]
    assert [len(choice["token_ids"]) for choice in choices] == sizes
    assert [len(choice["logprobs"]["tokens"]) for choice in choices] == sizes
    assert "".join(choice["text"] for choice in choices) == "abcde"
    assert [offset for choice in choices for offset in choice["logprobs"]["text_offset"]] == [0, 1, 2, 3, 4, 5]
    assert choices[-1]["finish_reason"] == "stop"
    chat = await server.chat(stream=True, stream_interval=asked)
    texts = [found["choices"][0]["delta"].get("content") for found in chunks_of(chat.text)]
    assert "".join(texts) == "abcde"


async def test_a_request_may_not_ask_for_smaller_chunks_than_the_owner(make: Any) -> None:
    answer = await make(stream_interval=4).complete(stream=True, stream_interval=3)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream_interval"


async def test_a_stop_string_is_seen_inside_a_larger_chunk(server: Any) -> None:
    server.engine.outputs[None] = list(b"abcdefgh")
    answer = await server.complete(stream=True, stream_interval=50, stop="d")
    assert "".join(found["choices"][0]["text"] for found in chunks_of(answer.text)) == "abc"
    assert len(server.engine.aborted) >= 1


async def test_echo_gives_the_prompt_that_was_kept(server: Any) -> None:
    server.engine.outputs[None] = [HELLO]
    answer = await server.complete(prompt="abcdef", truncate_prompt_tokens=2, echo=True, logprobs=0)
    choice = answer.json()["choices"][0]
    assert choice["text"] == "efHello"
    assert choice["logprobs"]["tokens"] == ["e", "f", "Hello"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


async def test_offsets_are_places_in_the_text(server: Any) -> None:
    """A character of several tokens is where it begins; a special token that is left out takes no room."""
    server.engine.outputs[None] = [*"é".encode(), 257, HELLO, *"日".encode(), WORLD]
    answer = await server.complete(logprobs=0)
    choice = answer.json()["choices"][0]
    assert choice["text"] == "éHello日 world"
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 6, 6, 6, 7]
    kept = (await server.complete(logprobs=0, skip_special_tokens=False)).json()["choices"][0]
    assert [kept["text"][offset:][:1] for offset in kept["logprobs"]["text_offset"]] == list("éé<H日日日 ")


async def test_a_raised_temperature_is_said_once(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for temperature in (0.5, 0, 0.001, 0.002):
            assert (await server.complete(temperature=temperature)).status_code == 200
    found = [record.message for record in caplog.records if "temperature" in record.message]
    assert len(found) == 1
    assert "0.001" in found[0]


async def test_a_loop_ends_with_its_whole_text(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def looping(request: Any) -> list[Delta]:
        last = Delta(request_id=request.request_id, token_ids=[97, 97], finish_reason="stop")
        last.stop_reason = "repetition_detected"
        return [last]

    monkeypatch.setattr(server.engine, "deltas", looping)
    choice = (await server.complete()).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("aa", "stop", "repetition_detected")


def with_processor(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    component = Component(id="acme.x", load="acme:X", distribution="acme", version="1")
    parameters = (
        ProcessorParameter(name="size", type="int", minimum=1, maximum=9, doc="."),
        ProcessorParameter(name="words", type="list[str]", doc="."),
        ProcessorParameter(name="share", type="float", minimum=0, doc="."),
    )
    planned = PlannedProcessor(name="acme.x of acme 1", component=component, parameters=parameters)
    context = server.app.state.context
    plan = msgspec.structs.replace(context.prepared.plan, logits_processors=(planned,))
    monkeypatch.setattr(context, "prepared", context.prepared._replace(plan=plan))


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"size": "3"}, "vllm_xargs.size"),
        ({"size": 0}, "vllm_xargs.size"),
        ({"size": 10}, "vllm_xargs.size"),
        ({"size": True}, "vllm_xargs.size"),
        ({"size": None}, "vllm_xargs.size"),
        ({"words": "a"}, "vllm_xargs.words"),
        ({"words": ["a", 1]}, "vllm_xargs.words"),
        ({"share": -0.5}, "vllm_xargs.share"),
        ({"other": 1}, "vllm_xargs.other"),
    ],
)
async def test_processor_parameters_are_checked(
    server: Any, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], param: str
) -> None:
    with_processor(server, monkeypatch)
    answer = await server.complete(vllm_xargs=arguments)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert server.engine.submitted == []


async def test_processor_parameters_that_fit_are_passed_on(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_processor(server, monkeypatch)
    given = {"size": 3, "words": ["a"], "share": 1}
    assert (await server.complete(vllm_xargs=given)).status_code == 200
    assert server.engine.submitted[0].params.extra_args == given


def tree(request: Any) -> list[Delta]:
    """A model in which every token's likely successors are the next two ids, and EOS once three tokens came."""
    params, last, prompt = request.params, request.prompt_token_ids[-1], len(request.prompt_token_ids)
    ids = [last + 1, last + 2, EOS] if prompt < 5 else [EOS, last + 1, last + 2]
    values = [math.log(p) for p in ((0.6, 0.3, 0.1) if prompt < 5 else (0.7, 0.2, 0.1))]
    entry = TokenLogprobs(ids[0], values[0], 1, ids[: params.logprobs], values[: params.logprobs])
    delta = Delta(request_id=request.request_id, token_ids=[ids[0]], logprobs=[entry], finish_reason="length")
    delta.num_cached_tokens, delta.queue_seconds = 1, 0.0
    if params.prompt_logprobs is not None:
        delta.prompt_logprobs = [None] * prompt
    return [delta]


async def test_beams_through_the_api(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.engine, "deltas", tree)
    answer = await server.complete(
        prompt=[97], use_beam_search=True, n=2, max_tokens=6, length_penalty=0, logprobs=2, return_token_ids=True
    )
    body = answer.json()
    best, second = body["choices"]
    # Four likeliest steps, then the end; or one of them replaced by the second choice.
    assert best["token_ids"] == [98, 99, 100, 101, EOS]
    assert best["text"] == "bcde"
    assert best["finish_reason"] == "stop"
    assert best["logprobs"]["token_logprobs"] == pytest.approx([math.log(0.6)] * 4 + [math.log(0.7)])
    assert best["logprobs"]["tokens"] == ["b", "c", "d", "e", "<|endoftext|>"]
    assert len(second["token_ids"]) == 5
    assert sum(second["logprobs"]["token_logprobs"]) == pytest.approx(3 * math.log(0.6) + math.log(0.3) + math.log(0.7))
    assert body["usage"] == {
        "prompt_tokens": 1,
        "total_tokens": 11,
        "completion_tokens": 10,
        "prompt_tokens_details": None,
    }
    Completion.model_validate_json(answer.text, strict=True)
    assert {request.params.max_tokens for request in server.engine.submitted} == {1}
    chat = await server.chat(use_beam_search=True, n=2, max_tokens=3, temperature=1.5)
    assert [choice["finish_reason"] for choice in chat.json()["choices"]] == ["stop", "stop"]
    ChatCompletion.model_validate_json(chat.text, strict=True)


async def test_beams_of_several_prompts_with_scores(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.engine, "deltas", tree)
    answer = await server.complete(
        prompt=[[97], [107, 108]], use_beam_search=True, n=2, max_tokens=2, prompt_logprobs=0
    )
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["text"] for choice in choices][::2] == ["bc", "mn"]
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [1, 1, 2, 2]
    assert all(choice["finish_reason"] == "length" for choice in choices)


async def test_a_failing_engine_ends_a_search(server: Any) -> None:
    server.engine.die_after = 0
    answer = await server.complete(use_beam_search=True, n=2)
    assert answer.status_code == 503


async def test_a_beam_search_that_is_not_taken_was_rejected_and_not_aborted(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(requests: Any) -> Any:
        raise QueueFull("too many wait", retry_after=3.0)

    monkeypatch.setattr(server.engine, "submit", refuse)
    assert (await server.complete(use_beam_search=True, n=2)).status_code == 429
    counts = {
        name: float(number)
        for name, _, number in (
            line.rpartition(" ") for line in (await server.http.get("/metrics")).text.splitlines() if line[0] != "#"
        )
    }
    assert sum(number for name, number in counts.items() if "request_rejected_total" in name) == 1
    assert sum(number for name, number in counts.items() if "request_aborted_total" in name) == 0
