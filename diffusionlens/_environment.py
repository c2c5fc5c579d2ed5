"""Imported before torch: what libraries that it brings read from the environment once, when they are loaded."""

import os

# GNU's OpenMP keeps its threads spinning for a while after every parallel operation. The compiled statistics run on threads of
# their own between torch's operations, and would share the cores with those spinning ones: on two cores they took 1.7 times as
# long. Waking sleeping threads costs some microseconds an operation.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# torch's profiler, which `bench` counts allocations with, writes lines of its own on standard error that say nothing to a user,
# among them, without a GPU, an "ERROR" that is none.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
