"""Every kernel, launched as it is launched, compiles for sm_90 without spilling registers. Nothing is timed here."""

import pytest
import torch

from tests.attention.triton.worker import Child, compile_kernels

SHARED_LIMIT = 227 * 1024  # bytes of one block on an H100 or H200
REGISTER_FILE = 65536

CASES = [  # type of the elements, queries, keys, head dimension, with a mask
    ("bfloat16", 5, 5, 16, False),
    ("bfloat16", 37, 37, 64, False),
    ("bfloat16", 197, 197, 64, False),
    ("bfloat16", 197, 197, 64, True),
    ("bfloat16", 256, 256, 64, False),
    ("bfloat16", 256, 256, 64, True),
    ("bfloat16", 785, 785, 64, False),
    ("bfloat16", 1025, 1025, 64, True),
    ("float16", 197, 197, 64, False),
    ("float16", 1, 197, 48, False),
    ("bfloat16", 257, 257, 80, False),
    ("bfloat16", 197, 197, 128, False),
    ("bfloat16", 197, 197, 128, True),
    ("bfloat16", 785, 785, 128, True),
    ("bfloat16", 256, 256, 256, False),
    ("bfloat16", 785, 785, 256, False),
    ("bfloat16", 785, 785, 256, True),
    ("float32", 197, 197, 64, False),
    ("float32", 785, 785, 64, True),
    ("float32", 197, 197, 256, False),
    ("float32", 785, 785, 128, True),
    ("float32", 785, 785, 256, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "queries", "keys", "head_dim", "masked"), CASES)
def test_compiles_without_spills(
    compiler: Child, dtype: str, queries: int, keys: int, head_dim: int, masked: bool
) -> None:
    kernels = compiler.call(compile_kernels, getattr(torch, dtype), queries, keys, head_dim, masked)
    assert len(kernels) == 4
    for name, registers, threads, shared, spilled in kernels:
        print(f"{dtype} D={head_dim} N={keys}{' masked' if masked else ''}, {name}: "
              f"{registers} registers x {threads} threads, {shared} bytes shared, {spilled} bytes spilled")  # fmt: skip
    for name, registers, threads, shared, spilled in kernels:
        assert spilled == 0, name
        assert shared <= SHARED_LIMIT, name
        assert registers * threads <= REGISTER_FILE, name
