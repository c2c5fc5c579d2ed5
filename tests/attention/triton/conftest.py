"""The two child processes that the tests of the kernels use; `worker` says why they are needed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attention.triton.worker import Child, child


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Child]:
    """Runs the kernels without a device, in Triton's interpreter; skips where there is no Triton."""
    pytest.importorskip("triton", reason="Triton is not installed")
    with child({"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}) as process:
        yield process


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """Compiles the kernels for sm_90 without a device; skips where there is no Triton or no ptxas."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    try:
        ptxas = triton.knobs.nvidia.ptxas.path
    except RuntimeError:
        pytest.skip("ptxas not found: this Triton comes without it")
    if not Path(ptxas).is_file():
        pytest.skip(f"ptxas not found at {ptxas}")
    cache = str(tmp_path_factory.mktemp("triton_cache"))
    with child({"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}) as process:
        yield process
