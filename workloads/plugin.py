"""Functions that a user brings: `FILE.py:NAME`, or `PACKAGE.MODULE:NAME` of what is installed.

A plug-in is known by its key, `NAME@DIGEST of the source`, which stands in options, machines and objectives,
and so in every cache key. A Plugin that is pickled takes the source of a file along, and is known where it
arrives; of an installed module it takes the digest, and another source there is refused. What a run folder
names is not executed unless this user has executed the same source before, or has allowed it (`dse check
FILE.py:NAME`), because the folder may come from others.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

SPEC = re.compile(
    r"(?P<source>[^:@]*\w\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+):(?P<name>[A-Za-z_]\w*)(?=:|$)", re.ASCII
)
KEY = re.compile(r"[A-Za-z_]\w*@[0-9a-f]{16}", re.ASCII)


class PluginError(ValueError):
    """A plug-in that cannot be used: one line."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A function by name and source."""

    source: str  # path of a file as found, or dotted name of an installed module
    name: str
    digest: str  # of `text`
    text: bytes
    allowed: bool  # whether it may be executed here

    @property
    def key(self) -> str:
        """NAME@DIGEST: what it is called in options, machines and objectives."""
        return f"{self.name}@{self.digest}"

    @property
    def is_file(self) -> bool:
        """True for a file, whose source travels with it."""
        return self.source.endswith(".py")

    def __reduce__(self) -> tuple[Callable[..., Plugin], tuple[object, ...]]:
        text = self.text if self.is_file else b""
        return admit, (self.source, self.name, self.digest, text, self.allowed)


_known: dict[str, Plugin] = {}
_modules: dict[str, ModuleType] = {}  # by digest of the source


def admit(source: str, name: str, digest: str, text: bytes, allowed: bool) -> Plugin:
    """Returns a plug-in, and makes it known to this process."""
    found = Plugin(source, name, digest, text, allowed)
    _known[found.key] = found
    return found


def cache_root() -> Path:
    """The folder of the cache. Raises PluginError for a URL: each answer would cost two requests, which take
    longer than most searches (docs/cluster.md).
    """
    given = os.environ.get("DSE_CACHE") or Path.home() / ".cache" / "dse"
    if "://" in str(given):
        raise PluginError(
            f"DSE_CACHE = {given}: is a URL, and each answer would wait for a store; give a folder on each "
            "node's own disk (default ~/.cache/dse), which its workers share; --out may be a URL"
        )
    return Path(given)


def find(spec: str, folder: Path = Path(), asked: bool = True) -> Plugin:
    """Returns the plug-in of a text that SPEC matches, known from now on and not yet executed.

    folder: to which the path of a file is relative
    asked: the user names it; False: a run folder does

    Raises PluginError if it cannot be read.
    """
    match = SPEC.fullmatch(spec)
    if not match:
        raise PluginError(f"{spec}: is no plug-in; write FILE.py:NAME or PACKAGE.MODULE:NAME")
    source, name = match["source"], match["name"]
    path = folder / source if source.endswith(".py") else _installed(source)
    try:
        text = path.read_bytes()
    except OSError as fault:
        raise PluginError(f"{path}: cannot be read ({fault.strerror}); {spec} needs it") from None
    digest = hashlib.sha256(text).hexdigest()[:16]
    mark = cache_root() / "plugins" / digest
    if asked:
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    return admit(str(path) if source.endswith(".py") else source, name, digest, text, asked or mark.exists())


def known(key: str) -> Plugin:
    """Returns the plug-in of a key. Raises PluginError if this process does not know it."""
    if key not in _known:
        raise PluginError(f"{key}: is no known plug-in; write FILE.py:NAME or PACKAGE.MODULE:NAME")
    return _known[key]


def function(key: str) -> Callable[..., Any]:
    """Returns the function of a key, its source executed once per process.

    Raises PluginError: a source that may not be executed or fails, no such function in it, another source
    here than where the plug-in was found.
    """
    plugin = known(key)
    if not plugin.allowed:
        spec = f"{plugin.source}:{plugin.name}"
        raise PluginError(
            f"{spec}: is Python that a run folder names, and is not executed unasked; read it, then allow it "
            f"with dse check {spec}"
        )
    module = _modules.get(plugin.digest)
    if module is None:
        try:
            module = _modules[plugin.digest] = _executed(plugin)
        except PluginError:
            raise
        except Exception as fault:  # whatever the user's source raises
            raise PluginError(f"{plugin.source}: cannot be loaded ({one_line(fault)}); mend it") from None
    found = getattr(module, plugin.name, None)
    if not callable(found):
        own = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise PluginError(f"{plugin.source}: has no function {plugin.name}; there are {', '.join(own[-8:])}")
    return found  # type: ignore[no-any-return]


def one_line(fault: BaseException) -> str:
    """Returns an exception in one line: its type and text."""
    return f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:300]


def _executed(plugin: Plugin) -> ModuleType:
    if plugin.is_file:
        module = ModuleType(f"dse_plugin_{plugin.digest}")
        module.__file__ = plugin.source
        sys.modules[module.__name__] = module  # dataclasses and get_type_hints look there
        exec(compile(plugin.text, plugin.source, "exec"), vars(module))
        return module
    here = find(f"{plugin.source}:{plugin.name}", asked=False)
    if here.digest != plugin.digest:
        raise PluginError(f"{plugin.source}: is another version here than on the driver; install the same")
    return importlib.import_module(plugin.source)


def _installed(module: str) -> Path:
    """Returns the file of an installed module, found without importing its packages."""
    name, locations, spec = "", None, None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        found = (finder.find_spec(name, locations) for finder in sys.meta_path)
        spec = next((one for one in found if one), None)
        locations = list(spec.submodule_search_locations or ()) if spec else []
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise PluginError(f"{module}: no such module is installed; give the name of one, or FILE.py:NAME")
    return Path(spec.origin)
