"""Memory is counted in bytes, and only ever grows."""

import numpy as np
import pytest
import torch

from diffusionlens.memory import free_memory, peak_memory

MIB = 2**20


def test_the_peak_is_in_bytes_and_stays() -> None:
    before = peak_memory()
    if before is None:
        pytest.skip("this system does not say")
    assert 20 * MIB < before < 2**40
    held = before + 64 * MIB
    block = np.ones(held // 8)  # more than all that there ever was
    after = peak_memory()
    assert after is not None
    assert after >= held
    del block
    assert peak_memory() == pytest.approx(after, rel=0.01)


def test_what_is_free_is_less_than_a_large_machine() -> None:
    free = free_memory(torch.device("cpu"))
    assert free is None or MIB < free < 2**46
