"""Says so when a run learns nothing: the ways in which self-distillation collapses, by what the log shows of them."""

import math
from collections.abc import Mapping
from typing import Any

_STUCK = 0.02  # of ln K: a loss this near to it is that of uniform outputs
_GAP = 0.3  # nats; runs that learned had .85 to 1.2, and in runs that failed the loss fell too
_LINES = 5  # consecutive lines of the log that must agree


class CollapseWatch:
    """Fed with the lines of the log, in order; answers with a warning when something is wrong for the first time.

    Args:
        out_dim: number of prototypes K.
        total: steps of the run. The first tenth is not judged (but at most 5,000 steps), nor are the first hundred.
    """

    def __init__(self, out_dim: int, total: int) -> None:
        self.uniform = math.log(out_dim)
        self.patience = min(max(100, total // 10), 5000)
        self._counts: dict[str, int] = {}
        self._said: set[str] = set()

    def see(self, line: Mapping[str, Any]) -> str | None:
        """The warning that this line (loss, sample_entropy, teacher_entropy, step) brings, or None."""
        if line["step"] < self.patience:
            return None
        kind = self._kind(line)
        self._counts = {kind: self._counts.get(kind, 0) + 1} if kind else {}
        if kind is None:
            self._said.clear()
            return None
        if self._counts[kind] < _LINES or kind in self._said:
            return None
        self._said.add(kind)
        return self._describe(kind, line)

    def _kind(self, line: Mapping[str, Any]) -> str | None:
        if abs(line["loss"] - self.uniform) < _STUCK * self.uniform:
            return "uniform"
        # The same answer to every picture: the mean over pictures has no more entropy than each of them.
        if line["teacher_entropy"] < 0.1 * self.uniform and line["teacher_entropy"] - line["sample_entropy"] < _GAP:
            return "constant"
        if line["teacher_entropy"] - line["loss"] < _GAP:
            return "nothing learned"
        return None

    def _describe(self, kind: str, line: Mapping[str, Any]) -> str:
        if kind == "uniform":
            return (
                f"collapse: the loss stands at {line['loss']:.2f}, and ln K is {self.uniform:.2f}: outputs are uniform. "
                f"Usual causes: too high a teacher temperature, too low a centre momentum, too high a learning rate"
            )
        if kind == "constant":
            return (
                f"collapse: every picture gets the same answer (entropy of the mean output {line['teacher_entropy']:.2f} nats, "
                f"of one output {line['sample_entropy']:.2f}). Usual causes: too slow a centre, too low a teacher temperature"
            )
        gap = line["teacher_entropy"] - line["loss"]
        return (
            f"nothing learned yet: entropy of the mean teacher output minus loss is {gap:.2f} nats, and runs that learn exceed "
            f"{_GAP}. A falling loss alone does not show learning"
        )
