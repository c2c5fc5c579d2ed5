"""What a timing was made on, and what it allocated."""

import platform
from collections.abc import Callable

import torch


def machine(device: str = "cpu") -> str:
    """Processor (and GPU), system and versions, in a line."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123
            name = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    if device.startswith("cuda"):
        name = f"{torch.cuda.get_device_name(device)} ({name})"
    return f"{name}, {platform.system()}, Python {platform.python_version()}, torch {torch.__version__}"


def peak_allocation(run: Callable[[], object], device: str = "cpu") -> int:
    """Bytes that `run` holds at most, beyond what was held before, of memory that torch allocates."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = largest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            largest = max(largest, held)
    return largest
