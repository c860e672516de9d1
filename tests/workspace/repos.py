"""Real git repositories for tests, the hostile ones made object by object."""

from __future__ import annotations

# ruff: noqa: PTH103, PTH120, PTH123 - names are bytes, which pathlib cannot hold
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from pytest_studyminimal.protocol.study import CorpusPin
from pytest_studyminimal.workspace.corpus import Corpus, read_corpus

CORPORA = Path(__file__).parent / "corpora"
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Case",
    "GIT_AUTHOR_EMAIL": "case@example.invalid",
    "GIT_COMMITTER_NAME": "Case",
    "GIT_COMMITTER_EMAIL": "case@example.invalid",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
}


def git(folder: Path, *arguments: str, data: bytes | None = None) -> str:
    result = subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        input=data if data is not None else b"",
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, (arguments, result.stderr)
    return result.stdout.decode().strip()


def built(name: str, folder: Path) -> str:
    """Run a build script; return what it printed."""
    result = subprocess.run(
        ["sh", str(CORPORA / f"{name}.sh"), str(folder)], capture_output=True, check=True
    )
    return result.stdout.decode("utf-8", "replace")


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")


def write(folder: Path, files: dict[str | bytes, bytes]) -> None:
    for name, data in files.items():
        raw = name.encode() if isinstance(name, str) else name
        place = os.fsencode(folder) + b"/" + raw
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as stream:
            stream.write(data)


def repository(folder: Path, files: dict[str | bytes, bytes], object_format: str = "sha1") -> str:
    """Make a repository with one commit of these files; return the commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", f"--object-format={object_format}", ".")
    write(folder, files)
    return committed(folder)


def committed(folder: Path) -> str:
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return head(folder)


def stored(folder: Path, kind: str, data: bytes) -> str:
    return git(folder, "hash-object", "-t", kind, "-w", "--stdin", "--literally", data=data)


def blob(folder: Path, data: bytes) -> str:
    return stored(folder, "blob", data)


def tree(folder: Path, *rows: tuple[bytes, bytes, str]) -> str:
    """Store a tree of (mode, name, id) that git itself might never write."""
    content = b"".join(
        mode + b" " + name + b"\0" + bytes.fromhex(target) for mode, name, target in rows
    )
    return stored(folder, "tree", content)


def commit(folder: Path, top: str) -> str:
    who = "Case <case@example.invalid> 1767323045 +0000"
    return stored(folder, "commit", f"tree {top}\nauthor {who}\ncommitter {who}\n\none\n".encode())


def pin(revision: str, **more: object) -> CorpusPin:
    return CorpusPin(commit=revision, **more)


def read(folder: Path, revision: str | None = None, **more: object) -> Corpus:
    """Read a corpus called docs; `exclude` goes to the pin, all else to `read_corpus`."""
    exclude = more.pop("exclude", ())
    return read_corpus("docs", pin(revision or head(folder), exclude=exclude), folder, **more)


def corpus_of(folder: Path, files: dict[str | bytes, bytes]) -> Corpus:
    return read(folder, repository(folder, files))


def object_file(folder: Path, name: str) -> Path:
    return folder / ".git" / "objects" / name[:2] / name[2:]


def as_ordinary_user(script: str, **variables: str) -> str:
    """Run a script as uid 65534 where we are root, else as who we are; return what it printed.

    The script runs after its imports; `W` is a folder that the user owns, `variables` its
    environment.
    """
    prelude = """
        import os, resource, shutil, sys, tempfile
        from pathlib import Path
        from repos import *
        from pytest_studyminimal.protocol.errors import CorpusError
        from pytest_studyminimal.workspace.export import export
        from pytest_studyminimal.workspace.tools import RepositoryTools
        W = Path(tempfile.mkdtemp())
        if os.geteuid() == 0:
            os.chown(W, 65534, 65534)
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        os.chdir(W)
        tempfile.tempdir = str(W)
        try:
            exec(sys.argv[1])
        finally:
            os.chdir('/')
            shutil.rmtree(W, ignore_errors=True)
    """
    here = Path(__file__).parent
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude), textwrap.dedent(script)],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{here}{os.pathsep}{here.parents[1]}",
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
