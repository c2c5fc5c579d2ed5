"""Imported before torch and matplotlib, which need a place for temporary files: one line where there is none."""

import sys
import tempfile

try:
    tempfile.gettempdir()
except FileNotFoundError:
    print("error: no directory for temporary files can be written to; set TMPDIR to one that can", file=sys.stderr)
    sys.exit(2)
