"""``nala bench step --model``: what one more token costs a whole language model, against the tokens before it.

Beside it runs a bare PyTorch loop over the same modules with the recurrence written out: what the model's own
bookkeeping (Hugging Face's forward, cache, masks, validation) adds is the difference.

Shapes: H heads, D head size, E = D value size, F = 2D features; one sequence.
"""

import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from nala_platform.attention import State
from nala_platform.bench.attention_plot import GREY, against_tokens
from nala_platform.bench.growth import exponent
from nala_platform.bench.machine import check_device, describe, waiter
from nala_platform.bench.output import cell, columns, ready, show, write_csv
from nala_platform.bench.turns import CLOCKS, take_turns
from nala_platform.errors import UserError
from nala_platform.models.language import NaLaConfig, NaLaForCausalLM
from nala_platform.runs import save_figure

MODEL, BARE = "model", "bare loop"
LENGTHS = (256, 4096, 65536, 262144)
VOCABULARY = 2048
_PREFILL = 4096  # tokens of a piece in which the context is read


class Row(NamedTuple):
    """A line of the CSV file."""

    length: int
    """tokens before"""
    contestant: str
    ms: float
    """of one token, the median"""
    fastest_ms: float
    slowest_ms: float
    samples: int
    over_bare: float
    over_shortest: float
    """the median over that of the same contestant after the fewest tokens"""
    exponent: float | None


class Context(NamedTuple):
    """What a sequence has left behind in each layer."""

    length: int
    states: list[State]


def measure(options: Namespace) -> None:
    """Read the context in pieces, measure all lengths in turns, print a table, and write files with ``--output``.

    Raises:
        UserError: a wrong option.
    """
    device = check_device(options.device)
    ready(options.output)
    torch.manual_seed(0)
    model = NaLaForCausalLM(NaLaConfig.from_size(options.model, vocab_size=VOCABULARY)).eval()
    nn.Module.to(model, device)  # the library's own has a type that no checker understands
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    about = [
        describe(device),
        f"{options.model}, {count:.1f} M parameters, batch 1, float32, {device}; context read in pieces of {_PREFILL}; "
        f"{options.clock} clock",
    ]
    print("\n".join(about), flush=True)
    start = time.perf_counter()
    contexts = contexts_of(model, sorted(set(options.lengths or LENGTHS)))
    print(f"context read in {time.perf_counter() - start:.1f} s", flush=True)
    rows = _measured(model, contexts, options, device)
    _print(rows)
    if options.output is not None:
        write_csv(options.output / "step_model.csv", about, Row._fields, rows)
        _draw(rows, options.output / "step_model.png", "\n".join(reversed(about)))
        print(f"written: {options.output / 'step_model.csv'}, {options.output / 'step_model.png'}")


@torch.no_grad()
def contexts_of(model: NaLaForCausalLM, lengths: list[int]) -> list[Context]:
    """The states after the first tokens of one random sequence, of each length."""
    generator = torch.Generator().manual_seed(0)
    cache: Any = None
    found, seen = [], 0
    for length in lengths:
        while seen < length:
            piece = torch.randint(VOCABULARY, (1, min(_PREFILL, length - seen)), generator=generator)
            cache = model(piece.to(model.device), cache=cache, use_cache=True, logits_to_keep=1).cache
            seen += piece.shape[1]
        found.append(Context(seen, [State(*(part.clone() for part in layer.state)) for layer in cache.layers]))
    return found


class ModelStep:
    """One more token through the model; the cache is put back as it was."""

    def __init__(self, model: NaLaForCausalLM, context: Context) -> None:
        self.model, self.context = model, context
        token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        self.cache: Any = model(token, use_cache=True).cache

    def __call__(self, token: Tensor) -> Tensor:
        """Logits (V,) after ``token`` (1, 1)."""
        for layer, state in zip(self.cache.layers, self.context.states, strict=True):
            layer.state, layer.length = state, self.context.length
        return self.model(token, cache=self.cache).logits[0, -1]


class BareStep:
    """The same token by a plain loop over the modules, with NaLa's default options written out."""

    def __init__(self, model: NaLaForCausalLM, context: Context) -> None:
        self.base: Any = model.model
        self.head, self.context = model.lm_head, context
        config = model.config
        self.heads, self.size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.low, self.high = config.alpha_range
        pair = torch.arange(0, self.size, 2, device=model.device, dtype=torch.float64)
        self.frequency = (config.rope_theta ** (-pair / self.size)).repeat_interleave(2)

    def __call__(self, token: Tensor) -> Tensor:
        """Logits (V,) after ``token`` (1, 1)."""
        x_C = self.base.embed(token[0, 0])
        angle = self.frequency * self.context.length
        rope = angle.cos().float(), angle.sin().float()
        for block, state in zip(self.base.blocks, self.context.states, strict=True):
            mixer: Any = block.mixer
            query, key, value, gate_HD = mixer.qkvg(block.norm1(x_C)).view(4, self.heads, self.size).unbind()
            mixed_C = mixer.norm(self._recurrence(query, key, value, state, rope).view(-1))
            x_C = x_C + mixer.out(mixed_C * F.silu(gate_HD.reshape(-1)))
            x_C = x_C + block.feed_forward(block.norm2(x_C))
        return self.head(self.base.norm(x_C))

    def _recurrence(self, query: Tensor, key: Tensor, value: Tensor, state: State, rope: tuple[Tensor, ...]) -> Tensor:
        norm = query.norm(dim=-1, keepdim=True)
        alpha = self.low + (self.high - self.low) * norm.tanh()
        phi_q_HF = _split((query.abs() / norm).pow(alpha).copysign(query))
        phi_k_HF = _split(key.pow(3))
        sums_HFE = state.key_value_BHFE[0] + _turned(phi_k_HF, rope)[..., None] * value[:, None]
        keys_HF, count = state.key_BHF[0] + phi_k_HF, state.count_B[0] + 1
        numerator_HE = (_turned(phi_q_HF, rope)[:, None] @ sums_HFE)[:, 0]
        return numerator_HE / ((phi_q_HF * keys_HF).sum(-1, keepdim=True) + 1e-6 * count)


def _split(signed_HD: Tensor) -> Tensor:
    return torch.cat((signed_HD, -signed_HD), dim=-1).relu()


def _turned(phi_HF: Tensor, rope: tuple[Tensor, ...]) -> Tensor:
    cos, sin = rope
    x_H2D = phi_HF.view(phi_HF.shape[0], 2, -1)
    even, odd = x_H2D[..., 0::2], x_H2D[..., 1::2]
    swapped = torch.stack((-odd, even), dim=-1).flatten(-2)
    return (x_H2D * cos + swapped * sin).flatten(1)


@torch.no_grad()
def _measured(model: NaLaForCausalLM, contexts: list[Context], options: Namespace, device: str) -> list[Row]:
    token = torch.full((1, 1), 7, device=device)
    steps: dict[tuple[int, str], Callable[[], object]] = {}
    for context in contexts:
        steps[context.length, MODEL] = partial(ModelStep(model, context), token)
        steps[context.length, BARE] = partial(BareStep(model, context), token)
    names = {f"{name} after {length} tokens": (length, name) for length, name in steps}
    works = {text: steps[kind] for text, kind in names.items()}
    clock = CLOCKS[options.clock]
    samples, failed = take_turns(works, repeats=options.repeats, limit=60.0, wait=waiter(device), clock=clock)
    for text, reason in failed.items():
        raise UserError(f"{text} failed: {reason}")
    times = {names[text]: [1e3 * second for second in seconds] for text, seconds in samples.items()}
    return [_row(kind, times) for kind in times]


def _row(kind: tuple[int, str], times: dict[tuple[int, str], list[float]]) -> Row:
    length, name = kind
    ms = times[kind]
    own = {other: median(values) for (other, contestant), values in times.items() if contestant == name}
    over_bare = median(ms) / median(times[length, BARE])
    over_shortest = own[length] / own[min(own)]
    grown = exponent(list(own), list(own.values()))
    return Row(length, name, median(ms), min(ms), max(ms), len(ms), over_bare, over_shortest, grown)


def _print(rows: list[Row]) -> None:
    numbers = ["ms a token", "fastest", "over the bare loop", "over the shortest", "grows as N to the"]
    table = columns(f"one more token: medians of {rows[0].samples} samples taken in turns", ["N", ""], numbers)
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before.length != row.length:
            table.add_section()
        figures = [cell(row.ms, 3), cell(row.fastest_ms, 3), cell(row.over_bare, 2), cell(row.over_shortest, 2)]
        table.add_row(str(row.length), row.contestant, *figures, cell(row.exponent, 2))
    show(table)


def _draw(rows: list[Row], picture: Any, title: str) -> None:
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate((MODEL, BARE)):
        own = [row for row in rows if row.contestant == name]
        lengths = [row.length for row in own]
        axes.fill_between(
            lengths, [row.fastest_ms for row in own], [row.ms for row in own], color=f"C{place}", alpha=0.2
        )
        axes.plot(lengths, [row.ms for row in own], color=f"C{place}", marker="os"[place], label=name)
    against_tokens(axes, [row.length for row in rows], "one more token of a language model", "milliseconds")
    axes.set_yscale("linear")
    axes.set_ylim(0, 1.15 * max(row.ms for row in rows))
    figure.suptitle(f"{title}\nline: median; shaded down to the fastest sample", fontsize=9, color=GREY)
    save_figure(figure, picture)
