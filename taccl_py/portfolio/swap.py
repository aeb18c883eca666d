"""Swap of a directory of algorithm files: the new content is complete beside it before it takes its place, all at once.

Whoever looks, and whoever is killed in the middle, finds the old content or the new one and no mixture. Where a file system cannot
swap two directories in one step, the old one has another name for a moment, and the next installation gives it back its own.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from taccl_py.errors import InputError
from taccl_py.jsonio import write_all
from taccl_py.releases import DEFAULT_FOLDER
from taccl_py.runtimes import PLAN_FOLDER

NOTES = "taccl"  # the folder of our notes beside algorithm files, which runtimes do not look into
_OURS = frozenset({NOTES, PLAN_FOLDER, DEFAULT_FOLDER, "__pycache__"})
_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2


@contextmanager
def sole_user(folder: Path) -> Iterator[None]:
    """Keep other installations into a directory waiting, and clear away what one that was killed has left beside it.

    File systems without locks have none here either; there the last one to swap wins.

    Raises
    ------
    InputError
        If the directory above cannot be read.
    """
    folder = _resolved(folder)
    above = next(one for one in folder.parents if one.exists())
    try:
        handle = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(above)) from None
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:  # others may be at work, so that nothing is cleared away
                _give_back(folder)
            else:
                _recover(folder)
        yield
    finally:
        os.close(handle)


def swap_files(folder: Path, texts: Mapping[str, str], gone: Collection[str]) -> None:
    """Give a directory new files at once.

    Parameters
    ----------
    folder
        The directory; it is made if it is not there. Where it cannot be moved, as it is a mount, or somebody is in it, or it holds
        folders that are not ours, files are written into it.
    texts
        New files by name, those in our folders by that and their name.
    gone
        Names of files to be taken away; all others stay as they are, and so do folders.

    Raises
    ------
    InputError
        If something cannot be written; the directory is as it was then.
    """
    folder = _resolved(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError("is no directory; name another one", path=str(folder))
    if not _may_be_moved(folder):
        _write_into(folder, texts, gone)
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=_beside(folder, "new"), dir=folder.parent))
    except OSError:
        _write_into(folder, texts, gone)
        return
    try:
        _fill(new, folder, texts, gone)
        if not _swap(new, folder):
            _write_into(folder, texts, gone)
    except InputError as error:  # about a name that nobody knows
        raise InputError(error.what, path=str(folder)) from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", path=str(folder)) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _resolved(folder: Path) -> Path:
    """The directory that a name leads to; links that lead to themselves have none."""
    try:
        return folder.resolve()
    except (OSError, RuntimeError):
        raise InputError("is a link that leads to itself; name another directory", path=str(folder)) from None


def _may_be_moved(folder: Path) -> bool:
    """True if a directory holds algorithm files and nothing that must not be copied: no folders but ours."""
    if not folder.exists():
        return True
    if folder.is_mount():
        return False
    try:
        here = Path().resolve()
        if folder in (here, *here.parents):  # a process in it would be left in the old one
            return False
        return all(entry.name in _OURS for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
    except OSError:
        return False


def _beside(folder: Path, what: str) -> str:
    """Beginning of the names of directories that stand in for one."""
    return f".{folder.name[:40]}.{what}-"


def _old(folder: Path) -> Path:
    """Name of the old directory while the new one takes its place."""
    return folder.parent / f"{_beside(folder, 'old')}{hashlib.sha256(os.fsencode(folder.name)).hexdigest()[:12]}"


def _recover(folder: Path) -> None:
    """Finish or undo what was killed in the middle; the old content counts until the new one is in its place."""
    _give_back(folder)
    for left in [_old(folder), *folder.parent.glob(f"{glob.escape(_beside(folder, 'new'))}*")]:
        shutil.rmtree(left, ignore_errors=True)


def _give_back(folder: Path) -> None:
    """Undo what was killed when the old directory had made room and the new one was not in its place."""
    old = _old(folder)
    if old.is_dir() and not folder.exists():
        old.rename(folder)


def _fill(new: Path, folder: Path, texts: Mapping[str, str], gone: Collection[str]) -> None:
    """Make the new content complete."""
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.copytree(entry, new / entry.name, symlinks=True)
            elif entry.name not in texts and entry.name not in gone:
                shutil.copy2(entry, new / entry.name, follow_symlinks=False)
        for name in gone:
            (new / name).unlink(missing_ok=True)
    write_all({new / name: text for name, text in texts.items()})
    if folder.is_dir():
        shutil.copystat(folder, new)
        with suppress(OSError):  # only the superuser gives files away
            shutil.chown(new, folder.stat().st_uid, folder.stat().st_gid)
    else:
        umask = os.umask(0)
        os.umask(umask)
        new.chmod(0o777 & ~umask)


def _swap(new: Path, folder: Path) -> bool:
    """Put the new directory in the place of the old one; returns whether it could be moved at all."""
    try:
        if not folder.exists():
            new.rename(folder)
            return True
        if not _exchange(new, folder):
            old = _old(folder)
            folder.rename(old)
            try:
                new.rename(folder)
            except OSError:
                old.rename(folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return False
    return True


def _exchange(one: Path, other: Path) -> bool:
    """Swap the names of two directories in one step, if this system and the file system can."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other), _EXCHANGE) == 0)


def _write_into(folder: Path, texts: Mapping[str, str], gone: Collection[str]) -> None:
    """Write files one after the other, where the directory itself cannot be moved."""
    write_all({folder / name: text for name, text in texts.items()})
    for name in set(gone) - set(texts):
        (folder / name).unlink(missing_ok=True)
