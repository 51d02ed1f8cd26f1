"""What a comparison says: the table, the lines of the roofline, the file and the picture. Measures nothing."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import BEST, PEERS, ROWS, TARGETS, judge, median, ratio

Records = Sequence[Mapping[str, Any]]


def table(records: Records) -> str:
    """Medians of every row and engine, and ours over the best peer."""
    peers = [peer for peer in PEERS if any(record["peer"] == peer for record in records)]
    lines = [f"{'':46}" + "".join(f"{peer:>14}" for peer in peers) + f"{'ours/best peer':>16}"]
    for row in ROWS:
        found = {peer: median(records, row.name, peer) for peer in peers}
        if all(value is None for value in found.values()):
            continue
        title = f"{row.title}{f', {row.unit}' if row.unit else ''}"
        cells = "".join(f"{_number(found[peer]):>14}" for peer in peers)
        lines.append(f"{title:<46}{cells}{_best_ratio(found, more_is_better=row.more_is_better):>16}")
    return "\n".join(lines)


def verdicts(records: Records) -> str:
    """Every target that this run can judge."""
    head = f"{'target (ratios: above 1 is better for ours)':<46}{'ours':>10}  {'against':<22}"
    lines = [f"{head}{'ratio':>7}{'must':>7}{'stretch':>9}"]
    for target in TARGETS:
        verdict = judge(records, target)
        if verdict is None:
            lines.append(f"{target.row:<46}{'not measured':>10}")
            continue
        against = f"{verdict.against} {_number(verdict.theirs)}" if verdict.against else "-"
        line = f"{target.row:<46}{_number(verdict.ours):>10}  {against:<22}{verdict.ratio:>7.2f}"
        note = f"  ({target.note})" if target.note else ""
        lines.append(f"{line}{target.must:>7.2f}{target.stretch:>9.2f}  {verdict.word}{note}")
    return "\n".join(lines)


def roofline(records: Records, probes: Sequence[Mapping[str, float]], shape: Mapping[str, float]) -> str:
    """What the probes of this run allow, and how much of it ours reaches.

    shape: `weight_bytes` that a token reads, `matmul_weights` a prompt token is multiplied with, `head_weights` once a
    prompt, `attention_width` (heads times head size times layers).
    """
    if not probes:
        return "no probes were taken"
    read = statistics.median(probe["read_gb_s"] for probe in probes)
    compute = statistics.median(probe["bf16_tflop_s"] for probe in probes)
    spread = f"{min(p['read_gb_s'] for p in probes):.1f}-{max(p['read_gb_s'] for p in probes):.1f}"
    lines = [f"probes: read {read:.1f} GB/s (of {len(probes)}: {spread}), bf16 GEMM {compute:.3f} TFLOP/s"]
    bound = read * 1e9 / shape["weight_bytes"]
    line = f"decode floor: {shape['weight_bytes'] / 1e6:.0f} MB a token: {bound:.1f} tok/s at the probe"
    for peer in PEERS:
        if (rate := median(records, "decode", peer)) is not None:
            line += f"; {peer} {rate:.1f} ({rate / bound:.0%})"
    lines.append(line)
    for name in ("ttft512", "ttft2048"):
        lengths = [record["detail"]["prompt_tokens"] for record in records if record["row"] == name]
        if not lengths:
            continue
        floor = 1000 * prompt_operations(lengths[0], shape) / (compute * 1e12)
        line = f"{name} floor: {lengths[0]} tokens, {floor:.0f} ms at the probe"
        for peer in PEERS:
            if (time := median(records, name, peer)) is not None:
                line += f"; {peer} {time:.0f} ({floor / time:.0%})"
        lines.append(line)
    return "\n".join(lines)


def prompt_operations(tokens: int, shape: Mapping[str, float]) -> float:
    """Of one prompt: every weight twice a token, the head once, and causal attention's two products."""
    attention = 2 * 2 * shape["attention_width"] * tokens * tokens / 2
    return 2 * shape["matmul_weights"] * tokens + 2 * shape["head_weights"] + attention


def llama_shape(config: Mapping[str, Any]) -> dict[str, float]:
    """From a Llama's config.json, in bfloat16."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    kv = config["num_key_value_heads"] * size
    layer = hidden * (2 * heads * size + 2 * kv) + 3 * hidden * config["intermediate_size"]
    head = config["vocab_size"] * hidden
    return {
        "weight_bytes": 2 * (layers * layer + head),
        "matmul_weights": layers * layer,
        "head_weights": head,
        "attention_width": layers * heads * size,
    }


def perplexity_lines(scores: Mapping[str, Sequence[float]]) -> str:
    """Ours against itself: what the packed kernels' own rounding costs."""
    lines = [
        f"perplexity, {name}: {math.exp(statistics.fmean(nll)):.4f}, {len(nll)} tokens" for name, nll in scores.items()
    ]
    if {"Q4_1", "Q4_1 dequantized"} <= scores.keys():
        # The same tokens, so the noise of the text itself cancels; what is left is told beside the change.
        changes = [a - b for a, b in zip(scores["Q4_1"], scores["Q4_1 dequantized"], strict=True)]
        change = math.expm1(statistics.fmean(changes))
        error = statistics.stdev(changes) / math.sqrt(len(changes))
        said = f"{change:+.3%}, standard error {error:.3%}"
        lines.append(f"perplexity, Q4_1 against dequantized: {said} (must: within 0.5 %)")
    return "\n".join(lines)


def agreement(records: Records) -> str:
    """Share of the mixed requests whose first token is ours; near ties differ between correct engines in 16 bit."""
    heads: dict[str, list[list[int]]] = {}
    for record in records:
        if record["row"] == "offline":
            heads.setdefault(record["peer"], record["detail"]["heads"])
    ours = heads.pop("ours", None)
    if not ours or not heads:
        return ""
    parts = []
    for peer, theirs in heads.items():
        same = sum(a[0] == b[0] for a, b in zip(ours, theirs, strict=True))
        parts.append(f"{peer} {same} of {len(ours)}")
    return "first tokens equal to ours: " + "; ".join(parts)


def write_plot(path: Path, records: Records, title: str) -> None:
    """Every row as bars of medians with a point a value, as PNG. Needs matplotlib."""
    from matplotlib.figure import Figure

    rows = [row for row in ROWS if any(record["row"] == row.name for record in records)]
    columns = 4
    lines = max(1, -(-len(rows) // columns))
    figure = Figure(figsize=(4.2 * columns, 3.2 * lines), layout="constrained")
    figure.suptitle(title)
    for place, row in enumerate(rows, 1):
        axes = figure.add_subplot(lines, columns, place)
        peers = [peer for peer in PEERS if median(records, row.name, peer) is not None]
        heights = [median(records, row.name, peer) or 0.0 for peer in peers]
        colors = ["tab:blue" if peer == "ours" else "lightgray" for peer in peers]
        axes.bar(range(len(peers)), heights, color=colors)
        for index, peer in enumerate(peers):
            values = [v for r in records if (r["row"], r["peer"]) == (row.name, peer) for v in r["values"]]
            axes.plot([index] * len(values), values, ".", color="black", markersize=4)
        axes.set_xticks(range(len(peers)), peers, fontsize=8)
        better = "more" if row.more_is_better else "less"
        axes.set_title(f"{row.title}\n{row.unit or 'share'}, {better} is better", fontsize=9)
    figure.savefig(path, format="png", dpi=110)


def full_text(result: Mapping[str, Any]) -> str:
    """All that is printed at the end; `result` is what the JSON file holds."""
    records = result["records"]
    parts = [table(records), verdicts(records)]
    if result["shape"]:
        parts.append(roofline(records, result["probes"], result["shape"]))
    if result["perplexity"]:
        parts.append(perplexity_lines(result["perplexity"]))
    parts.append(agreement(records))
    parts += [f"skipped {peer}: {reason}" for peer, reason in result["skipped"].items()]
    parts += [f"FAILED {each['peer']} {each['sitting']}: {each['error']}" for each in result["failures"]]
    return "\n\n".join(part for part in parts if part)


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Through another name: a run that is cut off leaves the last whole file."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    unfinished.rename(path)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _best_ratio(found: Mapping[str, float | None], *, more_is_better: bool) -> str:
    peers = {peer: value for peer in BEST if (value := found.get(peer)) is not None}
    ours = found.get("ours")
    if ours is None or not peers:
        return "-"
    name = (max if more_is_better else min)(peers, key=lambda peer: peers[peer])
    return f"{ratio(ours, peers[name], more_is_better=more_is_better):.2f}x {name}"
