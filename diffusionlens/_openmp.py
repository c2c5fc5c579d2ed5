"""Imported before torch: lets OpenMP's idle threads sleep.

GNU's OpenMP, which torch brings, keeps its threads spinning for a while after every parallel operation. The compiled
statistics run on threads of their own between torch's operations, and would share the cores with those spinning ones: on
two cores they took 1.7 times as long. Waking sleeping threads costs some microseconds an operation.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")
