"""Git as a reader of objects, run where nothing of the corpus can tell it what to do.

A corpus is untrusted: its git folder may name programs, filters, replacements, grafts and remotes.
So no git command runs in it. Its object store alone is lent to an empty git folder of our own, and
whatever comes out is hashed against the id that was asked for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEADLINE_S = 120.0
_LARGEST_OUTPUT_BYTES = 64 * 2**20
# None of these can matter in an empty git folder; they are for the day that it is not empty.
_SWITCHES = (
    *("--no-pager", "--no-replace-objects"),
    *("-c", "core.fsmonitor=false"),
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.commitGraph=false"),
    *("-c", "protocol.allow=never"),
)
_CONFIGURATION = {
    40: b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
    64: b"[core]\n\trepositoryformatversion = 1\n\tbare = true\n"
    b"[extensions]\n\tobjectFormat = sha256\n",
}


@dataclass(frozen=True)
class Git:
    """An empty git folder that borrows an object store; every call has one total deadline."""

    folder: Path
    objects: Path
    program: str
    path: str
    deadline_s: float

    def run(
        self, *arguments: str, work_tree: Path | None = None, with_errors: bool = False
    ) -> tuple[int, bytes]:
        """Return the exit status and the output, at most 64 MiB, `with_errors` mixed in.

        Raises CorpusError where the deadline or that bound is passed.
        """
        stderr = subprocess.STDOUT if with_errors else subprocess.DEVNULL
        with Child(self, arguments, work_tree=work_tree, stderr=stderr) as child:
            output = child.output.read(_LARGEST_OUTPUT_BYTES + 1)
            if len(output) > _LARGEST_OUTPUT_BYTES:
                raise CorpusError("found more than 64 MiB of output of git, required less")
            status = child.wait()
        return status, output

    def environment(self, work_tree: Path | None = None) -> dict[str, str]:
        """Return all that a git child gets: nothing is inherited but the absolute parts of PATH."""
        variables = {
            "PATH": self.path,
            "LC_ALL": "C",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "GIT_DIR": str(self.folder),
            "GIT_OBJECT_DIRECTORY": str(self.objects),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_GRAFT_FILE": os.devnull,
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_PAGER": "cat",
        }
        return variables if work_tree is None else {**variables, "GIT_WORK_TREE": str(work_tree)}


@contextlib.contextmanager
def private_git(commit: str, objects: Path | None = None) -> Iterator[Git]:
    """Give a Git over the object store `objects`, or over an empty one, for ids like `commit`.

    Its folder lies in the temporary directory and is removed at the end.
    """
    path = os.pathsep.join(part for part in os.get_exec_path() if Path(part).is_absolute())
    program = shutil.which("git", path=path)
    if program is None:
        raise CorpusError("found no program git, required one on PATH")
    with tempfile.TemporaryDirectory(prefix="studyminimal-git-") as temporary:
        folder = Path(temporary).resolve()
        for name in ("objects", "refs"):
            (folder / name).mkdir()
        (folder / "HEAD").write_bytes(b"ref: refs/heads/none\n")
        (folder / "config").write_bytes(_CONFIGURATION[len(commit)])
        yield Git(folder, objects or folder / "objects", program, path, _DEADLINE_S)


def unbundle(git: Git, bundle: Path) -> None:
    """Read all objects of a git bundle into the store of `git`.

    Raises CorpusError where the file is none, is cut short, or needs commits that it does not hold.
    """
    if not bundle.is_file():
        raise CorpusError("found no such file, required a git bundle")
    status, output = git.run("bundle", "unbundle", str(bundle.resolve()), with_errors=True)
    if status != 0:
        lines = output.decode("utf-8", "replace").strip().splitlines() or [f"exit status {status}"]
        words = one_line(lines[0].removeprefix("error: ").removeprefix("fatal: "), 120)
        raise CorpusError(f"found an unreadable file ({words}), required a complete git bundle")


class Child:
    """One git child in a group of its own, ended with its group at the deadline or on exit."""

    def __init__(
        self,
        git: Git,
        arguments: Sequence[str],
        *,
        work_tree: Path | None = None,
        stderr: int = subprocess.DEVNULL,
    ) -> None:
        self._git = git
        self._command = [git.program, *_SWITCHES, *arguments]
        self._environment: Mapping[str, str] = git.environment(work_tree)
        self._folder = work_tree or git.folder
        self._stderr = stderr
        self._overdue = threading.Event()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        self._timer = threading.Timer(self._git.deadline_s, self._expire)
        self._timer.daemon = True
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._process:
            self._end()

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def ask(self, ids: Sequence[str]) -> None:
        assert self._process.stdin is not None
        text = "".join(f"{asked}\n" for asked in ids).encode("ascii")
        # A child that has ended is noticed by the answer that does not come. Past Python's buffer,
        # which would be flushed once more on closing.
        with contextlib.suppress(BrokenPipeError):
            while text:
                text = text[os.write(self._process.stdin.fileno(), text) :]

    def line(self) -> bytes:
        line = self.output.readline(200)
        self._check()
        return line

    def read(self, size: int) -> bytes:
        data = self.output.read(size)
        self._check()
        return data

    def wait(self) -> int:
        status = self._process.wait()
        self._check()
        return status

    def _check(self) -> None:
        if self._overdue.is_set():
            deadline = f"{self._git.deadline_s:g} s"
            raise CorpusError(f"found git still busy after {deadline}, required an answer")

    def _expire(self) -> None:
        self._overdue.set()
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
