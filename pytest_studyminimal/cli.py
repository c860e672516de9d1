"""The `studyminimal` command: what needs no pytest and spends nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from pytest_studyminimal import __version__


class OneLineGroup(click.Group):
    """A command whose usage errors are one line and exit 4, as every other refusal is."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run as click does, but for errors of usage."""
        run: Any = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            code = run(*args, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(4)
        except click.ClickException as error:
            _refused(Exception(" ".join(error.format_message().split())))
        except click.Abort:
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


@click.group(cls=OneLineGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="studyminimal")
def main() -> None:
    """Controlled studies of coding agents. Studies are run by `pytest --study PHASE`."""


@main.command()
@click.option("--report", is_flag=True, help="That of `report --format json` instead.")
def schema(report: bool) -> None:
    """Print the JSON Schema of the study file, for editors."""
    from importlib import resources

    from pytest_studyminimal.protocol.study import Study

    if report:
        file = resources.files("pytest_studyminimal.reports") / "report.schema.json"
        click.echo(file.read_text(encoding="utf-8"), nl=False)
        return

    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Study.model_json_schema(by_alias=True),
    }
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


@main.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--phase", type=click.Choice(["pilot", "full"]), default="full", show_default=True)
@click.option(
    "--study-connection", metavar="ID", help="Connection of the manifest (default: its first)."
)
@click.option(
    "--study-root",
    "roots",
    metavar="NAME=PATH",
    multiple=True,
    help="Checkout of a corpus; pins and sources are verified there (repeatable).",
)
@click.option("--verify", is_flag=True, help="Verify pins and sources, those of bundles as well.")
@click.option(
    "--study-ledger", metavar="PATH", type=click.Path(path_type=Path), help="Ledger with a pilot."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    study: Path,
    phase: str,
    study_connection: str | None,
    roots: tuple[str, ...],
    verify: bool,
    study_ledger: Path | None,
    as_json: bool,
) -> None:
    """Show order, reservations, worst-case and projected dollars of STUDY; spend nothing."""
    from pytest_studyminimal.planning import describe_plan, plan_lines
    from pytest_studyminimal.protocol.errors import StudyError

    try:
        described = describe_plan(
            study,
            phase,  # type: ignore[arg-type]
            connection=study_connection,
            roots=list(roots),
            verify=verify or bool(roots),
            ledger_path=study_ledger,
            environ=os.environ,
            cwd=Path.cwd(),
        )
    except StudyError as error:
        click.echo(f"studyminimal: {error}", err=True)
        sys.exit(4)
    click.echo(json.dumps(described, indent=2) if as_json else "\n".join(plan_lines(described)))


def _refused(error: Exception) -> NoReturn:
    click.echo(f"studyminimal: {error}", err=True)
    sys.exit(4)


def _print(document: object, lines: list[str], *, as_json: bool) -> None:
    click.echo(json.dumps(document, indent=2) if as_json else "\n".join(lines))


_PATH = click.Path(path_type=Path)


@main.command()
@click.argument("stream", type=_PATH, required=False)
@click.option("--study", type=_PATH, help="Folder of the study.")
@click.option(
    "--transport", metavar="NAME", help="codex or opencode: judge a stream without a study."
)
@click.option("--task", metavar="ID", help="Task of the attempt.")
@click.option("--scenario", metavar="ID", help="Scenario of the attempt.")
@click.option(
    "--exit-status", type=int, default=0, show_default=True, help="Negative for a signal."
)
@click.option(
    "--study-connection", metavar="ID", help="Connection (default: the first agent CLI's)."
)
@click.option(
    "--study-attempt-budget-usd", metavar="USD", help="What was reserved for the attempt."
)
@click.option("--ledger", type=_PATH, help="Ledger of the run to judge again.")
@click.option("--run", metavar="RUN", help="Run of the ledger, all of its attempts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def judge(as_json: bool, **asked: object) -> None:
    """Apply the rule book to a stored STREAM, or with --ledger and --run to a whole run.

    Starts nothing, spends nothing and changes no ledger. Exits 0 whatever the verdict.
    """
    from pytest_studyminimal.judging.command import judged
    from pytest_studyminimal.protocol.errors import StudyError

    try:
        document, lines = judged(**asked)  # type: ignore[arg-type]
    except StudyError as error:
        _refused(error)
    else:
        _print(document, lines, as_json=as_json)


@main.command()
@click.argument("run", metavar="RUN[:ATTEMPT]")
@click.option("--ledger", type=_PATH, help="Ledger (default: searched in the state directory).")
@click.option("--private", is_flag=True, help="Show prompts, arguments, results and answers too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run: str, ledger: Path | None, private: bool, as_json: bool) -> None:
    """Tell what agents did in a run, call by call, from the kept transcripts."""
    from pytest_studyminimal.protocol.errors import StudyError
    from pytest_studyminimal.reports.showing import shown_run

    try:
        document, lines = shown_run(run, ledger, private=private)
    except StudyError as error:
        _refused(error)
    else:
        _print(document, lines, as_json=as_json)


@main.command()
@click.argument("study", type=_PATH)
@click.option("--study-connection", metavar="ID", help="Connection (default: the first).")
@click.option(
    "--study-root",
    "roots",
    metavar="NAME=PATH",
    multiple=True,
    help="Checkout of a corpus, or engine.",
)
@click.option(
    "--study-agent", "agents", metavar="TRANSPORT=PATH", multiple=True, help="Program of a CLI."
)
@click.option("--study-rehearse", is_flag=True, help="As a dress rehearsal would see it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(
    study: Path,
    study_connection: str | None,
    roots: tuple[str, ...],
    agents: tuple[str, ...],
    study_rehearse: bool,
    as_json: bool,
) -> None:
    """Say line by line what of STUDY is ready here, what is missing and how to get it.

    Runs the preflight alone and spends nothing. Exits 0 where all is ready, else 1; 4 where the
    study or an option cannot be used.
    """
    from pytest_studyminimal.doctoring import described
    from pytest_studyminimal.doctoring import doctor as examine
    from pytest_studyminimal.protocol.errors import StudyError

    found = []
    try:
        patient = examine(
            study,
            connection=study_connection,
            rehearse=study_rehearse,
            roots=roots,
            agents=agents,
            environ=os.environ,
            cwd=Path.cwd(),
        )
        for finding in patient.findings():
            found.append(finding)
            if not as_json:
                click.echo(finding.line)
    except StudyError as error:
        _refused(error)
    if as_json:
        click.echo(json.dumps(described(found), indent=2))
    sys.exit(0 if all(one.ready for one in found) else 1)


@main.group()
def ledger() -> None:
    """Look at a ledger: `show`, `verify` or `export` it. None of them changes a record.

    PLACE is a ledger file, its folder, or the folder of a study; without it, the only ledger there is.
    """


_PLACE = click.argument("place", type=_PATH, required=False)


@ledger.command("show")
@_PLACE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ledger_show(place: Path | None, as_json: bool) -> None:
    """Show accounts, approvals and runs, with what was found open."""
    from pytest_studyminimal.protocol.errors import StudyError
    from pytest_studyminimal.reports.books import shown

    try:
        document, lines = shown(place)
    except StudyError as error:
        _refused(error)
    else:
        _print(document, lines, as_json=as_json)


@ledger.command("verify")
@_PLACE
@click.option("--head", metavar="SHA256", help="Hash of a record noted earlier; it must be there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ledger_verify(place: Path | None, head: str | None, as_json: bool) -> None:
    """Check chain, append-only rule, money and caps, also of an export. Exits 1 for any problem."""
    from pytest_studyminimal.protocol.errors import StudyError
    from pytest_studyminimal.reports.books import verified

    try:
        result, (document, lines) = verified(place, head)
    except StudyError as error:
        _refused(error)
    else:
        _print(document, lines, as_json=as_json)
        sys.exit(1 if result.problems else 0)


@ledger.command("export")
@_PLACE
@click.option("--private", is_flag=True, help="With answers and questions.")
def ledger_export(place: Path | None, private: bool) -> None:
    """Print every record as one line of JSON; without private parts it still verifies."""
    from pytest_studyminimal.protocol.errors import StudyError
    from pytest_studyminimal.reports.books import export_lines

    try:
        for line in export_lines(place, private=private):
            click.echo(line)
    except StudyError as error:
        _refused(error)


@main.command()
@_PLACE
@click.option(
    "--run",
    "runs",
    metavar="RUN",
    multiple=True,
    help="Run (default: the newest full one, else the newest).",
)
@click.option("--gates", is_flag=True, help="Print the study's gates; exit 1 where one fails.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["json", "csv", "markdown", "html"]),
    default="markdown",
    show_default=True,
)
@click.option("--output", type=_PATH, help="File to write (default: standard output).")
@click.option("--private", is_flag=True, help="With answers, marked private; html only, mode 0600.")
def report(
    place: Path | None,
    runs: tuple[str, ...],
    kind: str,
    output: Path | None,
    private: bool,
    gates: bool,
) -> None:
    """Report one run: statuses, figures, paired differences clustered by task, and what is missing.

    PLACE is the folder of a study, a ledger file or its folder. Answers are in no public report. With
    --gates the exit status is 1 where a gate of the study fails.
    """
    from pytest_studyminimal.protocol.errors import StudyError
    from pytest_studyminimal.reports.gates import gate_lines
    from pytest_studyminimal.reports.reporting import append_summary, write
    from pytest_studyminimal.reports.reporting import report as reported

    try:
        text, document = reported(place, runs, kind, private=private)
        if output is not None:
            write(text, output, private=private)
    except StudyError as error:
        _refused(error)
    except OSError as error:
        _refused(Exception(f"{output}: found {error.strerror}, required a place to write"))
    if gates and not document["gates"]:
        _refused(Exception("--gates: found no [gates] in the study of this run, required some"))
    if output is None and not gates:
        click.echo(text, nl=False)
    if problem := append_summary(document, os.environ):
        click.echo(f"studyminimal: {problem}", err=True)
    if gates:
        for line in gate_lines(document):
            click.echo(line)
        sys.exit(0 if all(one["passed"] for one in document["gates"]) else 1)


@main.group()
def adjudication() -> None:
    """Blind packets of a run's answers out, verdicts in: for an agent, a human or another tool."""


_RUN = click.option("--run", metavar="RUN", help="Run (default: the newest full one).")
_LEDGER = click.option("--ledger", type=_PATH, help="Ledger (default: the study's own).")
_ROOTS = click.option(
    "--study-root", "roots", metavar="NAME=PATH", multiple=True, help="Checkout of a corpus."
)


@adjudication.command("export")
@click.argument("study", type=_PATH)
@_RUN
@_LEDGER
@_ROOTS
@click.option("--output", type=_PATH, help="New file, mode 0600 (default: standard output).")
def adjudication_export(
    study: Path, run: str | None, ledger: Path | None, roots: tuple[str, ...], output: Path | None
) -> None:
    """Print one packet per usable answer as JSON lines. They hold answers and the key: private."""
    from pytest_studyminimal.judging.adjudication import case_of, export_packets
    from pytest_studyminimal.protocol.errors import StudyError

    try:
        lines = export_packets(case_of(study, run, ledger, roots, os.environ, Path.cwd()))
        if output is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(output, flags, 0o600), "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
    except StudyError as error:
        _refused(error)
    except OSError as error:
        _refused(Exception(f"{output}: found {error.strerror}, required a new file"))
    else:
        if output is None:
            for line in lines:
                click.echo(line)


@adjudication.command("import")
@click.argument("study", type=_PATH)
@click.argument("verdicts", type=click.File("rb"))
@_RUN
@_LEDGER
@_ROOTS
def adjudication_import(
    study: Path, verdicts: Any, run: str | None, ledger: Path | None, roots: tuple[str, ...]
) -> None:
    """Append the VERDICTS of a file of JSON lines to the ledger, all of them or none."""
    from pytest_studyminimal.judging.adjudication import case_of, import_verdicts
    from pytest_studyminimal.protocol.errors import StudyError

    try:
        case = case_of(study, run, ledger, roots, os.environ, Path.cwd())
        for line in import_verdicts(case, verdicts.read()):
            click.echo(line)
    except StudyError as error:
        _refused(error)
