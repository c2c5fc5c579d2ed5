"""Shared by all tests: where the real pictures and weights are, when they are there."""

from pathlib import Path

import pytest
from hypothesis import settings

# The same cases in every run, so that a change is judged by what it changes; `--hypothesis-profile=default` searches anew.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

SHARED_DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real pictures and weights beside the repository; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data not found beside the repository ({SHARED_DATA.name}/ missing)")
    return SHARED_DATA
