"""Reading a study folder: one clear line for whatever is wrong with it."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from pytest_studyminimal.protocol.errors import StudyFileError
from pytest_studyminimal.protocol.study import Study
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("study.toml", "study.json")
LOCAL_NAME = "study.local.toml"
KEY_NAME = "answers.toml"
_LARGEST_FILE_BYTES = 4 * 2**20


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
    """Whether `path` holds a study file."""
    return any((path / name).is_file() for name in NAMES)


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
    if path.is_file():
        return path.resolve()
    found = [path / name for name in NAMES if (path / name).is_file()]
    if len(found) != 1:
        what = "both study.toml and study.json" if found else "no study file"
        raise StudyFileError(f"{path}: found {what}, required one of study.toml or study.json")
    return found[0].resolve()


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

    Raises StudyFileError; its message quotes no more of the file than the parser's position.
    """
    data = _read_bytes(file)
    try:
        text = data.decode("utf-8")
        table = _parse_json(text) if file.suffix == ".json" else tomllib.loads(text)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        kind = "JSON" if file.suffix == ".json" else "TOML"
        detail = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        message = f"{file}: found {one_line(detail)}, required {kind} in UTF-8"
        raise StudyFileError(message) from None
    if not isinstance(table, dict):
        raise StudyFileError(f"{file}: found {_shown(table)}, required an object at the top")
    for place, found, required in _impossible_values(table, ""):
        raise StudyFileError(f"{file}: {place}: found {found}, required {required}")
    return table


def _parse_json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the key {_shown(twice)} twice in one object")
        return table

    return json.loads(text, object_pairs_hook=once)


def _impossible_values(value: Any, place: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            where = f"{place}.{name}" if place else name
            yield from _impossible_values(name, f"a key under {place or 'the top'}")
            yield from _impossible_values(item, where)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _impossible_values(item, f"{place}[{index}]")
    elif value is None:
        yield place, "null", "a value; leave the key out where there is none"
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, str(value), "a finite number"
    elif isinstance(value, str) and any(
        0xD800 <= ord(char) <= 0xDFFF or char == "\0" for char in value
    ):
        yield one_line(place), "a surrogate or NUL character", "Unicode text"
    elif not isinstance(value, (str, int, float, bool)):
        yield (
            place,
            f"the bare {type(value).__name__} {value}",
            'text in quotes, such as "2026-10-10"',
        )


def _validate(file: Path, table: dict[str, Any]) -> Study:
    try:
        return Study.model_validate_json(json.dumps(table))
    except ValidationError as error:
        raise StudyFileError(f"{file}: {describe(error, Study)}") from None
    except ValueError as error:
        raise StudyFileError(
            f"{file}: found {one_line(str(error))}, required plain values"
        ) from None


def describe(error: ValidationError, model: type[BaseModel], *, show_found: bool = True) -> str:
    """Return the first finding of `error` as `place: found …, required …`, and how many more there are.

    `show_found=False` leaves the value out, for files whose content is private.
    """
    findings = error.errors(include_url=False)
    first = findings[0]
    place = _place(first["loc"])
    kind = first["type"]
    if kind == "extra_forbidden":
        known = ", ".join(_known_keys(model, first["loc"][:-1]))
        line = f"{place}: found an unknown key, required one of {known}"
    elif kind == "missing":
        line = f"{place}: found nothing, required this key"
    else:
        found = _shown(first["input"]) if show_found else "another value"
        line = f"{place}: found {found}, required {_required(first)}"
    more = len(findings) - 1
    return f"{line} (and {more} more)" if more else line


def _place(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.startswith(("tuple[", "constrained-", "function-")) or part in {"int", "[key]"}:
            continue
        else:
            text += f".{part}" if text else part
    return one_line(text) or "the top level"


def _required(finding: Any) -> str:
    context = finding.get("ctx") or {}
    kind = finding["type"]
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"text that matches {context['pattern']}")
    if kind == "literal_error":
        return str(context["expected"]).replace("'", '"')
    return finding["msg"].removeprefix("Input should be ").removeprefix("Value error, ").lower()  # type: ignore[no-any-return]


_PATTERNS = {
    r"^[a-z0-9]+(-[a-z0-9]+)*$": "an id: lower-case words joined by single hyphens, such as docs-mcp",
    r"^([0-9a-f]{40}|[0-9a-f]{64})$": "a full commit: 40 or 64 lower-case hexadecimal digits",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable",
}


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            fields = {(field.alias or name): field for name, field in current.model_fields.items()}
            current = fields[str(part)].annotation if str(part) in fields else None
        else:
            # Below a dict or a tuple the part is a key or an index: go to the model inside.
            current = next((arg for arg in _models_in(current)), None)
            continue
        models = list(_models_in(current))
        if models and not _is_container(current):
            current = models[0]
    if not (isinstance(current, type) and issubclass(current, BaseModel)):
        current = next(_models_in(current), model)
    return sorted((field.alias or name) for name, field in current.model_fields.items())


def _is_container(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) in {dict, tuple}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 80 else text[:60] + f"… ({len(text)} characters)"


def _check_references(file: Path, study: Study) -> None:
    def refuse(place: str, found: object, required: str) -> None:
        raise StudyFileError(f"{file}: {place}: found {_shown(found)}, required {required}")

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
    if study.adjudicator and study.adjudicator.connection not in study.connections:
        refuse("adjudicator.connection", study.adjudicator.connection, _one_of(study.connections))


def _check_tasks(study: Study, refuse: Callable[[str, object, str], None]) -> None:
    seen: set[str] = set()
    for index, task in enumerate(study.tasks):
        if task.id in seen:
            refuse(f"tasks[{index}].id", task.id, "each task id once")
        seen.add(task.id)
        if task.corpus not in study.corpora:
            refuse(f"tasks[{index}].corpus", task.corpus, _one_of(study.corpora))
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
    for name, value in roots.items():
        if not isinstance(value, str) or not value:
            raise StudyFileError(
                f"{file}: roots.{name}: found {_shown(value)}, required a path in quotes"
            )
    return {name: (folder / Path(value).expanduser()).resolve() for name, value in roots.items()}
