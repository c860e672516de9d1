"""Names and schemas as a model provider takes them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_studyminimal.protocol.errors import ServerError
from pytest_studyminimal.workspace.toolnames import schema_problem, wire_map, wire_name

PLAIN = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


@pytest.mark.parametrize(
    ("exact", "wire"),
    [
        ("doc.search", "doc_search"),
        ("handoff.resolve", "handoff_resolve"),
        ("a b/c", "a_b_c"),
        ("Plain-Name_9", "Plain-Name_9"),
        ("größe", "gr__e"),
        ("x" * 64, "x" * 64),
    ],
)
def test_other_characters_become_underscores(exact, wire):
    assert wire_name(exact) == wire


def test_an_overlong_name_is_cut_and_marked_by_its_hash():
    first, second = wire_name("x" * 200), wire_name("x" * 201)

    assert len(first) == len(second) == 64
    assert first != second
    assert re.fullmatch(r"x{57}_[0-9a-f]{6}", first)


def test_an_empty_name_is_refused():
    with pytest.raises(ServerError, match="empty name") as refusal:
        wire_name("")

    assert refusal.value.kind == "tools"


@given(st.text(min_size=1, max_size=200))
def test_every_name_becomes_one_that_providers_accept(exact):
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire_name(exact))


def test_the_map_leads_back_to_owner_and_exact_name():
    pairs = [("docs", "doc.search"), ("git", "git_log")]

    assert wire_map(pairs, reserved=["repo_read"]) == {
        "doc_search": ("docs", "doc.search"),
        "git_log": ("git", "git_log"),
    }


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ([("a", "doc.search"), ("a", "doc_search")], "'doc_search' of a and 'doc.search' of a"),
        ([("a", "doc.search"), ("b", "doc.search")], "'doc.search' of b and 'doc.search' of a"),
        ([("a", "repo.read")], "'repo.read' of a and a repository tool"),
        ([("a", "t"), ("a", "t")], "'t' of a and 't' of a"),
    ],
)
def test_a_collision_names_both(pairs, named):
    with pytest.raises(ServerError, match=re.escape(named)) as refusal:
        wire_map(pairs, reserved=["repo_read"])

    assert refusal.value.kind == "tools"


@pytest.mark.parametrize(
    "schema",
    [
        PLAIN,
        {"type": "object"},
        {"type": "object", "properties": {"a.b-c_9": True}, "additionalProperties": False},
        {
            "type": "object",
            "properties": {"x": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/y"}]}},
        },
        {"type": "object", "properties": {"x": {"type": "object", "properties": {"a[b]": {}}}}},
        {"type": "object", "properties": {"anyOf": {"type": "string"}}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {}, **PLAIN},
    ],
)
def test_a_plain_object_schema_is_accepted(schema):
    assert schema_problem(schema) is None


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf", "not", "if", "enum", "$ref"])
def test_a_top_level_combination_is_refused_by_its_keyword(keyword):
    assert f'"{keyword}"' in schema_problem({**PLAIN, keyword: []})


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (None, "not an object"),
        ([], "not an object"),
        ("object", "not an object"),
        (True, "not an object"),
        ({}, '"type" is null'),
        ({"type": "string"}, '"type" is "string"'),
        ({"type": ["object", "null"]}, '"type" is ["object", "null"]'),
        ({"type": "object", "properties": []}, '"properties"'),
        ({"type": "object", "properties": {"a[b]": {}}}, '"a[b]"'),
        ({"type": "object", "properties": {"": {}}}, '""'),
        ({"type": "object", "properties": {"a\n": {}}}, "[a-zA-Z0-9_.-]{1,64}"),
        ({"type": "object", "properties": {"x" * 65: {}}}, "[a-zA-Z0-9_.-]{1,64}"),
        ({"type": "object", "properties": {"a": "string"}}, '"a"'),
        ({"type": "object", "required": "a"}, '"required"'),
        ({"type": "object", "default": float("nan")}, "NaN"),
        ({"type": "object", "description": "x" * 70_000}, "bytes"),
    ],
)
def test_what_a_provider_would_refuse_is_named(schema, named):
    assert named in schema_problem(schema)


def test_a_deeply_nested_schema_is_refused():
    schema = {"type": "string"}
    for _ in range(2000):
        schema = {"type": "object", "properties": {"a": schema}}

    assert "nested" in schema_problem(schema)


def test_a_schema_is_never_changed():
    schema = {**PLAIN, "anyOf": [{"required": ["query"]}]}
    before = repr(schema)

    schema_problem(schema)

    assert repr(schema) == before
