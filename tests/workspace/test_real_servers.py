"""Published MCP servers, each in an environment of its own, installed once into .cache/."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pytest_studyminimal.protocol.study import Limits, Readiness, Server
from pytest_studyminimal.workspace.places import Places
from pytest_studyminimal.workspace.servers import RunningServer, definitions, preflight

pytestmark = pytest.mark.slow

CACHE = Path(os.environ.get("STUDYMINIMAL_TEST_CACHE") or Path(__file__).parents[2] / ".cache")
GIT_SERVER = "mcp-server-git==2026.10.19"
FILES_SERVER = "@modelcontextprotocol/server-filesystem@2026.8.31"
LIMITS = Limits(start_s=30, tool_s=30)
INSTALL_S = 300


def installed(folder, marker, install):
    """Install once; a half-finished installation is thrown away. Skips with the last line said."""
    if (folder / marker).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        install(folder)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines() or [str(error)]
        pytest.skip(f"cannot install into {folder.name}: {said[-1]}")
    (folder / marker).touch()
    return folder


def command(*argv, cwd=None):
    subprocess.run(argv, cwd=cwd, check=True, capture_output=True, timeout=INSTALL_S)


@pytest.fixture(scope="session")
def git_server():
    def install(folder):
        venv.create(folder, with_pip=True)
        command(folder / "bin" / "python", "-m", "pip", "install", "--quiet", GIT_SERVER)

    folder = CACHE / GIT_SERVER.replace("==", "-")
    return installed(folder, "installed", install) / "bin" / "mcp-server-git"


@pytest.fixture(scope="session")
def files_server():
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")

    def install(folder):
        quiet = ("--no-audit", "--no-fund", "--loglevel=error")
        command(npm, "install", "--prefix", str(folder), *quiet, FILES_SERVER)

    folder = CACHE / "server-filesystem-2026.8.31"
    where = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
    return installed(folder, "installed", install) / where


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "README.md").write_text("# Hello\n")
    who = ("-c", "user.name=A", "-c", "user.email=a@example.invalid")
    command("git", "init", "--quiet", ".", cwd=folder)
    command("git", "add", ".", cwd=folder)
    command("git", *who, "commit", "--quiet", "--message", "First words", cwd=folder)
    return folder


def places(study, export):
    return Places(python=sys.executable, study=study, export=export)


def test_the_git_server_passes_preflight_and_answers(git_server, repository, tmp_path):
    spec = Server(
        argv=(str(git_server), "--repository", "{export}"),
        allow=("git_log", "git_show"),
        ready=Readiness(tool="git_log", arguments={"repo_path": str(repository), "max_count": 1}),
    )
    where = places(tmp_path, repository)

    facts = preflight("git", spec, where, LIMITS)

    assert facts.mode == "legacy"
    assert facts.name == "mcp-git"
    assert {"git_commit", "git_log"} <= {tool.name for tool in facts.tools}
    assert [tool.name for tool, _ in definitions("git", spec, facts)] == ["git_log", "git_show"]
    with RunningServer("git", spec, where, facts, LIMITS) as running:
        log = running.call("git_log", {"repo_path": str(repository)}, timeout_s=30)
        wrong = running.call("git_log", {"repo_path": "/"}, timeout_s=30)
    assert "First words" in log.text
    assert not log.is_error
    assert wrong.is_error


@pytest.mark.npm
def test_the_filesystem_server_passes_preflight_and_answers(files_server, repository, tmp_path):
    path = str(repository / "README.md")
    spec = Server(
        argv=("node", str(files_server), "{export}"),
        allow=("read_text_file", "list_directory"),
        ready=Readiness(tool="read_text_file", arguments={"path": path}),
        identity=(str(files_server),),
        version=("node", "--version"),
    )
    where = places(tmp_path, repository)

    facts = preflight("files", spec, where, LIMITS)

    assert facts.version_line.startswith("v")
    assert "write_file" in {tool.name for tool in facts.tools}
    with RunningServer("files", spec, where, facts, LIMITS) as running:
        read = running.call("read_text_file", {"path": path}, timeout_s=30)
        outside = running.call("read_text_file", {"path": "/etc/hostname"}, timeout_s=30)
        written = running.call("write_file", {"path": path, "content": "x"}, timeout_s=30)
    assert "# Hello" in read.text
    assert not read.is_error
    assert outside.is_error
    assert written.is_error
    assert Path(path).read_text() == "# Hello\n"
