"""Imports only point down the list of rooms, and without a study nothing heavy is loaded."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_studyminimal

PACKAGE = Path(pytest_studyminimal.__file__).parent
ROOMS = [
    {"plugin", "cli", "planning", "doctoring"},
    {"reports", "judging"},
    {"preflight", "reachability", "run", "approvals"},
    {"transports", "rehearsal"},
    {"evidence", "workspace"},
    {"protocol"},
]
LEVELS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))
OPTIONS = "pytest_studyminimal.plugin.options"


def room_of(parts):
    return parts[0].removesuffix(".py")


def imported(file):
    """Every module that a file imports anywhere in it, with the names taken from it."""
    package = [PACKAGE.name, *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args:
                yield str(getattr(argument, "value", argument))


def rooms_below(file):
    for name in imported(file):
        first, *rest = name.split(".")
        if first == PACKAGE.name and rest and rest[0] in LEVELS:
            yield rest[0]


def test_every_file_belongs_to_a_room():
    found = {room_of(file.relative_to(PACKAGE).parts) for file in FILES}

    assert found - {"__init__"} <= LEVELS.keys()
    assert {"protocol", "evidence", "workspace", "plugin"} <= found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_imports_only_point_down_the_list(file):
    mine = room_of(file.relative_to(PACKAGE).parts)

    for other in rooms_below(file):
        same_room = other == mine
        assert same_room or LEVELS.get(mine, len(ROOMS)) <= LEVELS[other], f"{mine} imports {other}"


def test_protocol_and_evidence_know_no_other_room_beside_or_above_them():
    for file in FILES:
        mine = room_of(file.relative_to(PACKAGE).parts)
        if mine in {"protocol", "evidence"}:
            assert set(rooms_below(file)) <= {mine, "protocol"}, file


def test_only_the_plugin_imports_pytest():
    for file in FILES:
        tops = {name.partition(".")[0] for name in imported(file)}
        if room_of(file.relative_to(PACKAGE).parts) != "plugin":
            assert not tops & {"pytest", "_pytest", "pluggy", "xdist"}, file


def test_the_protocol_starts_nothing_and_reads_no_clock():
    for file in (PACKAGE / "protocol").glob("*.py"):
        tops = {name.partition(".")[0] for name in imported(file)}
        assert not tops & {"subprocess", "socket", "sqlite3", "time", "httpx", "mcp", "random"}, (
            file
        )


def loaded_by(statement):
    """The modules that a statement adds in a fresh interpreter that has pytest already."""
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        f"{statement}\n"
        "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=PACKAGE.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *sys.path])},
    )
    return set(json.loads(ran.stdout))


def test_loading_the_options_loads_no_other_room_and_nothing_heavy():
    loaded = loaded_by(f"import {OPTIONS}")

    ours = {name for name in loaded if name.startswith("pytest_studyminimal")}
    assert ours == {"pytest_studyminimal", "pytest_studyminimal.plugin", OPTIONS}
    heavy = {"pydantic", "pydantic_core", "httpx", "mcp", "sqlite3", "click", "anyio", "rfc8785"}
    assert not heavy & {name.partition(".")[0] for name in loaded}


def test_loading_the_options_adds_next_to_nothing():
    assert len(loaded_by(f"import {OPTIONS}")) < 12
