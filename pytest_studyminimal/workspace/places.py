"""Where things lie on this machine, and what a server gets of it: placeholders and environment."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_studyminimal.protocol.study import Server

INHERITED = ("PATH", "TMPDIR", "TZ", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL")
"""What every child inherits where it is set; everything else must be named in the manifest."""

CONFIG_NAMES = tuple(
    f"doc-bridge.config.{suffix}" for suffix in ("ts", "mts", "js", "mjs", "json", "yaml", "yml")
)
_PACKAGE_KEY = "docBridge"

_MISSING = {
    "export": "an export of the attempt's corpus",
    "checkout": "a checkout of the attempt's corpus, --study-root CORPUS=PATH",
    "engine": "--study-root engine=PATH",
}


@dataclass(frozen=True)
class Places:
    """Where the placeholders of one server start point; None is not available."""

    python: str
    study: Path
    export: Path | None = None
    checkout: Path | None = None
    engine: Path | None = None

    def expand(self, text: str) -> str:
        """Return `text` with every placeholder replaced; other braces stay as they are.

        Raises ServerError (`spawn`) for a placeholder with nothing behind it on this machine.
        """
        return re.sub(
            r"\{(python|study|export|checkout|config|engine)\}",
            lambda match: self._value(match.group(1)),
            text,
        )

    def _value(self, name: str) -> str:
        if name == "config":
            return str(self._config())
        value = getattr(self, name)
        if value is None:
            raise ServerError("spawn", f"found nothing for {{{name}}}, required {_MISSING[name]}")
        return str(value)

    def _config(self) -> Path:
        folder = Path(self._value("checkout"))
        for name in CONFIG_NAMES:
            if (folder / name).is_file():
                return folder / name
        if _has_package_key(folder / "package.json"):
            return folder / "package.json"
        raise ServerError(
            "spawn",
            f"found nothing for {{config}} in {folder}, required doc-bridge.config.ts, .mts, .js,"
            f' .mjs, .json, .yaml or .yml, or a package.json with the key "{_PACKAGE_KEY}"',
        )


def _has_package_key(file: Path) -> bool:
    try:
        package = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(package, dict) and _PACKAGE_KEY in package


def environment(
    spec: Server,
    places: Places,
    *,
    forbidden: frozenset[str],
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the whole environment of a server; `environ` defaults to this process's own.

    Raises ServerError (`spawn`) for a passed variable that is not set, and for one in `forbidden`:
    the variables that hold a model's key.
    """
    source = os.environ if environ is None else environ
    for name in (*spec.pass_env, *spec.env):
        if name in forbidden:
            raise ServerError(
                "spawn", f"found {name}, required an environment without a model's key"
            )
    for name in spec.pass_env:
        if name not in source:
            raise ServerError(
                "spawn", f"found no variable {name}, required it to be set (pass_env)"
            )
    own = {name: places.expand(value) for name, value in spec.env.items()}
    return inherited(source, spec.pass_env, forbidden) | own


def inherited(
    environ: Mapping[str, str], names: Iterable[str], forbidden: frozenset[str]
) -> dict[str, str]:
    """Return what a child gets of `environ`: everybody's variables and `names`, none `forbidden`."""
    chosen = (*INHERITED, *names)
    return {name: environ[name] for name in chosen if name in environ and name not in forbidden}
