"""The offline API's own rules: what counts as a prompt, and how long an answer is that nobody set the length of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from inferplane import LLM
from inferplane.errors import ContextTooLong, InvalidValue
from inferplane_api.sampling import SamplingParams
from inferplane_scripted.checkpoint import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT = 64


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_checkpoint(
        tmp_path_factory.mktemp("llm") / "model", max_position=CONTEXT, generation_config={"max_new_tokens": CONTEXT}
    )
    with LLM(str(path), platform="scripted") as llm:
        yield llm


def test_a_default_length_gives_way_to_the_context_and_an_asked_one_does_not(llm: LLM) -> None:
    short, long = llm.generate(["ab", "a" * 60])
    assert [len(out.outputs[0].token_ids) for out in (short, long)] == [CONTEXT - 2, 4]
    with pytest.raises(ContextTooLong, match="max_tokens=64"):
        llm.generate("ab", SamplingParams(max_tokens=CONTEXT))


@pytest.mark.parametrize("prompts", [None, 5, [None], [1.5], {"prompt": None}, [["a"]], [[1.0]]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        llm.generate(prompts)
    assert caught.value.field == "prompt"


def test_token_ids_may_be_an_array(llm: LLM) -> None:
    one, same = llm.generate([[97, 98], np.array([97, 98])])
    (alone,) = llm.generate(np.array([97, 98]))
    assert one.prompt_token_ids == same.prompt_token_ids == alone.prompt_token_ids == [97, 98]
