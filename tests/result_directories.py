"""What tests compare result directories by."""

import re
from pathlib import Path


def contents(out: Path, varying: str = "command") -> dict[str, bytes]:
    """Every file, without times, and without the keys `varying` (a pattern) of the manifest: the command names the directory."""
    page = (out / "index.html").read_text()

    found = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    manifest = re.sub(r'("(?:\w*seconds|peak_memory)": )[\d.]+', r"\1T", found["manifest.json"].decode())
    found["manifest.json"] = re.sub(rf'"({varying})": ("[^"]*"|\d+)', "", manifest).encode()
    found["index.html"] = re.sub(r"<dt>(time|command|most memory of the process)</dt><dd>[^<]*</dd>", "", page).encode()
    return found
