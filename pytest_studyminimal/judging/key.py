"""The answer key: expected propositions and authoritative sources, bound to the study by hash."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, ValidationError

from pytest_studyminimal.protocol.errors import StudyFileError
from pytest_studyminimal.protocol.findings import describe
from pytest_studyminimal.protocol.frozen import Frozen
from pytest_studyminimal.protocol.manifest import StudyFolder, read_table
from pytest_studyminimal.protocol.study import Id, Names


class Expected(Frozen):
    """What a correct answer says, and the files at the pin that say it. Both are private.

    A source is a path, or a pattern with `*` that one file at the pin must match.
    """

    propositions: Annotated[Names, Field(min_length=1)]
    sources: Annotated[Names, Field(min_length=1)]


class AnswerKey(Frozen):
    """The key of a whole study, one entry per task."""

    tasks: dict[Id, Expected]


def load_key(folder: StudyFolder) -> AnswerKey:
    """Return the study's answer key; StudyFileError, which never quotes the key, where it is unusable."""
    table = read_table(folder.key_file)
    try:
        key = AnswerKey.model_validate_json(json.dumps(table))
    except ValidationError as error:
        line = describe(error, AnswerKey, show_found=False)
        raise StudyFileError(f"{folder.key_file}: {line}") from None
    tasks = {task.id for task in folder.study.tasks}
    for unknown in sorted(set(key.tasks) - tasks):
        raise StudyFileError(f"{folder.key_file}: tasks.{unknown}: found no such task in the study")
    for missing in sorted(tasks - set(key.tasks)):
        raise StudyFileError(
            f"{folder.key_file}: found no entry for task {missing}, required one per task"
        )
    return key
