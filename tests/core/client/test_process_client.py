"""What a front end's engine client refuses before anything is sent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from inferplane.client.process_client import ProcessClient
from inferplane.client.requests import Limits, build_requests
from inferplane.errors import InvalidValue
from inferplane_api.sampling import SamplingParams


def test_a_request_that_could_never_be_taken_is_no_full_queue() -> None:
    client = ProcessClient(SimpleNamespace(limits=SimpleNamespace(max_num_seqs=4)), max_queued=8)
    limits = Limits(max_model_len=32, vocab_size=100)
    requests = build_requests([1], SamplingParams(n=13), limits, client_id=client.client_id, request_id="r")
    with pytest.raises(InvalidValue, match="at most 12") as caught:
        client.submit(requests)
    assert caught.value.field == "n"
    assert "--max-num-queued-reqs" in caught.value.remedy
