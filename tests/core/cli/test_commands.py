"""The first word of the command line."""

from __future__ import annotations

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
