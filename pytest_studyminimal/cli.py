"""The `studyminimal` command: what needs no pytest and spends nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from pytest_studyminimal import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="studyminimal")
def main() -> None:
    """Controlled studies of coding agents. Studies are run by `pytest --study PHASE`."""


@main.command()
def schema() -> None:
    """Print the JSON Schema of the study file, for editors."""
    from pytest_studyminimal.protocol.study import Study

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
