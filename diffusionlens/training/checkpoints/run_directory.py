"""Writing a run's directory (its layout: `models.run_directory`); only rank 0 does."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from diffusionlens.errors import InputError
from diffusionlens.locks import BusyError, Lock, lock
from diffusionlens.models import run_directory as layout
from diffusionlens.models.checkpoints.own_format import describe, save_own
from diffusionlens.models.run_directory import checkpoint_name
from diffusionlens.training.checkpoints.checkpoint import link_or_copy, save_checkpoint, write_whole
from diffusionlens.training.dino.networks import MultiCropNetwork
from diffusionlens.training.recipe import Recipe
from diffusionlens.training.recipe_files import write_recipe


class RunDirectory:
    """One run on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / layout.LOG
        self.last = path / layout.CHECKPOINTS / f"{layout.LAST}.pt"
        self.manifest: dict[str, Any] = {}
        self._lock: Lock | None = None

    def check_new(self) -> None:
        """Refuses a place that holds something.

        Raises:
            InputError: it holds a run (says how to continue it) or something else, or can't be written to.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"--out {self.path} is a file; wanted a directory to make")
        self._check_no_checkpoint()
        begun = layout.is_run(self.path)  # a run that was stopped before its first checkpoint may be begun again
        if self.path.is_dir() and any(self.path.iterdir()) and not begun:
            raise InputError(f"--out {self.path} holds something that is not a run; choose another directory")
        nearest = next(parent for parent in (self.path.absolute(), *self.path.absolute().parents) if parent.exists())
        if not os.access(nearest, os.W_OK):
            raise InputError(f"--out {self.path}: {nearest} can't be written to; choose another directory")

    def _check_no_checkpoint(self) -> None:
        if self.last.exists() or any(self.last.parent.glob("*.pt")):
            raise InputError(f"--out {self.path} holds a run; continue it with --resume, or choose another directory")

    def check_old(self) -> None:
        """Refuses to resume where there is nothing to resume.

        Raises:
            InputError: there is no checkpoint.
        """
        if self.last.is_file():
            return
        if self.last.exists():
            raise InputError(
                f"--resume: {self.last} is no file; move it away, and put a numbered checkpoint in its place"
            )
        if numbered := sorted(self.last.parent.glob("*.pt"), key=lambda path: path.stat().st_mtime_ns):
            raise InputError(f"--resume: {self.last} does not exist; copy {numbered[-1]} to it and say --resume again")
        raise InputError(f"--resume: {self.last} does not exist; without --resume a new run begins there")

    def read_manifest(self) -> dict[str, Any]:
        """What an earlier start left; nothing where it is damaged: it is written anew."""
        try:
            found = json.loads((self.path / layout.MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def begin(self, recipe: Recipe, manifest: dict[str, Any], *, fresh: bool) -> None:
        """Makes the directory, or takes over that of the run that is resumed, and writes recipe and manifest.

        Raises:
            InputError: it can't be written, another run is writing it, or a `fresh` run finds that one was there meanwhile.
        """
        try:
            for name in (layout.CHECKPOINTS, layout.TEACHER):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--out {self.path} could not be made ({error.strerror}); choose another directory"
            ) from None
        try:
            self._lock = lock(self.path / layout.LOCK)
        except (BusyError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else "another run is writing it"
            raise InputError(f"--out {self.path}: {reason}; wait for it, or choose another directory") from None
        if fresh:
            self._check_no_checkpoint()
        for left in self.path.rglob(".*.part"):  # what a killed process was writing
            with contextlib.suppress(OSError):
                left.unlink()
        write_whole(self.path / layout.RECIPE, lambda file: file.write(write_recipe(recipe).encode()))
        self.manifest = manifest
        self.note()

    def leave(self) -> None:
        """Lets another run write here."""
        if self._lock is not None:
            self._lock.release()

    def note(self, **facts: Any) -> None:
        """Writes the manifest with `facts` changed."""
        self.manifest |= facts
        text = json.dumps(self.manifest, indent=2, ensure_ascii=False) + "\n"
        write_whole(self.path / layout.MANIFEST, lambda file: file.write(text.encode(errors="backslashreplace")))

    def save(self, content: dict[str, Any], teacher: MultiCropNetwork, *, numbered: bool, keep: int | None) -> None:
        """Writes last.pt and the teacher's backbone; `numbered` keeps both under the epoch's name too.

        Args:
            content: of the checkpoint.
            keep: how many numbered checkpoints stay; None for all.

        Raises:
            InputError: the disk is full, or the like; the earlier checkpoint is whole.
        """
        step, steps_per_epoch = content["step"], self.manifest["steps_per_epoch"]
        name = checkpoint_name(step, steps_per_epoch)
        weights = self.path / layout.TEACHER / f"{layout.LAST}.safetensors"
        facts = {
            "epoch": step // steps_per_epoch,
            "step": step,
            "recipe": content["recipe"],
            "position_rule": teacher.positions,
        }
        save_own(weights, teacher.backbone, describe(teacher.backbone, **facts))
        # last.pt takes its name after all else: whoever is killed on the way goes on from the one before and comes here again.
        if numbered:
            link_or_copy(weights, weights.with_stem(name))
        if numbered and step:  # the untrained network is kept for comparison, not for resuming
            save_checkpoint(self.last.with_stem(name), content)
            link_or_copy(self.last.with_stem(name), self.last)
            self._thin_out(keep)
        else:
            save_checkpoint(self.last, content)
        self.note(step=step)

    def _thin_out(self, keep: int | None) -> None:
        if keep is None:
            return
        numbered = [path for path in self.last.parent.glob("*.pt") if path != self.last]
        for old in sorted(numbered, key=lambda path: path.stat().st_mtime_ns)[:-keep]:
            with contextlib.suppress(OSError):
                old.unlink()
