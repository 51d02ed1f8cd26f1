"""What people see: one line, and tables that survive a pipe."""

from __future__ import annotations

import io

import pytest

from inferplane.plan.render import Table, decision_tables, merge_alike, plain_table, print_tables, startup_line
from inferplane.plan.types import Component, Decision, Loser, OpBinding, Plan
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.kv import KVGeometry, KVGroupSpec
from inferplane_api.model import ModelSpec
from inferplane_api.runner import RunnerLimits
from inferplane_api.spec import DeviceInfo, Reason, SchedulingConstraints


def part(id: str) -> Component:
    return Component(id=id, load="m:X", distribution="acme-npu", version="1.2")


def group(index: int, kind: str, layers: int, tokens: int) -> KVGroupSpec:
    return KVGroupSpec(
        index=index,
        kind=kind,  # type: ignore[arg-type]
        layers=tuple(range(layers)),
        tokens_per_page=tokens,
        num_heads=1,
        num_kv_heads=1,
        head_size=8,
        dtype="float32",
    )


def plan(*, runner_seam: bool = False) -> Plan:
    parts = () if runner_seam else (part("a.paged"), part("b.paged"))
    return Plan(
        platform=part("acme"),
        platform_name="acme",
        runner_seam=runner_seam,
        device=DeviceInfo(name="chip 9"),
        checkpoint_path="/m",
        checkpoint_format=part("hf.safetensors"),
        card=CheckpointCard(config={}),
        model=ModelSpec(
            model_type="m",
            architecture="ModelForCausalLM",
            num_layers=0,
            hidden_size=1,
            intermediate_size=1,
            vocab_size=1,
            max_position=1,
            dtype="bfloat16",
            layers=(),
        ),
        architecture=None if runner_seam else part("m"),
        dtype="bfloat16",
        kv_dtype="float32",
        geometry=KVGeometry(page_bytes=1, groups=(group(0, "sliding", 15, 16), group(1, "full", 3, 80)), block_size=16),
        attention=parts,
        ops=() if runner_seam else tuple(OpBinding(op=f"o{n}@1", provider=part("a.ops")) for n in range(3)),
        linear=() if runner_seam else (("dense", part("a.linear")), ("*", part("reference.linear"))),
        limits=RunnerLimits(max_model_len=1, max_num_seqs=1, max_num_batched_tokens=1),
        auto_max_model_len=True,
        scheduling=SchedulingConstraints(),
    )


def test_one_line_names_every_choice() -> None:
    assert startup_line(plan()) == (
        "platform acme (acme-npu 1.2: chip 9); ModelForCausalLM in bfloat16; cache in float32; "
        "attention sliding x15 a.paged, full x3 b.paged; ops a.ops x3; linear dense a.linear; pages of 16/80 tokens"
    )


def test_one_line_for_a_runner_of_the_platforms_own() -> None:
    line = startup_line(plan(runner_seam=True))
    assert "its own runner" in line
    assert "\n" not in line


def test_plain_tables_are_aligned_and_whole() -> None:
    table = Table("Title", ("a", "long name", "b"), [("x" * 200, "1", "end"), ("y", "22", "")])
    title, header, first, second = plain_table(table).split("\n")
    assert title == "Title"
    assert header.index("long name") == first.index("1") == second.index("22") == 202
    assert first.endswith("end")
    assert not second.endswith(" ")


def test_a_pipe_gets_plain_text() -> None:
    stream = io.StringIO()
    print_tables([Table("T", ("a",), [("1",)]), Table("U", ("b",), [])], stream)
    assert stream.getvalue() == "T\na\n1\n\nU\nb\n"


def test_a_terminal_gets_a_drawn_table_and_text_is_not_markup() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    print_tables([Table("T", ("a",), [("[red]literal[/red]",)])], stream)
    assert "[red]literal[/red]" in stream.getvalue()
    assert "│" in stream.getvalue()


def test_ops_with_the_same_outcome_are_one_line() -> None:
    loser = Loser(id="reference.ops", score=10, reasons=(Reason(code="selection.score"),))
    decisions = [
        Decision(subject="op rope@1", chosen="a.ops", score=60, reason="acme 1", losers=(loser,)),
        Decision(subject="op embedding@1", chosen="reference.ops", score=10, reason="inferplane 1"),
        Decision(subject="op rms_norm@1", chosen="a.ops", score=60, reason="acme 1", losers=(loser,)),
        Decision(subject="dtype", chosen="bfloat16"),
    ]
    merged = merge_alike(decisions)
    assert [(each.subject, each.chosen) for each in merged] == [
        ("op rope@1 and 1 more", "a.ops"),
        ("op embedding@1", "reference.ops"),
        ("dtype", "bfloat16"),
    ]
    assert merged[0].reason == "acme 1: rope@1, rms_norm@1"
    assert merged[0].losers == (loser,)


def test_losers_have_a_table_with_their_reasons() -> None:
    reason = Reason(code="attention.head_size", field="head_size", want="256", have="64")
    decision = Decision(
        subject="attention full x3", chosen="a.x", losers=(Loser(id="b.x", score=9, reasons=(reason,)),)
    )
    chosen, rejected = decision_tables([decision])
    assert chosen.rows == [("attention full x3", "a.x", "", "automatic", "")]
    assert rejected.rows == [("attention full x3", "b.x", "9", "attention.head_size: head_size wants 256, has 64")]
    assert len(decision_tables([Decision(subject="dtype", chosen="x")])) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_states_levels_and_sources_have_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    rows = [("acme", "BROKEN", "PRESENT is only a word here"), ("cpu", "PRESENT", "")]
    table = Table("Platforms", ("platform", "state", "reasons"), rows)
    screen, pipe = Terminal(), io.StringIO()
    print_tables([table], screen)
    print_tables([table], pipe)
    shown = screen.getvalue()
    assert "\x1b[1;31mBROKEN" in shown
    assert "\x1b[32mPRESENT" in shown
    assert shown.count("\x1b[32m") == 1
    assert "\x1b" not in pipe.getvalue()
    assert [line.split()[1] for line in pipe.getvalue().splitlines()[2:]] == ["BROKEN", "PRESENT"]
