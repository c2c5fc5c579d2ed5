"""`bench attention`: exact 1.5-entmax attention against torch's softmax attention and the entmax package, and a training step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffusionlens.analysis.device import resolve_device
from diffusionlens.attention import entmax15_attention
from diffusionlens.bench.machine import machine, peak_allocation
from diffusionlens.errors import InputError
from diffusionlens.memory import enough_memory, free_memory
from diffusionlens.models import build
from diffusionlens.options import ROUNDS

Clock = Literal["wall", "cpu"]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

SHAPES = ((32, 6, 197), (256, 6, 37), (4, 6, 1025), (1, 6, 4097))
STDS = (0.15, 1.0, 3.0)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STEPS = ((224, 8), (96, 32))  # picture size, pictures
_HEAD_WIDTH = 64
_LONGEST_FOR_PACKAGE = 1025  # its maps and their sorted copies take gigabytes beyond


@dataclass(frozen=True)
class Row:
    """Milliseconds: median of the rounds; `ratio` the median of the rounds' ratios to softmax; MiB allocated at most."""

    what: str
    dtype: str
    std: float | None
    direction: str
    implementation: str
    milliseconds: float
    ratio: float
    mib: float | None


@dataclass(frozen=True)
class AttentionBench:
    machine: str
    device: str
    threads: int
    rounds: int
    clock: str
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        clock = "processor time" if self.clock == "cpu" else "wall time"
        lines = [
            f"{self.machine}, {self.threads} threads; {clock}, medians of {self.rounds} alternated rounds",
            "",
            f"{'what':<22}{'type':<6}{'std':>5}  {'direction':<18}{'implementation':<22}{'ms':>9}{'ratio':>8}{'MiB':>8}",
        ]
        for row in self.rows:
            std = "" if row.std is None else f"{row.std:g}"
            mib = "" if row.mib is None else f"{row.mib:.1f}"
            lines.append(
                f"{row.what:<22}{row.dtype:<6}{std:>5}  {row.direction:<18}{row.implementation:<22}"
                f"{row.milliseconds:>9.2f}{row.ratio:>8.2f}{mib:>8}"
            )
        return "\n".join(lines)


def bench_attention(
    device: str = "auto",
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    dtypes: Sequence[str] = ("fp32",),
    stds: Sequence[float] = STDS,
    rounds: int = 7,
    clock: Clock = "wall",
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    package: bool = True,
    steps: Sequence[tuple[int, int]] = STEPS,
) -> AttentionBench:
    """Runs the comparison; softmax, the package and ours alternate within every round.

    Raises:
        InputError: an unknown type, `cpu` time asked for on a GPU, or a shape that does not fit into memory.
    """
    device = str(resolve_device(device))
    if unknown := [dtype for dtype in dtypes if dtype not in DTYPES]:
        raise InputError(f"type '{unknown[0]}' is not measured; wanted some of {', '.join(DTYPES)}")
    ROUNDS.check(rounds)
    if clock == "cpu" and device != "cpu":
        raise InputError("processor time says nothing about a GPU; leave out --clock cpu")
    for shape in shapes:
        _refuse_larger_than_memory(shape, device)
    if threads is not None:
        torch.set_num_threads(threads)
    rows: list[Row] = []
    done, total = 0, len(shapes) * len(dtypes) * len(stds) + len(steps)
    for shape in shapes:
        for dtype in dtypes:
            for std in stds:
                report(progress, done, total)
                done += 1
                with enough_memory(_named(shape), "give smaller --shapes"):
                    rows += _operator_rows(shape, dtype, std, device, rounds, clock, package=package)
    for size, pictures in steps:
        report(progress, done, total)
        done += 1
        rows += _step_rows(size, pictures, device, rounds, clock)
    return AttentionBench(machine(device), device, torch.get_num_threads(), rounds, clock, rows)


def _named(shape: tuple[int, int, int]) -> str:
    return "attention of {} x {} x {} (pictures, heads, tokens)".format(*shape)


def _refuse_larger_than_memory(shape: tuple[int, int, int], device: str) -> None:
    """Queries, keys, values and their gradients: less is never needed. A system may lend more than it has, and kill us later."""
    batch, heads, tokens = shape
    least, free = 2 * 3 * batch * heads * tokens * _HEAD_WIDTH * 4, free_memory(torch.device(device))
    if free is not None and least > free:
        raise InputError(
            f"{_named(shape)} takes {least / 2**30:.0f} GiB at least, of which {free / 2**30:.0f} are free; give smaller --shapes"
        )


def report(progress: Callable[[str, int, int], None] | None, done: int, total: int) -> None:
    if progress is not None:
        progress("comparisons", done, total)


def _operator_rows(
    shape: tuple[int, int, int], dtype: str, std: float, device: str, rounds: int, clock: Clock, *, package: bool
) -> list[Row]:
    batch, heads, tokens = shape
    kind = DTYPES[dtype]
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(batch, tokens, 3, heads, _HEAD_WIDTH, generator=generator)
    packed[:, :, 0] *= std  # logits of this standard deviation
    packed = packed.to(device, kind).requires_grad_()
    functions: dict[str, Attention] = {"softmax (torch SDPA)": functional.scaled_dot_product_attention}
    if package and tokens <= _LONGEST_FOR_PACKAGE:
        functions["entmax package"] = partial(entmax15_attention, impl="reference")
    functions["entmax15 chunked"] = partial(entmax15_attention, impl="chunked")
    functions["entmax15 (auto)"] = entmax15_attention
    rows = []
    for direction in ("forward", "forward+backward"):
        runs: dict[str, Callable[[], None]] = {
            name: partial(_run, function, packed, direction) for name, function in functions.items()
        }
        times = _alternate(runs, rounds, clock, device)
        for name, run in runs.items():
            mib = peak_allocation(run, device) / 2**20
            rows.append(_row(f"{batch}x{heads}x{tokens}", dtype, std, direction, name, times, mib))
    return rows


def _run(function: Attention, packed: Tensor, direction: str) -> None:
    """As in timm's layer: queries, keys and values are views of one tensor, the heads are joined behind."""
    training = direction != "forward"
    with torch.set_grad_enabled(training):
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        output = function(q, k, v).transpose(1, 2).reshape(packed.shape[0], packed.shape[1], -1)
    if training:
        packed.grad = None
        output.backward(output.detach())


def _step_rows(size: int, pictures: int, device: str, rounds: int, clock: Clock) -> list[Row]:
    """Forward and backward of a ViT-S/16 at initialisation, and with queries five times as large, as after training."""
    rows = []
    for state, gain in (("init", 1.0), ("qk x5", 5.0)):
        models: dict[str, nn.Module] = {}
        for name in ("softmax", "entmax15"):
            torch.manual_seed(0)
            models[name] = build("vit_small_patch16_224", name, img_size=size).to(device)
            for block in models[name].blocks:  # type: ignore[union-attr]
                block.attn.qkv.weight.data[:384] *= gain
        images = torch.randn(pictures, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
        runs: dict[str, Callable[[], None]] = {name: partial(_step, model, images) for name, model in models.items()}
        times = _alternate(runs, rounds, clock, device)
        rows += [
            _row(f"ViT-S/16 {size}px b{pictures}", "fp32", None, f"step, {state}", name, times, None) for name in runs
        ]
    return rows


def _step(model: nn.Module, images: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(images).square().mean().backward()


def _alternate(runs: dict[str, Callable[[], None]], rounds: int, clock: Clock, device: str) -> dict[str, list[float]]:
    now = time.process_time if clock == "cpu" else time.perf_counter
    for run in runs.values():
        run()  # compiles, and warms the caches
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            _finish(device)
            start = now()
            run()
            _finish(device)
            times[name].append((now() - start) * 1000)
    return times


def _finish(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _row(
    what: str,
    dtype: str,
    std: float | None,
    direction: str,
    name: str,
    times: dict[str, list[float]],
    mib: float | None,
) -> Row:
    softmax = next(iter(times.values()))
    ratios = [ours / theirs for ours, theirs in zip(times[name], softmax, strict=True)]
    return Row(what, dtype, std, direction, name, median(times[name]), median(ratios), mib)


def parse_shapes(text: str) -> list[tuple[int, int, int]]:
    """ "32x6x197,4x6x1025" -> pictures, heads and tokens; "none" -> nothing.

    Raises:
        InputError: something else.
    """
    shapes = []
    for part in [] if text == "none" else text.split(","):
        numbers = part.split("x")
        if len(numbers) != 3 or not all(n.isascii() and n.isdecimal() and int(n) > 0 for n in numbers):
            raise InputError(f"--shapes {text}: '{part}' is not BxHxN, as 32x6x197")
        shapes.append((int(numbers[0]), int(numbers[1]), int(numbers[2])))
    return shapes


def parse_numbers(text: str, option: str) -> list[float]:
    """ "0.15,1" -> positive numbers.

    Raises:
        InputError: something else.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < 1e4 for number in numbers):
        raise InputError(f"{option} {text}; wanted positive numbers separated by commas")
    return numbers


def parse_clock(text: str) -> Clock:
    """Raises InputError for anything but wall and cpu."""
    if text not in ("wall", "cpu"):
        raise InputError(f"--clock {text}; wanted wall or cpu")
    return text  # type: ignore[return-value]
