"""The quickstart's documentation server, over its real pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_studyminimal.protocol.study import Limits, Readiness, Server
from pytest_studyminimal.workspace.places import Places
from pytest_studyminimal.workspace.servers import RunningServer, preflight

PROGRAM = Path(__file__).parents[2] / "studies" / "quickstart" / "docs_server.py"
GUIDE = """# Guide

Welcome.

## Installing

Run `pip install it`.

```sh
# not a heading
pip --version
```

## Budget

A reservation is written before anything is spent.
"""


@pytest.fixture
def folder(tmp_path):
    docs = tmp_path / "docs"
    (docs / "deep").mkdir(parents=True)
    (docs / "guide.md").write_text(GUIDE)
    (docs / "deep" / "Upper.MDX").write_text("# Money\n\nEvery reservation counts.\n")
    (docs / "notes.txt").write_text("plain notes about pairs\r\nsecond line\r\n")
    (docs / "page.rst").write_text("Title\n=====\n\nAbout ledgers.\n")
    return docs


class Conversation:
    def __init__(self, folder):
        argv = [sys.executable, str(PROGRAM), str(folder)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.number = 0

    def line(self, data):
        self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask(self, method, **params):
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}
        answer = self.line(json.dumps(message).encode())
        assert answer["id"] == self.number
        return answer

    def call(self, name, **arguments):
        result = self.ask("tools/call", name=name, arguments=arguments)["result"]
        return result["content"][0]["text"], result["isError"]

    def text(self, name, **arguments):
        text, failed = self.call(name, **arguments)
        assert not failed, text
        return text


@pytest.fixture
def talk(folder):
    started = []

    def start(where=folder):
        started.append(Conversation(where))
        return started[-1]

    yield start
    for conversation in started:
        conversation.process.stdin.close()
        assert conversation.process.wait(5) == 0
        conversation.process.stdout.close()


def run(*arguments):
    argv = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, input="")


def test_the_version_is_one_line():
    done = run("--version")

    assert (done.returncode, done.stdout) == (0, "docs-server 1.0.0\n")


@pytest.mark.parametrize("arguments", [(), ("no-such-folder",), ("a", "b"), (PROGRAM,)])
def test_anything_but_one_folder_is_refused(arguments):
    done = run(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert "usage" in done.stderr


def test_the_end_of_input_ends_it(folder):
    assert run(folder).returncode == 0


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_known_protocol_version_is_echoed(talk, version):
    result = talk().ask("initialize", protocolVersion=version)["result"]

    assert result["protocolVersion"] == version
    assert result["serverInfo"] == {"name": "docs-server", "version": "1.0.0"}


@pytest.mark.parametrize("version", ["1999-01-01", None, [], 5])
def test_an_unknown_protocol_version_becomes_the_latest(talk, version):
    result = talk().ask("initialize", protocolVersion=version)["result"]

    assert result["protocolVersion"] == "2025-11-25"


def test_there_are_exactly_three_tools(talk):
    tools = talk().ask("tools/list")["result"]["tools"]

    assert [tool["name"] for tool in tools] == ["doc.search", "doc.get", "handoff.resolve"]
    assert [list(tool["inputSchema"]["properties"]) for tool in tools] == [
        ["query", "limit"],
        ["path", "start_line", "end_line"],
        ["topic"],
    ]


def test_search_finds_sections_by_path_and_line(talk):
    text = talk().text("doc.search", query="install")

    assert text == "1. guide.md:5  Guide > Installing\n   Run `pip install it`."


def test_search_ranks_the_better_section_first(talk):
    text = talk().text("doc.search", query="reservation budget")

    assert text.splitlines()[0] == "1. guide.md:14  Guide > Budget"
    assert "2. deep/Upper.MDX:1  Money" in text


def test_a_heading_in_a_code_fence_is_none(talk):
    assert "not a heading" not in talk().text("doc.search", query="version").splitlines()[0]


def test_a_cut_list_says_so(talk):
    text = talk().text("doc.search", query="reservation", limit=1)

    assert text.endswith("[cut: 1 of 2 matching sections shown]")


def test_nothing_found_is_no_error(talk):
    assert talk().text("doc.search", query="zebra") == "No section matches."
    assert talk().text("doc.search", query="?!") == "No section matches."
    assert talk().text("handoff.resolve", topic="zebra") == "No document answers this topic."


def test_answers_are_the_same_in_every_process(talk):
    first, second = (talk().text("doc.search", query="the reservation pip") for _ in range(2))

    assert first == second


def test_a_document_is_numbered(talk):
    assert talk().text("doc.get", path="notes.txt") == "1\tplain notes about pairs\n2\tsecond line"


def test_a_range_of_a_document_is_numbered_as_in_the_file(talk):
    text = talk().text("doc.get", path="./guide.md", start_line=5, end_line=7)

    assert text == "5\t## Installing\n6\t\n7\tRun `pip install it`."


def test_a_range_beyond_the_end_stops_there(talk):
    assert talk().text("doc.get", path="notes.txt", start_line=2, end_line=9) == "2\tsecond line"


def test_a_topic_leads_to_the_document_that_answers_it(talk):
    text = talk().text("handoff.resolve", topic="what is a reservation in the budget")

    assert text == "guide.md:14  Guide > Budget\nAlso: deep/Upper.MDX"


def test_only_a_newline_ends_a_line(talk, folder):
    (folder / "odd.md").write_bytes("one\u2028still one\x0cand\r\ntwo".encode())

    assert talk().text("doc.get", path="odd.md").endswith("\n2\ttwo")


def test_a_long_document_is_cut_and_says_where_to_go_on(talk, folder):
    (folder / "long.md").write_text("".join(f"line {n}\n" for n in range(1, 1001)))

    text = talk().text("doc.get", path="long.md")

    assert text.splitlines()[-1] == "[cut: lines 1-400 of 1000; next start_line 401]"
    assert (
        talk().text("doc.get", path="long.md", start_line=999) == "999\tline 999\n1000\tline 1000"
    )


def test_a_long_line_is_cut_and_says_so(talk, folder):
    (folder / "wide.md").write_text("x" * 100_000 + "\nend\n")

    text = talk().text("doc.get", path="wide.md")

    assert len(text) < 41_000
    assert "[cut: the line has 100002 characters]" in text
    assert "… [cut]" in talk().text("doc.search", query="x" * 100_000)


def test_an_empty_document_is_named_so(talk, folder):
    (folder / "empty.md").write_text("")

    assert talk().text("doc.get", path="empty.md") == "[empty document]"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("doc.put", {}),
        ("doc_search", {"query": "x"}),
        ("", {}),
        (None, {}),
        (["doc.search"], {}),
        ("doc.search", {}),
        ("doc.search", None),
        ("doc.search", []),
        ("doc.search", {"query": ""}),
        ("doc.search", {"query": 5}),
        ("doc.search", {"query": None}),
        ("doc.search", {"query": "x", "limit": 0}),
        ("doc.search", {"query": "x", "limit": 21}),
        ("doc.search", {"query": "x", "limit": True}),
        ("doc.search", {"query": "x", "limit": "5"}),
        ("doc.search", {"query": "x", "limit": 1.0}),
        ("doc.search", {"query": "x", "other": 1}),
        ("doc.get", {"path": "missing.md"}),
        ("doc.get", {"path": "guide.md", "start_line": 100}),
        ("doc.get", {"path": "guide.md", "start_line": 5, "end_line": 4}),
        ("handoff.resolve", {"query": "x"}),
    ],
)
def test_a_bad_call_is_an_error_result_and_the_server_goes_on(talk, name, arguments):
    conversation = talk()
    result = conversation.ask("tools/call", name=name, arguments=arguments)["result"]

    assert result["isError"]
    assert "\n" not in result["content"][0]["text"]
    assert conversation.ask("ping")["result"] == {}


@pytest.mark.parametrize(
    "path", ["../secret.md", "/etc/hostname", "link.md", "linked/secret.md", "deep/../../secret.md"]
)
def test_nothing_outside_the_folder_can_be_read(talk, folder, path):
    outside = folder.parent / "secret.md"
    outside.write_text("# Secret\n\nxyzzy\n")
    (folder / "link.md").symlink_to(outside)
    (folder / "linked").symlink_to(folder.parent)
    conversation = talk()

    assert conversation.call("doc.get", path=path)[1]
    assert conversation.text("doc.search", query="xyzzy") == "No section matches."


def test_what_is_no_text_is_left_out_and_said(talk, folder):
    (folder / "binary.md").write_bytes(b"# x\0y")
    (folder / "huge.md").write_bytes(b"x" * (2 * 2**20 + 1))
    os.mkfifo(folder / "pipe.md")
    (folder / "code.py").write_text("reservation = 1")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.md").write_text("reservation")
    conversation = talk()

    assert conversation.text("doc.search", query="reservation").endswith(
        "[not searched: 3 binary, unreadable or very large files]"
    )
    assert "left out" in conversation.call("doc.get", path="huge.md")[0]
    assert conversation.call("doc.get", path="code.py")[1]
    assert conversation.call("doc.get", path=".git/x.md")[1]


def test_invalid_utf8_in_a_document_is_replaced(talk, folder):
    (folder / "latin.md").write_bytes(b"caf\xe9")

    assert talk().text("doc.get", path="latin.md") == "1\tcaf\ufffd"


def test_an_empty_folder_is_a_library_without_sections(talk, tmp_path):
    (tmp_path / "none").mkdir()

    assert talk(tmp_path / "none").text("doc.search", query="x") == "No section matches."


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json", -32700),
        (b"[" * 100_000, -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b"5", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"server/discover"}', -32601),
    ],
)
def test_what_it_does_not_know_is_a_protocol_error(talk, line, code):
    conversation = talk()

    assert conversation.line(line)["error"]["code"] == code
    assert conversation.ask("ping")["result"] == {}


def test_notifications_and_blank_lines_get_no_answer(talk):
    conversation = talk()
    conversation.process.stdin.write(
        b'\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        b'{"jsonrpc":"2.0","method":"unknown/notification"}\n'
    )

    assert conversation.ask("ping")["result"] == {}


def test_it_passes_preflight_and_serves_an_attempt(folder):
    spec = Server(
        argv=("{python}", str(PROGRAM), "{export}"),
        allow=("doc.search", "doc.get", "handoff.resolve"),
        ready=Readiness(tool="doc.search", arguments={"query": "budget"}),
        version=("{python}", str(PROGRAM), "--version"),
        identity=(str(PROGRAM),),
    )
    places = Places(python=sys.executable, study=PROGRAM.parent, export=folder)

    facts = preflight("docs", spec, places, Limits())

    assert (facts.version_line, facts.protocol_version) == ("docs-server 1.0.0", "2025-11-25")
    with RunningServer("docs", spec, places, facts, Limits()) as running:
        result = running.call("handoff.resolve", {"topic": "installing"}, timeout_s=5)
        assert (result.text, result.is_error) == ("guide.md:5  Guide > Installing", False)
        assert running.noise_count == 0
