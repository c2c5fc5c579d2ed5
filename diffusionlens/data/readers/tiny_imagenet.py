"""`tiny-imagenet`: 64 x 64 pictures with one box each, in class folders or in the original layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diffusionlens.data.boxes import BoxList
from diffusionlens.data.open_picture import open_rgb
from diffusionlens.data.readers.layout import class_folders, first_existing, inside, pictures_below, root_of
from diffusionlens.data.sample import Picture
from diffusionlens.data.subset import COUNT_OPTION
from diffusionlens.errors import InputError
from diffusionlens.spec import Spec, check_query

_QUERY = {"split": "train or val, default val"} | COUNT_OPTION


@dataclass(frozen=True)
class _Entry:
    path: Path
    wnid: str
    box: tuple[str, ...]


class TinyImageNet:
    """Tiny-ImageNet pictures of one split.

    Box files give the first and the last pixel, counted from 0 and both inside: 0 0 63 63 is the whole picture, 64 never
    occurs. Pictures that the box files do not list are skipped and named.
    """

    provides: frozenset[str] = frozenset({"boxes", "labels"})

    def __init__(self, spec: Spec) -> None:
        check_query(spec, _QUERY)
        root = root_of(spec)
        split = spec.query.get("split", "val")
        self.root = root
        self.label = spec.label or f"tiny-imagenet-{split}"
        self.spec = spec.text
        self.skipped: list[tuple[str, str]] = []
        folder = first_existing(root, [split], f"split '{split}'")
        original = folder / "val_annotations.txt"
        self._entries = self._original(folder, original) if original.is_file() else self._by_class(folder)
        if not self._entries:
            raise InputError(
                f"{folder} has no picture with a box: looked for <wnid>/images with <wnid>/<wnid>_boxes.txt, and for "
                f"images/ with val_annotations.txt"
            )
        listed = root / "wnids.txt"
        present = {entry.wnid for entry in self._entries}
        self.mask_classes: Sequence[str] = ()
        self.classes: Sequence[str] = sorted(
            set(listed.read_text(encoding="utf-8", errors="replace").split()) | present if listed.is_file() else present
        )
        self._number = {name: place for place, name in enumerate(self.classes)}

    def _by_class(self, folder: Path) -> list[_Entry]:
        entries: list[_Entry] = []
        for wnid in class_folders(folder):
            named: set[str] = set()
            listing = folder / wnid / f"{wnid}_boxes.txt"
            if not listing.is_file():
                self.skipped.append((f"{folder.name}/{wnid}", f"no {listing.name}"))
                continue
            for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
                name, *box = line.split() or [""]
                named.add(name)
                self._append(entries, folder / wnid / "images", name, wnid, box)
            self._name_unlisted(folder / wnid / "images", named, listing)
        return entries

    def _original(self, folder: Path, listing: Path) -> list[_Entry]:
        entries: list[_Entry] = []
        named: set[str] = set()
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            name, *rest = line.split() or [""]
            if rest:
                named.add(name)
                self._append(entries, folder / "images", name, rest[0], rest[1:])
        self._name_unlisted(folder / "images", named, listing)
        return entries

    def _name_unlisted(self, folder: Path, named: set[str], listing: Path) -> None:
        present = pictures_below(folder) if folder.is_dir() else []
        self.skipped += [
            (path.relative_to(self.root).as_posix(), f"not in {listing.name}")
            for path in present
            if path.name not in named
        ]

    def _append(self, entries: list[_Entry], folder: Path, name: str, wnid: str, box: list[str]) -> None:
        if not name:
            return
        path = inside(folder, name)
        if path is None or not path.is_file():
            self.skipped.append((name, "listed, but the file does not exist"))
        else:
            entries.append(_Entry(path, wnid, tuple(box)))

    def __len__(self) -> int:
        return len(self._entries)

    def name(self, index: int) -> str:
        return self._entries[index].path.relative_to(self.root).as_posix()

    def open(self, index: int) -> Picture:
        entry = self._entries[index]
        image = open_rgb(entry.path, boxes=bool(entry.box))
        boxes = BoxList(*image.size)
        label = self._number[entry.wnid]
        written = repr(" ".join(entry.box)[:40])
        try:
            x0, y0, x1, y1 = (float(value) for value in entry.box)
        except ValueError:
            boxes.notes.append(f"the box {written} is not four numbers")
        else:
            boxes.add((x0, y0, x1 + 1, y1 + 1), label, written, what=entry.wnid)
        return Picture(image, self.name(index), label, **boxes.fields())  # type: ignore[arg-type]
