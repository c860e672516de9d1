"""The local provider refuses what the real API refuses; its model works with any tools."""

from __future__ import annotations

import json
import re
import ssl
import time
from decimal import Decimal

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_studyminimal.protocol.records import ToolDefinition, ToolResult
from pytest_studyminimal.rehearsal import RehearsalProvider
from pytest_studyminimal.rehearsal.agent import respond
from pytest_studyminimal.rehearsal.finding import hits_in, keywords_of
from pytest_studyminimal.transports import Assignment
from pytest_studyminimal.transports.messages import MessagesApi

HEADERS = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
FILES = {
    "src/retry.py": "import time\n\nRETRY_LIMIT = 5\n\n\ndef backoff(attempt):\n    return 2**attempt\n",
    "docs/policy.md": "# Policy\n\nThe backoff doubles after each retry.\nNothing else matters.\n",
    "Makefile": "test:\n\tpytest\n",
}
QUESTION = "What is the RETRY_LIMIT and how does the backoff grow? Cite source paths and lines."


@pytest.fixture(scope="module")
def provider():
    with RehearsalProvider() as running:
        yield running


def client():
    # Loading certificates for every client would take most of the time of these tests.
    return httpx.Client(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False)


def post(provider, body, path="/v1/messages", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with client() as http:
        return http.post(provider.base_url + path, content=content, headers={**HEADERS, **headers})


def tool(name="repo_search", *, required=("query",), description="", **properties):
    properties = properties or {name: {"type": "string"} for name in required}
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "description": description, "input_schema": schema}


def request(*messages, **fields):
    known = {"model": "claude-haiku-5-5", "max_tokens": 1024}
    return {**known, "messages": list(messages) or [user("Where is it?")], **fields}


def user(content):
    return {"role": "user", "content": content}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def use(tool_id="a", name="repo_search", **arguments):
    return {"type": "tool_use", "id": tool_id, "name": name, "input": arguments}


def result(tool_id="a", content="nothing", **fields):
    return {"type": "tool_result", "tool_use_id": tool_id, "content": content, **fields}


# The wire


def test_a_reply_has_the_shape_of_the_api(provider):
    before = provider.requests_served
    reply = post(provider, request()).json()
    assert provider.requests_served == before + 1
    assert reply["type"] == "message"
    assert reply["role"] == "assistant"
    assert reply["model"] == "claude-haiku-5-5"
    assert reply["stop_reason"] == "end_turn"
    assert reply["stop_sequence"] is None
    assert re.fullmatch(r"msg_[0-9a-f]{24}", reply["id"])
    assert [block["type"] for block in reply["content"]] == ["text"]
    assert set(reply["usage"]) == {
        "input_tokens",
        "output_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
    }


def test_equal_requests_get_equal_replies_and_usage_follows_the_bytes(provider):
    body = json.dumps(request(user("x" * 1000), tools=[tool()])).encode()
    with RehearsalProvider() as another:
        assert post(provider, body).json() == post(another, body).json()
    assert post(provider, body).json()["usage"]["input_tokens"] == -(-len(body) // 4)


def test_a_reply_longer_than_max_tokens_is_cut_as_the_api_cuts(provider):
    reply = post(provider, request(max_tokens=4)).json()
    assert reply["stop_reason"] == "max_tokens"
    assert reply["usage"]["output_tokens"] == 4


def test_a_lone_surrogate_in_a_request_is_answered(provider):
    body = json.dumps(request(user("lone \ud800 word"))).encode()
    assert post(provider, body).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"x-api-key": ""}, 401, "authentication_error"),
        ({"anthropic-version": ""}, 400, "invalid_request_error"),
    ],
)
def test_missing_headers_are_refused(provider, headers, status, kind):
    response = post(provider, request(), **headers)
    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == kind


def test_other_paths_and_methods_are_refused(provider):
    response = post(provider, request(), path="/v1/complete")
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    with client() as http:
        assert http.get(f"{provider.base_url}/v1/messages").status_code == 405


ASKED = assistant(use("a"), use("b"))
REFUSED = {
    "no JSON": (b"{", "valid JSON"),
    "deep JSON": (b"[" * 100_000, "valid JSON"),
    "a list": ([], "expected an object"),
    "no model": ({"max_tokens": 5, "messages": [user("x")]}, "model: Field required"),
    "no max_tokens": ({"model": "m", "messages": [user("x")]}, "max_tokens: Field required"),
    "no messages": ({"model": "m", "max_tokens": 5}, "messages: Field required"),
    "empty messages": (request() | {"messages": []}, "at least one message"),
    "an unknown key": (request(retries=3), "retries: Extra inputs"),
    "max_tokens of zero": (request(max_tokens=0), "max_tokens"),
    "max_tokens as true": (request(max_tokens=True), "max_tokens"),
    "temperature of two": (request(temperature=2), "temperature"),
    "a stream of one": (request(stream=1), "stream"),
    "a dotted tool name": (request(tools=[tool("doc.search")]), "should match pattern"),
    "a long tool name": (request(tools=[tool("x" * 129)]), "should match pattern"),
    "two tools of a name": (request(tools=[tool(), tool()]), "unique"),
    "anyOf at the top": (
        request(tools=[{"name": "x", "input_schema": {"type": "object", "anyOf": []}}]),
        "does not support oneOf, allOf, or anyOf",
    ),
    "a schema that is no object": (
        request(tools=[{"name": "x", "input_schema": {"type": "string"}}]),
        "should be 'object'",
    ),
    "no schema": (request(tools=[{"name": "x"}]), "input_schema: Field required"),
    "the assistant first": (request(assistant()), "alternate"),
    "two users in a row": (request(user("x"), user("y")), "alternate"),
    "the assistant last": (
        request(user("x"), assistant({"type": "text", "text": "y"})),
        "final message",
    ),
    "empty text": (request(user([{"type": "text", "text": ""}])), "must be non-empty"),
    "blank text": (request(user([{"type": "text", "text": " "}])), "non-whitespace"),
    "empty content": (request(user([])), "non-empty"),
    "an unknown block": (request(user([{"type": "novel"}])), "expected a block"),
    "a call without its result": (
        request(user("x"), ASKED, user([result("a")]), tools=[tool()]),
        "were found without `tool_result` blocks immediately after: b",
    ),
    "a result twice": (
        request(user("x"), ASKED, user([result("a"), result("b"), result("a")]), tools=[tool()]),
        "multiple `tool_result`",
    ),
    "a result of no call": (
        request(user("x"), ASKED, user([result("a"), result("b"), result("c")]), tools=[tool()]),
        "unexpected `tool_use_id`",
    ),
    "words before results": (
        request(
            user("x"),
            ASKED,
            user([{"type": "text", "text": "hm"}, result("a"), result("b")]),
            tools=[tool()],
        ),
        "must come first",
    ),
    "a call id twice": (
        request(user("x"), assistant(use("a"), use("a")), user([result("a")]), tools=[tool()]),
        "unique",
    ),
    "a call id of an earlier turn": (
        request(
            user("x"),
            assistant(use("a")),
            user([result("a")]),
            assistant(use("a")),
            user([result("a")]),
            tools=[tool()],
        ),
        "unique",
    ),
    "a blank result": (
        request(user("x"), assistant(use("a")), user([result("a", " ")]), tools=[tool()]),
        "non-whitespace",
    ),
    "calls without tools": (
        request(user("x"), assistant(use("a")), user([result("a")])),
        "must define tools",
    ),
}


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_what_the_api_refuses_is_refused_in_its_shape(provider, body, words):
    response = post(provider, body)
    assert response.status_code == 400
    error = response.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert words in error["error"]["message"]


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just("user"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["model", "max_tokens", "messages", "role", "content", "type", "tools"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_request_breaks_the_provider(provider, body):
    assert post(provider, body).status_code in {200, 400}


def test_it_stops_at_once_even_with_a_connection_kept_open(capfd):
    with client() as http:
        with RehearsalProvider() as running:
            address = f"{running.base_url}/v1/messages"
            assert http.post(address, json=request(), headers=HEADERS).status_code == 200
            started = time.monotonic()
        # Far from the 60 s for which a client may keep its connection open.
        assert time.monotonic() - started < 5
        with pytest.raises(httpx.ConnectError):
            http.post(address, json=request(), headers=HEADERS)
    assert running.requests_served == 1
    assert capfd.readouterr() == ("", "")


# The model, through the real transport


class Meter:
    def reserve(self, *, request_bytes, output_tokens):
        """Allow everything."""

    def settle(self, usage):
        """Believe everything."""

    def retain(self):
        pytest.fail("every rehearsal reply is valid")


class Toolbox:
    def __init__(self, *tools):
        self.tools = {definition["name"]: (definition, function) for definition, function in tools}
        self.called = []

    @property
    def definitions(self):
        return tuple(
            ToolDefinition(
                name=definition["name"],
                description=definition["description"],
                input_schema=definition["input_schema"],
            )
            for definition, _ in self.tools.values()
        )

    def server_of(self, name):
        return None

    def call(self, name, arguments, *, timeout_s):
        self.called.append((name, arguments))
        answer = self.tools[name][1](**arguments)
        return answer if isinstance(answer, ToolResult) else ToolResult(text=answer)


def literal_search(query, prefix=""):
    hits = [
        f"{path}:{number}: {line}"
        for path, words in FILES.items()
        for number, line in enumerate(words.splitlines(), 1)
        if query in line and path.startswith(prefix)
    ]
    return "\n".join(hits) or "0 matches"


def numbered_read(path, start_line=1, end_line=400):
    if path not in FILES:
        return ToolResult(text=f"{path}: no such file", is_error=True)
    lines = list(enumerate(FILES[path].splitlines(), 1))[start_line - 1 : end_line]
    return "\n".join(f"{number}: {line}" for number, line in lines)


def listing(prefix=""):
    return "\n".join(path for path in FILES if path.startswith(prefix))


PATH = {"type": "string"}
LINE = {"type": "integer"}
SEARCH = (tool("repo_search", description="Search for literal text."), literal_search)
READ = (
    tool("repo_read", required=("path",), path=PATH, start_line=LINE, end_line=LINE),
    numbered_read,
)
LIST = (tool("repo_list", required=(), prefix={"type": "string"}), listing)


def rehearse(provider, toolbox, question=QUESTION):
    planned = Assignment(
        model="claude-haiku-5-5",
        question=question,
        system=None,
        turns=8,
        output_tokens=1024,
        tools_per_turn=20,
        deadline_s=20,
        tool_s=30,
        stdout_bytes=1_000_000,
        attempt_usd=Decimal(1),
    )
    api = MessagesApi(base_url=provider.base_url, key="any", temperature=Decimal(0))
    transcript = api.carry(planned, toolbox, Meter())
    assert transcript.ending == "finished", transcript.problem
    assert transcript.answer_complete
    assert transcript.turns <= 6
    return transcript


def test_it_searches_reads_and_cites_what_it_read(provider):
    toolbox = Toolbox(LIST, READ, SEARCH)
    transcript = rehearse(provider, toolbox)
    assert [name for name, _ in toolbox.called] == ["repo_search"] * 2 + ["repo_read"] * 2
    assert toolbox.called[0] == ("repo_search", {"query": "RETRY_LIMIT"})
    assert "src/retry.py:3: RETRY_LIMIT = 5" in transcript.answer
    assert "docs/policy.md:3: The backoff doubles after each retry." in transcript.answer
    assert transcript.turns == 3


def test_two_rehearsals_count_the_same_tokens(provider):
    first, second = (rehearse(provider, Toolbox(SEARCH, READ)) for _ in range(2))
    assert first.usage == second.usage
    assert first.answer == second.answer


def test_a_servers_search_comes_before_the_repositorys(provider):
    docs = tool("doc_search", query={"type": "string"}, limit={"type": "integer"})
    get = tool("doc_get", required=("path",), path=PATH)
    toolbox = Toolbox(
        SEARCH,
        READ,
        (docs, lambda query, limit=5: "1. docs/policy.md:3 The backoff doubles"),
        (get, lambda path: FILES[path]),
        (tool("handoff_resolve", required=("topic",)), lambda topic: "no handoff"),
    )
    transcript = rehearse(provider, toolbox)
    assert [name for name, _ in toolbox.called] == ["doc_search", "doc_search", "doc_get"]
    assert "docs/policy.md:3: The backoff doubles after each retry." in transcript.answer


def test_it_falls_back_from_a_failing_server_to_the_repository(provider):
    failed = ToolResult(text="server is gone", is_error=True)
    toolbox = Toolbox((tool("doc_search"), lambda query: failed), SEARCH, READ)
    transcript = rehearse(provider, toolbox)
    assert "src/retry.py:3:" in transcript.answer


def test_it_reads_with_another_tool_where_the_first_one_fails(provider):
    failed = ToolResult(text="unknown document", is_error=True)
    found = json.dumps({"results": [{"path": "docs/policy.md", "score": 3, "title": "backoff"}]})
    toolbox = Toolbox(
        (tool("docs_find", required=("term",)), lambda term: found),
        (tool("docs_get", required=(), path=PATH, id=PATH), lambda path: failed),
        READ,
    )
    transcript = rehearse(provider, toolbox)
    assert [name for name, _ in toolbox.called][-2:] == ["docs_get", "repo_read"]
    assert "docs/policy.md:3:" in transcript.answer


def test_with_only_a_list_and_a_read_it_reads_what_sounds_right(provider):
    toolbox = Toolbox(LIST, READ)
    transcript = rehearse(provider, toolbox, "What does the retry module import?")
    assert toolbox.called[0] == ("repo_list", {})
    assert "src/retry.py:1: import time" in transcript.answer


def test_a_listing_of_files_that_have_nothing_to_do_with_it_is_no_find(provider):
    toolbox = Toolbox(LIST, READ, SEARCH)
    assert "I found nothing" in rehearse(provider, toolbox, "Zyzzyva quux?").answer
    assert ("repo_list", {}) in toolbox.called


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ((), "I have no tools"),
        ((SEARCH,), "These places were named, unread"),
        ((READ,), "I found nothing"),
        (((tool("weather", required=("city",)), str),), "I found nothing"),
        (((tool("repo_search"), lambda query: "0 matches"), READ), "I found nothing"),
        (
            ((tool("repo_search"), lambda query: ToolResult(text="no", is_error=True)), READ),
            "I found nothing",
        ),
        ((SEARCH, (READ[0], lambda **_: ToolResult(text="no", is_error=True))), "named, unread"),
    ],
)
def test_it_says_so_where_it_can_find_or_read_nothing(provider, tools, words):
    assert words in rehearse(provider, Toolbox(*tools)).answer


def test_a_search_that_requires_nothing_is_used_by_the_name_of_its_property(provider):
    toolbox = Toolbox((tool("find", required=(), q=PATH, limit=LINE), literal_named_q), READ)
    assert "src/retry.py:3:" in rehearse(provider, toolbox).answer


def literal_named_q(q):
    return literal_search(q)


def test_it_never_calls_what_changes_something(provider):
    toolbox = Toolbox(
        (tool("delete_file", required=("path",), description="Reads and deletes."), str),
        (tool("update_search", required=("query",)), str),
        SEARCH,
        READ,
    )
    rehearse(provider, toolbox)
    assert {name for name, _ in toolbox.called} == {"repo_search", "repo_read"}


def test_hostile_results_do_not_stop_it(provider):
    noise = "\n".join(
        ["::::", "x" * 50_000, "12:30: at noon", "[" * 2000, "\ud800:1: x", "a:" + "9" * 400]
    )
    toolbox = Toolbox((tool("repo_search"), lambda query: noise), (READ[0], lambda **_: noise))
    started = time.monotonic()
    rehearse(provider, toolbox, "Why? " + "日本語 " * 300)
    assert time.monotonic() - started < 3


schemas = st.dictionaries(
    st.sampled_from(["query", "path", "id", "start_line", "end_line", "prefix"]),
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "array"])}),
    max_size=4,
)
offered = st.lists(
    st.builds(
        lambda name, description, properties, required: {
            "name": name,
            "description": description,
            "input_schema": {"type": "object", "properties": properties, "required": required},
        },
        st.sampled_from(
            ["repo_search", "find", "get_doc", "read_file", "list_files", "x", "write"]
        ),
        st.sampled_from(["", "Searches things.", "Reads a file.", "Lists."]),
        schemas,
        st.lists(st.sampled_from(["query", "path", "id"]), max_size=2),
    ),
    max_size=4,
    unique_by=lambda one: one["name"],
)


@settings(max_examples=200, deadline=None)
@given(tools=offered, question=st.text(max_size=60), data=st.data())
def test_with_any_tools_and_results_it_answers_in_six_turns(tools, question, data):
    messages = [user(question)]
    for _ in range(6):
        content = respond({"messages": messages, "tools": tools})
        assert content[0]["type"] == "text"
        assert content[0]["text"].strip()
        calls = [block for block in content if block["type"] == "tool_use"]
        assert {call["name"] for call in calls} <= {one["name"] for one in tools}
        if not calls:
            return
        uses = [{**call, "id": f"{len(messages)}-{index}"} for index, call in enumerate(calls)]
        texts = st.text(max_size=20) | st.sampled_from(
            ["src/a.py:3: x", '{"path": "a/b.md"}', "1: x"]
        )
        results = [
            result(call["id"], data.draw(texts), is_error=data.draw(st.booleans())) for call in uses
        ]
        messages += [{"role": "assistant", "content": uses}, user(results)]
    pytest.fail("it asked for tools in its sixth turn")


# Keywords and places


def test_identifiers_come_first_and_common_words_are_left_out():
    words = keywords_of("Where does the `parseConfig` function in src/config.ts handle defaults?")
    assert words == ["src/config.ts", "parseConfig", "function", "defaults", "handle"]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("src/a.py:3: x = 1\nsrc/b.py:14:y", ["src/a.py:3", "src/b.py:14"]),
        ("- ./docs/a.md:7", ["docs/a.md:7"]),
        ("Makefile:2: test", ["Makefile:2"]),
        ("docs/my file.md:3: words", ["docs/my file.md:3"]),
        ("see docs/a.md#L12 for more", ["docs/a.md:12"]),
        ("Found in (docs/a.md:12).", ["docs/a.md:12"]),
        ("docs/a.md\nsrc/b.py", ["docs/a.md", "src/b.py"]),
        ('[{"path": "docs/a.md", "line": 4}, {"file": "b.md"}]', ["docs/a.md:4", "b.md"]),
        ("at 12:30 on http 404", []),
        ("0 matches", []),
    ],
)
def test_places_are_found_in_many_kinds_of_results(text, places):
    assert [hit.place for hit in hits_in(text, "search")] == places
