"""Study sessions in processes of their own: what they were sent, what they left, what the ledger says."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import rfc8785
from providers import Response, message, text

import studies
from pytest_studyminimal.evidence.ledger import Ledger

PATIENCE_S = 60.0
COMMAND = "from pytest_studyminimal.cli import main; main(prog_name='studyminimal')"
# Only what these tests are about: each of the others costs every process of a session its time.
PLUGINS = tuple(
    part
    for name in ("studyminimal", "xdist", "rerunfailures", "pytest_jsonreport", "metadata")
    for part in ("-p", name)
)
LOGGING_TEST = """
import os
from pathlib import Path

def test_attempt(request, study_attempt):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with Path({log!r}).open("a") as log:
        log.write(f"{{worker}} {{os.getpid()}} {{study_attempt.attempt.id}}\\n")
    study_attempt.run()
"""
SLOW_SERVER = """
import sys, time
from pathlib import Path

import docs_server

log = Path({log!r})
with log.open("a") as out:
    out.write("start\\n")
number = log.read_text().split().count("start")
answer = docs_server.result

def result(folder, method, params):
    if (number, method) == {slow!r}:
        log.with_suffix(".slow").touch()
        time.sleep(30)
    return answer(folder, method, params)

docs_server.result = result
status = docs_server.main(sys.argv[1:])
if (number, "end") == {slow!r}:
    log.with_suffix(".slow").touch()
    time.sleep(30)
sys.exit(status)
"""
ANSWER = Response(message(text("The cap is cumulative: docs/budget.md:3.")))


def slow(*values, **options):
    """Mark one set of parameters as left out of the default run."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def at_most(seconds):
    """Return a bound on a wait, which a machine with other work to do may stretch."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


# A provider that can take its time


@dataclasses.dataclass(frozen=True)
class Request:
    """What a provider received, and when."""

    json: dict
    at: float

    @property
    def task(self):
        return self.json["messages"][0]["content"].split()[3]

    @property
    def arm(self):
        return "docs" if any(tool["name"] == "doc_get" for tool in self.json["tools"]) else "plain"

    @property
    def answered_tools(self):
        """How many tool results this request carries."""
        return sum(one["role"] == "user" for one in self.json["messages"]) - 1


class Provider(ThreadingHTTPServer):
    """Answers each request as `behave(request, stop)` says; `stop` is set when the test is over."""

    daemon_threads = True

    def __init__(self, behave):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behave = behave
        self.received = []
        self.stop = threading.Event()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def seen(self):
        return [(one.task, one.arm) for one in self.received]

    def handle_error(self, *_):
        """Clients that go away are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Keep quiet."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = Request(json.loads(body), time.monotonic())
        self.server.received.append(request)
        response = self.server.behave(request, self.server.stop) or ANSWER
        self.send_response(response.status)
        self.send_header("content-length", str(len(response.data)))
        self.end_headers()
        self.wfile.write(response.data)


@contextlib.contextmanager
def behaving(behave):
    with Provider(behave) as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield provider
        finally:
            provider.stop.set()
            provider.shutdown()
            thread.join()


def answers(_request, _stop):
    return ANSWER


def sleeps(_request, stop):
    stop.wait(30)


# A session


@dataclasses.dataclass
class Ended:
    """A session that is over: its status, what it printed, and how long its end took."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def error_lines(self):
        return [line for line in self.err.splitlines() if line.strip()]


class Session:
    """A study session in a process of its own, in a process group of its own."""

    def __init__(self, study, *arguments, phase="pilot", **variables):
        self.base = study.folder.parents[1]
        self._own = Path(tempfile.mkdtemp(prefix="session-", dir=self.base))
        self._out, self._err = self._own / "out.txt", self._own / "err.txt"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    *studies.PYTEST,
                    *PLUGINS,
                    f"--study={phase}",
                    *study.arguments,
                    *arguments,
                ],
                cwd=self.base,
                env=self.environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.family, self.commands = set(), set()

    def environment(self, **variables):
        inherited = studies.environment(TMPDIR=str(self._own), **variables)
        # Whoever runs these tests may be a worker, or may not want compiled files: sessions are neither.
        return {
            name: value
            for name, value in inherited.items()
            if not name.startswith(("PYTEST_", "PYTHONDONTWRITEBYTECODE", "STUDY_"))
            or name in variables
        } | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    @property
    def pid(self):
        return self.process.pid

    def remember(self):
        """Note every descendant that runs by now, so that its end can be checked."""
        new = descendants(self.pid)
        self.commands |= {command(pid) for pid, _ in new}
        self.family |= new
        return self.family

    def send(self, number, *, group=False):
        self.remember()
        self.sent = time.monotonic()
        (os.killpg if group else os.kill)(self.pid, number)

    def until(self, condition, what="the moment"):
        """Wait until a condition holds while this session runs."""
        try:
            return until(lambda: condition() or self.process.poll() is not None, what)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.out}\n{self.err}") from None
        finally:
            assert self.process.poll() is None, f"it ended before {what}:\n{self.out}\n{self.err}"

    def wait(self, seconds=PATIENCE_S):
        began = getattr(self, "sent", time.monotonic())
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(
                f"still running after {seconds} s:\n{self.out}\n{self.err}"
            ) from None
        return Ended(status, self.out, self.err, time.monotonic() - began)

    def end(self):
        """End it and all of its descendants, whatever they do."""
        for pid, _ in self.remember() | {(self.pid, None)}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def out(self):
        return self._out.read_text(encoding="utf-8")

    @property
    def err(self):
        return self._err.read_text(encoding="utf-8")

    def left(self):
        """Return the command lines of what this session started and that still runs."""
        return [command(pid) for pid, start in self.family if started(pid) == start] + carrying(
            str(self._own)
        )


def run(study, *arguments, **options):
    """Run a session to its end; nothing of it may be left, and its ledger must add up."""
    session = Session(study, *arguments, **options)
    try:
        ended = session.wait(60)
        nothing_left(session)
    finally:
        session.end()
    if study.ledger.exists():
        check_ledger(study)
    return ended


def studyminimal(*arguments, **variables):
    """Run the command and return what it printed and its status."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        env=studies.environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@contextlib.contextmanager
def started_session(study, *arguments, **options):
    session = Session(study, *arguments, **options)
    try:
        yield session
    finally:
        session.end()


def until(condition, what, seconds=PATIENCE_S):
    """Wait for a condition and return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)
    return value


def nothing_left(session, seconds=2.0):
    """Check that every process of a session is gone within `seconds`."""
    deadline = time.monotonic() + at_most(seconds)
    while left := session.left():
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


# /proc


def stat(pid):
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":
            return fields
    return None


def started(pid):
    """Return when a running process began, None where there is none."""
    fields = stat(pid)
    return fields and fields[19]


def command(pid):
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
        )
    return ""


def everybody():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def descendants(pid):
    """Return (pid, start) of every running descendant."""
    children = defaultdict(list)
    starts = {}
    for one in everybody():
        if fields := stat(one):
            children[int(fields[1])].append(one)
            starts[one] = fields[19]
    found, ahead = set(), [pid]
    while ahead:
        for child in children[ahead.pop()]:
            found.add((child, starts[child]))
            ahead.append(child)
    return found


def carrying(value):
    """Return the command lines of running processes with `value` in their environment."""
    found = []
    for pid in everybody():
        with contextlib.suppress(OSError):
            if value.encode() in Path(f"/proc/{pid}/environ").read_bytes() and stat(pid):
                found.append(command(pid))
    return found


# A study in the making


def make_study(base, provider, *, tasks=1, repetitions=1, parallel=True, **options):
    """Make a study whose pilot has two attempts per task and repetition, and logs who made each."""
    names = tuple(f"t{number}" for number in range(1, tasks + 1))
    study = studies.make_study(
        base, base_url=provider.base_url, tasks=names, parallel=parallel, **options
    )
    study.edit("[schedule]", f"[pilot]\ntasks = {tasks}\nrepetitions = {repetitions}\n[schedule]")
    # Whatever lies in a directory above configures nothing.
    (base / "pytest.ini").write_text("[pytest]\n")
    test = LOGGING_TEST.format(log=str(base / "made.txt"))
    (study.folder / "test_tiny.py").write_text(test, encoding="utf-8")
    return study


def made(study):
    """Return (worker, attempt) for every attempt whose test function began, in that order."""
    log = study.folder.parents[1] / "made.txt"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(worker, attempt) for worker, _, attempt in (line.split() for line in lines)]


def maker(study, attempt):
    """Return the id of the process that made an attempt."""
    lines = (study.folder.parents[1] / "made.txt").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.split()[2] == attempt)


def slow_server(study, number=0, what=""):
    """Count the server's starts, and let start `number` hang at one method or at its "end"."""
    source = SLOW_SERVER.format(
        log=str(study.folder.parents[1] / "server.txt"), slow=(number, what)
    )
    (study.folder / "slow_server.py").write_text(source, encoding="utf-8")
    study.edit('"docs_server.py"', '"slow_server.py"')


def server_starts(study):
    return (study.folder.parents[1] / "server.txt").read_text().split().count("start")


def is_slow(study):
    """Whether the slow server hangs by now."""
    return (study.folder.parents[1] / "server.slow").exists()


# What was written


def observed(study):
    """Return the observation of each attempt of the last run, by attempt."""
    return {
        line.attempt.id: line.observation for line in study.last_run().lines if line.observation
    }


def statuses(study):
    return {line.attempt.id: line.status for line in study.last_run().lines}


def check_ledger(study):
    """Recompute every hash and every balance from the records alone; committed stays under the cap."""
    with Ledger.open(study.ledger, "tiny") as ledger:
        records = ledger.records()
    previous = "0" * 64
    reserved, charged, caps = defaultdict(dict), defaultdict(Decimal), {}
    for number, record in enumerate(records, start=1):
        assert (record.seq, record.previous_sha256) == (number, previous)
        assert record.expected_sha256() == record.sha256
        if record.private is not None:
            assert (
                hashlib.sha256(rfc8785.dumps(record.private)).hexdigest() == record.private_sha256
            )
        previous = record.sha256
        account = record.account
        if record.kind == "approval":
            caps[account] = Decimal(record.body["cap_usd"])
        elif record.kind == "reserve":
            reserved[account][record.seq] = Decimal(record.body["usd"])
        elif record.kind == "settle":
            reserved[account].pop(record.body["reservation"])
            charged[account] += Decimal(record.body["charged_usd"])
        held = sum(reserved[account].values(), Decimal(0))
        assert record.balance.reserved_usd == held
        assert record.balance.committed_usd == charged[account] + held
        assert record.balance.committed_usd <= caps.get(account, Decimal(0))
    starts = [(record.run, record.attempt) for record in records if record.kind == "start"]
    assert len(starts) == len(set(starts))
    return records


def check_closed(study):
    """As `check_ledger`, and nothing is left open: no reservation, no attempt, no run."""
    records = check_ledger(study)
    assert records[-1].balance.reserved_usd == 0
    runs, closed, begun, seen = (
        {
            (record.run, record.attempt if kind in {"start", "observation"} else "")
            for record in records
            if record.kind == kind
        }
        for kind in ("run", "close", "start", "observation")
    )
    assert closed == runs
    assert begun <= seen
    return records


def junit(path):
    """Return the outcome words and the properties of every testcase of a JUnit file, by attempt."""
    cases = {}
    for case in ET.parse(path).iter("testcase"):
        attempt = case.get("name").rpartition("[")[2].removesuffix("]")
        kinds, properties = cases.setdefault(attempt, ([], {}))
        kinds += [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
        properties |= {one.get("name"): one.get("value") for one in case.iter("property")}
    return cases


def json_report(path):
    """Return the outcome and the properties of every test of a JSON report, by attempt."""
    found = {}
    for test in json.loads(path.read_text(encoding="utf-8"))["tests"]:
        attempt = test["nodeid"].rpartition("[")[2].removesuffix("]")
        properties = {
            name: value
            for entry in test.get("user_properties", ())
            for name, value in entry.items()
        }
        assert {type(value) for value in properties.values()} <= {str, int, float}
        assert attempt not in found, "one entry for one attempt"
        found[attempt] = (test["outcome"], properties)
    return found
