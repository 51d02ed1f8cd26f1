"""The offline API: prompts in, results out, on the same engine as the server. Knows no HTTP and imports no torch."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any

import msgspec

from inferplane.client import beam_runs, pooling
from inferplane.client.drivers import LocalDriver, ProcessDriver
from inferplane.client.outputs import CompletionOutput, OutputAssembler, RequestOutput, logprob_table
from inferplane.client.processor_arguments import check_processor_arguments
from inferplane.client.requests import Limits, RequestSeeds, build_requests
from inferplane.config import Config
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.launch import prepare
from inferplane.log import get_logger
from inferplane.text.bad_words import bad_word_sequences
from inferplane_api.sampling import GREEDY_EPSILON, MIN_TEMPERATURE, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.client.beam_search import BeamSearchParams
    from inferplane.client.drivers import EngineDriver
    from inferplane.client.outputs import Increment
    from inferplane.client.pooling import EmbeddingRequestOutput
    from inferplane.messages import Delta, Request, Stats
    from inferplane.plan.types import Plan
    from inferplane.text.tokenizer import Tokenizer

log = get_logger(__name__)


class LLM:
    """A model, loaded and ready to generate, or to embed (`runner="pooling"`, or a model that is made for it).

    `settings` are the fields of the configuration, named as the server's flags (with underscores). engine_process=True
    runs the engine in a process of its own, so that a crash of native code raises EngineDead here.

    Raises InvalidValue for an unknown or wrong setting, InferplaneError when the model cannot be found or run.
    """

    def __init__(self, model: str | None = None, *, engine_process: bool = False, **settings: Any) -> None:
        if model is not None:
            settings["model"] = model
        prepared = prepare(Config.from_flat(settings))
        self.plan: Plan = prepared.plan
        self.tokenizer: Tokenizer | None = prepared.tokenizer
        self._chat_template = prepared.chat_template
        self._defaults = prepared.defaults
        self._request_ids = itertools.count()
        self._draw_seed = RequestSeeds(prepared.config.model.seed)
        self._has_warned = False
        self._driver: EngineDriver = ProcessDriver(self.plan) if engine_process else LocalDriver(self.plan)
        self._limits = Limits(
            max_model_len=self._driver.capacity.max_model_len,
            vocab_size=self.plan.model.vocab_size,
            eos_token_ids=self._defaults.eos_token_ids,
            max_logprobs=self.plan.limits.max_logprobs,
            priorities=self.plan.policy == "priority",
            logprobs_mode=prepared.config.model.logprobs_mode,
        )

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own defaults (generation_config.json) over the API's."""
        return SamplingParams(**self._defaults.apply({}, "offline"))

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete each prompt; no chat template is applied. Results stand in the order of the prompts.

        prompts: one or a list of: text, token ids, {"prompt": text} or {"prompt_token_ids": ids} (with an optional
        "cache_salt"). sampling_params: one for all or one a prompt; None: the model's defaults. use_tqdm shows a
        progress bar on a terminal.
        """
        if self.plan.pooler is not None:
            raise pooling.embeds(self.plan)
        items = _as_list(prompts)
        params = self._params_for(sampling_params, len(items))
        if priority is not None and len(priority) != len(items):
            raise InvalidValue("priority", list(priority), f"must hold one number a prompt, here {len(items)}")
        jobs = [
            self._job(item, params[index], 0 if priority is None else priority[index])
            for index, item in enumerate(items)
        ]
        return self._run(jobs, show=use_tqdm)

    def beam_search(self, prompts: Any, params: BeamSearchParams) -> list[RequestOutput]:
        """The `beam_width` most likely sequences of each prompt, best first; prompts as for `generate`.

        `cumulative_logprob` of an output is the sum that it is ranked by, before the length penalty.
        """
        if self.plan.pooler is not None:
            raise pooling.embeds(self.plan)
        runs = []
        for item in _as_list(prompts):
            text, ids, salt = self._read_prompt(item)
            (request,) = build_requests(
                ids,
                params.sampling(),
                self._limits,
                client_id=self._driver.client_id,
                request_id=str(next(self._request_ids)),
                cache_salt=salt,
            )
            runs.append(beam_runs.BeamRun(params, request, text))
        return beam_runs.run(runs, self._driver, self.tokenizer)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of {"role", "content"}) or a list of them, through the chat template."""
        if self._chat_template is None or self.tokenizer is None:
            raise InferplaneError(
                f"{self.plan.checkpoint_path} has no chat template",
                code="chat.no_template",
                remedy='give one: LLM(..., chat_template="template.jinja"), or use generate()',
            )
        conversations = messages if messages and isinstance(messages[0], list) else [messages]
        prompts = []
        for conversation in conversations:
            text = self._chat_template.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                **(chat_template_kwargs or {}),
            )
            # The template writes the special tokens itself.
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            prompts.append({"prompt_token_ids": ids, "prompt": text})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def embed(
        self,
        prompts: Any,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt, in their order; `outputs.embedding` holds its numbers.

        prompts: as for `generate`. dimensions: keep so many, where the model was trained for fewer (Matryoshka).
        normalize: to length 1; by default as the model wants it. truncate_prompt_tokens: cut longer prompts at their
        end, -1: to what the model takes; by default a prompt that is too long is an error.

        Raises InvalidValue, or InferplaneError for a model that was not started to embed.
        """
        params = pooling.pooling_params(self.plan, dimensions, normalize)
        most = self._limits.max_model_len if truncate_prompt_tokens == pooling.WHOLE_CONTEXT else truncate_prompt_tokens
        if most is not None and most < 1:
            raise InvalidValue("truncate_prompt_tokens", truncate_prompt_tokens, "must be -1 or at least 1")
        parts = [self._split_prompt(item) for item in _as_list(prompts)]
        texts = [text for text, ids, _ in parts if ids is None and text is not None]
        encoded = iter(self._encode_all(texts, most))
        jobs = [
            pooling.EmbeddingJob(
                text,
                pooling.build_pooling_request(
                    next(encoded) if ids is None else ids[:most],
                    params,
                    self._limits,
                    client_id=self._driver.client_id,
                    request_id=str(next(self._request_ids)),
                    cache_salt=salt,
                ),
            )
            for text, ids, salt in parts
        ]
        with _Bar(len(jobs), show=use_tqdm) as bar:
            pooling.run_jobs(self._driver, jobs, bar.request)
        return [job.output for job in jobs]

    def stats(self) -> Stats:
        """The engine's counters since it started."""
        return self._driver.stats()

    def close(self) -> None:
        """Stop the engine and give its memory back."""
        self._driver.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _params_for(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams | None]:
        if given is None:
            return [None] * count
        if isinstance(given, SamplingParams):
            return [given] * count
        if len(given) != count:
            raise InvalidValue("sampling_params", f"{len(given)} of them", f"must be one, or one a prompt ({count})")
        return list(given)

    def _job(self, item: Any, params: SamplingParams | None, priority: int) -> _Job:
        text, ids, salt = self._read_prompt(item)
        if params is None:
            params = self._default_params(len(ids))
        params = self._resolved(params)
        requests = build_requests(
            ids,
            params,
            self._limits,
            client_id=self._driver.client_id,
            request_id=str(next(self._request_ids)),
            priority=priority,
            cache_salt=salt,
            draw_seed=self._draw_seed,
        )
        return _Job(text, requests, params, self.tokenizer)

    def _resolved(self, params: SamplingParams) -> SamplingParams:
        """Words become tokens; what processors take is held to their declarations."""
        check_processor_arguments(params.extra_args, self.plan.logits_processors, "extra_args")
        if GREEDY_EPSILON <= params.temperature < MIN_TEMPERATURE and not self._has_warned:
            self._has_warned = True
            log.warning("temperature %g is raised to %g; this is said once", params.temperature, MIN_TEMPERATURE)
        if not params.bad_words:
            return params
        if self.tokenizer is None:
            remedy = "give bad_words_token_ids"
            raise InvalidValue("bad_words", params.bad_words, "this checkpoint has no tokenizer", remedy=remedy)
        sequences = (*bad_word_sequences(params.bad_words, self.tokenizer), *params.bad_words_token_ids)
        return msgspec.structs.replace(params, bad_words=(), bad_words_token_ids=sequences)

    def _default_params(self, num_prompt: int) -> SamplingParams:
        """A max_tokens that nobody asked for gives way to the context."""
        params, room = self.get_default_sampling_params(), self._limits.max_model_len - num_prompt
        if params.max_tokens is None or room < 1:
            return params
        return msgspec.structs.replace(params, max_tokens=min(params.max_tokens, room))

    def _encode_all(self, texts: list[str], most: int | None) -> list[list[int]]:
        if not texts:
            return []
        if self.tokenizer is None:
            raise InvalidValue("prompt", texts[0], "this checkpoint has no tokenizer", remedy="give prompt_token_ids")
        return pooling.encode_texts(self.tokenizer, texts, self.plan, truncate=most)

    def _read_prompt(self, item: Any) -> tuple[str | None, list[int], str]:
        text, ids, salt = self._split_prompt(item)
        if ids is not None or text is None:
            return text, ids or [], salt
        if self.tokenizer is None:
            raise InvalidValue("prompt", text, "this checkpoint has no tokenizer", remedy="give prompt_token_ids")
        return text, self.tokenizer.encode(text), salt

    def _split_prompt(self, item: Any) -> tuple[str | None, list[int] | None, str]:
        """Text, token ids where they are given, and the salt."""
        text, ids, salt = item, None, ""
        if isinstance(item, dict):
            unknown = item.keys() - {"prompt", "prompt_token_ids", "cache_salt"}
            if unknown or not item.keys() & {"prompt", "prompt_token_ids"}:
                raise InvalidValue(
                    "prompt", sorted(item), "a prompt has the keys prompt or prompt_token_ids, and cache_salt"
                )
            text, ids, salt = item.get("prompt"), item.get("prompt_token_ids"), item.get("cache_salt", "")
        elif not isinstance(item, str):
            text, ids = None, item
        if ids is not None:
            return text, _token_ids(ids), salt
        if not isinstance(text, str):
            raise InvalidValue("prompt", text, "must be text or token ids")
        return text, None, salt

    def _run(self, jobs: list[_Job], *, show: bool) -> list[RequestOutput]:
        open_jobs = {request.request_id: (job, index) for job in jobs for index, request in enumerate(job.requests)}
        for job in jobs:
            for request in job.requests:
                self._driver.submit(request)
        with _Bar(len(jobs), show=show) as bar:
            try:
                while open_jobs:
                    for delta in self._driver.poll():
                        self._take(delta, open_jobs, bar)
            finally:
                if open_jobs:
                    self._driver.abort(list(open_jobs))
        return [job.output for job in jobs]

    def _take(self, delta: Delta, open_jobs: dict[str, tuple[_Job, int]], bar: _Bar) -> None:
        found = open_jobs.get(delta.request_id)
        if found is None:
            return
        job, index = found
        step = job.push(index, delta)
        bar.tokens(len(step.token_ids))
        if step.finish_reason is None:
            return
        del open_jobs[delta.request_id]
        if step.abort:
            self._driver.abort([delta.request_id])
        if delta.error_code == "bad_processor_argument":
            raise InvalidValue("extra_args", job.params.extra_args, step.error or "a logits processor refuses it")
        if step.error is not None:
            raise InferplaneError(f"request {delta.request_id}: {step.error}", code="request.failed")
        if job.output.finished:
            bar.request()


class _Job:
    """One prompt's sequences, growing."""

    def __init__(
        self, text: str | None, requests: list[Request], params: SamplingParams, tokenizer: Tokenizer | None
    ) -> None:
        self.requests = requests
        self.params = params
        self._tokenizer = tokenizer
        self._assemblers = [OutputAssembler(request, tokenizer) for request in requests]
        wants = params.logprobs is not None or bool(params.logprob_token_ids)
        self.output = RequestOutput(
            request_id=requests[0].request_id.partition("-")[0],
            prompt=text,
            prompt_token_ids=requests[0].prompt_token_ids,
            outputs=[
                CompletionOutput(
                    index=index,
                    token_ids=[],
                    logprobs=[] if wants else None,
                    cumulative_logprob=0.0 if wants else None,
                )
                for index in range(len(requests))
            ],
        )

    def push(self, index: int, delta: Delta) -> Increment:
        assembler, sequence = self._assemblers[index], self.output.outputs[index]
        step = assembler.push(delta)
        sequence.text += step.text
        sequence.token_ids.extend(step.token_ids)
        if step.logprobs and sequence.logprobs is not None:
            sequence.logprobs.extend(logprob_table(entry, self._tokenizer) for entry in step.logprobs)
            sequence.cumulative_logprob = (sequence.cumulative_logprob or 0.0) + sum(
                entry.logprob for entry in step.logprobs
            )
        if delta.prompt_logprobs is not None:
            self.output.prompt_logprobs = [
                None if entry is None else logprob_table(entry, self._tokenizer) for entry in delta.prompt_logprobs
            ]
        if delta.num_cached_tokens is not None and index == 0:
            self.output.num_cached_tokens = delta.num_cached_tokens
        if step.finish_reason is not None:
            sequence.finish_reason, sequence.stop_reason = step.finish_reason, step.stop_reason
            self.output.finished = all(assembler.finished for assembler in self._assemblers)
        return step


class _Bar:
    """A progress bar on a terminal; nothing in a pipe."""

    def __init__(self, total: int, *, show: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._tokens = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rate]}"),
            console=console,
            disable=not (show and console.is_terminal),
        )
        self._task = self._progress.add_task("requests", total=total, rate="")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tokens(self, count: int) -> None:
        self._tokens += count

    def request(self) -> None:
        elapsed = self._progress.tasks[0].elapsed or 0.0
        rate = f"{self._tokens / elapsed:.0f} tok/s" if elapsed else ""
        self._progress.update(self._task, advance=1, rate=rate)


def _token_ids(ids: Any) -> list[int]:
    try:
        return [operator.index(token) for token in ids]
    except TypeError as error:
        raise InvalidValue("prompt", ids, "must be text or token ids") from error


def _as_list(prompts: Any) -> list[Any]:
    """One prompt or several: a list of ints is one prompt of token ids."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    try:
        items = list(prompts)
    except TypeError as error:
        raise InvalidValue("prompt", prompts, "must be text or token ids, or a list of them") from error
    if items and hasattr(items[0], "__index__"):
        return [items]
    return items
