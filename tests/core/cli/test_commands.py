"""The first word of the command line."""

from __future__ import annotations

import json

import pytest

from inferplane.cli.main import COMMANDS, main


@pytest.mark.parametrize(("word", "meant"), [("explian", "explain"), ("servr", "serve"), ("zzz", None)])
def test_an_unknown_command_is_an_error_with_a_suggestion(
    word: str, meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([word])
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"no command {word!r}" in last
    assert (f"did you mean {meant!r}?" in last) if meant else ("did you mean" not in last)
    assert last.endswith(", ".join(COMMANDS))


def test_a_program_reads_the_error_where_it_expects_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--json", "--model", "/nowhere/at/all"]) == 1
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["code"] == "source.no_such_path"
    assert error["message"] in printed.err
    assert error["remedy"]


def test_the_nearest_action_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plugins", "lokc"])
    assert left.value.code == 2
    assert "did you mean lock?" in capsys.readouterr().err
