"""What the child processes of these tests run, and how tensors get there: as bytes, which keep strides and shared memory apart.

Triton decides when it is imported whether kernels are interpreted (TRITON_INTERPRET=1), for the whole process: its own library
is made of kernels too. A test process, which pytest-xdist gives many test files, may have imported it already through
PyTorch. So the kernels run in a process of their own that is started with the variable set, and are compiled in another one.
"""

import io
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def packed(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True)


class Child:
    """One process with the given environment that runs functions of this module."""

    def __init__(self, environment: dict[str, str]) -> None:
        kept = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
            self.pool.submit(os.getpid).result()
        finally:
            for name, value in kept.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def call(self, function: Callable[[bytes], bytes], *arguments: Any) -> Any:
        return unpacked(self.pool.submit(function, packed(arguments)).result())


@contextmanager
def child(environment: dict[str, str]) -> Iterator[Child]:
    process = Child(environment)
    try:
        yield process
    finally:
        process.pool.shutdown()


def forward(arguments: bytes) -> bytes:
    """q, k, v, scale, mask, for_backward -> out, threshold, mean value."""
    from diffusionlens.attention.triton import attention_forward

    q, k, v, scale, mask, for_backward = unpacked(arguments)
    return packed(attention_forward(q, k, v, scale, mask, for_backward=for_backward))


def forward_and_backward(arguments: bytes) -> bytes:
    """q, k, v, scale, mask, grad_out -> out, threshold, mean value, dq, dk, dv."""
    from diffusionlens.attention.triton import attention_backward, attention_forward

    q, k, v, scale, mask, grad_out = unpacked(arguments)
    out, threshold, mean_value = attention_forward(q, k, v, scale, mask, for_backward=True)
    gradients = attention_backward(grad_out, q, k, v, threshold, mean_value, scale, mask)
    return packed((out, threshold, mean_value, *gradients))


class AbsentDevice:
    """Stands in for the driver of an H100 or H200, as far as compiling needs one."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_kernels(arguments: bytes) -> bytes:
    """dtype, queries, keys, head dimension, masked -> [(kernel, registers, threads, shared bytes, spilled bytes)].

    The launches of a forward with and without a backward and of the backward, as `launch` makes them, through Triton's own launch
    path up to the point where it would need the device.
    """
    import triton

    from diffusionlens.attention.triton.launch import backward_calls, forward_call

    dtype, queries, keys, head_dim, masked = unpacked(arguments)
    triton.runtime.driver.set_active(AbsentDevice())
    heads = 6
    qkv = torch.zeros(2, max(queries, keys), 3, heads, head_dim, dtype=dtype).permute(2, 0, 3, 1, 4)
    q, k, v = qkv[0][:, :, :queries], qkv[1][:, :, :keys], qkv[2][:, :, :keys]
    mask = torch.zeros(2, 1, 1, keys) if masked else None
    out, mean_value = torch.zeros_like(q), torch.zeros_like(q, dtype=torch.float32)
    threshold = torch.zeros(2, heads, queries)
    scale = head_dim**-0.5
    given = (q, k, v, threshold, mean_value, scale, mask)
    calls = {
        "forward, inference": forward_call(q, k, v, scale, mask, out, threshold, None),
        "forward, training": forward_call(q, k, v, scale, mask, out, threshold, mean_value),
    }
    calls["backward, queries"], calls["backward, keys"] = backward_calls(out, *given, q, k, v)
    found = []
    for name, call in calls.items():
        compiled = call.kernel.warmup(**call.arguments, **call.constants, **call.options(), grid=(call.programs,))
        registers, spilled = registers_and_spills(compiled.asm["ptx"], triton.knobs.nvidia.ptxas.path)
        label = f"{name} ({call.kernel.__name__})"
        found.append((label, registers, 32 * call.tiling.warps, int(compiled.metadata.shared), spilled))
    return packed(found)


def registers_and_spills(ptx: str, ptxas: str) -> tuple[int, int]:
    """Registers per thread and bytes stored to or loaded from local memory, as ptxas reports them."""
    architecture = re.search(r"\.target (sm_\w+)", ptx)
    assert architecture is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [ptxas, "-v", f"--gpu-name={architecture[1]}", str(source), "-o", str(source.with_suffix(".cubin"))]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert registers is not None
    assert spills is not None
    return int(registers[1]), int(spills[1]) + int(spills[2])


def reference(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same six tensors in float64, by sorting (entmax package) and autograd; every row must have a finite score."""
    from entmax import entmax15

    q, k, v = (tensor.detach().double().requires_grad_() for tensor in (q, k, v))
    scores = scale * q @ k.mT
    if mask is not None:
        scores = scores + mask.double()
    p = entmax15(scores, dim=-1)
    out = p @ v
    gradients = torch.autograd.grad(out, (q, k, v), grad_out.double())
    u = p.detach().sqrt()
    top = scores.detach().argmax(-1, keepdim=True)
    threshold = (scores.detach() / 2).gather(-1, top) - u.gather(-1, top)
    mean_value = u @ v.detach() / u.sum(-1, keepdim=True)
    return out.detach(), threshold.squeeze(-1), mean_value, *gradients
