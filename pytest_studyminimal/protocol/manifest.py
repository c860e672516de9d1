"""Reading a study folder: one clear line for whatever is wrong with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pytest_studyminimal.protocol.errors import StudyFileError
from pytest_studyminimal.protocol.findings import describe, shown
from pytest_studyminimal.protocol.study import Study
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("study.toml", "study.json")
LOCAL_NAME = "study.local.toml"
KEY_NAME = "answers.toml"
_LARGEST_FILE_BYTES = 4 * 2**20
_LARGEST_INTEGER = 2**53 - 1
"""What canonical JSON, and with it the digest, can hold."""
_DEEPEST = 64
_KEY_PLACE = re.compile(r"tasks\.[a-z0-9-]+\.(propositions|sources)(\[[0-9]+\])*")


@dataclass(frozen=True)
class StudyFolder:
    """A study and where it lies. `roots` come from the untracked `study.local.toml`, if there is one."""

    path: Path
    file: Path
    study: Study
    key_sha256: str
    roots: dict[str, Path]

    @property
    def key_file(self) -> Path:
        """The answer key beside the study; only the judging room reads what it says."""
        return self.path / KEY_NAME

    @property
    def digest(self) -> str:
        """The protocol digest of this study with this key."""
        return self.study.digest(self.key_sha256)


def is_study_folder(path: Path) -> bool:
    """Whether `path` holds a study file; false where that cannot be seen."""
    return any(os.path.isfile(path / name) for name in NAMES)  # noqa: PTH113 - it never raises


def load(path: Path) -> StudyFolder:
    """Read the study in the folder `path`, or of the study file `path`.

    Raises StudyFileError with the file, the place in it, what was found and what was required.
    """
    file = _study_file(path)
    study = _validate(file, read_table(file))
    _check_references(file, study)
    folder = file.parent
    key = folder / KEY_NAME
    return StudyFolder(
        path=folder,
        file=file,
        study=study,
        key_sha256=hashlib.sha256(_read_bytes(key)).hexdigest(),
        roots=_local_roots(folder),
    )


def _study_file(path: Path) -> Path:
    try:
        if _is_file(path):
            return path.resolve()
        found = [path / name for name in NAMES if _is_file(path / name)]
    except OSError as error:
        raise StudyFileError(f"{path}: found {_why(error)}, required a readable folder") from None
    if len(found) != 1:
        what = "both study.toml and study.json" if found else "no study file"
        raise StudyFileError(f"{path}: found {what}, required one of study.toml or study.json")
    return found[0].resolve()


def _is_file(path: Path) -> bool:
    # Path.is_file hides in some versions of Python that a folder cannot be read.
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


def _read_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            data = stream.read(_LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise StudyFileError(f"{file}: found {_why(error)}, required a readable file") from None
    if len(data) > _LARGEST_FILE_BYTES:
        raise StudyFileError(f"{file}: found more than 4 MiB, required a smaller file")
    return data


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def read_table(file: Path) -> dict[str, Any]:
    """Return the top-level table of a TOML or JSON file, with duplicate keys, null and NaN refused.

    Raises StudyFileError; of an answer key its message quotes nothing but the place.
    """
    data = _read_bytes(file)
    private = file.name == KEY_NAME
    try:
        table = _parse(data.decode("utf-8"), json_text=file.suffix == ".json")
    except (ValueError, RecursionError) as error:
        kind = "JSON" if file.suffix == ".json" else "TOML"
        found = _unparsable(error, private=private)
        raise StudyFileError(f"{file}: found {found}, required {kind} in UTF-8") from None
    if not isinstance(table, dict):
        raise StudyFileError(f"{file}: found {shown(table)}, required an object at the top")
    for place, found, required in _impossible_values(table, ""):
        where = one_line(place, 120) if not private or _KEY_PLACE.fullmatch(place) else "a value"
        raise StudyFileError(f"{file}: {where}: found {found}, required {required}")
    return table


def _unparsable(error: Exception, *, private: bool) -> str:
    if isinstance(error, RecursionError):
        return "too deeply nested values"
    if isinstance(error, UnicodeDecodeError):
        return f"other bytes at offset {error.start}"
    if private:
        position = re.search(r"at (line [0-9]+, column [0-9]+|end of document)", str(error))
        return f"unreadable text {position.group()}" if position else "unreadable text"
    return one_line(str(error))


def _parse(text: str, *, json_text: bool) -> Any:
    if text.startswith("\ufeff"):
        raise ValueError("a byte order mark")
    return _parse_json(text) if json_text else tomllib.loads(text)


def _parse_json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in table:
                raise ValueError(f"the key {shown(name)} twice in one object")
            table[name] = value
        return table

    return json.loads(text, object_pairs_hook=once)


def _impossible_values(value: Any, place: str, depth: int = 0) -> Iterator[tuple[str, str, str]]:
    if depth > _DEEPEST:
        yield place, "too deeply nested values", f"at most {_DEEPEST} levels"
    elif isinstance(value, dict):
        for name, item in value.items():
            where = f"{place}.{name}" if place else name
            yield from _impossible_values(name, f"a key under {place or 'the top'}")
            yield from _impossible_values(item, where, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _impossible_values(item, f"{place}[{index}]", depth + 1)
    elif (impossible := _impossible(value)) is not None:
        yield place, *impossible


def _impossible(value: Any) -> tuple[str, str] | None:
    if value is None:
        return "null", "a value; leave the key out where there is none"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value), "a finite number"
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        return "a huge integer", f"one of at most {_LARGEST_INTEGER}"
    if isinstance(value, str):
        wrong = any(0xD800 <= ord(char) <= 0xDFFF or char == "\0" for char in value)
        return ("a surrogate or NUL character", "Unicode text") if wrong else None
    if not isinstance(value, (int, float)):
        return f"a bare {type(value).__name__}", 'text in quotes, such as "2026-10-10"'
    return None


def _validate(file: Path, table: dict[str, Any]) -> Study:
    try:
        return Study.model_validate_json(json.dumps(table))
    except ValidationError as error:
        raise StudyFileError(f"{file}: {describe(error, Study)}") from None
    except ValueError as error:
        raise StudyFileError(
            f"{file}: found {one_line(str(error))}, required plain values"
        ) from None


def _check_references(file: Path, study: Study) -> None:
    def refuse(place: str, found: object, required: str) -> None:
        raise StudyFileError(f"{file}: {place}: found {shown(found)}, required {required}")

    _check_tasks(study, refuse)
    for name, arm in study.scenarios.items():
        for index, server in enumerate(arm.servers):
            if server not in study.servers:
                refuse(f"scenarios.{name}.servers[{index}]", server, _one_of(study.servers))
    if isinstance(study.pilot.tasks, int):
        if study.pilot.tasks > len(study.tasks):
            refuse(
                "pilot.tasks", study.pilot.tasks, f"at most {len(study.tasks)}, the number of tasks"
            )
    else:
        for index, task in enumerate(study.pilot.tasks):
            if task not in {known.id for known in study.tasks}:
                refuse(f"pilot.tasks[{index}]", task, "the id of a task")
    _check_adjudicator(study, refuse)


def _check_adjudicator(study: Study, refuse: Callable[[str, object, str], None]) -> None:
    judge = study.adjudicator
    if judge is None:
        return
    if judge.connection not in study.connections:
        refuse("adjudicator.connection", judge.connection, _one_of(study.connections))
    model = study.connections[judge.connection].model
    if judge.prices is None and model != study.connections[study.default_connection].model:
        refuse(
            "adjudicator.prices",
            "none",
            f"a price table of {model}, which is another model than the study's",
        )


def _check_tasks(study: Study, refuse: Callable[[str, object, str], None]) -> None:
    seen: set[str] = set()
    for index, task in enumerate(study.tasks):
        if task.id in seen:
            refuse(f"tasks[{index}].id", task.id, "each task id once")
        seen.add(task.id)
        if task.corpus not in study.corpora:
            refuse(f"tasks[{index}].corpus", task.corpus, _one_of(study.corpora))
        if not task.question.strip():
            refuse(f"tasks[{index}].question", "blanks", "a question")
        agents = [name for name, one in study.connections.items() if one.is_agent]
        if agents and task.question.startswith("/"):
            refuse(
                f"tasks[{index}].question",
                task.question.split()[0],
                f"a question that {agents[0]}'s CLI does not take for a command of its own",
            )
        size = len(task.question.encode()) + len((study.prompt.system or "").encode())
        if size > study.limits.prompt_bytes:
            required = (
                f"a prompt of at most {study.limits.prompt_bytes} bytes (limits.prompt_bytes)"
            )
            raise_size = f"{size} bytes"
            refuse(f"tasks[{index}].question", raise_size, required)


def _one_of(names: dict[str, Any]) -> str:
    return f"one of {', '.join(names)}" if names else "a name that is declared (there is none)"


def _local_roots(folder: Path) -> dict[str, Path]:
    file = folder / LOCAL_NAME
    if not file.exists():
        return {}
    table = read_table(file)
    roots = table.get("roots")
    if set(table) != {"roots"} or not isinstance(roots, dict):
        raise StudyFileError(
            f'{file}: found other tables, required only [roots] with NAME = "PATH"'
        )
    return {name: _root(file, name, value) for name, value in roots.items()}


def _root(file: Path, name: str, value: Any) -> Path:
    if isinstance(value, str) and value:
        # A home that does not exist and a loop of links are RuntimeErrors.
        with contextlib.suppress(OSError, RuntimeError):
            return (file.parent / Path(value).expanduser()).resolve()
    place = one_line(f"roots.{name}")
    raise StudyFileError(f"{file}: {place}: found {shown(value)}, required a path in quotes")
