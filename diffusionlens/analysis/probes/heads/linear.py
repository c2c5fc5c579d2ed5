"""Linear heads of one layer, for all token kinds and learning rates side by side, from one reading of the tokens.

A head that reads [side vector, patch] is linear, so it is the sum of a part that reads the patch and a part that reads the
picture's vector; the second is computed once a picture, and the patch parts of all kinds and rates are one matrix product.
The batch norm in front keeps its own meaning in this form: it standardises every channel by the batch's statistics (which
all heads share, since they see the same tokens), and its scale and shift are parameters of each head, folded into the
head's weights for the product: W (scale * z + shift) = (W * scale) z + W shift.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from diffusionlens.analysis.probes.heads.kinds import SIDE, LayerTokens, has_patches

_EPS = 1e-5  # torch.nn.BatchNorm2d's defaults
_MOMENTUM = 0.1

DIVERGED = 1e12
"""Tokens are below 1e5, or below 1e8 behind a batch norm, and scale times weight below 1e24: what is smaller than this can't make
outputs that float32 has no number for."""


class LayerHeads:
    """Heads of the shapes [kind, rate]: `outputs` values at every position from tokens of `width` channels.

    Heads of all rates start alike; kinds share the beginnings of their patch parts. Weights are drawn from a normal of
    standard deviation 0.01, biases are 0, as in the decoding heads of DINOv2.

    Args:
        kinds: token kinds, see `kinds.KINDS`.
        rates: how many learning rates are trained side by side.
        batch_norm: whether a batch norm stands before the linear map.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        width: int,
        outputs: int,
        rates: int,
        seed: int,
        *,
        batch_norm: bool,
        device: torch.device,
    ) -> None:
        self.kinds = tuple(kinds)
        self.width, self.outputs, self.rates, self.batch_norm = width, outputs, rates, batch_norm
        self.patch_kinds = [kind for kind in self.kinds if has_patches(kind)]
        self.side_kinds = [kind for kind in self.kinds if SIDE[kind] is not None]
        self.sides = list(dict.fromkeys(SIDE[kind] for kind in self.side_kinds))
        generator = torch.Generator().manual_seed(seed)
        parts = {"patch": len(self.patch_kinds), "side": len(self.side_kinds)}
        self.parameters: dict[str, Tensor] = {"bias": torch.zeros(len(self.kinds), rates, outputs)}
        for part, count in parts.items():
            start = 0.01 * torch.randn(outputs, width, generator=generator)
            self.parameters[f"{part}_weight"] = start.expand(count, rates, outputs, width).clone()
            if batch_norm:
                self.parameters[f"{part}_scale"] = torch.ones(count, rates, width)
                self.parameters[f"{part}_shift"] = torch.zeros(count, rates, width)
        self.parameters = {name: value.to(device).requires_grad_() for name, value in self.parameters.items()}
        names = ["patch", *(str(side) for side in self.sides)]
        self.running = {name: (torch.zeros(width, device=device), torch.ones(width, device=device)) for name in names}

    def __call__(self, tokens: LayerTokens, positions: Tensor, *, training: bool = False) -> Tensor:
        """The heads' outputs where `positions` are patch tokens, or mixtures of neighbours, of the same batch.

        Args:
            tokens: of the batch; the batch norm's statistics are those of the patches on their grid.
            positions: [B,M,D]. The head and the batch norm are affine, so that to mix tokens and to mix outputs is one.

        Returns:
            [B,M,kinds,rates,outputs].
        """
        batch, count = positions.shape[:2]
        grid = tokens.patches.shape[1] * tokens.patches.shape[2]
        patch = self._patch_part(tokens, positions, training=training) if self.patch_kinds else None
        side = self._side_part(tokens, grid, training=training) if self.side_kinds else None
        bias = self.parameters["bias"]
        columns = []
        for place, kind in enumerate(self.kinds):
            column: Tensor = bias[place]
            if side is not None and kind in self.side_kinds:
                column = column + side[:, None, self.side_kinds.index(kind)]
            if patch is not None and kind in self.patch_kinds:
                column = column + patch[:, :, self.patch_kinds.index(kind)]
            columns.append(column.expand(batch, count, self.rates, self.outputs))
        return torch.stack(columns, 2)

    def rows_of_kinds(self) -> dict[str, list[int]]:
        """Parameter -> the kind, as its place in `kinds`, of every row."""
        own = {"bias": self.kinds, "patch": self.patch_kinds, "side": self.side_kinds}
        return {name: [self.kinds.index(kind) for kind in own[name.partition("_")[0]]] for name in self.parameters}

    def finite(self) -> Tensor:
        """Which heads [kinds,rates] have not diverged: numbers that are finite, and not so large that outputs are not."""
        found = torch.ones(len(self.kinds), self.rates, dtype=torch.bool)
        for name, places in self.rows_of_kinds().items():
            for row, place in enumerate(places):
                value = self.parameters[name][row].detach().flatten(1)
                found[place] &= (value.abs() < DIVERGED).all(1).cpu()  # NaN is not below either
        return found

    def select(self, chosen: Sequence[int | None]) -> "LayerHeads":
        """The heads of rate `chosen[kind]` alone, for every kind in order, without those of None; nothing is shared with
        these."""
        rate = {kind: place for kind, place in zip(self.kinds, chosen, strict=True) if place is not None}
        kinds = {"bias": self.kinds, "patch": self.patch_kinds, "side": self.side_kinds}
        taken = LayerHeads(
            tuple(rate),
            self.width,
            self.outputs,
            1,
            0,
            batch_norm=self.batch_norm,
            device=self.parameters["bias"].device,
        )
        for name, value in self.parameters.items():
            own = kinds[name.partition("_")[0]]
            rows = [value[place, rate[kind]] for place, kind in enumerate(own) if kind in rate]
            if rows:
                taken.parameters[name] = torch.stack(rows)[:, None].detach().clone()
        taken.running = {name: (self.running[name][0].clone(), self.running[name][1].clone()) for name in taken.running}
        return taken

    def state(self) -> dict[str, Tensor]:
        """Everything that the outputs depend on, for a file."""
        statistics = {
            f"running_{stat}/{name}": pair[place] for name, pair in self.running.items() for place, stat in _STATS
        }
        return {name: value.detach().cpu().contiguous() for name, value in (self.parameters | statistics).items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over a `state` of the same form."""
        device = self.parameters["bias"].device
        self.parameters = {name: state[name].to(device).float() for name in self.parameters}
        for name in self.running:
            mean, var = (state[f"running_{stat}/{name}"].to(device).float() for _, stat in _STATS)
            self.running[name] = (mean, var)

    def _patch_part(self, tokens: LayerTokens, positions: Tensor, *, training: bool) -> Tensor:
        batch, count, width = positions.shape
        flat = positions.reshape(-1, width)
        if self.batch_norm:
            mean, deviation = self._statistics("patch", tokens.patches.reshape(-1, width), 1, training=training)
            flat = (flat - mean) / deviation
        weight, constant = self._folded("patch")
        rows = flat @ weight.reshape(-1, width).T
        found = rows.view(batch, count, len(self.patch_kinds), self.rates, self.outputs)
        return found if constant is None else found + constant

    def _side_part(self, tokens: LayerTokens, grid: int, *, training: bool) -> Tensor:
        vectors = {}
        for side in self.sides:
            vector = tokens.side(str(side))
            if self.batch_norm:  # the vector stands at every place of the grid
                mean, deviation = self._statistics(str(side), vector, grid, training=training)
                vector = (vector - mean) / deviation
            vectors[side] = vector
        weight, constant = self._folded("side")
        stacked = torch.stack([vectors[SIDE[kind]] for kind in self.side_kinds])
        found = torch.einsum("sbd,srcd->bsrc", stacked, weight)
        return found if constant is None else found + constant

    def _folded(self, part: str) -> tuple[Tensor, Tensor | None]:
        weight = self.parameters[f"{part}_weight"]
        if not self.batch_norm:
            return weight, None
        scale, shift = self.parameters[f"{part}_scale"], self.parameters[f"{part}_shift"]
        return weight * scale[:, :, None], torch.einsum("krcd,krd->krc", weight, shift)

    def _statistics(self, name: str, rows: Tensor, copies: int, *, training: bool) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every channel: of `rows` [n,D] in training, which also moves the running ones."""
        mean, var = self.running[name]
        if training:
            var_now, mean_now = torch.var_mean(rows, 0, correction=0)
            count = rows.shape[0] * copies
            unbiased = var_now * (count / max(count - 1, 1))
            self.running[name] = (mean.lerp(mean_now, _MOMENTUM), var.lerp(unbiased, _MOMENTUM))
            mean, var = mean_now, var_now
        return mean, (var + _EPS).sqrt()


_STATS = ((0, "mean"), (1, "var"))


def state_shapes(kinds: Sequence[str], width: int, outputs: int, *, batch_norm: bool) -> dict[str, tuple[int, ...]]:
    """The shapes of the `state` of heads of one rate, without those that hold nothing; nothing is made."""
    shapes: dict[str, tuple[int, ...]] = {"bias": (len(kinds), 1, outputs)}
    counts = {"patch": sum(map(has_patches, kinds)), "side": sum(SIDE[kind] is not None for kind in kinds)}
    for part, count in counts.items():
        if count:
            shapes[f"{part}_weight"] = (count, 1, outputs, width)
            if batch_norm:
                shapes |= {f"{part}_{name}": (count, 1, width) for name in ("scale", "shift")}
    sides = dict.fromkeys(str(SIDE[kind]) for kind in kinds if SIDE[kind] is not None)
    for name in ("patch", *sides):
        shapes |= {f"running_{stat}/{name}": (width,) for _, stat in _STATS}
    return shapes
