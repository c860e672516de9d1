"""The page put together: every word escaped, once; one script and one style, allowed by their hashes."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from importlib import resources
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template

_NEEDED = ("jinja2", "matplotlib", "scipy")


def as_html(document: dict[str, Any], answers: Mapping[str, str] | None = None) -> str:
    """Return the document of a run as one page without any request.

    `answers` by attempt make the page private, marked so. UsageRefusedError where the extra
    `report` is not installed.
    """
    refuse_missing()
    from markupsafe import Markup  # noqa: PLC0415 - the extra

    from pytest_studyminimal.reports.page import tables  # noqa: PLC0415 - the extra
    from pytest_studyminimal.reports.page.pictures import Pictures  # noqa: PLC0415 - the extra

    style, script = _file("page.css"), _file("page.js")
    return _template().render(
        report=document,
        private=answers is not None,
        style=Markup(style),  # noqa: S704 - the package's own file
        script=Markup(script),  # noqa: S704 - the package's own file
        policy=_policy(style, script),
        marks=_marks(document, private=answers is not None),
        sections=Pictures(document).sections(),
        arms=tables.arms(document),
        tables=[
            tables.attempts(document, answers),
            tables.effects(document),
            *tables.distributions(document),
            tables.setups(document),
            tables.servers(document),
            tables.tools(document),
        ],
    )


def refuse_missing() -> None:
    """Raise UsageRefusedError where a package of the extra is absent."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise UsageRefusedError(
            f"found no {' and no '.join(absent)}, required for the HTML report:"
            ' pip install "pytest-studyminimal[report]"'
        )


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _template() -> Template:
    import jinja2  # noqa: PLC0415 - the extra

    from pytest_studyminimal.reports.page import figures  # noqa: PLC0415 - with it

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    environment.filters["dollars"] = figures.dollars
    environment.filters["svg"] = _drawn
    return environment.from_string(_file("template.html.jinja"))


def printable(value: Any) -> Any:
    """Return a value as words that can hide nothing: what does not print is shown as an escape."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return "–" if value is None else value
    if value.isprintable():
        return value
    kept = "".join(char if char in "\n\t" else one_line(char) for char in value)
    return kept.encode("utf-8", "replace").decode()


def _drawn(svg: str) -> Any:
    from markupsafe import Markup  # noqa: PLC0415 - the extra

    return Markup(svg)  # noqa: S704 - serialised by svg.py, its words escaped there


def _policy(style: str, script: str) -> str:
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (script, style)
    ]
    return (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}';"
        " base-uri 'none'; form-action 'none'"
    )


def _marks(document: dict[str, Any], *, private: bool) -> list[str]:
    marks = ["PRIVATE"] if private else []
    return marks + (["REHEARSAL, NOT EVIDENCE"] if document["rehearsal"] else [])
