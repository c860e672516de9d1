"""Published MCP servers, each in an environment of its own, installed once into .cache/."""

import sys
import venv
from pathlib import Path

import pytest
from installs import CACHE, QUIET, command, installed, npm

from pytest_studyminimal.protocol.study import Limits, Readiness, Server
from pytest_studyminimal.workspace.places import Places
from pytest_studyminimal.workspace.servers import RunningServer, definitions, preflight

pytestmark = pytest.mark.slow

GIT_SERVER = "mcp-server-git==2026.10.19"
FILES_SERVER = "@modelcontextprotocol/server-filesystem@2026.8.31"
LIMITS = Limits(start_s=30, tool_s=30)


@pytest.fixture(scope="session")
def git_server():
    def install(folder):
        venv.create(folder, with_pip=True)
        command(folder / "bin" / "python", "-m", "pip", "install", "--quiet", GIT_SERVER)

    folder = CACHE / GIT_SERVER.replace("==", "-")
    return installed(folder, "installed", install) / "bin" / "mcp-server-git"


@pytest.fixture(scope="session")
def files_server():
    program = npm()

    def install(folder):
        command(program, "install", "--prefix", str(folder), *QUIET, FILES_SERVER)

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
