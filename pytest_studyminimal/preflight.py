"""Everything that can be known before money: corpora at their pins, servers ready, tools nameable."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import CorpusError, UsageRefusedError
from pytest_studyminimal.protocol.manifest import LOCAL_NAME
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.reachability import reach
from pytest_studyminimal.workspace.corpus import Corpus, read_corpus
from pytest_studyminimal.workspace.export import export
from pytest_studyminimal.workspace.places import Places
from pytest_studyminimal.workspace.servers import ServerFacts, preflight
from pytest_studyminimal.workspace.toolbox import Offer, offer
from pytest_studyminimal.workspace.tools import RepositoryTools
from pytest_studyminimal.workspace.watch import Watch
from pytest_studyminimal.workspace.workplace import denied_tools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_studyminimal.protocol.manifest import StudyFolder
    from pytest_studyminimal.protocol.records import Attempt

ENGINE = "engine"


@dataclass(frozen=True)
class Roots:
    """Where corpora and engines lie on this machine; not part of the protocol.

    `--study-root NAME=PATH` wins over `STUDY_ROOT_NAME`, that over the untracked study.local.toml.
    """

    paths: Mapping[str, Path]

    @classmethod
    def gather(
        cls, folder: StudyFolder, options: list[str], environ: Mapping[str, str], cwd: Path
    ) -> Roots:
        """Collect all roots; UsageRefusedError for an option that is not NAME=PATH of a known name."""
        names = (*folder.study.corpora, ENGINE)
        paths = dict(folder.roots)
        for unknown in sorted(set(paths) - set(names)):
            raise UsageRefusedError(
                f"{folder.path / LOCAL_NAME}: roots: found {unknown!r}, required one of {', '.join(names)}"
            )
        for name in names:
            if value := environ.get(f"STUDY_ROOT_{name.upper().replace('-', '_')}"):
                paths[name] = place(value, cwd)
        for option in options:
            name, separator, value = option.partition("=")
            if not separator or not value or name not in names:
                raise UsageRefusedError(
                    f"--study-root: found {option!r}, required NAME=PATH with NAME one of {', '.join(names)}"
                )
            paths[name] = place(value, cwd)
        return cls(paths)

    def of_corpus(self, folder: StudyFolder, name: str) -> Path:
        """Return the checkout or bundle of a corpus; CorpusError where neither is known."""
        pin = folder.study.corpora[name]
        if pin.bundle is not None and name not in self.paths:
            return folder.path / pin.bundle
        if name not in self.paths:
            raise CorpusError(
                f"corpus {name}: found no checkout, required --study-root {name}=PATH,"
                f" STUDY_ROOT_{name.upper().replace('-', '_')} or {folder.path / 'study.local.toml'}"
            )
        return self.paths[name]


@dataclass(frozen=True)
class Ready:
    """What preflight found. `facts` are keyed by corpus, then by server; `watches` by corpus."""

    corpora: Mapping[str, Corpus]
    facts: Mapping[str, Mapping[str, ServerFacts]]
    watches: Mapping[str, Watch] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know, one line each."""
        return tuple(line for corpus in self.corpora.values() for line in corpus.warnings)

    def repository(self, folder: StudyFolder, attempt: Attempt) -> RepositoryTools:
        """Return the repository tools of an attempt."""
        corpus = self.corpora[folder.study.task(attempt.task).corpus]
        return RepositoryTools(corpus, folder.study.scenarios[attempt.scenario].tools)

    def offer(self, folder: StudyFolder, attempt: Attempt) -> Offer:
        """Return the tools that an attempt's arm offers."""
        scenario = folder.study.scenarios[attempt.scenario]
        facts = self.facts[folder.study.task(attempt.task).corpus]
        return offer(folder.study, scenario, self.repository(folder, attempt), facts)

    def denied(self, folder: StudyFolder) -> tuple[tuple[str, str], ...]:
        """Return every tool of a server that no agent may use: (server, exact name), sorted."""
        return denied_tools(folder.study, self.facts)

    def watch(self, folder: StudyFolder, attempt: Attempt) -> Watch | None:
        """Return the checkout that an attempt's servers read, None where they read none."""
        watch = self.watches.get(folder.study.task(attempt.task).corpus)
        servers = folder.study.scenarios[attempt.scenario].servers
        return watch if any(_reads_checkout(folder, server) for server in servers) else None


def read_corpora(
    folder: StudyFolder, attempts: tuple[Attempt, ...], roots: Roots, *, checkouts: bool = True
) -> dict[str, Corpus]:
    """Read and verify every corpus that these attempts use; CorpusError names the first that fails.

    Without `checkouts` no server will read one, so only the objects at the pin matter.
    """
    corpora = {}
    for name in folder.study.corpora_of(tuple(attempt.task for attempt in attempts)):
        watch = _watch(folder, attempts, name, roots)
        corpora[name] = read_corpus(
            name,
            folder.study.corpora[name],
            roots.of_corpus(folder, name),
            needs_checkout=watch is not None and checkouts,
            allowed_changes=watch.index if watch else (),
        )
    return corpora


def watches_of(
    folder: StudyFolder, attempts: tuple[Attempt, ...], roots: Roots
) -> dict[str, Watch]:
    """Return every checkout that a server of these attempts reads, by corpus."""
    names = folder.study.corpora_of(tuple(attempt.task for attempt in attempts))
    watches = {name: _watch(folder, attempts, name, roots) for name in names}
    return {name: watch for name, watch in watches.items() if watch is not None}


def expecting(watches: Mapping[str, Watch], trees: Mapping[str, str] | None) -> dict[str, Watch]:
    """Return watches that expect their checkouts as `trees` say, or else as they are now."""
    return {
        name: replace(watch, tree=watch.tree_sha256() if trees is None else trees.get(name))
        for name, watch in watches.items()
    }


def _watch(
    folder: StudyFolder, attempts: tuple[Attempt, ...], corpus: str, roots: Roots
) -> Watch | None:
    readers = [
        server
        for server in _servers_over(folder, attempts, corpus)
        if _reads_checkout(folder, server)
    ]
    if not readers:
        return None
    index = [path for server in readers for path in folder.study.servers[server].index]
    return Watch(
        source=roots.of_corpus(folder, corpus),
        commit=folder.study.corpora[corpus].commit,
        index=tuple(dict.fromkeys(index)),
    )


def _reads_checkout(folder: StudyFolder, server: str) -> bool:
    spec = folder.study.servers[server]
    return any(spec.uses(placeholder) for placeholder in ("checkout", "config"))


def places_of(folder: StudyFolder, roots: Roots, corpus: str, export_path: Path | None) -> Places:
    """Return where the placeholders of a server point for an attempt over `corpus`."""
    return Places(
        python=sys.executable,
        study=folder.path,
        export=export_path,
        checkout=roots.paths.get(corpus),
        engine=roots.paths.get(ENGINE),
    )


def check(
    folder: StudyFolder,
    attempts: tuple[Attempt, ...],
    roots: Roots,
    *,
    sources: Mapping[str, tuple[str, ...]],
    keys: frozenset[str],
) -> Ready:
    """Verify all that these attempts need, spend nothing, and stop what was started for it.

    `sources` are the authoritative paths by task, never shown; `keys` are names of variables that no
    server may get. Raises CorpusError or ServerError with one line.
    """
    corpora = read_corpora(folder, attempts, roots)
    sources = check_sources(folder, corpora, sources)
    for name, corpus in corpora.items():
        if any(sha256(data).hexdigest() == folder.key_sha256 for data in corpus.files.values()):
            raise CorpusError(
                f"corpus {name}: found this study's answer key among its files, required it to be left"
                " out (corpora exclude)"
            )
    facts: dict[str, dict[str, ServerFacts]] = {}
    for name, corpus in corpora.items():
        facts[name] = {}
        servers = _servers_over(folder, attempts, name)
        if not servers:
            continue
        with export(corpus) as copy:
            for server in servers:
                spec = folder.study.servers[server]
                places = places_of(folder, roots, name, copy.path)
                mine = {
                    task.id: sources.get(task.id, ())
                    for task in folder.study.tasks
                    if task.corpus == name and any(one.task == task.id for one in attempts)
                }
                facts[name][server] = preflight(
                    server,
                    spec,
                    places,
                    folder.study.limits,
                    forbidden=keys,
                    probe=partial(reach, sources=mine),
                )
    ready = Ready(corpora=corpora, facts=facts, watches=watches_of(folder, attempts, roots))
    for name, watch in ready.watches.items():
        # The servers ran: what they wrote beside their index would be in every attempt.
        if changes := watch.changes():
            raise CorpusError(f"corpus {name}: {changes[0]} (after its servers ran)")
    ready = replace(ready, watches=expecting(ready.watches, None))
    for attempt in attempts:
        ready.offer(folder, attempt)
    return ready


def check_sources(
    folder: StudyFolder, corpora: Mapping[str, Corpus], sources: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the authoritative paths by task, each of its corpus at the pin, `*` replaced.

    Raises CorpusError for a source that is not exactly one readable file.
    """
    found = {}
    for task in folder.study.tasks:
        corpus = corpora.get(task.corpus)
        if corpus is not None:
            found[task.id] = tuple(
                _source(corpus, source, f"source {number} of task {task.id}")
                for number, source in enumerate(sources.get(task.id, ()), start=1)
            )
    return found


def _source(corpus: Corpus, source: str, which: str) -> str:
    if source in corpus.files:
        return source
    pattern = re.compile(".*".join(map(re.escape, source.split("*"))), re.DOTALL)
    matching = [path for path in corpus.files if "*" in source and pattern.fullmatch(path)]
    if len(matching) == 1:
        return matching[0]
    # The path itself is part of the key, so the line gives only its number.
    found = f"{len(matching)} files" if matching else "no readable file"
    raise CorpusError(
        f"corpus {corpus.name}: found {found} for {which}, required every source of the answer key to"
        f" be one file at commit {corpus.commit[:12]}"
    )


def _servers_over(
    folder: StudyFolder, attempts: tuple[Attempt, ...], corpus: str
) -> tuple[str, ...]:
    study = folder.study
    arms = {attempt.scenario for attempt in attempts if study.task(attempt.task).corpus == corpus}
    used = {server for arm in arms for server in study.scenarios[arm].servers}
    return tuple(server for server in study.servers if server in used)


def place(text: str, cwd: Path) -> Path:
    """Return the path that a user wrote, relative to `cwd`; UsageRefusedError for an unknown ~user."""
    try:
        return (cwd / Path(text).expanduser()).resolve()
    except (RuntimeError, ValueError):
        raise UsageRefusedError(f"found {one_line(text, 80)!r}, required a path") from None


def inside(path: Path, directory: Path) -> bool:
    """Whether `path` lies in `directory`, symbolic links resolved."""
    return path.resolve().is_relative_to(directory.resolve())
