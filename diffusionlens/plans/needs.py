"""What a plan asks for against what was given: every data set finds its role before any work, or one line says what lacks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache

from diffusionlens.analysis.measure import chosen_pictures
from diffusionlens.analysis.probes.probe import check_labels
from diffusionlens.data import PictureSource, UnreadablePicture, open_data
from diffusionlens.errors import InputError
from diffusionlens.plans.schema import Plan, ProbeSection, Role, TableSection
from diffusionlens.spec import parse_spec

_LOOKED_AT = 8  # pictures that are asked for a label: data sets with labels may have some without


@dataclass(frozen=True)
class Pair:
    """A data set of a report, and what heads learn from, as DATA strings without a role; `label` is that of the table."""

    label: str
    test: str
    train: str | None = None


@dataclass(frozen=True)
class _Given:
    """A DATA string as it was given: `role` where it names one, `named` whether it has a label of its own."""

    text: str
    role: str | None
    named: bool
    kind: str
    source: PictureSource


def without(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan without the roles and sections `names`, and without columns of sections that are gone.

    Raises:
        InputError: there is no such role or section, or nothing would be left.
    """
    known = list(dict.fromkeys([*plan.data, *plan.sections]))  # a role and its section may have one name
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise InputError(
                f"--without {name}: the plan has no such role or section (it has {', '.join(known)}){hint}"
            )
    kept = {
        name: section
        for name, section in plan.sections.items()
        if name not in names and (isinstance(section, TableSection) or section.data not in names)
    }
    for name, section in list(kept.items()):
        if isinstance(section, TableSection):
            columns = tuple(column for column in section.columns if column.section in kept)
            kept[name] = section.model_copy(update={"columns": columns})
            if not columns:
                del kept[name]
    if not kept:
        raise InputError(f"--without {' --without '.join(names)} leaves no section of the plan")
    return plan.model_copy(update={"sections": kept})


def layers_of(plan: Plan) -> set[str]:
    """What the sections say of layers."""
    return {section.layers for section in plan.sections.values() if not isinstance(section, TableSection)}


def assign(plan: Plan, data: Sequence[str], train: Sequence[str]) -> dict[str, list[Pair]]:
    """Role -> the data that fill it, for every role that a section uses.

    A DATA string labelled with a role's name (`segmentation=...`, `segmentation.LABEL=...`) is taken for that role; others for
    every role whose needs they meet.

    Raises:
        InputError: something is missing (everything that is, in one line), fits nowhere, or is not to be told apart.
    """
    given = [_open(text, plan, "--data") for text in data]
    learned = [_open(text, plan, "--train") for text in train]
    used = dict.fromkeys(section.data for section in plan.sections.values() if not isinstance(section, TableSection))
    found: dict[str, list[Pair]] = {}
    missing: list[str] = []
    taken: set[int] = set()
    for name in used:
        role = plan.data[name]
        chosen = [one for one in given if _fits(one, name, role)]
        chosen = [one for one in chosen if one.role is not None] or chosen
        trains = list(learned)
        if not chosen and role.default is not None:
            chosen = [_open(role.default, plan)]
            trains = [_open(role.default_train, plan)] if role.default_train else []
        chosen = chosen if role.many else chosen[:1]
        pairs = []
        for one in chosen:
            others = {other.source.label for other in given if other is not one and other.named}
            partner = _partner(one, name, role, trains, others) if role.train else None
            if role.train and partner is None:
                continue
            taken |= {id(one), id(partner)}
            pairs.append(Pair(one.source.label, one.text, None if partner is None else partner.text))
        if not pairs:
            missing.append(_missing(name, role, half=bool(chosen)))
        found[name] = pairs
    if missing:
        raise InputError(
            f"the plan needs more than was given: {'; '.join(missing)}. What you don't have can be left out with --without ROLE"
            f"{_no_roles([*given, *learned], plan)}"
        )
    for flag, texts in (("--data", given), ("--train", learned)):
        for one in texts:
            if id(one) not in taken:
                raise InputError(_unused(flag, one, plan, found))
    _refuse_same_labels(found)
    _check_heads(plan, found)
    return found


def _open(text: str, plan: Plan, flag: str = "DATA") -> _Given:
    spec = parse_spec(text, flag, "[ROLE=]DATA, for example voc:ROOT")
    role, label, bare = None, spec.label, text
    if spec.label is not None:
        head, _, rest = spec.label.partition(".")
        if head in plan.data:
            role, label = head, rest or None
            bare = text[len(spec.label) + 1 :]
            bare = bare if label is None else f"{label}={bare}"
    own = parse_spec(bare, flag, "[ROLE=]DATA, for example voc:ROOT")
    return _Given(bare, role, own.label is not None, own.kind, open_data(bare))


def _fits(one: _Given, name: str, role: Role) -> bool:
    if one.role is not None:
        if one.role == name and (lacking := _lacking(one, role)):
            raise InputError(
                f"{one.text} is given as {name}, which needs {role.what}; it has no {lacking} "
                f"(it has {', '.join(sorted(one.source.provides)) or 'no annotation'})"
            )
        return one.role == name
    return not _lacking(one, role) and not set(role.unless) & one.source.provides


def _lacking(one: _Given, role: Role) -> str:
    lacking: list[str] = [need for need in role.needs if need not in one.source.provides]
    if not lacking and "labels" in role.needs and role.train and not _labelled(one.source):
        lacking = ["labels of whole pictures"]
    return " and no ".join(lacking)


def _labelled(source: PictureSource) -> bool:
    for index in chosen_pictures(len(source), _LOOKED_AT):
        try:
            if source.open(index).label is not None:
                return True
        except UnreadablePicture:
            continue
    return False


def _partner(one: _Given, name: str, role: Role, trains: Sequence[_Given], others: Collection[str]) -> _Given | None:
    """The training set of a test set: that of the same label, else the only one of the same kind that has not the label of
    another test set (`others`)."""
    fitting = [other for other in trains if other.role in (None, name) and set(role.needs) <= other.source.provides]
    if one.named:
        same = [other for other in fitting if other.named and other.source.label == one.source.label]
        if same:
            return same[0]
    alike = [other for other in fitting if other.kind == one.kind]
    alike = [other for other in alike if not (other.named and other.source.label in others)]
    if len(alike) > 1:
        names = " and ".join(other.text for other in alike)
        raise InputError(
            f"{names} could both be what heads on {one.text} learn from; give two that belong together one label, as a=SPEC"
        )
    return alike[0] if alike else None


def _missing(name: str, role: Role, *, half: bool) -> str:
    flag = f'--data "{name}={role.example}"'
    if half:
        return f"{name}: what heads learn from, of the same kind or label as its --data (--train)"
    also = ", and --train with what heads learn from" if role.train else ""
    return f"{name}: {role.what} ({flag}{also})"


def _unused(flag: str, one: _Given, plan: Plan, found: Mapping[str, Collection[Pair]]) -> str:
    has = ", ".join(sorted(one.source.provides)) or "no annotation"
    asks = "; ".join(f"{name}: {plan.data[name].what}" for name in found)
    full = [name for name, pairs in found.items() if pairs and not plan.data[name].many and flag == "--data"]
    hint = f"; {' and '.join(full)} take{'s' * (len(full) == 1)} one data set each, the first that fits" if full else ""
    return f"{flag} {one.text} (it has {has}) is used by no section; the plan asks for {asks}{hint}{_no_roles([one], plan)}"


def _no_roles(given: Sequence[_Given], plan: Plan) -> str:
    """The end of a message: labels that were perhaps meant as roles."""
    labels = [one.source.label for one in given if one.role is None and one.named]
    if not labels:
        return ""
    near = get_close_matches(labels[0], plan.data, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"; '{labels[0]}' was taken for a label, as the plan has the roles {', '.join(plan.data)}{hint}"


def _refuse_same_labels(found: Mapping[str, Sequence[Pair]]) -> None:
    known: dict[str, str] = {}
    for pair in (pair for pairs in found.values() for pair in pairs):
        if known.setdefault(pair.label, pair.test) != pair.test:
            raise InputError(
                f"two data sets are called '{pair.label}' ({known[pair.label]} and {pair.test}); tell them apart as a=SPEC b=SPEC"
            )


def _check_heads(plan: Plan, found: Mapping[str, Sequence[Pair]]) -> None:
    for section in plan.sections.values():
        if isinstance(section, ProbeSection):
            for pair in found[section.data]:
                check_labels(section.task, open_data(pair.test), open_data(str(pair.train)))


def limited(pair: Pair, images: int | None) -> Pair:
    """The pair with at most `images` pictures each, evenly spaced, written into the DATA strings."""
    if images is None:
        return pair
    return replace(
        pair,
        test=_limited(pair.test, images),
        train=None if pair.train is None else _limited(pair.train, images),
    )


@cache
def available(text: str) -> int:
    """How many pictures DATA has."""
    return len(open_data(text))


def _limited(text: str, images: int) -> str:
    if available(text) <= images:
        return text
    base, _, query = text.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("n=")]
    return f"{base}?{'&'.join([*kept, f'n={images}'])}"
