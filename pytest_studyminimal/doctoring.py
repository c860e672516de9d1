"""The preflight alone, line by line: what is ready, what is missing, and how to get it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.judging.key import load_key
from pytest_studyminimal.preflight import ENGINE, Roots, check, check_sources, read_corpora
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import StudyError, UsageRefusedError
from pytest_studyminimal.protocol.manifest import load
from pytest_studyminimal.protocol.schedule import plan
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.transports.agents import agent_options
from pytest_studyminimal.transports.open import Site, open_transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_studyminimal.protocol.manifest import StudyFolder
    from pytest_studyminimal.protocol.records import Attempt
    from pytest_studyminimal.protocol.study import Connection


@dataclass(frozen=True)
class Finding:
    """One line: a part of the study, whether it is ready, and what was found."""

    part: str
    ready: bool
    told: str

    @property
    def line(self) -> str:
        """The finding as a printable line."""
        return one_line(f"{'ready' if self.ready else 'missing':<8} {self.part}: {self.told}", 1000)


@dataclass(frozen=True)
class Doctor:
    """A study folder as seen from this machine; nothing is spent and all that starts is stopped."""

    folder: StudyFolder
    connection_id: str
    rehearse: bool
    roots: Roots
    site: Site

    @property
    def connection(self) -> Connection:
        """The connection, with the local provider in a rehearsal."""
        chosen = self.folder.study.connections[self.connection_id]
        if not self.rehearse:
            return chosen
        return chosen.model_copy(update={"provider": "rehearsal", "base_url": None, "key": None})

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each part, as soon as it is known."""
        study = self.folder.study
        attempts = plan(study, "full", self.connection_id)
        cap = f"pilot {money.text(study.budget.pilot_usd)} USD, full {money.text(study.budget.full_usd)} USD"
        yield Finding(
            "study", True, f"{study.id}, {len(attempts)} attempts, caps {cap}; {self.folder.file}"
        )
        yield self._looked(f"connection {self.connection_id}", self._connection)
        yield from self._programs()
        for corpus in study.corpora_of(tuple(attempt.task for attempt in attempts)):
            mine = tuple(one for one in attempts if study.task(one.task).corpus == corpus)
            yield from self._corpus(corpus, mine)

    def _programs(self) -> Iterator[Finding]:
        """Yield what a server needs beside a corpus: the engine's place and its program."""
        for name, spec in self.folder.study.servers.items():
            if spec.uses("engine") and ENGINE not in self.roots.paths:
                told = f"found no place for {{engine}}, required --study-root {ENGINE}=PATH"
                yield Finding(f"server {name}", False, told)
            program = spec.argv[0]
            on_path = shutil.which(program, path=self.site.environ.get("PATH"))
            if "{" not in program and on_path is None:
                told = f"found no program {one_line(program, 80)} on PATH, required to start it"
                yield Finding(f"server {name}", False, told)

    @staticmethod
    def _looked(part: str, look: Callable[[], str]) -> Finding:
        try:
            return Finding(part, True, look())
        except StudyError as error:
            return Finding(part, False, str(error))

    def _connection(self) -> str:
        connection = self.connection
        with open_transport(connection, self.site) as opened:
            if opened.agent is None:
                where = "local provider" if connection.base_url is None else connection.base_url
                key = f", key in {connection.key}" if connection.key else ""
                return f"{connection.transport} with {connection.model} at {where}{key}"
            login = f", {opened.login}" if opened.login else ", rehearsal: no login needed"
            if opened.login == "not asked":
                login = ", login unknown: a script is not asked"
            return (
                f"{connection.transport} {opened.agent.version} with {connection.model}:"
                f" {opened.agent.program} (sha256 {opened.agent.sha256[:12]}){login}"
            )

    def _corpus(self, name: str, attempts: tuple[Attempt, ...]) -> Iterator[Finding]:
        study = self.folder.study
        part = f"corpus {name}"
        try:
            corpora = read_corpora(self.folder, attempts, self.roots)
            sources = self._sources()
            check_sources(self.folder, corpora, sources)
        except StudyError as error:
            told = str(error).removeprefix(f"{part}: ")
            yield Finding(part, False, f"{told}{self._how_to_get(name)}")
            return
        corpus = corpora[name]
        told = f"{len(corpus.files):,} files at {corpus.commit[:12]}, every source readable"
        yield Finding(part, True, told)
        for warning in corpus.warnings:
            yield Finding(part, True, f"note: {warning}")
        for server in study.servers:
            using = tuple(
                one for one in attempts if server in study.scenarios[one.scenario].servers
            )
            if using:
                look = partial(self._server, name, server, using)
                yield self._looked(f"server {server} over {name}", look)

    def _server(self, corpus: str, server: str, attempts: tuple[Attempt, ...]) -> str:
        ready = check(
            self.folder, attempts, self.roots, sources=self._sources(), keys=self.site.keys
        )
        facts = ready.facts[corpus][server]
        spec = self.folder.study.servers[server]
        known = [reach for reaches in facts.reachable.values() for reach in reaches]
        reach = f", reaches {known.count('yes')} of {len(known)} sources" if known else ""
        version = f" {facts.version}" if facts.version else ""
        return (
            f"{facts.name or 'unnamed'}{version} answers {spec.ready.tool}, offers {len(spec.allow)} of"
            f" {len(facts.tools)} tools{reach}"
        )

    def _sources(self) -> Mapping[str, tuple[str, ...]]:
        return {task: one.sources for task, one in load_key(self.folder).tasks.items()}

    def _how_to_get(self, name: str) -> str:
        pin = self.folder.study.corpora[name]
        if name in self.roots.paths or pin.source is None:
            return ""
        return (
            f"; git clone {pin.source} {name} && git -C {name} checkout --detach {pin.commit}, then"
            f" --study-root {name}=PATH"
        )


def doctor(
    path: Path,
    *,
    connection: str | None,
    rehearse: bool,
    roots: Sequence[str],
    agents: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
) -> Doctor:
    """Return the doctor of a study. StudyError where the study or an option cannot be used at all."""
    folder = load(path)
    chosen = connection or folder.study.default_connection
    if chosen not in folder.study.connections:
        names = ", ".join(folder.study.connections)
        raise UsageRefusedError(
            f"--study-connection: found {one_line(chosen, 60)!r}, required one of {names}"
        )
    keys = frozenset(one.key for one in folder.study.connections.values() if one.key)
    return Doctor(
        folder=folder,
        connection_id=chosen,
        rehearse=rehearse,
        roots=Roots.gather(folder, list(roots), environ, cwd),
        site=Site(environ=environ, cwd=cwd, programs=agent_options(agents), keys=keys),
    )


def described(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as plain JSON."""
    return {
        "ready": all(one.ready for one in findings),
        "parts": [
            {"part": one.part, "ready": one.ready, "told": one_line(one.told, 1000)}
            for one in findings
        ],
    }
