"""A small whole study to break in one place at a time."""

from __future__ import annotations

import copy
import json
import re
import tomllib

import pytest

from pytest_studyminimal.protocol.errors import StudyFileError
from pytest_studyminimal.protocol.manifest import load

TOML = """
schema = 1
id = "little-study"
title = "A study"   # a comment
question = "Which arm is better?"

[prompt]
system = "Be brief."

[limits]
turns = 8

[budget]
pilot_usd = "1"
full_usd = "2.50"
attempt_usd = "0.10"

[connections.api]
transport = "messages-api"
base_url = "https://api.example.com"
key = "EXAMPLE_API_KEY"
model = "claude-haiku-5-5"
temperature = "0.2"

[prices]
source = "a list"
date = "2026-10-10"

[[prices.tiers]]
up_to_prompt_tokens = 100000
input = "0.10"
output = "0.50"
cache_read = "0.01"
cache_write_5m = "0.125"
cache_write_1h = "0.20"

[[prices.tiers]]
input = "0.50"
output = "2.50"
cache_read = "0.05"
cache_write_5m = "0.625"
cache_write_1h = "1.00"

[corpora.project]
commit = "2de0130e29711eced5eb9674b5b19e6e8335bd67"
exclude = ["docs"]

[servers.docs]
argv = ["{python}", "server.py", "{export}"]
allow = ["doc.search", "doc.get"]
ready = { tool = "doc.search", arguments = { query = "budget", limit = 1.5 } }
env = { MODE = "quiet" }
identity = ["server.py"]

[scenarios.plain]
tools = ["list", "read"]

[scenarios.docs-mcp]
tools = ["list", "read"]
servers = ["docs"]

[[tasks]]
id = "one"
corpus = "project"
question = "What is one?"

[[tasks]]
id = "two"
corpus = "project"
question = "What is two?"

[schedule]
repetitions = 2

[pilot]
tasks = 1

[adjudicator]
connection = "api"
attempt_usd = "0.05"
"""

REMOVED = object()


def study_table(**changes):
    """Return the study as plain values; `changes` are keyed by place, with `__` for a dot."""
    table = tomllib.loads(TOML)
    for place, value in changes.items():
        put(table, place.replace("__", "."), value)
    return table


def put(table, place, value):
    """Set the value at a place such as `prices.tiers[1].input`; REMOVED takes it out."""
    *way, last = [
        int(index) if index else name for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place)
    ]
    for part in way:
        table = table[part]
    if value is REMOVED:
        del table[last]
    elif isinstance(last, int) and last == len(table):
        table.append(value)
    else:
        table[last] = value


def changed(place, value):
    """Return the study with one place changed."""
    table = copy.deepcopy(study_table())
    put(table, place, value)
    return table


def write(folder, content, name=None):
    """Write a study folder; `content` is a table (as JSON), text or bytes (as TOML)."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(content, (dict, list)):
        content, name = json.dumps(content), name or "study.json"
    if isinstance(content, str):
        content = content.encode()
    file = folder / (name or "study.toml")
    file.write_bytes(content)
    key = folder / "answers.toml"
    if not key.exists():
        key.write_text("[tasks]\n")
    return file


def refusal(folder, content, name=None):
    """Return the refusal of a study without its file's name; it must be one clean line that names it."""
    file = write(folder, content, name)
    with pytest.raises(StudyFileError) as refused:
        load(folder)
    return one_clean_line(str(refused.value), file)


def one_clean_line(message, file):
    """Return a message without the name of its file."""
    assert message.startswith(f"{file}: ")
    rest = message.removeprefix(f"{file}: ")
    assert all(char.isprintable() for char in rest), rest
    assert "found " in rest
    assert ", required " in rest
    assert len(rest) < 700
    return rest
