"""What requests ask and get, in the log, for those who want it there; costs nothing when switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferplane.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.config import ServerConfig
    from inferplane.server.prompts import PromptInput
    from inferplane_api.sampling import SamplingParams

log = get_logger("requests")


class RequestLog:
    """`requests` and `outputs` say whether there is anything to log."""

    def __init__(self, server: ServerConfig) -> None:
        self.requests = server.enable_log_requests
        self.outputs = server.enable_log_requests and server.enable_log_outputs
        self._max_len = server.max_log_len

    def request(self, request_id: str, prompts: Sequence[PromptInput], params: SamplingParams) -> None:
        """One line a prompt."""
        for prompt in prompts:
            log.info(
                "request %s: prompt %s, %d tokens %s, %s",
                ascii(request_id),
                self._shown(prompt.text),
                len(prompt.token_ids),
                prompt.token_ids[: self._max_len],
                params,
            )

    def output(self, request_id: str, index: int, text: str, num_tokens: int, finish_reason: str | None) -> None:
        """One line a sequence, when it has ended."""
        log.info(
            "request %s: output %d %s, %d tokens, finished by %s",
            ascii(request_id),
            index,
            self._shown(text),
            num_tokens,
            finish_reason,
        )

    def _shown(self, text: str | None) -> str:
        """On one line, whatever the client has written."""
        return "-" if text is None else repr(text[: self._max_len])
