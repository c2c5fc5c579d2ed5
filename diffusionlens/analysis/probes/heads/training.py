"""Training the heads of one layer from cached tokens, and choosing their learning rates."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffusionlens.analysis.intervals import Floats
from diffusionlens.analysis.probes.cached.store import TokenStore
from diffusionlens.analysis.probes.geometry.points import mix_at
from diffusionlens.analysis.probes.geometry.views import Padding, Views
from diffusionlens.analysis.probes.heads.kinds import LayerTokens, partners, with_partner
from diffusionlens.analysis.probes.heads.linear import LayerHeads
from diffusionlens.analysis.probes.heads.optimizer import SideBySide
from diffusionlens.analysis.probes.settings.recipe import DenseRecipe, Recipe
from diffusionlens.errors import InputError

Bools = NDArray[np.bool_]


class Scored(Protocol):
    """How a task makes numbers of sums over pictures. `scores` takes sums [..., F] and gives every metric as [...]; where the
    sums are of a resample, `whole` are those of all pictures. `right_or_wrong`: every picture is, and a score is a proportion.
    `ratios`: metrics that are no mean over pictures."""

    name: str
    metrics: tuple[str, ...]
    primary: str
    higher_is_better: bool
    right_or_wrong: bool
    ratios: tuple[str, ...]

    def scores(self, sums: Floats, whole: Floats | None = None) -> dict[str, Floats]: ...
    def counts(self, sums: Floats) -> Bools: ...


class DenseTask(Scored, Protocol):
    """A task whose heads answer at every place: `points` draws places with labels, whose losses are [K,R]; `map_loss` is one
    head's over all pixels; `tally` gives one picture's sums [K,R,F], `merged` and `tally_map` the same of one head's views;
    `predict_map` is what people are shown; `labelled` says whether a mask or depth map has anything to learn from."""

    outputs: int
    batch_norm: bool

    def labelled(self, target: Tensor) -> bool: ...
    def points(
        self, targets: Sequence[Tensor], grid: tuple[int, int], generator: torch.Generator
    ) -> tuple[Tensor, ...]: ...
    def point_loss(self, outputs: Tensor, labels: Tensor, step: int) -> Tensor: ...
    def map_loss(self, outputs: Tensor, targets: Tensor, padding: Padding, step: int) -> Tensor: ...
    def merged(self, outputs: Tensor, views: Views, size: tuple[int, int]) -> Tensor: ...
    def tally_map(self, predicted: Tensor, target: Tensor) -> Tensor: ...
    def predict_map(self, outputs: Tensor, size: tuple[int, int]) -> Tensor: ...
    def tally(self, outputs: Tensor, target: Tensor) -> Tensor: ...


Stop = Callable[[], None]


def batches(count: int, size: int, iterations: int, generator: torch.Generator) -> Iterator[list[int]]:
    """`iterations` batches of `size` out of `count` pictures, every epoch in another order; epochs run into each other."""
    queue: list[int] = []
    for _ in range(iterations):
        while len(queue) < size:
            queue += torch.randperm(count, generator=generator).tolist()
        yield queue[:size]
        queue = queue[size:]


def split_held_out(
    count: int, recipe: Recipe, seed: int, labels: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Places of the pictures to learn from, and of those held out to choose a rate by (none where there is one rate).

    With `labels`, every class gives its share, and keeps the larger part of its pictures. Where all classes are too small for
    that, those of two give one, and where none has two, any picture is held out.

    Raises:
        InputError: too few pictures are left to fill the smallest batch.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    several = len(recipe.rates) > 1
    if count < 2 + several:
        raise InputError(f"{count} training pictures are too few; wanted 3 at least, or 2 with a single rate")
    wanted = min(max(1, round(recipe.held_out * count)), count - 2) if several else 0
    held_out = order[:wanted]
    if labels is not None and wanted:
        held_out = _from_every_class(order, labels, recipe.held_out, wanted) or held_out
    kept = set(held_out)
    return [place for place in range(count) if place not in kept], sorted(held_out)


def _from_every_class(order: Sequence[int], labels: Sequence[int], share: float, wanted: int) -> list[int]:
    """`wanted` places, or as many as can be had, from all classes in proportion (largest remainders); [] where each has but one
    picture."""
    members: dict[int, list[int]] = {}
    for place in order:
        members.setdefault(labels[place], []).append(place)
    most = {label: (len(own) - 1) // 2 for label, own in members.items()}
    if not any(most.values()):
        most = {label: len(own) - 1 for label, own in members.items()}
    taken = {label: min(int(share * len(own)), most[label]) for label, own in members.items()}
    while sum(taken.values()) < wanted:
        room = [label for label in members if taken[label] < most[label]]
        if not room:
            break
        # the class that is furthest below its share; the first of equal ones, in the random order
        taken[max(room, key=lambda label: share * len(members[label]) - taken[label])] += 1
    return [place for label, own in members.items() for place in own[: taken[label]]]


def optimizer_of(heads: LayerHeads, recipe: Recipe, clip: float | None) -> SideBySide:
    rates = torch.tensor(recipe.rates, device=heads.parameters["bias"].device)
    return SideBySide(
        heads.parameters, rates, recipe.weight_decay, optimizer=recipe.optimizer, clip=clip, kinds=heads.rows_of_kinds()
    )


def train_dense(
    task: DenseTask,
    store: TokenStore,
    pictures: Sequence[int],
    layer: int,
    kinds: Sequence[str],
    recipe: DenseRecipe,
    seed: int,
    device: torch.device,
    stop: Stop,
) -> LayerHeads:
    """Heads of every kind and rate of one layer, trained on the cached tokens of `pictures`."""
    width = store.tokens(layer, [0])[1].shape[-1]
    heads = LayerHeads(kinds, width, task.outputs, len(recipe.rates), seed, batch_norm=task.batch_norm, device=device)
    optimizer = optimizer_of(heads, recipe, getattr(recipe, "clip", None))
    generator = torch.Generator().manual_seed(seed)
    order = batches(len(pictures), min(recipe.batch_size, len(pictures)), recipe.iterations, generator)
    for step, places in enumerate(order):
        stop()
        chosen = [pictures[place] for place in places]
        cls, patches = store.tokens(layer, chosen)
        tokens = with_partner(None if cls is None else cls.to(device), patches.to(device))
        targets = [store.target(place) for place in chosen]
        rows, columns, labels = task.points(targets, (patches.shape[1], patches.shape[2]), generator)
        outputs = heads(tokens, mix_at(tokens.patches, rows.to(device), columns.to(device)), training=True)
        loss = task.point_loss(outputs, labels.to(device), step).sum()
        optimizer.step(loss, recipe.factor(step))
    return heads


def evaluate_dense(
    task: DenseTask,
    heads: Sequence[LayerHeads],
    store: TokenStore,
    pictures: Sequence[int],
    layer: int,
    seed: int,
    stop: Stop,
) -> Tensor:
    """Sums of every picture, [heads,P,K,R,F], of heads that are of one form (several seeds)."""
    partner = dict(zip(pictures, (pictures[place] for place in partners(len(pictures), seed)), strict=True))
    found = []
    for picture in pictures:
        stop()
        outputs = grid_outputs(heads, store, picture, partner[picture], layer)
        target = store.target(picture)
        found.append(torch.stack([task.tally(own, target) for own in outputs]))
    return torch.stack(found, 1)


@torch.inference_mode()
def grid_outputs(
    heads: Sequence[LayerHeads], store: TokenStore, picture: int, partner: int, layer: int
) -> list[Tensor]:
    """What every one of `heads` says on one picture's grid: [h,w,K,R,C]."""
    device = heads[0].parameters["bias"].device
    cls, patches = store.tokens(layer, [picture, partner])
    own_cls, other_cls = (None, None) if cls is None else (cls[:1].to(device), cls[1:].to(device))
    tokens = LayerTokens(own_cls, other_cls, patches[:1].to(device))
    flat = tokens.patches.flatten(1, 2)
    return [own(tokens, flat)[0].unflatten(0, tokens.patches.shape[1:3]) for own in heads]


def best_rates(task: Scored, sums: Tensor, finite: Tensor) -> list[int | None]:
    """For every kind the rate that scores best on held-out sums [seeds,P,K,R,F], all seeds together; the first wins a tie.

    Args:
        finite: [K,R], the heads that have not diverged in any seed; of a kind that has none, the answer is None.

    Raises:
        InputError: no held-out picture has anything to score.
    """
    found = sums.double().cpu().numpy()
    if not task.counts(found).any():
        raise InputError(
            "the training pictures that were held out have nothing to score; give more of them, or one rate with --set rates"
        )
    scores = task.scores(found.sum(1))[task.primary].mean(0)
    worst = -np.inf if task.higher_is_better else np.inf
    usable = finite.numpy() & np.isfinite(scores)
    scores = np.where(usable, scores, worst)
    best = scores.argmax(-1) if task.higher_is_better else scores.argmin(-1)
    return [int(place) if there.any() else None for place, there in zip(best, usable, strict=True)]


def only_rate(finite: Tensor) -> list[int | None]:
    """The same where there is a single rate: nothing is chosen, but diverged heads are not taken. `finite` is [K,1]."""
    return [0 if there else None for there in finite[:, 0].tolist()]


def diverged(kind: str, layer: int, rates: Sequence[float]) -> tuple[str, str]:
    """What is left out, and why."""
    told = ", ".join(f"{rate:g}" for rate in rates)
    which = f"rate {told}" if len(rates) == 1 else f"every rate ({told})"
    return f"{kind} of layer {layer}", f"its heads diverge at {which}; give smaller ones with --set rates"
