"""A stdio MCP server, standard library only, that fails in the way its first argument names.

failing_server.py MODE [FILE]: FILE gets the process ids of the server and of what it started.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MODE = sys.argv[1] if len(sys.argv) > 1 else "ok"
NOTE = Path(sys.argv[2]) if len(sys.argv) > 2 else None
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
NAMES = ("doc.search", "doc.get", "handoff.resolve")
count = 0


def raw(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send(message):
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}


def tool(name, schema=SCHEMA):
    return {"name": name, "description": f"About {name}", "inputSchema": schema}


def tools(*changed, **schema):
    return [
        *changed,
        *(tool(name) for name in NAMES if name not in {one["name"] for one in changed}),
    ]


ORDERED = {
    "properties": {"z": {"type": "string"}, "a": {"maximum": 2**70, "minimum": 1e-300}},
    "x-float": 1.0,
    "type": "object",
    "required": ["z", "a"],
}


def searching(**schema):
    return {"tools": tools(tool("doc.search", {**SCHEMA, **schema}))}


def start(*argv, **how):
    child = subprocess.Popen(argv, **how)
    NOTE.write_text(f"{os.getpid()} {child.pid}")


def start_daemon():
    """Leave an orphan in a session of its own, without environment and pipes."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            NOTE.with_suffix(".new").write_text(f"{os.getppid()} {os.getpid()}")
            for number in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.execve(SLEEP[0], SLEEP, {})
        time.sleep(0.1)
        os._exit(0)
    os.wait()
    NOTE.write_text(f"{os.getpid()} {NOTE.with_suffix('.new').read_text().split()[1]}")


NOWHERE = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SLEEP = (sys.executable, "-c", "import time; time.sleep(120)")

AT_START = {
    "banner": lambda: raw(b"Case server v1 ready\n"),
    "banner-escape": lambda: raw(b"\x1b[31mred\x07 \xe2\x80\xa8" + b"y" * 500 + b"\n"),
    "banner-without-newline": lambda: raw(b"Case server v1 ready "),
    "banner-and-silence": lambda: (raw(b"press a key: "), time.sleep(120)),
    "banner-json": lambda: raw(b'{"level": "info", "msg": "started"}\n'),
    "banner-invalid-utf8": lambda: raw(b"\xff\xfe\xfa junk\n"),
    "content-length": lambda: raw(b"Content-Length: 100\r\n\r\n"),
    "traceback-on-stdout": lambda: (raw(b"Traceback (most recent call last):\n"), os._exit(1)),
    "exit": lambda: (sys.stderr.write("no index\x1b[0m\nat all\n"), sys.exit(3)),
    "signal": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit-zero": lambda: sys.exit(0),
    "silent": lambda: time.sleep(120),
    "close-stdout": lambda: (os.close(1), time.sleep(120)),
    "flood": lambda: (sys.stderr.write("x" * 5_000_000 + "the end"), sys.stderr.flush()),
    "flood-and-silence": lambda: (sys.stderr.write("x" * 5_000_000), time.sleep(120)),
    "stdout-flood": lambda: [raw(b"x" * 65536) for _ in iter(int, 1)],
    "deaf": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "deaf-and-silent": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(120)),
    "child": lambda: start(*SLEEP),
    "child-without-pipes": lambda: start(*SLEEP, **NOWHERE),
    "child-in-own-session": lambda: start(*SLEEP, start_new_session=True, **NOWHERE),
    "child-without-environment": lambda: start(*SLEEP, start_new_session=True, env={}, **NOWHERE),
    "daemon": start_daemon,
    "child-holds-pipes-and-exit": lambda: (start(*SLEEP), os._exit(5)),
    "late-notifications": lambda: (
        [
            send({"method": "notifications/message", "params": {"level": "info", "data": n}})
            for n in range(500)
        ]
        + [send({"method": "notifications/unheard", "params": {"x": []}})]
    ),
}


def page(params):
    number = int((params.get("cursor") or "c-0").removeprefix("c-"))
    listed = [tool(name) for name in (NAMES[0], "x.one", NAMES[2], "x.two", NAMES[1])]
    following = {"nextCursor": f"c-{number + 2}"} if number + 2 < len(listed) else {}
    return {"tools": listed[number : number + 2], **following}


def endless(params):
    number = int(params.get("cursor") or 0)
    return {"tools": [tool(f"t{number}")], "nextCursor": str(number + 1)}


LISTS = {
    "ordered": lambda _: {"tools": tools(tool("doc.search", ORDERED))},
    "pages": page,
    "empty-cursor": lambda _: {"tools": tools(), "nextCursor": ""},
    "null-cursor": lambda _: {"tools": tools(), "nextCursor": None},
    "cursor-loop": lambda _: {"tools": [tool("t")], "nextCursor": "again"},
    "cursor-endless": endless,
    "cursor-number": lambda _: {"tools": tools(), "nextCursor": 2},
    "many-tools": lambda params: {
        "tools": [tool(f"t{n}") for n in range(800)],
        "nextCursor": (params.get("cursor") or "") + "c",
    },
    "twice": lambda _: {"tools": [*tools(), tool("doc.search")]},
    "other-twice": lambda _: {"tools": [*tools(), tool("x"), tool("x")]},
    "no-tools": lambda _: {"tools": []},
    "no-schema": lambda _: {"tools": [{"name": "doc.search"}]},
    "schema-text": lambda _: {"tools": [{"name": "doc.search", "inputSchema": "any"}]},
    "not-a-list": lambda _: {"tools": {"doc.search": {}}},
    "schema-string": lambda _: searching(type="string"),
    "schema-anyof": lambda _: searching(anyOf=[{"required": ["query"]}]),
    "schema-oneof": lambda _: searching(oneOf=[{"required": ["query"]}]),
    "schema-allof": lambda _: searching(allOf=[{"required": ["query"]}]),
    "schema-ref": lambda _: searching(**{"$ref": "#/$defs/x", "$defs": {"x": SCHEMA}}),
    "schema-name": lambda _: searching(properties={"filter[id]": {"type": "string"}}),
    "schema-other": lambda _: {"tools": [*tools(), tool("x", {"type": "object", "anyOf": []})]},
    "colliding": lambda _: {"tools": [*tools(), tool("doc_search")]},
    "overlong": lambda _: {"tools": [*tools(), tool("x" * 200)]},
    "list-error": lambda _: None,
    "list-hang": lambda _: time.sleep(120),
    "list-exit": lambda _: (sys.stderr.write("list failed"), sys.stderr.flush(), os._exit(4)),
    "list-signal": lambda _: os.kill(os.getpid(), signal.SIGKILL),
}


def later(number):
    global count  # noqa: PLW0603
    count += 1
    if count == 2:  # the first is the readiness call
        time.sleep(1.5)
    answer(number, text(f"answer {count}"))


def answer(number, result):
    send({"id": number, "result": result})


def ask_first(number, method):
    send({"id": "s1", "method": method, "params": {"messages": [], "maxTokens": 5}})
    answer(number, text(f"client said {sys.stdin.readline()}"))


PICTURE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
CALLS = {
    "call-error": lambda n: send({"id": n, "error": {"code": -32000, "message": "index missing"}}),
    "call-closed": lambda n: (
        send({"id": n, "error": {"code": -32000, "message": "no\nindex"}}),
        os._exit(0),
    ),
    "call-is-error": lambda n: answer(n, text("index missing", isError=True)),
    "call-hang": lambda _: time.sleep(120),
    "call-later": later,
    "call-exit": lambda _: (sys.stderr.write("Traceback: boom"), sys.stderr.flush(), os._exit(3)),
    "call-signal": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "call-close-stdout": lambda _: (os.close(1), time.sleep(120)),
    "call-half": lambda _: (raw(b'{"jsonrpc":"2.0","id":'), os._exit(0)),
    "call-null": lambda n: answer(n, None),
    "call-number": lambda n: answer(n, 5),
    "call-no-content": lambda n: answer(n, {"foo": 1}),
    "call-unknown-content": lambda n: answer(n, {"content": [{"type": "smell", "x": 1}]}),
    "call-no-result": lambda n: send({"id": n}),
    "call-surrogate": lambda n: raw(
        b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\ud800"}]}}\n' % n
    ),
    "call-wrong-id": lambda n: answer(f"{n}x", text("x")),
    "call-null-id": lambda _: answer(None, text("x")),
    "call-twice": lambda n: (answer(n, text("first")), answer(n, text("second"))),
    "call-noise": lambda n: (raw(b"[info] one\n\n[info] two\n[1]\nnull\n"), answer(n, text("ok"))),
    "call-noise-inline": lambda n: (raw(b"debug "), answer(n, text("ok"))),
    "call-noise-after": lambda n: (answer(n, text("ok")), raw(b"[info] answered\n")),
    "call-invalid-utf8": lambda n: raw(
        b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"caf\xe9"}]}}\n' % n
    ),
    "call-large": lambda n: answer(n, text("\u00e9" * 2_500_000)),
    "call-too-large": lambda n: answer(n, text("z" * 17 * 2**20)),
    "call-endless-line": lambda _: [raw(b"z" * 65536) for _ in iter(int, 1)],
    "call-empty": lambda n: answer(n, {"content": []}),
    "call-structured": lambda n: answer(n, {"content": [], "structuredContent": {"hits": [1]}}),
    "call-picture": lambda n: answer(n, {"content": [PICTURE, *text("after")["content"]]}),
    "call-resource": lambda n: answer(
        n,
        {
            "content": [
                {"type": "resource", "resource": {"uri": "file:///a.md", "text": "the text"}},
                {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "aGk="}},
                {"type": "resource_link", "uri": "file:///b.md", "name": "b"},
            ]
        },
    ),
    "call-sampling": lambda n: ask_first(n, "sampling/createMessage"),
    "call-roots": lambda n: ask_first(n, "roots/list"),
    "call-environment": lambda n: answer(n, text(json.dumps(dict(os.environ)))),
}


def greet(number, params):
    if MODE == "initialize-error":
        return send({"id": number, "error": {"code": -32603, "message": "cannot start"}})
    if MODE == "modern-only":
        data = {"supported": ["2026-07-28"], "requested": params.get("protocolVersion")}
        error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
        return send({"id": number, "error": error})
    versions = {"version-1999": "1999-01-01", "version-2024": "2024-11-05"}
    version = versions.get(MODE, params.get("protocolVersion"))
    info = {"name": "failing", "version": "7"}
    result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    return answer(number, {} if MODE == "initialize-empty" else result)


def discover(number):
    info = {"io.modelcontextprotocol/serverInfo": {"name": "modern", "version": "8"}}
    result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "_meta": info}
    answer(number, {**result, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"})


def complete(result):
    modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    return {**result, **modern} if MODE == "modern-only" else result


def handle(message):
    method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        greet(number, params)
    elif method == "server/discover" and MODE == "modern-only":
        discover(number)
    elif method == "server/discover" and MODE == "ignores-unknown":
        pass
    elif method == "tools/list":
        result = LISTS.get(MODE, lambda _: {"tools": tools()})(params)
        if result is None:
            send({"id": number, "error": {"code": -32603, "message": "cannot list"}})
        else:
            answer(number, complete(result))
    elif method == "tools/call":
        ready = params.get("arguments", {}).get("query") == "ready"
        if ready or MODE not in CALLS:
            answer(number, complete(text("hit: " + json.dumps(params["name"]))))
        else:
            CALLS[MODE](number)
    elif number is not None and method:
        send({"id": number, "error": {"code": -32601, "message": "Method not found"}})


if NOTE:
    NOTE.write_text(f"{os.getpid()}")
AT_START.get(MODE, lambda: None)()
for line in sys.stdin:
    if line.strip():
        if MODE == "log-lines":
            raw(b"[info] a message came\n")
        handle(json.loads(line))
while MODE.startswith("deaf"):
    time.sleep(1)
