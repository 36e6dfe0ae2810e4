"""What dead processes leave in a run directory, and how it is removed. Imports no torch."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from study.ownership import claim, is_alive, observed_status, owner_of
from study.paths import RERUN, RunPaths, run_dirs
from study.records import DamagedRunError
from study.status import Status


@dataclass(frozen=True)
class Leftovers:
    """Files and folders of one run that nothing needs any more."""

    paths: RunPaths
    items: tuple[Path, ...]
    whole: bool
    """Whether the run itself is to go."""

    def remove(self) -> None:
        """Remove them while owning the run; raises OwnedElsewhereError if somebody else does by now.

        Of a run that is a link, the link alone goes: the run lies elsewhere, and may be somebody's there.
        """
        if self.whole and self.paths.root.is_symlink():
            self.paths.root.unlink()
            return
        with claim(self.paths):  # its release also drops the claims of the dead
            if self.whole:
                self._remove_run()
                return
            for item in self.items:
                if item.is_dir():
                    shutil.rmtree(item, ignore_errors=True)
                else:
                    item.unlink(missing_ok=True)

    def _remove_run(self) -> None:
        """Rename first, so that a run is never seen half-removed."""
        aside = self.paths.root.with_name(f".{self.paths.run_id}.removed")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(self.paths.root, aside)
        shutil.rmtree(aside)


def reruns(runs_dir: Path, *, give_up: bool = False) -> list[Leftovers]:
    """Find what reruns that were killed have left; a run set aside whose successor never came is no leftover.

    An unfinished rerun goes on when asked for again: only `give_up` names it.
    """
    found = []
    for paths in run_dirs(runs_dir / RERUN):
        final = RunPaths(runs_dir / paths.run_id.removesuffix(".old"))
        aside = paths.run_id.endswith(".old")
        dispensable = final.root.exists() if aside else give_up
        try:
            status: Status | None = observed_status(paths)
        except DamagedRunError:
            status = None
        found.append(leftovers(paths, status, whole=dispensable))
    return found


def leftovers(paths: RunPaths, status: Status | None, *, whole: bool = False) -> Leftovers:
    """Find what may go; nothing while the owner is alive or cannot be seen from here, or run.json is damaged.

    A checkpoint and parts may go once the run is finished; `whole` names the run itself.
    """
    owner = owner_of(paths)
    if status is None or (owner is not None and is_alive(owner) is not False):
        return Leftovers(paths, (), False)
    if whole:
        return Leftovers(paths, (paths.root,), True)
    items = list(paths.root.rglob(".*.tmp"))
    items += [p for p in paths.root.glob("owner.*") if p.is_dir()]
    if status is Status.FINISHED:
        items += [p for p in (paths.checkpoint, paths.parts) if p.exists()]
    return Leftovers(paths, tuple(sorted(items)), False)
