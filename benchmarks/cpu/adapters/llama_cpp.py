"""llama.cpp through the C functions that llama-cpp-python exports, with a small continuous batcher in front.

The batcher stands for llama-server's slots: one sequence a request, a decode row of every running sequence first, then
prompts up to 512 tokens a step. A shared prefix is computed once and copied to the sequences, as a server's cache does.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

STEP_TOKENS = 512
"""llama.cpp's own micro-batch."""


@dataclass
class Sequence:
    slot: int
    index: int
    prompt: list[int]
    wanted: int
    done: int = 0
    """Tokens whose keys and values are in the cache."""
    made: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    token: int
    position: int
    slot: int
    wants_logits: bool


class Engine:
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        import llama_cpp
        import numpy as np

        self.lib, self.np = llama_cpp, np
        self.settings = settings
        self.context: Any = None
        self.shape: tuple[int, int, bool] | None = None
        llama_cpp.llama_backend_init()
        # Kept on self: the library calls it for as long as it lives.
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        parameters = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(settings["model"].encode(), parameters)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {settings['model']}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(STEP_TOKENS, 0, 1)
        self._open(1, settings["context"], unified=True)
        system = llama_cpp.llama_print_system_info().decode()
        notes = ["KV float16 (its default)", f"steps of {STEP_TOKENS} tokens", system]
        return {"versions": {"llama-cpp-python": llama_cpp.__version__}, "notes": notes}

    def prepare(self, requests: list[tuple[list[int], int]], shared: int) -> Callable[[], list[list[int]]]:
        if len(requests) == 1:
            self._open(1, self.settings["context"], unified=True)
        elif shared:
            own = sum(len(ids) - shared + count for ids, count in requests)
            self._open(len(requests) + 1, -(-(shared + own + 256) // 256) * 256, unified=True)
        else:
            slots = min(len(requests), self.settings["max_seqs"])
            self._open(slots, self.settings["kv_tokens"] // self.settings["max_seqs"] * slots, unified=False)
        self.lib.llama_memory_clear(self.memory, True)
        return lambda: self._serve(requests, shared)

    def score(self, text: str) -> list[float]:
        raise NotImplementedError("llama.cpp is not scored here")

    def _open(self, slots: int, cells: int, *, unified: bool) -> None:
        if self.shape == (slots, cells, unified):
            return
        if self.context is not None:
            self.lib.llama_free(self.context)
        parameters = self.lib.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max, parameters.kv_unified = cells, slots, unified
        parameters.n_batch = parameters.n_ubatch = STEP_TOKENS
        parameters.n_threads = parameters.n_threads_batch = self.settings["threads"]
        self.context = self.lib.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context of {cells} cells for {slots} sequences")
        self.memory = self.lib.llama_get_memory(self.context)
        self.shape = (slots, cells, unified)

    def _serve(self, requests: list[tuple[list[int], int]], shared: int) -> list[list[int]]:
        assert self.shape is not None
        prefix_slot = len(requests)
        if shared:
            for start in range(0, shared, STEP_TOKENS):
                piece = requests[0][0][start : min(shared, start + STEP_TOKENS)]
                self._step([Row(token, start + offset, prefix_slot, False) for offset, token in enumerate(piece)])
        waiting = deque(enumerate(requests))
        free = list(range(min(len(requests), self.shape[0])))
        running: dict[int, Sequence] = {}
        outputs: list[list[int]] = [[] for _ in requests]
        while waiting or running:
            while waiting and free:
                index, (ids, wanted) = waiting.popleft()
                slot = free.pop()
                if shared:
                    self.lib.llama_memory_seq_cp(self.memory, prefix_slot, slot, 0, shared)
                running[slot] = Sequence(slot, index, ids, wanted, done=shared)
            for slot, token in self._step(_plan(list(running.values()))).items():
                sequence = running[slot]
                sequence.made.append(token)
                if len(sequence.made) == sequence.wanted:
                    outputs[sequence.index] = sequence.made
                    self.lib.llama_memory_seq_rm(self.memory, slot, -1, -1)
                    free.append(slot)
                    del running[slot]
        return outputs

    def _step(self, rows: list[Row]) -> dict[int, int]:
        """Slot to its most likely next token, for the rows that want logits."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for place, row in enumerate(rows):
            batch.token[place], batch.pos[place] = row.token, row.position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = row.slot
            batch.logits[place] = row.wants_logits
        status = self.lib.llama_decode(self.context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        found = {}
        for place, row in enumerate(rows):
            if row.wants_logits:
                logits = self.lib.llama_get_logits_ith(self.context, place)
                found[row.slot] = int(self.np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax())
        return found


def _plan(sequences: list[Sequence]) -> list[Row]:
    """Rows of one step; marks them as done."""
    rows = []
    for sequence in sequences:
        if sequence.done >= len(sequence.prompt):
            rows.append(Row(sequence.made[-1], sequence.done, sequence.slot, True))
            sequence.done += 1
    decoding = {row.slot for row in rows}
    for sequence in sequences:
        if sequence.slot in decoding:
            continue
        last = len(sequence.prompt) - 1
        stop = min(last + 1, sequence.done + STEP_TOKENS - len(rows))
        for position in range(sequence.done, stop):
            rows.append(Row(sequence.prompt[position], position, sequence.slot, position == last))
        sequence.done = max(stop, sequence.done)
    return rows
