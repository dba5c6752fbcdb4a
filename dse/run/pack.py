"""A run in one file: a ZIP archive, not compressed, of what its manifest vouches for and what it reads.

The entries are stored as they are (Parquet is compressed already), so a short file cannot expand to a long
one, and the same run gives the same bytes. What is opened is checked like any run folder.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo, is_zipfile

from dse.run import folder
from dse.run.temporary import private_folder

MAX_ENTRIES = 1_000_000


def pack(root: Path, target: Path) -> int:
    """Writes a run that has ended to a file. Returns its bytes. Raises ValueError: no run, a run that goes
    on, damaged parts (Damaged), a file that exists.
    """
    folder.raise_if_no_run(root)
    manifest, wrong = folder.verified_parts(root)
    if wrong:
        raise folder.Damaged(
            "\n".join(f"{line}; {folder.advice(root)}" for own in wrong.values() for line in own)
        )
    facts = folder.status(root, manifest.identity) or {}
    if facts.get("state") == "running":
        raise ValueError(f"{root}: the run goes on; end it with dse stop {root} first")
    heads = (folder.MANIFEST, folder.ENV, folder.STATUS, folder.STUDY)
    below = [path for name in ("inputs", "asks") for path in sorted((root / name).rglob("*"))]
    parts = [root / path for group in manifest.groups for path in group.paths()]
    try:
        with target.open("xb") as file, ZipFile(file, "w", ZIP_STORED) as archive:
            for path in (*(root / name for name in heads), *below, *parts):
                if path.is_file():
                    archive.writestr(ZipInfo(path.relative_to(root).as_posix()), path.read_bytes())
    except OSError as fault:
        raise ValueError(f"{target}: cannot be written ({fault.strerror}); give another name") from None
    return target.stat().st_size


def leads_out(name: str) -> bool:
    """True for the name of an entry that is not below the folder, or deeper than a run's files."""
    parts = PurePosixPath(name).parts
    return not 1 <= len(parts) <= 3 or bool({"..", "/"} & set(parts)) or "\\" in name or ":" in name


def unpacked(path: Path) -> Path:
    """Returns a run folder: the path itself, or, of a packed run, a folder of this process with its files,
    gone when it ends. Raises ValueError for a file that is no packed run.
    """
    if not path.is_file() or not is_zipfile(path):
        return path
    held = ExitStack()
    root = held.enter_context(private_folder("dse-pack-")) / "run"
    atexit.register(held.close)
    try:
        with ZipFile(path) as archive:
            entries = archive.infolist()
            odd = [e for e in entries if e.compress_type != ZIP_STORED or leads_out(e.filename)]
            if odd or len(entries) > MAX_ENTRIES or folder.STUDY not in archive.namelist():
                what = f"entry {odd[0].filename[:80]!r}" if odd else f"no {folder.STUDY}"
                raise ValueError(f"{path}: is no packed run ({what}); write one with dse pack DIR")
            archive.extractall(root, entries)
    except (BadZipFile, OSError) as fault:
        raise ValueError(f"{path}: cannot be unpacked ({' '.join(str(fault).split())[:200]})") from None
    return root
