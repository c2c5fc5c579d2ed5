"""The classification probe: k-NN, a linear head, and logistic regression on CLS and mean patch tokens."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional

from diffusionlens.analysis.diagnostic import LeftOut
from diffusionlens.analysis.intervals import Floats
from diffusionlens.analysis.probes.cached.store import TokenStore
from diffusionlens.analysis.probes.heads.kinds import SIDE, partners
from diffusionlens.analysis.probes.heads.linear import DIVERGED
from diffusionlens.analysis.probes.heads.optimizer import SideBySide
from diffusionlens.analysis.probes.heads.training import (
    Scored,
    batches,
    best_rates,
    diverged,
    only_rate,
    split_held_out,
)
from diffusionlens.analysis.probes.outcomes.scores import LayerScores
from diffusionlens.analysis.probes.settings.recipe import ClassificationRecipe
from diffusionlens.analysis.probes.tasks.knn import knn_predict

_PENALTIES = (0.001, 0.01, 0.1, 1.0)
_STEPS = 300


class Classification:
    """Scores of one method: sums are (right, pictures)."""

    name = "classification"
    higher_is_better = True
    right_or_wrong = True
    ratios: tuple[str, ...] = ()

    def __init__(self, metric: str) -> None:
        self.metrics: tuple[str, ...] = (metric,)
        self.primary = metric

    def scores(self, sums: Floats, whole: Floats | None = None) -> dict[str, Floats]:  # noqa: ARG002
        with np.errstate(invalid="ignore", divide="ignore"):
            return {self.primary: 100 * sums[..., 0] / sums[..., 1]}

    def counts(self, sums: Floats) -> NDArray[np.bool_]:
        return sums[..., 1] > 0


@dataclass(frozen=True)
class PictureFeatures:
    """Features of some pictures and their labels: `parts` of a kind are vectors [N,D] that stand side by side."""

    cls: Tensor | None
    shuffled_cls: Tensor | None
    patch: Tensor
    labels: Tensor

    def parts(self, kind: str) -> list[Tensor]:
        """The vectors of a token kind; the mean patch stands for the patches, and is also the control `mean`."""
        named = {"cls": self.cls, "shuffled_cls": self.shuffled_cls, "mean": self.patch}
        found = [] if SIDE[kind] is None else [named[str(SIDE[kind])]]
        if kind != "cls":
            found.append(self.patch)
        assert all(part is not None for part in found)
        return [part for part in found if part is not None]

    def at(self, places: Sequence[int]) -> "PictureFeatures":
        index = torch.tensor(list(places), device=self.labels.device)
        pick = [None if value is None else value[index] for value in (self.cls, self.shuffled_cls)]
        return PictureFeatures(pick[0], pick[1], self.patch[index], self.labels[index])


def read_features(store: TokenStore, layer: int, seed: int, device: torch.device) -> PictureFeatures:
    """All pictures' features of a layer; every picture's other CLS is that of a seeded random picture of the same set."""
    everything = range(len(store))
    cls, patch = store.tokens(layer, everything)
    other = None if cls is None else cls[partners(len(store), seed)].to(device)
    labels = torch.tensor(store.labels, device=device)
    return PictureFeatures(None if cls is None else cls.to(device), other, patch.to(device), labels)


def few_shot(labels: Sequence[int], shots: int, seed: int) -> list[int]:
    """Places of `shots` pictures of every class, drawn by `seed`; all of a class that has fewer."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    taken: dict[int, int] = {}
    chosen = []
    for place in order:
        taken[labels[place]] = taken.get(labels[place], 0) + 1
        if taken[labels[place]] <= shots:
            chosen.append(place)
    return sorted(chosen)


def learning_parts(
    labels: Sequence[int], recipe: ClassificationRecipe, seed: int, number: int
) -> tuple[list[int], list[int]]:
    """Places of the pictures that training `number` learns from, and of those that its rate or penalty is chosen by.

    With `shots` all pictures that were drawn are learned from, and what chooses are others, as many of every class at most: []
    where no class has more.
    """
    if recipe.shots is None:
        return split_held_out(len(labels), recipe, seed, labels)
    drawn = few_shot(labels, recipe.shots, seed + number)
    rest = sorted(set(range(len(labels))) - set(drawn))
    chosen = few_shot([labels[place] for place in rest], recipe.shots, seed + number)
    return drawn, [rest[place] for place in chosen] if len(recipe.rates) > 1 else []


def classify_layer(
    train: TokenStore,
    test: TokenStore,
    layer: int,
    kinds: tuple[str, ...],
    recipe: ClassificationRecipe,
    seeds: int,
    seed: int,
    classes: int,
    device: torch.device,
    stop: Callable[[], None],
) -> tuple[list[tuple[Scored, LayerScores]], dict[str, float], dict[str, str], list[LeftOut]]:
    """Every method's scores of one layer, the rates chosen, what was left out and why, and the same of this layer alone.

    With `shots` every seed draws its own pictures; otherwise seeds differ in the heads' beginnings and in the order of the data,
    and k-NN and logistic regression, which have neither, are the same for all.
    """
    bank, query = read_features(train, layer, seed, device), read_features(test, layer, seed, device)
    labels = bank.labels.tolist()
    banks = [bank] * seeds
    if recipe.shots is not None:
        banks = [bank.at(few_shot(labels, recipe.shots, seed + number)) for number in range(seeds)]
    distinct = seeds if recipe.shots is not None else 1
    found: list[tuple[Scored, LayerScores]] = []
    left_out: dict[str, str] = {}
    gone: list[LeftOut] = []
    rates: dict[str, float] = {}
    numbers = range(seeds)
    if "knn" in recipe.methods:
        task = Classification("knn_top1")
        right = [_knn(own, query, kinds, recipe, classes, stop) for own in banks[:distinct]]
        for place, k in enumerate(recipe.k):
            sums = _sums(torch.stack([own[place] for own in right]))
            found.append((task, LayerScores(layer, kinds, sums, f" k={k}")))
        if max(recipe.k) > len(banks[0].labels):
            left_out[f"neighbours beyond {len(banks[0].labels)}"] = (
                "the training set has no more pictures; all of them vote"
            )
    if "linear" in recipe.methods:
        parts = [learning_parts(labels, recipe, seed, number) for number in numbers]
        if len(recipe.rates) > 1 and not all(held_out for _, held_out in parts):
            left_out["linear_top1"] = (
                f"no picture is left to choose a rate by: {_NONE_LEFT}, or one rate with --set rates"
            )
        else:
            task = Classification("linear_top1")
            right_linear, rates = _linear(bank, parts, query, kinds, recipe, seed, classes, stop)
            if rates:
                found.append((task, LayerScores(layer, tuple(rates), _sums(right_linear))))
            gone = [LeftOut(*diverged(kind, layer, recipe.rates)) for kind in kinds if kind not in rates]
    if "logreg" in recipe.methods:
        several = recipe.model_copy(update={"rates": (1.0, 2.0)})  # penalties are always several
        enough = len(labels) > 2
        parts = [learning_parts(labels, several, seed, number) for number in numbers[:distinct] if enough]
        if len(banks[0].labels) > recipe.logreg_pictures:
            left_out["logreg_top1"] = (
                f"{len(banks[0].labels)} training pictures are more than --set logreg_pictures={recipe.logreg_pictures}"
            )
        elif not enough:
            left_out["logreg_top1"] = f"{len(labels)} training pictures are too few to choose a penalty by one of them"
        elif not all(held_out for _, held_out in parts):
            left_out["logreg_top1"] = f"no picture is left to choose a penalty by: {_NONE_LEFT}"
        else:
            task = Classification("logreg_top1")
            right_logreg = [_logreg(bank, part, query, kinds, recipe.shots is None, stop) for part in parts]
            found.append((task, LayerScores(layer, kinds, _sums(torch.stack(right_logreg)))))
    return found, rates, left_out, gone


_NONE_LEFT = "no class has more than were drawn; give fewer shots"


def _sums(right: Tensor) -> Floats:
    """[S,K,P] right or wrong to sums [S,P,K,2]."""
    values = right.permute(0, 2, 1).double().cpu().numpy()
    return np.stack([values, np.ones_like(values)], -1)


def _knn(
    bank: PictureFeatures, query: PictureFeatures, kinds: Sequence[str], recipe: ClassificationRecipe, classes: int,
    stop: Callable[[], None],
) -> Tensor:  # fmt: skip
    """[k,K,P]: whether the votes name the label."""
    found = []
    for kind in kinds:
        stop()
        predicted = knn_predict(
            unit_rows(query.parts(kind)),
            unit_rows(bank.parts(kind)),
            bank.labels,
            recipe.k,
            recipe.temperature,
            classes,
        )
        found.append(predicted == query.labels)
    return torch.stack(found, 1)


def unit_rows(parts: Sequence[Tensor]) -> Tensor:
    """Vectors of length 1 whose dot product is the mean of the parts' cosines, so that no part wins by its length."""
    return functional.normalize(torch.cat([functional.normalize(part, dim=1) for part in parts], 1), dim=1)


def _linear(
    bank: PictureFeatures,
    parts: Sequence[tuple[Sequence[int], Sequence[int]]],
    query: PictureFeatures,
    kinds: Sequence[str],
    recipe: ClassificationRecipe,
    seed: int,
    classes: int,
    stop: Callable[[], None],
) -> tuple[Tensor, dict[str, float]]:
    """[S,K,P] whether right, of the kinds whose heads have not all diverged, and the rates chosen: DINO's linear head (normal
    0.01, SGD with momentum) at every rate. `parts` of every seed: places in `bank` to learn from, and to choose by."""
    task = Classification("linear_top1")
    heads = [
        _train_linear(bank.at(learn), kinds, recipe, seed + number, classes, stop)
        for number, (learn, _) in enumerate(parts)
    ]
    finite = torch.stack([_finite(own, len(kinds)) for own in heads]).all(0)
    chosen = only_rate(finite)
    if len(recipe.rates) > 1:
        # other seeds hold out other pictures, which count as so many more
        held = [_held_out(own, bank.at(part), kinds) for own, (_, part) in zip(heads, parts, strict=True)]
        chosen = best_rates(task, torch.cat(held, 1), finite)
    there = [
        (place, kind, rate) for place, (kind, rate) in enumerate(zip(kinds, chosen, strict=True)) if rate is not None
    ]
    found = [
        torch.stack(
            [_logits(own, query, place, kind)[:, rate].argmax(-1) == query.labels for place, kind, rate in there]
        )
        for own in heads
        if there
    ]
    rates = {kind: recipe.rates[rate] for _, kind, rate in there}
    return torch.stack(found) if found else torch.zeros(len(parts), 0, len(query.labels)), rates


def _held_out(heads: dict[str, Tensor], part: PictureFeatures, kinds: Sequence[str]) -> Tensor:
    """Sums [1,P,K,R,2] of every kind and rate."""
    right = torch.stack(
        [part.labels == _logits(heads, part, place, kind).argmax(-1).T for place, kind in enumerate(kinds)]
    )
    values = right.permute(2, 0, 1).double()
    return torch.stack([values, torch.ones_like(values)], -1)[None]


def _finite(heads: dict[str, Tensor], kinds: int) -> Tensor:
    """[K,R], see `heads.linear.LayerHeads.finite`."""
    parts = (torch.cat([heads[f"weight{place}"][0].flatten(1), heads[f"bias{place}"][0]], 1) for place in range(kinds))
    return torch.stack([(own.abs() < DIVERGED).all(1).cpu() for own in parts])


def _train_linear(
    bank: PictureFeatures,
    kinds: Sequence[str],
    recipe: ClassificationRecipe,
    seed: int,
    classes: int,
    stop: Callable[[], None],
) -> dict[str, Tensor]:
    device, width = bank.patch.device, bank.patch.shape[1]
    generator = torch.Generator().manual_seed(seed)
    start = 0.01 * torch.randn(classes, 2 * width, generator=generator)
    parameters: dict[str, Tensor] = {}
    for place, kind in enumerate(kinds):
        wide = start[:, : width * len(bank.parts(kind))]
        parameters[f"weight{place}"] = wide.expand(1, len(recipe.rates), *wide.shape).clone()
        parameters[f"bias{place}"] = torch.zeros(1, len(recipe.rates), classes)
    parameters = {name: value.to(device).requires_grad_() for name, value in parameters.items()}
    size = min(recipe.batch_size, len(bank.labels))
    rates = torch.tensor(recipe.rates, device=device) * size / 256  # DINO's rule
    optimizer = SideBySide(parameters, rates, recipe.weight_decay, optimizer=recipe.optimizer)
    for step, places in enumerate(batches(len(bank.labels), size, recipe.iterations, generator)):
        stop()
        part = bank.at(places)
        losses = []
        for place, kind in enumerate(kinds):
            logits = _logits(parameters, part, place, kind)
            wanted = part.labels[:, None].expand(-1, len(recipe.rates))
            losses.append(
                functional.cross_entropy(logits.reshape(-1, classes), wanted.reshape(-1), reduction="sum") / size
            )
        optimizer.step(torch.stack(losses).sum(), recipe.factor(step))
    return {name: value.detach() for name, value in parameters.items()}


def _logits(parameters: dict[str, Tensor], part: PictureFeatures, place: int, kind: str) -> Tensor:
    """[N,R,classes] of the heads of kind number `place`."""
    weight, bias = parameters[f"weight{place}"][0], parameters[f"bias{place}"][0]
    rates, classes, width = weight.shape
    found = torch.cat(part.parts(kind), 1) @ weight.reshape(-1, width).T
    return found.view(-1, rates, classes) + bias


def _logreg(
    bank: PictureFeatures, part: tuple[Sequence[int], Sequence[int]], query: PictureFeatures, kinds: Sequence[str],
    everything: bool, stop: Callable[[], None],
) -> Tensor:  # fmt: skip
    """[K,P] whether right: scikit-learn's logistic regression on standardised features, penalty by the held-out part of `part`.
    The last fit is to the learned part, or with `everything` to both."""
    learn, held_out = part
    final = sorted([*learn, *held_out]) if everything else list(learn)
    found = []
    for kind in kinds:
        stop()
        rows = torch.cat(bank.parts(kind), 1).cpu().numpy()
        labels, asked = bank.labels.cpu().numpy(), torch.cat(query.parts(kind), 1).cpu().numpy()
        with threadpool_limits(1):  # the same bits every time
            scores = [
                _LogisticRegression(rows[learn], labels[learn], c).score(rows[held_out], labels[held_out])
                for c in _PENALTIES
            ]
            model = _LogisticRegression(rows[final], labels[final], _PENALTIES[int(np.argmax(scores))])
            found.append(torch.from_numpy(model.predict(asked)) == query.labels.cpu())
    return torch.stack(found)


class _LogisticRegression:
    """Standardisation and logistic regression with the inverse penalty `c`; one class alone is always predicted."""

    def __init__(self, rows: Floats, labels: Floats, c: float) -> None:
        self.scaler = StandardScaler().fit(rows)
        self.only = labels[0] if len(set(labels.tolist())) == 1 else None
        self.model = LogisticRegression(C=c, max_iter=_STEPS, tol=1e-3)
        if self.only is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a fit that needs more steps is near enough
                self.model.fit(self.scaler.transform(rows), labels)

    def predict(self, rows: Floats) -> Floats:
        if self.only is not None:
            return np.full(len(rows), self.only)
        return self.model.predict(self.scaler.transform(rows))

    def score(self, rows: Floats, labels: Floats) -> float:
        return float((self.predict(rows) == labels).mean())
