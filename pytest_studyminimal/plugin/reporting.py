"""`--study-report DIR`: every format of the report, written when the run is closed."""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import StudyError, UsageRefusedError

if TYPE_CHECKING:
    import pytest

    from pytest_studyminimal.plugin.session import StudySession


def folder_of(config: pytest.Config) -> Path | None:
    """Return where reports go, None where none are wanted."""
    option = config.getoption("study_report")
    return None if option is None else config.invocation_params.dir / Path(option).expanduser()


def prepare_folder(config: pytest.Config) -> None:
    """Make the folder before any money; UsageRefusedError where it cannot be written."""
    folder = folder_of(config)
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "an unusable name"
        raise UsageRefusedError(
            f"--study-report: found {why} at {folder}, required a folder that can be written"
        ) from None
    from pytest_studyminimal.reports.page.assembly import refuse_missing  # noqa: PLC0415

    refuse_missing()


def write_reports(session: StudySession) -> None:
    """Write the report of a closed run, or of the run that it judged; a failure is one line on stderr."""
    folder, run = folder_of(session.config), session.run
    if folder is None or run is None:
        return
    from pytest_studyminimal.reports.document import document  # noqa: PLC0415
    from pytest_studyminimal.reports.reporting import append_summary, write_all  # noqa: PLC0415
    from pytest_studyminimal.reports.view import view  # noqa: PLC0415

    try:
        judged = run.row().body.get("judges", {}).get("run", run.id)
        found = document(view(run.ledger, judged))
        write_all(found, folder)
        problem = append_summary(found, os.environ)
    except StudyError as error:
        problem = str(error)
    except OSError as error:
        problem = f"--study-report: found {error.strerror or error} at {folder}, required a folder"
    except Exception as error:  # noqa: BLE001 - the run is over and recorded; a report is made again
        run.log_privately("report", traceback.format_exc())
        problem = (
            f"--study-report: found {type(error).__name__} (see the private log), required none"
        )
    _say(session.config, problem or f"report in {folder}")


def _say(config: pytest.Config, line: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(line)
