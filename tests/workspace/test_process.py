"""One child program: bounded, and gone with everything that it started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_studyminimal.workspace.guard import MARKER
from pytest_studyminimal.workspace.process import Child, ending, run, shown

ENV = {"PATH": os.environ["PATH"]}
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


def is_alive(pid):
    """Whether a process runs; a zombie, which init has yet to reap, does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def open_descriptors():
    return len(list(Path("/dev/fd").iterdir()))


def wait_until(condition, seconds=5.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def run_python(tmp_path, code, *arguments, timeout_s=5.0, max_bytes=1000):
    argv = python(code, *arguments)
    return run(argv, cwd=tmp_path, env=ENV, timeout_s=timeout_s, max_bytes=max_bytes)


def test_output_errors_and_status_of_a_short_program_come_back(tmp_path):
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"

    done = run_python(tmp_path, code)

    assert (done.returncode, done.stdout, done.stderr_tail) == (3, "out\n", "err\n")
    assert not done.timed_out


def test_a_signal_is_a_negative_status(tmp_path):
    assert run_python(tmp_path, "import os; os.kill(os.getpid(), 9)").returncode == -9


def test_a_short_program_has_an_empty_stdin(tmp_path):
    assert run_python(tmp_path, "import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


def test_arguments_never_pass_through_a_shell(tmp_path):
    hostile = "$(touch hacked); `touch hacked` > hacked *"

    assert run_python(tmp_path, "import sys; print(sys.argv[1])", hostile).stdout == hostile + "\n"
    assert list(tmp_path.iterdir()) == []


def test_a_program_over_its_deadline_is_ended(tmp_path):
    begun = time.monotonic()

    done = run_python(
        tmp_path, "import time; print('a', flush=True); time.sleep(60)", timeout_s=0.5
    )

    assert done.timed_out
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == "a\n"
    assert time.monotonic() - begun < 2


@pytest.mark.slow
def test_a_program_that_ignores_sigterm_is_killed(tmp_path):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"

    done = run_python(tmp_path, code, timeout_s=0.5)

    assert done.timed_out
    assert done.returncode == -signal.SIGKILL


def test_output_beyond_the_cap_is_dropped_but_does_not_block(tmp_path):
    code = "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('y' * 3_000_000)"

    done = run_python(tmp_path, code, max_bytes=10)

    assert (done.returncode, done.stdout) == (0, "x" * 10)
    assert done.stderr_tail == "y" * 4096


def test_a_flood_without_end_is_stopped_at_the_deadline(tmp_path):
    begun = time.monotonic()

    done = run_python(tmp_path, "while True: print('x' * 10_000)", timeout_s=0.5)

    assert done.timed_out
    assert time.monotonic() - begun < 2


def test_invalid_utf8_is_replaced(tmp_path):
    assert run_python(tmp_path, "import os; os.write(1, b'a\\xff')").stdout == "a\ufffd"


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["no-such-program-anywhere"], FileNotFoundError),
        (["/"], PermissionError),
        (["a\0b"], ValueError),
        (["/bin/echo", "a\0b"], ValueError),
        (["/bin/echo", "a" * 5_000_000], OSError),
    ],
)
def test_a_program_that_cannot_start_raises_and_leaves_nothing(tmp_path, argv, error):
    before = open_descriptors()

    with pytest.raises(error):
        run(argv, cwd=tmp_path, env=ENV, timeout_s=1, max_bytes=1)

    assert open_descriptors() == before


def test_a_program_gets_its_environment_and_the_mark_only(tmp_path):
    code = "import os; print(sorted(os.environ))"

    names = run(python(code), cwd=tmp_path, env={"A": "b"}, timeout_s=5, max_bytes=1000).stdout

    assert eval(names) in (["A", MARKER], ["A", "LC_CTYPE", MARKER])


def test_waiting_for_a_grandchild_that_holds_the_output_is_not_needed(tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    begun = time.monotonic()

    done = run_python(tmp_path, code)

    assert time.monotonic() - begun < 2
    assert not done.timed_out
    assert wait_until(lambda: not is_alive(int(done.stdout)))


@pytest.mark.parametrize(
    "how",
    [
        "",
        pytest.param(", start_new_session=True", marks=linux),
        pytest.param(", process_group=0", marks=linux),
        pytest.param(", start_new_session=True, env={}", marks=linux),
    ],
)
def test_what_a_program_started_ends_with_it(tmp_path, how):
    code = (
        "import subprocess; null = subprocess.DEVNULL;"
        f"print(subprocess.Popen(['sleep', '60'], stdout=null, stderr=null{how}).pid)"
    )

    done = run_python(tmp_path, code)

    assert not is_alive(int(done.stdout)) or wait_until(lambda: not is_alive(int(done.stdout)))


@linux
def test_a_daemon_that_forked_twice_without_environment_ends_too(tmp_path):
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('pid', 'w').write(str(os.getpid()))\n"
        "        os.execve('/bin/sleep', ['sleep', '60'], {})\n"
        "    os._exit(0)\n"
        "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)"
    )

    assert run_python(tmp_path, code).returncode == 0

    assert not is_alive(int((tmp_path / "pid").read_text()))


@linux
def test_two_hundred_children_in_sessions_of_their_own_end_too(tmp_path):
    code = (
        "import os, subprocess\n"
        "for _ in range(200):\n"
        "    child = subprocess.Popen(['/bin/sleep', '60'], start_new_session=True, env={})\n"
        "    print(child.pid, flush=True)"
    )

    done = run_python(tmp_path, code, timeout_s=30, max_bytes=10_000)

    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 200
    assert not any(is_alive(pid) for pid in pids)


@linux
def test_a_chain_of_processes_that_fork_and_exit_for_ever_ends_too(tmp_path):
    code = (
        "import os, time\n"
        "def chain():\n"
        "    while True:\n"
        "        os.setsid()\n"
        "        os.utime('beat')\n"
        "        if os.fork(): os._exit(0)\n"
        "open('beat', 'w').close()\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork(): os._exit(0)\n"
        "        chain()\n"
        "time.sleep(0.3)"
    )

    assert run_python(tmp_path, code).returncode == 0

    last = (tmp_path / "beat").stat().st_mtime_ns
    time.sleep(0.2)
    assert (tmp_path / "beat").stat().st_mtime_ns == last


DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    print(os.getpid(), flush=True)\n"
    "    os.close(1)\n"
    "    time.sleep(60)"
)


@linux
def test_what_others_started_lives_on(tmp_path):
    """A child of this process, an orphan from before and an orphan of another's meanwhile."""
    own = subprocess.Popen(["sleep", "60"])
    pids = [own.pid]
    pids.append(int(subprocess.check_output(python(DAEMON))))
    child = Child(python("input()"), cwd=tmp_path, env=ENV)
    try:
        pids.append(int(subprocess.check_output(python(DAEMON))))
        assert parent_of(pids[2]) != os.getpid()
    finally:
        child.stop()
        child.close()

    try:
        assert all(is_alive(pid) for pid in pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        own.wait()


@linux
def test_orphans_that_ended_are_reaped_while_the_child_runs(tmp_path):
    code = (
        "import os, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: time.sleep(0.05)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "open('done', 'w').close()\n"
        "input()"
    )
    child = Child(python(code), cwd=tmp_path, env=ENV)
    try:
        assert wait_until((tmp_path / "done").exists)
        supervisor = parent_of(child.pid)
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
        assert wait_until(lambda: children.read_text().split() == [str(child.pid)])
    finally:
        child.stop()
        child.close()


@linux
def test_a_child_that_kills_its_supervisor_ends_with_all_that_carries_its_mark(tmp_path):
    code = (
        "import os, subprocess, time\n"
        "null = subprocess.DEVNULL\n"
        "child = subprocess.Popen(['sleep', '60'], stdout=null, stderr=null, process_group=0)\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "os.kill(os.getppid(), 9)\n"
        "time.sleep(60)"
    )

    done = run_python(tmp_path, code)

    assert done.returncode == -signal.SIGKILL
    assert not done.timed_out
    assert wait_until(lambda: not any(is_alive(int(pid)) for pid in done.stdout.split()))


@linux
def test_a_daemon_that_forked_twice_ends_too(tmp_path):
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('pid', 'w').write(str(os.getpid()))\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)"
    )

    assert run_python(tmp_path, code).returncode == 0

    assert wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_the_status_of_a_child_is_known_before_it_is_stopped(tmp_path):
    child = Child(python("import sys; sys.exit(4)"), cwd=tmp_path, env=ENV)
    try:
        assert child.wait(5) == 4
        assert child.returncode is None
    finally:
        child.stop()
        child.close()

    assert child.returncode == 4
    assert not child.forced


def test_a_polite_child_ends_within_its_grace(tmp_path):
    child = Child(python("import sys; sys.stdin.read(); sys.exit(6)"), cwd=tmp_path, env=ENV)

    child.stop(grace_s=5)
    child.close()

    assert (child.returncode, child.forced) == (6, False)


def test_stopping_and_closing_twice_is_harmless(tmp_path):
    child = Child(python("input()"), cwd=tmp_path, env=ENV)

    for _ in range(2):
        child.stop()
        child.close()

    assert child.returncode is not None


def test_descriptors_are_back_after_many_children(tmp_path):
    run_python(tmp_path, "")
    before = open_descriptors()

    for _ in range(10):
        run_python(tmp_path, "print(1)")

    assert open_descriptors() == before


def test_quoted_text_is_one_printable_line():
    text = "a\nb\x1b[31m\u2028\x00é\ud800"

    assert shown(text, 100) == "'a\\nb\\x1b[31m\\u2028\\x00é\\ud800'"
    assert shown("abcdef", 3) == "'abc'…"


def test_endings_are_words():
    assert ending(3) == "exit status 3"
    assert ending(-11) == "signal SIGSEGV"
    assert ending(-200) == "signal 200"
