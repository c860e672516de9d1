"""MCP servers that fail in every way seen: refused before money, or an error result for the model."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_studyminimal.protocol.errors import ServerError
from pytest_studyminimal.protocol.records import ToolDefinition
from pytest_studyminimal.protocol.study import Limits, Readiness, Server
from pytest_studyminimal.workspace.guard import MARKER
from pytest_studyminimal.workspace.hiding import Hider
from pytest_studyminimal.workspace.places import CONFIG_NAMES, Places
from pytest_studyminimal.workspace.servers import (
    RunningServer,
    ServerFacts,
    definitions,
    preflight,
    verbatim,
)

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = str(PROGRAMS / "failing_server.py")
ALLOW = ("doc.search", "doc.get", "handoff.resolve")
LIMITS = Limits(start_s=5, tool_s=5)
HURRIED = Limits(start_s=1, tool_s=1)
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def server(mode="ok", *arguments, **changes):
    fields = {
        "argv": ("{python}", PROGRAM, mode, *map(str, arguments)),
        "allow": ALLOW,
        "ready": Readiness(tool="doc.search", arguments={"query": "ready"}),
    }
    return Server(**{**fields, **changes})


@pytest.fixture
def places(tmp_path):
    return Places(python=sys.executable, study=tmp_path)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def new_threads(others):
    return set(threading.enumerate()) - others


def open_descriptors():
    return len(list(Path("/dev/fd").iterdir()))


def wait_until(condition, seconds=5.0):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def living_in(folder):
    """Processes whose working directory is the study folder of this test."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - a glob raises where a process ends
        try:
            if Path(f"/proc/{name}/cwd").readlink() == folder:
                found.append(int(name))
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path, capfd):
    yield
    assert wait_until(lambda: not living_in(tmp_path), 2)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_open():
    yield
    gc.collect()  # an unclosed pipe or stream warns here at the latest


def refusal(spec, places, limits=LIMITS, **more):
    with pytest.raises(ServerError) as raised:
        preflight("docs", spec, places, limits, **more)
    line = str(raised.value)
    assert line.startswith("servers.docs: ")
    assert line.isprintable()
    assert "required " in line
    return raised.value.kind, line


def call(mode, places, limits=LIMITS, timeout_s=5.0, *, times=1):
    """The results of calls in an attempt whose preflight was fine."""
    spec = server(mode)
    facts = preflight("docs", spec, places, limits)
    with RunningServer("docs", spec, places, facts, limits) as running:
        results = [
            running.call("doc.search", {"query": "x"}, timeout_s=timeout_s) for _ in range(times)
        ]
    return results[0] if times == 1 else results


# Preflight


def test_a_good_server_is_described_by_its_facts(places):
    facts = preflight("docs", server("version-2024"), places, LIMITS)

    assert (facts.mode, facts.protocol_version) == ("legacy", "2024-11-05")
    assert (facts.name, facts.version) == ("failing", "7")
    assert [tool.name for tool in facts.tools] == list(ALLOW)
    assert facts.tools[0].description == "About doc.search"
    assert (facts.version_line, facts.identity) == (None, {})


def test_facts_survive_json(places):
    facts = preflight("docs", server(), places, LIMITS)

    assert ServerFacts.model_validate_json(facts.model_dump_json()) == facts


def test_facts_are_the_same_after_a_ledger_sorted_and_rewrote_them(places):
    facts = preflight("docs", server("ordered"), places, LIMITS)
    schema = facts.tools[0].input_schema

    row = json.loads(json.dumps(facts.model_dump(mode="json"), sort_keys=True))
    read = ServerFacts.model_validate_json(json.dumps(row))

    assert list(schema) == ["properties", "x-float", "type", "required"]
    assert list(schema["properties"]) == ["z", "a"]
    assert schema["properties"]["a"] == {"maximum": 2**70, "minimum": 1e-300}
    assert not any(isinstance(value, (dict, int, float)) for value in _without_identity(row))
    assert read == facts
    assert json.dumps(read.tools[0].input_schema) == json.dumps(schema)
    assert json.dumps(schema, separators=(",", ":")).endswith(
        '"x-float":1.0,"type":"object","required":["z","a"]}'
    )


def _without_identity(row):
    return [value for name, value in row.items() if name not in {"identity", "reachable"}]


@pytest.mark.parametrize(
    ("mode", "quoted"),
    [
        ("banner", "'Case server v1 ready'"),
        ("banner-without-newline", "'Case server v1 ready {"),
        ("banner-json", '{"level": "info"'),
        ("banner-invalid-utf8", r"\xff\xfe\xfa junk"),
        ("content-length", "Content-Length: 100"),
        ("log-lines", "'[info] a message came'"),
        ("traceback-on-stdout", "exit status 1"),
    ],
)
def test_text_on_stdout_is_refused_at_once_and_quoted(places, mode, quoted):
    begun = time.monotonic()

    kind, line = refusal(server(mode), places, Limits())

    assert kind == "noise"
    assert quoted in line
    assert time.monotonic() - begun < 3


def test_a_prompt_without_newline_is_noise_as_well(places):
    kind, line = refusal(server("banner-and-silence"), places, HURRIED)

    assert kind == "noise"
    assert "'press a key: '" in line


def test_noise_is_cut_at_200_characters_and_escaped(places):
    _, line = refusal(server("banner-escape"), places)

    assert r"\x1b[31mred\x07 \u2028" in line
    assert line.count("y") < 210


def test_a_notification_is_no_noise(places):
    assert preflight("docs", server("late-notifications"), places, LIMITS).name == "failing"


@pytest.mark.parametrize(
    ("mode", "allow", "kind", "told"),
    [
        ("exit", ALLOW, "start", "exit status 3"),
        ("exit", ALLOW, "start", r"no index\x1b[0m\nat all"),
        ("exit-zero", ALLOW, "start", "exit status 0"),
        ("signal", ALLOW, "start", "signal SIGSEGV"),
        ("close-stdout", ALLOW, "start", "closed its output"),
        ("initialize-error", ALLOW, "start", "'cannot start'"),
        ("initialize-empty", ALLOW, "start", "Field required"),
        ("version-1999", ALLOW, "start", "1999-01-01"),
        ("list-error", ALLOW, "tools", "'cannot list'"),
        ("list-exit", ALLOW, "start", "exit status 4"),
        ("list-exit", ALLOW, "start", "list failed"),
        ("list-signal", ALLOW, "start", "signal SIGKILL"),
        ("no-tools", ALLOW, "tools", "doc.search, doc.get, handoff.resolve"),
        ("ok", ("doc.search", "doc.put"), "tools", "doc.put"),
        ("ok", ("doc_search",), "tools", "doc_search"),
        ("no-schema", ALLOW, "tools", "tool 'doc.search', tools.0.inputSchema"),
        ("schema-text", ALLOW, "tools", "tools.0.inputSchema"),
        ("not-a-list", ALLOW, "tools", "tools"),
        ("cursor-loop", ALLOW, "tools", "'again' twice"),
        ("cursor-endless", ALLOW, "tools", "100 pages"),
        ("cursor-number", ALLOW, "tools", "nextCursor"),
        ("many-tools", ALLOW, "tools", "1000 tools"),
        ("twice", ALLOW, "tools", "doc.search more than once"),
        ("schema-string", ALLOW, "tools", "tool"),
        ("schema-string", ALLOW, "tools", "doc.search"),
        ("schema-string", ALLOW, "tools", "type"),
        ("schema-anyof", ALLOW, "tools", '"anyOf"'),
        ("schema-oneof", ALLOW, "tools", '"oneOf"'),
        ("schema-allof", ALLOW, "tools", '"allOf"'),
        ("schema-ref", ALLOW, "tools", '"$ref"'),
        ("schema-name", ALLOW, "tools", '"filter[id]"'),
        ("colliding", ("doc.search", "doc_search"), "tools", "'doc_search' of docs"),
        ("stdout-flood", ALLOW, "noise", "xxx"),
    ],
)
def test_what_cannot_work_is_refused_with_its_cause(places, mode, allow, kind, told):
    found, line = refusal(server(mode, allow=allow), places)

    assert found == kind
    assert told in line


@pytest.mark.parametrize("mode", ["schema-anyof", "schema-name"])
def test_a_schema_is_refused_with_the_name_of_its_tool(places, mode):
    assert "tool doc.search" in refusal(server(mode), places)[1]


@pytest.mark.parametrize("mode", ["other-twice", "schema-other", "colliding", "overlong"])
def test_tools_that_are_not_allowed_may_be_as_they_like(places, mode):
    assert len(preflight("docs", server(mode), places, LIMITS).tools) > 3


@pytest.mark.parametrize("mode", ["empty-cursor", "null-cursor"])
def test_a_cursor_without_content_ends_the_list(places, mode):
    assert len(preflight("docs", server(mode), places, LIMITS).tools) == 3


def test_all_pages_of_the_list_are_read(places):
    facts = preflight("docs", server("pages"), places, LIMITS)

    listed = ["doc.search", "x.one", "handoff.resolve", "x.two", "doc.get"]
    assert [tool.name for tool in facts.tools] == listed


@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        ("silent", "initialize"),
        pytest.param("flood-and-silence", "initialize", marks=pytest.mark.slow),
        pytest.param("deaf-and-silent", "initialize", marks=pytest.mark.slow),
        pytest.param("list-hang", "tools/list", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_hangs_is_ended_at_the_deadline(places, mode, asked):
    begun = time.monotonic()

    kind, line = refusal(server(mode), places, HURRIED)

    assert kind == "timeout"
    assert f"no answer to {asked} within " in line
    assert time.monotonic() - begun < 3


def test_a_readiness_call_that_hangs_is_a_timeout(places):
    spec = server("call-hang", ready=Readiness(tool="doc.get"))

    kind, line = refusal(spec, places, HURRIED)

    assert kind == "timeout"
    assert "doc.get" in line


@pytest.mark.parametrize(
    ("mode", "kind", "told"),
    [
        ("call-error", "ready", "-32000: 'index missing'"),
        ("call-closed", "ready", r"'no\nindex'"),
        ("call-is-error", "ready", "'index missing'"),
        ("call-exit", "start", "exit status 3"),
        ("call-exit", "start", "stderr ends in 'Traceback: boom'"),
        ("call-signal", "start", "signal SIGSEGV"),
        ("call-null", "ready", "not valid JSON-RPC"),
        ("call-no-content", "ready", "content"),
        ("call-half", "noise", '{"jsonrpc"'),
        ("call-noise-after", "noise", "[info] answered"),
    ],
)
def test_a_readiness_call_must_succeed(places, mode, kind, told):
    found, line = refusal(server(mode, ready=Readiness(tool="doc.get")), places)

    assert found == kind
    assert told in line


def test_a_full_stderr_neither_blocks_nor_fills_the_refusal(places):
    assert preflight("docs", server("flood"), places, LIMITS).name == "failing"

    _, line = refusal(server("flood", allow=("x",)), places)

    assert len(line) < 600


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("no-such-program-anywhere",), "no-such-program-anywhere"),
        (("./missing.py",), "missing.py"),
        (("/",), "Permission denied"),
    ],
)
def test_a_program_that_cannot_start_is_refused(places, argv, told):
    kind, line = refusal(server(argv=argv), places)

    assert kind == "spawn"
    assert told in line


def test_a_file_that_is_no_program_is_refused(places, tmp_path):
    (tmp_path / "text").write_text("just text")
    (tmp_path / "text").chmod(0o755)

    assert refusal(server(argv=("./text",)), places)[0] == "spawn"


def test_a_missing_working_directory_is_refused(places):
    kind, line = refusal(server(cwd="{study}/missing"), places)

    assert kind == "spawn"
    assert "missing" in line


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cwd": "x" * 300}, "no folder"),
        ({"cwd": "a\nb"}, r"a\nb"),
        ({"cwd": "a\0b"}, r"a\x00b"),
        ({"cwd": "file"}, "no folder"),
        ({"argv": ("{python}", "a\0b")}, "null byte"),
        ({"argv": ("{python}\0",)}, "null byte"),
        ({"argv": ("{python}", *["x" * 10_000] * 500)}, "Argument list too long"),
        ({"argv": ("x" * 300,)}, "File name too long"),
        ({"env": {"A": "a\0b"}}, "null byte"),
        ({"env": {"A": "x" * 5_000_000}}, "Argument list too long"),
    ],
)
@pytest.mark.parametrize("version", [(), ("{python}", "-c", "print(1)")])
def test_what_the_system_cannot_start_is_one_line(places, tmp_path, changes, told, version):
    (tmp_path / "file").write_text("")

    kind, line = refusal(server(**changes, version=version), places)

    assert kind == ("identity" if version and "argv" not in changes else "spawn")
    assert version or told in line
    assert len(line) < 600


@pytest.mark.parametrize("label", ["x" * 300, "a\nb", "a\0b"])
def test_an_identity_that_no_file_can_have_is_one_line(places, label):
    assert refusal(server(identity=(label,)), places)[0] == "identity"


def test_a_checkout_that_no_folder_can_be_is_one_line(tmp_path):
    places = Places(sys.executable, tmp_path, checkout=tmp_path / ("x" * 300))

    assert refusal(server("ok", "{config}"), places)[0] == "spawn"


def test_a_server_starts_in_its_working_directory(places, tmp_path):
    (tmp_path / "inner").mkdir()
    spec = server("ok", "note", cwd="inner")

    preflight("docs", spec, places, LIMITS)

    assert (tmp_path / "inner" / "note").exists()


@pytest.mark.slow
def test_descriptors_and_threads_are_back_after_fifty_failed_starts(places):
    others = set(threading.enumerate())
    refusal(server("exit"), places)
    # An event loop's worker thread ends a moment after its server.
    assert wait_until(lambda: not new_threads(others)), new_threads(others)
    before = open_descriptors()

    for _ in range(50):
        refusal(server("exit"), places)

    assert wait_until(lambda: not new_threads(others)), new_threads(others)
    assert open_descriptors() == before


# Environment, placeholders, identity


def environment_of(spec, places):
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        return json.loads(running.call("doc.search", {}, timeout_s=5).text)


def test_a_server_gets_only_the_variables_it_may_have(places, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "PYTEST_CURRENT_TEST", "PASSED", "SECRET"):
        monkeypatch.setenv(name, f"value of {name}")
    monkeypatch.setenv("TZ", "UTC")
    spec = server(
        "call-environment", env={"OWN": "{study}/x", "BRACES": '{"a": 1}'}, pass_env=("PASSED",)
    )

    found = environment_of(spec, places)

    usual = {"PATH", "TMPDIR", "TZ", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE"}
    assert set(found) - usual == {"OWN", "BRACES", "PASSED", MARKER}
    assert found["OWN"] == f"{places.study}/x"
    assert found["BRACES"] == '{"a": 1}'
    assert found["TZ"] == "UTC"


def test_a_variable_that_is_not_set_is_refused(places, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)

    kind, line = refusal(server(pass_env=("NOT_SET",)), places)

    assert kind == "spawn"
    assert "NOT_SET" in line


@pytest.mark.parametrize("how", [{"pass_env": ("MODEL_KEY",)}, {"env": {"MODEL_KEY": "x"}}])
def test_a_models_key_never_reaches_a_server(places, monkeypatch, how):
    monkeypatch.setenv("MODEL_KEY", "sk-secret")

    kind, line = refusal(server(**how), places, forbidden=frozenset({"MODEL_KEY"}))

    assert kind == "spawn"
    assert "MODEL_KEY" in line
    assert "sk-secret" not in line


TOKEN = 'doc-"token"-\u00e9-4711'


def leaking(code, **changes):
    """A server, or a version program, that does what `code` says with the token."""
    prelude = "import json, os, sys; token = os.environ['DOC_TOKEN']\n"
    return server(argv=("{python}", "-c", prelude + code), **changes)


ANSWER = "number = json.loads(input())['id']; print(json.dumps({'jsonrpc': '2.0', 'id': number, "


@pytest.mark.parametrize("how", [{"pass_env": ("DOC_TOKEN",)}, {"env": {"DOC_TOKEN": TOKEN}}])
@pytest.mark.parametrize(
    "code",
    [
        "sys.exit('bad ' + token)",
        "sys.exit('bad ' + repr(token))",
        "sys.exit('bad ' + json.dumps(token))",
        "sys.exit('bad ' + token + 'y' * 290)",
        "sys.exit('x' * 5000 + token + 'y' * 4080)",
        "print(token); sys.exit(3)",
        "print('x' * 190 + token); sys.exit(3)",
        "print('x' * 990 + token); sys.exit(3)",
        "print(token, end='', flush=True); input(); input()",
        "print(json.dumps({'level': token})); sys.exit(3)",
        ANSWER + "'error': {'code': 1, 'message': token}}), flush=True); input()",
        ANSWER + "'result': {'protocolVersion': token, 'capabilities': {},"
        " 'serverInfo': {'name': 'a', 'version': '1'}}}), flush=True); input()",
    ],
)
def test_what_a_server_was_given_is_hidden_in_a_refusal(places, monkeypatch, code, how):
    monkeypatch.setenv("DOC_TOKEN", TOKEN)

    _, line = refusal(leaking(code, **how), places, HURRIED)

    for part in ("token", "4711", "doc-", "711", "\u00e9"):
        assert part not in line.replace("DOC_TOKEN", "")


@pytest.mark.parametrize("code", ["sys.exit('bad ' + token)", "print(token); sys.exit(1)"])
def test_what_a_version_program_was_given_is_hidden_in_a_refusal(places, code):
    version = ("{python}", "-c", f"import os, sys; token = os.environ['DOC_TOKEN']; {code}")

    _, line = refusal(server(env={"DOC_TOKEN": TOKEN}, version=version), places)

    assert "(hidden)" in line
    assert "4711" not in line


def test_what_a_version_program_was_given_is_hidden_in_the_facts(places):
    version = ("{python}", "-c", "import os; print('1.2', os.environ['DOC_TOKEN'])")

    facts = preflight("docs", server(env={"DOC_TOKEN": TOKEN}, version=version), places, LIMITS)

    assert facts.version_line == "1.2 (hidden)"


def test_an_error_of_the_readiness_call_is_hidden_but_a_model_sees_all(places):
    given = {"WORD": "index missing"}

    _, line = refusal(server("call-error", ready=Readiness(tool="doc.get"), env=given), places)
    spec = server("call-error", env=given)
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        result = running.call("doc.search", {}, timeout_s=5)

    assert "-32000: '(hidden)'" in line
    assert "index missing" in result.text


def test_a_failing_attempt_hides_what_its_server_was_given(places):
    spec = leaking("sys.exit('bad ' + token)", env={"DOC_TOKEN": TOKEN})
    facts = preflight("docs", server(), places, LIMITS)

    with pytest.raises(ServerError, match=r"stderr ends in 'bad \(hidden\)'"):
        RunningServer("docs", spec, places, facts, LIMITS).start()


def test_short_values_are_not_hidden(places):
    _, line = refusal(server("exit", env={"A": "at", "B": ""}), places)

    assert r"\nat all" in line


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("a secret-value b", "a (hidden) b"),
        ("value b", "(hidden) b"),
        ("a secret", "a (hidden)"),
        ("ret-val", "(hidden)"),
        ("lue b sec", "lue b sec"),
    ],
)
def test_a_value_that_the_ends_of_a_text_cut_is_hidden_too(text, hidden):
    assert Hider(["secret-value"])(text) == hidden


@pytest.mark.parametrize(
    ("placeholder", "required"),
    [
        ("{engine}", "--study-root engine=PATH"),
        ("{checkout}", "--study-root CORPUS=PATH"),
        ("{config}", "--study-root CORPUS=PATH"),
        ("{export}", "export"),
    ],
)
def test_a_placeholder_with_nothing_behind_it_is_refused(places, placeholder, required):
    kind, line = refusal(server(argv=("{python}", placeholder)), places)

    assert kind == "spawn"
    assert required in line


def test_placeholders_stand_for_places():
    places = Places("py", Path("/s"), export=Path("/e"), checkout=Path("/c"), engine=Path("/x.js"))

    text = places.expand("{python} {study} {export} {checkout} {engine} {other} {} {Study}")

    assert text == "py /s /e /c /x.js {other} {} {Study}"


def test_the_config_is_the_first_of_the_known_names(tmp_path):
    places = Places("py", tmp_path, checkout=tmp_path)
    (tmp_path / "package.json").write_text('{"docBridge": {}}')
    assert places.expand("{config}") == str(tmp_path / "package.json")

    for name in reversed(CONFIG_NAMES):
        (tmp_path / name).write_text("")
        assert places.expand("{config}") == str(tmp_path / name)


@pytest.mark.parametrize("content", [None, "{}", "[]", "not json", '{"other": "docBridge"}'])
def test_a_checkout_without_config_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "package.json").write_text(content)

    with pytest.raises(ServerError, match=r"doc-bridge\.config\.ts"):
        Places("py", tmp_path, checkout=tmp_path).expand("{config}")


def test_identity_files_are_hashed_under_their_labels(places, tmp_path):
    (tmp_path / "engine.js").write_bytes(b"abc")

    facts = preflight("docs", server(identity=("{study}/engine.js", "engine.js")), places, LIMITS)

    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert facts.identity == {"{study}/engine.js": abc, "engine.js": abc}


@pytest.mark.parametrize("label", ["missing.js", "{study}"])
def test_an_identity_that_is_no_file_is_refused(places, label):
    kind, line = refusal(server(identity=(label,)), places)

    assert kind == "identity"
    assert label in line


def test_the_version_is_the_first_line_printed(places):
    version = ("{python}", "-c", "print(); print('tool 1.2'); print('more')")

    assert preflight("docs", server(version=version), places, LIMITS).version_line == "tool 1.2"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; sys.exit('broken')", "broken"),
        ("pass", "exit status 0"),
        pytest.param("import time; time.sleep(60)", "no end within 1 s", marks=pytest.mark.slow),
    ],
)
def test_a_version_program_that_fails_is_refused(places, code, told):
    kind, line = refusal(server(version=("{python}", "-c", code)), places, HURRIED)

    assert kind == "identity"
    assert told in line


def test_a_missing_version_program_is_refused(places):
    assert refusal(server(version=("no-such-program",)), places)[0] == "identity"


# Negotiation


@pytest.mark.skipif(find_spec("mcp_types") is None, reason="mcp 1.x has no server/discover")
def test_a_server_of_the_newer_protocol_is_found_and_pinned(places):
    mcp = pytest.importorskip("mcp_types", reason="mcp 1.x cannot discover")
    assert mcp

    spec = server("modern-only")
    facts = preflight("docs", spec, places, LIMITS)

    assert (facts.mode, facts.protocol_version) == ("2026-07-28", "2026-07-28")
    assert (facts.name, facts.version) == ("modern", "8")
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        assert running.call("doc.get", {}, timeout_s=5).text == 'hit: "doc.get"'


def test_a_server_that_ignores_unknown_methods_starts_at_once(places):
    begun = time.monotonic()

    assert preflight("docs", server("ignores-unknown"), places, LIMITS).mode == "legacy"

    assert time.monotonic() - begun < 3


# Attempts


def test_allowed_tools_are_defined_under_wire_names_in_the_manifests_order(places):
    spec = server("pages", allow=("handoff.resolve", "doc.get"))
    facts = preflight("docs", spec, places, LIMITS)

    defined = definitions("docs", spec, facts)

    assert [(tool.name, exact) for tool, exact in defined] == [
        ("handoff_resolve", "handoff.resolve"),
        ("doc_get", "doc.get"),
    ]
    assert defined[0][0].input_schema == facts.tools[2].input_schema


def test_every_attempt_gets_a_fresh_process(places):
    spec = server()
    facts = preflight("docs", spec, places, LIMITS)
    pids = set()
    for _ in range(3):
        with RunningServer("docs", spec, places, facts, LIMITS) as running:
            assert is_alive(running.pid)
            pids.add(running.pid)
        assert not is_alive(running.pid)

    assert len(pids) == 3


def test_a_call_uses_the_exact_name(places):
    result = call("ok", places)

    assert (result.text, result.is_error, result.original_bytes) == (
        'hit: "doc.search"',
        False,
        None,
    )


def test_tools_that_changed_since_preflight_are_refused(places):
    spec = server()
    facts = preflight("docs", spec, places, LIMITS)
    changed = ToolDefinition(name="doc.get", description="", input_schema={"type": "object"})
    tools = verbatim((facts.tools[0], changed, facts.tools[2]))
    other = ServerFacts(**{**facts.model_dump(), "tools_json": tools})

    with pytest.raises(ServerError, match=r"servers\.docs: .*'doc\.get'") as raised:
        RunningServer("docs", spec, places, other, LIMITS).start()

    assert raised.value.kind == "tools"


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("exit", "start"),
        ("no-tools", "tools"),
        pytest.param("silent", "timeout", marks=pytest.mark.slow),
    ],
)
def test_an_attempt_whose_server_does_not_come_up_is_refused(places, mode, kind):
    facts = preflight("docs", server(), places, LIMITS)

    with pytest.raises(ServerError) as raised:
        RunningServer("docs", server(mode), places, facts, HURRIED).start()

    assert raised.value.kind == kind


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("call-error", "error -32000: 'index missing'"),
        ("call-is-error", "index missing"),
        ("call-exit", "exit status 3"),
        ("call-signal", "signal SIGSEGV"),
        ("call-half", "exit status 0"),
        ("call-null", "not valid JSON-RPC"),
        ("call-number", "not valid JSON-RPC"),
        ("call-no-result", "not valid JSON-RPC"),
        ("call-surrogate", "not valid JSON-RPC"),
        ("call-no-content", "content"),
        ("call-unknown-content", "content"),
        ("call-too-large", "16 MiB"),
        pytest.param("call-endless-line", "16 MiB", marks=pytest.mark.slow),
        ("call-close-stdout", "closed its output"),
    ],
)
def test_a_failed_call_is_one_error_result_at_once(places, mode, told):
    begun = time.monotonic()

    result = call(mode, places)

    assert result.is_error
    assert told in result.text
    assert "\n" not in result.text
    assert "Traceback" not in result.text
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "mode",
    [
        "call-wrong-id",
        *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("call-hang", "call-null-id")),
    ],
)
def test_a_call_without_an_answer_is_an_error_result_at_its_deadline(places, mode):
    begun = time.monotonic()

    result = call(mode, places, timeout_s=0.5)

    assert result.is_error
    assert result.text == "no answer to doc.search within 0.5 s"
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "mode",
    ["call-exit", "call-too-large", pytest.param("call-close-stdout", marks=pytest.mark.slow)],
)
def test_after_the_end_of_its_output_calls_fail_at_once(places, mode):
    spec = server(mode)
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        running.call("doc.search", {}, timeout_s=5)
        begun = time.monotonic()
        results = [running.call("doc.get", {}, timeout_s=30) for _ in range(2)]

    assert all(result.is_error for result in results)
    assert time.monotonic() - begun < 4


def test_a_death_is_noticed_though_a_grandchild_holds_the_pipes(places, tmp_path):
    begun = time.monotonic()

    kind, line = refusal(server("child-holds-pipes-and-exit", tmp_path / "note"), places)

    assert kind == "start"
    assert "exit status 5" in line
    assert time.monotonic() - begun < 3


@pytest.mark.slow
def test_a_late_answer_is_not_taken_for_the_next_one(places):
    spec = server("call-later")
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        first = running.call("doc.search", {}, timeout_s=5)
        late = running.call("doc.search", {}, timeout_s=0.3)
        after = running.call("doc.search", {}, timeout_s=5)

    assert first.text == "answer 1"
    assert late.is_error
    assert after.text == "answer 3"


@pytest.mark.parametrize("mode", ["call-error", "call-is-error", "call-no-content", "call-null"])
def test_a_failed_call_does_not_end_the_server(places, mode):
    results = call(mode, places, times=2)

    assert [result.is_error for result in results] == [True, True]
    assert results[0].text == results[1].text


def test_noise_during_an_attempt_is_counted_and_the_answer_kept(places):
    spec = server("call-noise")
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        result = running.call("doc.search", {}, timeout_s=5)

        assert (result.text, result.is_error, running.noise_count) == ("ok", False, 4)


def test_an_answer_lost_in_noise_is_a_timeout(places):
    assert call("call-noise-inline", places, timeout_s=0.5).is_error


def test_invalid_utf8_in_an_answer_is_replaced(places):
    assert call("call-invalid-utf8", places).text == "caf\ufffd"


def test_a_second_answer_is_dropped(places):
    assert [result.text for result in call("call-twice", places, times=2)] == ["first", "first"]


def test_an_oversized_result_is_cut_with_a_visible_mark(places):
    result = call("call-large", places, Limits(tool_result_bytes=1000))

    assert result.original_bytes == 5_000_000
    assert len(result.text.encode()) <= 1000
    assert result.text.startswith("\u00e9" * 400)
    assert result.text.endswith("[cut: the result has 5000000 bytes, above the limit of 1000]")
    assert not result.is_error


def test_what_is_not_text_is_replaced_by_a_visible_line(places):
    assert call("call-picture", places).text == (
        "[image not shown: image/png, 4 base64 characters]\nafter"
    )


def test_text_in_resources_is_shown(places):
    assert call("call-resource", places).text == (
        "[resource file:///a.md]\nthe text\n"
        "[resource file:///a.bin not shown: unknown type, 4 base64 characters]\n"
        "[link: file:///b.md]"
    )


def test_structured_content_alone_is_shown_as_json(places):
    assert call("call-structured", places).text == '{"hits": [1]}'


def test_an_empty_result_is_empty_text(places):
    result = call("call-empty", places)

    assert (result.text, result.is_error) == ("", False)


@pytest.mark.parametrize("mode", ["call-sampling", "call-roots"])
def test_a_server_that_asks_the_client_is_told_no(places, mode):
    assert "not supported" in call(mode, places).text.lower()


@pytest.mark.parametrize(
    "arguments", [{"query": "\ud800"}, {"query": float("nan")}, {"query": {1, 2}}]
)
def test_arguments_that_are_no_json_are_an_error_result(places, arguments):
    spec = server()
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        assert running.call("doc.search", arguments, timeout_s=5).is_error
        assert not running.call("doc.search", {}, timeout_s=5).is_error


def test_a_tool_that_is_not_allowed_is_never_called(places):
    spec = server(allow=("doc.search",))
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        assert running.call("doc.get", {}, timeout_s=5).is_error


@pytest.mark.slow
def test_a_call_that_the_server_does_not_read_ends_at_its_deadline(places):
    spec = server("call-hang")
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS) as running:
        running.call("doc.search", {}, timeout_s=0.1)
        begun = time.monotonic()
        result = running.call("doc.search", {"query": "x" * 5_000_000}, timeout_s=0.3)

        assert result.is_error
        assert time.monotonic() - begun < 2


def test_stopping_is_idempotent_and_calls_after_it_are_error_results(places):
    spec = server()
    running = RunningServer("docs", spec, places, preflight("docs", spec, places, LIMITS), LIMITS)
    running.start()
    running.stop()
    running.stop()

    assert running.call("doc.search", {}, timeout_s=5).is_error
    assert not is_alive(running.pid)


# Nothing stays


@pytest.mark.parametrize(
    "mode",
    [
        "child",
        "child-without-pipes",
        pytest.param("child-in-own-session", marks=linux),
        pytest.param("child-without-environment", marks=linux),
        pytest.param("daemon", marks=linux),
    ],
)
def test_what_a_server_started_ends_with_it(places, tmp_path, mode):
    spec = server(mode, tmp_path / "note")
    facts = preflight("docs", spec, places, LIMITS)
    with RunningServer("docs", spec, places, facts, LIMITS):
        pids = [int(pid) for pid in (tmp_path / "note").read_text().split()]
        assert all(is_alive(pid) for pid in pids)

    assert wait_until(lambda: not any(is_alive(pid) for pid in pids), 1)


@pytest.mark.slow
def test_a_server_that_ignores_the_end_of_its_input_and_sigterm_is_killed(places):
    spec = server("deaf")
    facts = preflight("docs", server(), places, LIMITS)
    running = RunningServer("docs", spec, places, facts, LIMITS).start()
    begun = time.monotonic()

    running.stop()

    assert not is_alive(running.pid)
    assert time.monotonic() - begun < 4


@pytest.fixture
def interruptible():
    """A background job of a shell ignores SIGINT, and so would all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def abandoned(tmp_path, mode):
    """A process that started a server; the ids of both."""
    note = tmp_path / "note"
    argv = [sys.executable, str(PROGRAMS / "abandons_server.py"), PROGRAM, mode, str(note)]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    started = parent.stdout.readline().split()
    assert started[0] == "started"
    assert wait_until(note.exists)
    return parent, [int(pid) for pid in note.read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        "call-hang",
        pytest.param("ok", marks=pytest.mark.slow),
        pytest.param("deaf", marks=pytest.mark.slow),
        pytest.param("child", marks=pytest.mark.slow),
        pytest.param("child-in-own-session", marks=linux),
        pytest.param("child-without-environment", marks=linux),
        pytest.param("daemon", marks=linux),
    ],
)
def test_a_server_ends_though_its_parent_was_killed(tmp_path, mode):
    parent, pids = abandoned(tmp_path, mode)
    assert all(is_alive(pid) for pid in pids)

    parent.kill()
    parent.wait()
    parent.stdout.close()

    assert wait_until(lambda: not any(is_alive(pid) for pid in pids), 2)


def test_a_keyboard_interrupt_during_a_call_ends_the_server_promptly(tmp_path, interruptible):
    parent, pids = abandoned(tmp_path, "call-hang")
    time.sleep(0.2)
    begun = time.monotonic()

    parent.send_signal(signal.SIGINT)

    assert parent.wait(10) != 0
    parent.stdout.close()
    assert time.monotonic() - begun < 3
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize(
    "mode", ["silent", pytest.param("deaf-and-silent", marks=pytest.mark.slow), "list-hang"]
)
def test_a_keyboard_interrupt_during_a_start_leaves_nothing(places, mode, tmp_path, interruptible):
    def interrupt():
        wait_until((tmp_path / "note").exists)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    begun = time.monotonic()

    with pytest.raises(KeyboardInterrupt):
        preflight("docs", server(mode, tmp_path / "note"), places, Limits())

    interrupter.join()
    assert time.monotonic() - begun < 4
    assert not is_alive(int(re.match(r"\d+", (tmp_path / "note").read_text())[0]))
