"""The rehearsal's model as Claude Code's: its question, its tools, its directory, its fields."""

from __future__ import annotations

import cli_requests
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_studyminimal.rehearsal import RehearsalProvider

QUESTION = "What is the RETRY_LIMIT and how does the backoff grow? Cite source paths and lines."
BUILT_IN = ("Glob", "Grep", "Read")
FOUND = "src/retry.py:3:RETRY_LIMIT = 5\ndocs/policy.md:3:The backoff doubles."
SOURCE = "1\timport time\n2\t\n3\tRETRY_LIMIT = 5\n"
POLICY = "1\t# Policy\n2\t\n3\tThe backoff doubles.\n"


@pytest.fixture(scope="module")
def provider():
    with RehearsalProvider() as running:
        yield running


class Conversation:
    """A conversation with the provider as the CLI holds one."""

    def __init__(self, provider, question=QUESTION, **fields):
        self.provider = provider
        self.request = cli_requests.first(question, **fields)
        self.reply = cli_requests.message(cli_requests.post(provider, self.request))

    @property
    def calls(self):
        """The calls of the last reply as pairs."""
        uses = [block for block in self.reply["content"] if block["type"] == "tool_use"]
        return [(block["name"], block["input"]) for block in uses]

    @property
    def text(self):
        """What the last reply says first."""
        return self.reply["content"][0]["text"]

    def give(self, *results):
        """Answer the calls and return the next ones."""
        self.request = cli_requests.following(self.request, self.reply, results)
        self.reply = cli_requests.message(cli_requests.post(self.provider, self.request))
        return self.calls


def grep(pattern):
    return "Grep", {"pattern": pattern, "output_mode": "content", "-n": True}


def read(path, **lines):
    return "Read", {"file_path": f"{cli_requests.DIRECTORY}/{path}", **lines}


# Tools


def test_it_greps_numbered_lines_reads_around_them_and_cites_relative_paths(provider):
    held = Conversation(provider, tools=BUILT_IN)
    assert held.calls == [grep("RETRY_LIMIT"), grep("backoff")]
    assert held.give(FOUND, "docs/policy.md:30:backoff") == [
        read("docs/policy.md", offset=1, limit=43),
        read("src/retry.py", offset=1, limit=43),
    ]
    assert held.give(POLICY, SOURCE) == []
    assert held.reply["stop_reason"] == "end_turn"
    assert "- src/retry.py:3: RETRY_LIMIT = 5" in held.text
    assert "- docs/policy.md:3: The backoff doubles." in held.text
    assert cli_requests.DIRECTORY not in held.text


def test_the_order_in_which_results_arrive_and_lines_are_found_changes_nothing(provider):
    lines = [f"src/{name}.py:7:backoff" for name in "dacb"]
    ways = [Conversation(provider, tools=BUILT_IN) for _ in range(2)]
    first = ways[0].give("\n".join(lines), "No matches found")
    assert first == ways[1].give("\n".join(sorted(lines)), "No matches found")
    assert first == [read(f"src/{name}.py", offset=1, limit=47) for name in "ab"]


def test_where_no_line_matches_it_globs_for_names(provider):
    held = Conversation(provider, "Zyzzyva or Quux?", tools=BUILT_IN)
    names = [("Glob", {"pattern": "**/*{Zyzzyva,Quux,zyzzyva,quux}*"})]
    assert held.give("No matches found", "No matches found") == names
    assert held.give("lib/quux.py\nother.py") == [read("lib/quux.py")]


def test_a_result_that_was_cut_counts_only_where_nothing_else_is_found(provider):
    cut = "src/any.py:1:RETRY_LIMIT\n\n[Showing results with pagination = limit: 250]"
    held = Conversation(provider, "RETRY_LIMIT and backoff?", tools=BUILT_IN)
    assert held.give(cut, "src/retry.py:6:backoff") == [read("src/retry.py", offset=1, limit=46)]
    held = Conversation(provider, "RETRY_LIMIT and backoff?", tools=BUILT_IN)
    assert [name for name, _ in held.give(cut, "No matches found")] == ["Glob"]
    assert held.give("No files found") == [read("src/any.py", offset=1, limit=41)]


def test_a_servers_search_and_reader_come_before_the_built_in_ones(provider):
    held = Conversation(provider)
    search, get = "mcp__docs__doc_search", "mcp__docs__doc_get"
    query = "RETRY_LIMIT backoff grow"
    assert held.calls == [(search, {"query": query}), (search, {"query": "RETRY_LIMIT"})]
    # The CLI shows a server's structured content where there is some.
    structured = '{"result":"docs/a.md:3: RETRY_LIMIT\\ndocs/b.md:9: backoff"}'
    named = [(get, {"path": "docs/a.md"}), (get, {"path": "docs/b.md"})]
    assert held.give(structured, '{"result":""}') == named
    failed = {"content": "unknown", "is_error": True}
    assert held.give(failed, failed) == [
        read("docs/a.md", offset=1, limit=43),
        read("docs/b.md", offset=1, limit=49),
    ]


def test_a_servers_own_words_do_not_make_its_tools_searchers(provider):
    request = cli_requests.first(tools=BUILT_IN)
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    request["tools"].append(
        {"name": "mcp__search-index__greet", "description": "Greets.", "input_schema": schema}
    )
    reply = cli_requests.message(cli_requests.post(provider, request))
    assert [block.get("name") for block in reply["content"]] == [None, "Grep", "Grep"]


def test_pictures_and_reminders_in_results_are_not_quoted(provider):
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    reminder = "<system-reminder>Warning: the contents are empty.</system-reminder>"
    held = Conversation(provider, tools=BUILT_IN)
    held.give("a/RETRY_LIMIT.py:1:x", {"content": [picture]})
    assert held.give(reminder) == []
    assert "Warning" not in held.text


def test_reminders_appended_to_a_result_do_not_hide_its_line_numbers(provider):
    left = "\n\n<system-reminder>\n9 tokens left\n</system-reminder>" * 4
    held = Conversation(provider, "Where is RETRY_LIMIT?", tools=BUILT_IN)
    held.give(f"src/retry.py:13:RETRY_LIMIT{left}")
    assert held.give(f"13\tRETRY_LIMIT = 5{left}") == []
    assert held.text.endswith("- src/retry.py:13: RETRY_LIMIT = 5")


# The question and the directory


def test_the_question_is_taken_without_the_reminders_around_it(provider):
    reminder = "<system-reminder>\n# gitStatus\nRecent commits: zebra\n</system-reminder>\n"
    asked = {"type": "text", "text": "Where is the yak <system-reminder>x</system-reminder>?"}
    held = Conversation(provider, [{"type": "text", "text": reminder}, asked], tools=BUILT_IN)
    assert grep("yak") in held.calls
    assert "zebra" not in str(held.calls)


def test_the_directory_is_found_in_a_reminder_too(provider):
    told = "<system-reminder>\n - Primary working directory: /elsewhere/my dir\n</system-reminder>"
    request = cli_requests.first(tools=BUILT_IN)
    request["messages"] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": told},
                {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}},
            ],
        }
    ]
    reply = cli_requests.message(cli_requests.post(provider, request))
    uses = [block for block in reply["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": FOUND} for use in uses]
    request["messages"] += [
        {"role": "assistant", "content": reply["content"]},
        {"role": "user", "content": results},
    ]
    reply = cli_requests.message(cli_requests.post(provider, request))
    assert reply["content"][1]["input"]["file_path"] == "/elsewhere/my dir/docs/policy.md"


def test_without_a_directory_paths_are_used_as_given(provider):
    request = cli_requests.first(tools=BUILT_IN)
    request["messages"][1]["content"][0]["text"] = "Today's date is 2026-12-01."
    reply = cli_requests.message(cli_requests.post(provider, request))
    later = cli_requests.following(request, reply, [FOUND, "No matches found"])
    reply = cli_requests.message(cli_requests.post(provider, later))
    assert reply["content"][1]["input"]["file_path"] == "docs/policy.md"


# What is refused


def marks(count, **fields):
    request = cli_requests.first()
    for block in request["tools"][:count]:
        block["cache_control"] = {"type": "ephemeral", **fields}
    return request


REFUSED = {
    "five marks": (marks(2), "A maximum of 4 blocks with cache_control"),
    "a mark of another type": (marks(1, type="eternal"), "ephemeral"),
    "a mark of a day": (marks(1, ttl="1d"), "5m"),
    "a list for a lifetime": (marks(1, ttl=[]), "5m"),
    "the system first": (
        cli_requests.first() | {"messages": cli_requests.first()["messages"][1:]},
        "must follow a user message",
    ),
    "the system twice": (
        cli_requests.first() | {"messages": [*cli_requests.first()["messages"][:2]] * 2},
        "alternate",
    ),
    "a blank message of the system": (
        cli_requests.first()
        | {"messages": [cli_requests.first()["messages"][0], {"role": "system", "content": " "}]},
        "non-whitespace",
    ),
}


@pytest.mark.parametrize(("request_", "words"), REFUSED.values(), ids=REFUSED)
def test_what_the_api_refuses_of_marks_and_turns_is_refused(provider, request_, words):
    response = cli_requests.post(provider, request_)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_its_fields_are_refused_where_no_header_asks_for_betas(provider):
    request = cli_requests.first()
    refusal = cli_requests.post(provider, request, **{"anthropic-beta": ""})
    assert "context_management: Extra inputs" in refusal.json()["error"]["message"]
    del request["context_management"], request["output_config"]
    refusal = cli_requests.post(provider, request, **{"anthropic-beta": ""})
    assert "roles must alternate" in refusal.json()["error"]["message"]


members = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["user", "system", "text", "1h", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "cache_control", "ttl", "name"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["system", "messages", "tools", "metadata", "stream", "extra"]), members)
def test_no_field_breaks_the_provider(provider, name, value):
    assert cli_requests.post(provider, cli_requests.first() | {name: value}).status_code in {
        200,
        400,
    }


@settings(max_examples=100, deadline=None)
@given(members)
def test_no_message_breaks_the_provider(provider, content):
    request = cli_requests.first()
    for index in range(len(request["messages"])):
        changed = cli_requests.first()
        changed["messages"][index]["content"] = content
        response = cli_requests.post(provider, changed)
        assert response.status_code in {200, 400}


def test_a_mark_of_null_is_no_mark(provider):
    request = cli_requests.first()
    for block in cli_requests.marked(request):
        block["cache_control"] = None
    reply = cli_requests.message(cli_requests.post(provider, request))
    assert reply["usage"]["cache_creation_input_tokens"] == 0
