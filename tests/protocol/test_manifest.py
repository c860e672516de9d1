"""A study file: whatever is wrong with it is one line; whatever it says is in the digest."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import REMOVED, TOML, changed, one_clean_line, put, refusal, study_table, write

from pytest_studyminimal.judging.key import load_key
from pytest_studyminimal.protocol.errors import StudyFileError
from pytest_studyminimal.protocol.manifest import is_study_folder, load

AMOUNT = 'a decimal number in quotes such as "0.10"'
AMOUNTS = [
    "budget.pilot_usd",
    "budget.full_usd",
    "budget.attempt_usd",
    "adjudicator.attempt_usd",
    "connections.api.temperature",
    *(
        f"prices.tiers[{tier}].{kind}"
        for tier in (0, 1)
        for kind in ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
    ),
]
BAD_AMOUNTS = [
    *(
        "nan",
        "NaN",
        "inf",
        "Infinity",
        "-1",
        "-0.01",
        "-0",
        "+1",
        "+-1",
        "",
        " ",
        " 1",
        "1 ",
        "1\n",
    ),
    *("null", "None", "true", "1,5", "1_000", "0x10", "1e400", "1e-2", "9" * 400, "1 USD", "$1"),
    *("\u0661", "\uff11", "1.", ".5", "1.2.3", "1" + "0" * 12, "0." + "0" * 13, "unlimited"),
    *(0, 1, 0.1, -1, True, False, [], {}, ["1"], {"usd": "1"}),
]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "study"


def test_a_whole_study_loads_from_its_folder_and_from_its_file(folder):
    file = write(folder, TOML)

    assert load(folder).study == load(file).study
    assert load(folder).digest == load(file).digest
    assert load(folder).key_file == folder.resolve() / "answers.toml"
    assert is_study_folder(folder)
    assert not is_study_folder(folder.parent)


@pytest.mark.parametrize(
    ("place", "known"),
    [
        ("colour", ["adjudicator", "budget", "connections", "schema", "tasks", "title"]),
        ("prompt.colour", ["system"]),
        ("limits.colour", ["deadline_s", "output_tokens", "turns"]),
        ("budget.colour", ["attempt_usd", "full_usd", "pilot_usd"]),
        ("connections.api.colour", ["alias", "base_url", "key", "model", "transport"]),
        ("prices.colour", ["date", "source", "tiers"]),
        ("prices.tiers[1].colour", ["cache_read", "input", "output", "up_to_prompt_tokens"]),
        ("corpora.project.colour", ["bundle", "commit", "exclude", "source"]),
        ("servers.docs.colour", ["allow", "argv", "identity", "ready"]),
        ("servers.docs.ready.colour", ["arguments", "tool"]),
        ("scenarios.docs-mcp.colour", ["servers", "tools"]),
        ("tasks[1].colour", ["corpus", "id", "kind", "question", "title"]),
        ("schedule.colour", ["alternation", "parallel", "repetitions"]),
        ("pilot.colour", ["repetitions", "tasks"]),
        ("adjudicator.colour", ["attempt_usd", "connection"]),
    ],
)
def test_an_unknown_key_is_refused_with_the_keys_of_its_own_level(folder, place, known):
    line = refusal(folder, changed(place, "red"))

    assert line.startswith(f"{place}: found an unknown key, required one of ")
    listed = line.partition("required one of ")[2].split(", ")
    assert set(known) <= set(listed)
    assert listed == sorted(listed)
    if place != "colour":
        assert "scenarios" not in listed


def test_the_keys_of_a_level_are_listed_whole(folder):
    line = refusal(folder, changed("servers.docs.ready.colour", 1))

    assert line.endswith("required one of arguments, tool")


@pytest.mark.parametrize(
    "place",
    [
        *("schema", "id", "title", "question", "budget", "connections", "prices", "corpora"),
        *("scenarios", "tasks", "schedule", "schedule.repetitions", "budget.attempt_usd"),
        *(
            "prices.tiers",
            "prices.date",
            "prices.tiers[0].cache_write_1h",
            "corpora.project.commit",
        ),
        *("connections.api.model", "servers.docs.ready", "servers.docs.allow", "tasks[1].question"),
    ],
)
def test_a_missing_key_is_refused_by_name(folder, place):
    assert refusal(folder, changed(place, REMOVED)) == f"{place}: found nothing, required this key"


@pytest.mark.parametrize("place", AMOUNTS)
def test_an_amount_is_a_plain_decimal_in_quotes_and_nothing_else(folder, place):
    for bad in BAD_AMOUNTS:
        line = refusal(folder, changed(place, bad))

        assert line.startswith(f"{place}: found "), bad
        assert AMOUNT in line, bad


@pytest.mark.parametrize("place", [*AMOUNTS[:4], "prices.tiers[0].input", "prices.tiers[1].output"])
@pytest.mark.parametrize("zero", ["0", "0.00", "000.000000000000"])
def test_zero_never_means_unlimited(folder, place, zero):
    line = refusal(folder, changed(place, zero))

    assert line.startswith(f'{place}: found "{zero}", required an amount above 0')


@pytest.mark.parametrize(
    "place", ["budget.pilot_usd", "title", "tasks", "adjudicator", "tasks[0].title"]
)
def test_null_is_refused_wherever_it_stands(folder, place):
    line = refusal(folder, changed(place, None))

    assert line.startswith(f"{place}: found null, required a value")


@pytest.mark.parametrize(
    ("place", "value", "found"),
    [
        ("limits.turns", True, "true"),
        ("limits.turns", "8", '"8"'),
        ("limits.turns", 8.0, "8.0"),
        ("limits.turns", 0, "0"),
        ("limits.turns", -1, "-1"),
        ("limits.deadline_s", 1_000_000_001, "1000000001"),
        ("limits.deadline_s", 10**400, "a huge integer"),
        ("servers.docs.ready.arguments.limit", 2**53, "a huge integer"),
        ("schedule.repetitions", False, "false"),
        ("schedule.repetitions", 1001, "1001"),
        ("schedule.parallel", 1, "1"),
        ("schedule.alternation", "random", '"random"'),
        ("connections.api.alias", "yes", '"yes"'),
        ("connections.api.transport", "telnet", '"telnet"'),
        ("connections.api.model", "two words", '"two words"'),
        ("schema", 2, "2"),
        ("schema", "1", '"1"'),
        ("schema", True, "true"),
        ("kind", "workspace", '"workspace"'),
        ("id", "Study", '"Study"'),
        ("id", "a--b", '"a--b"'),
        ("id", "a\n", '"a\\n"'),
        ("id", "", '""'),
        ("title", "", '""'),
        ("title", ["a"], '["a"]'),
        ("scenarios.plain.tools", ["read", "read"], '["read", "read"]'),
        ("scenarios.plain.tools[0]", "write", '"write"'),
        ("servers.docs.argv", [], "[]"),
        ("servers.docs.argv", "python server.py", '"python server.py"'),
        ("servers.docs.allow", [], "[]"),
        ("servers.docs.allow", ["a", "a"], '["a", "a"]'),
        ("servers.docs.pass_env", ["A-B"], '"A-B"'),
        ("corpora.project.bundle", "../corpus.bundle", '"../corpus.bundle"'),
        ("corpora.project.bundle", "/corpus.bundle", '"/corpus.bundle"'),
        ("prices.date", "20261010", '"20261010"'),
        ("prices.date", "2026-13-01", '"2026-13-01"'),
        ("prices.date", "soon", '"soon"'),
        ("tasks", {}, "{}"),
        ("tasks", [], "[]"),
        ("pilot.tasks", 0, "0"),
        ("pilot.tasks", True, "true"),
        ("pilot.tasks", "one", '"one"'),
        ("pilot.tasks", [], "[]"),
        ("pilot.tasks", ["one", "one"], '["one", "one"]'),
        ("pilot.tasks", 3, "3"),
        ("pilot.repetitions", 0, "0"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_was_found(folder, place, value, found):
    line = refusal(folder, changed(place, value))

    assert line.startswith(place)
    assert f"found {found}, required " in line
    assert "found found" not in line


@pytest.mark.parametrize(
    "commit",
    [
        *("2de0130", "main", "HEAD", "", "2DE0130E29711ECED5EB9674B5B19E6E8335BD67"),
        *("2de0130e29711eced5eb9674b5b19e6e8335bd6", "2de0130e29711eced5eb9674b5b19e6e8335bd67\n"),
        "g" * 40,
    ],
)
def test_a_commit_is_pinned_in_full(folder, commit):
    line = refusal(folder, changed("corpora.project.commit", commit))

    assert line.startswith("corpora.project.commit: found ")
    assert line.endswith("required a full commit: 40 or 64 lower-case hexadecimal digits")


def test_a_sha256_commit_is_a_full_commit(folder):
    write(folder, changed("corpora.project.commit", "a" * 64))

    assert load(folder).study.corpora["project"].commit == "a" * 64


@pytest.mark.parametrize(
    ("changes", "place", "said"),
    [
        ({"tasks[1].id": "one"}, "tasks[1].id", "each task id once"),
        ({"tasks[1].corpus": "other"}, "tasks[1].corpus", "one of project"),
        ({"scenarios.plain.servers": ["docz"]}, "scenarios.plain.servers[0]", "one of docs"),
        ({"adjudicator.connection": "cli"}, "adjudicator.connection", "one of api"),
        (
            {
                "connections.judge": {
                    "transport": "messages-api",
                    "provider": "rehearsal",
                    "model": "another",
                },
                "adjudicator.connection": "judge",
            },
            "adjudicator.prices",
            "a price table of another, which is another model",
        ),
        ({"pilot.tasks": ["one", "six"]}, "pilot.tasks[1]", "the id of a task"),
        ({"pilot.tasks": 3}, "pilot.tasks", "at most 2, the number of tasks"),
        ({"scenarios.plain": REMOVED}, "scenarios", "2 or more entries"),
        ({"prices.tiers": []}, "prices.tiers", "1 or more entries"),
        ({"prices.tiers[1].up_to_prompt_tokens": 200000}, "prices", "every tier but the last"),
        ({"prices.tiers[0].up_to_prompt_tokens": REMOVED}, "prices", "every tier but the last"),
    ],
)
def test_what_does_not_fit_together_is_refused(folder, changes, place, said):
    table = study_table()
    for where, value in changes.items():
        put(table, where, value)

    line = refusal(folder, table)

    assert line.startswith(f"{place}: found ")
    assert said in line


@pytest.mark.parametrize("second", [100_000, 99_999])
def test_price_tiers_rise(folder, second):
    table = study_table()
    middle = {**table["prices"]["tiers"][0], "up_to_prompt_tokens": second}
    table["prices"]["tiers"].insert(1, middle)

    assert refusal(folder, table).endswith("required tiers with rising up_to_prompt_tokens")


def test_a_server_without_servers_is_refused_in_plain_words(folder):
    table = study_table(servers=REMOVED)

    assert "required a name that is declared (there is none)" in refusal(folder, table)


def test_a_prompt_is_measured_in_bytes_with_its_system_text(folder):
    system = len("Be brief.")
    write(folder, changed("tasks[0].question", "é" * 4091 + "x"))
    assert len(load(folder).study.task("one").question.encode()) + system == 8192

    line = refusal(folder, changed("tasks[0].question", "é" * 4092))

    assert line.startswith(
        'tasks[0].question: found "8193 bytes", required a prompt of at most 8192'
    )


def test_a_message_never_quotes_a_prompt_or_a_pasted_key(folder):
    for place, secret in (
        ("tasks[0].question", "secret" * 5000),
        ("prompt.system", "secret" * 5000),
        ("connections.api.key", "sk-ant-secret"),
        ("connections.api.base_url", "https://me:secret@api.example.com"),
        ("connections.api.base_url", "https://api.example.com/?key=secret"),
    ):
        line = refusal(folder, changed(place, secret))

        assert line.startswith(f"{place}: found text of {len(secret)} characters, required ")
        assert "secret" not in line


@pytest.mark.parametrize(
    ("url", "required"),
    [
        ("ftp://api.example.com", "an http or https address with a host"),
        ("api.example.com", "an http or https address with a host"),
        ("https://", "an http or https address with a host"),
        ("https:///v1", "an http or https address with a host"),
        ("https://api.example.com:0", "an http or https address with a host"),
        ("https://api.example.com:99999", "an http or https address with a host"),
        ("https://api.example.com:port", "an http or https address with a host"),
        ("https://[::1", "an http or https address with a host"),
        ("https://api.\nexample.com", "in plain ASCII"),
        ("https://api.example.com/a b", "in plain ASCII"),
        ("https://exämple.com", "in plain ASCII"),
        ("https://me@api.example.com", "without user, password, query or fragment"),
        ("https://@api.example.com", "without user, password, query or fragment"),
        ("https://api.example.com?", "without user, password, query or fragment"),
        ("https://api.example.com/#", "without user, password, query or fragment"),
        ("http://api.example.com", "http only on loopback"),
        ("http://127.0.0.1.example.com", "http only on loopback"),
        ("http://127.0.0.2", "http only on loopback"),
    ],
)
def test_an_unusable_address_is_refused(folder, url, required):
    line = refusal(folder, changed("connections.api.base_url", url))

    assert line.startswith("connections.api.base_url: found ")
    assert required in line


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://localhost/base/", "http://localhost/base"),
        ("http://[::1]:1", "http://[::1]:1"),
        ("https://api.example.com/anthropic/", "https://api.example.com/anthropic"),
    ],
)
def test_a_usable_address_is_kept_without_its_last_slash(folder, url, kept):
    write(folder, changed("connections.api.base_url", url))

    assert load(folder).study.connections["api"].base_url == kept


@pytest.mark.parametrize(
    ("provider", "url", "key", "works"),
    [
        ("anthropic", "https://api.example.com", "EXAMPLE_API_KEY", True),
        ("anthropic", None, "EXAMPLE_API_KEY", False),
        ("anthropic", "https://api.example.com", None, False),
        ("anthropic", None, None, False),
        ("rehearsal", None, None, True),
        ("rehearsal", "https://api.example.com", None, False),
        ("rehearsal", None, "EXAMPLE_API_KEY", False),
        ("other", None, None, False),
    ],
)
def test_a_provider_has_what_it_needs_and_no_more(folder, provider, url, key, works):
    connection = {"transport": "messages-api", "model": "m", "provider": provider}
    connection |= {"base_url": url} if url else {}
    connection |= {"key": key} if key else {}
    table = changed("connections.api", connection)

    if works:
        write(folder, table)
        assert load(folder).study.connections["api"].provider == provider
    else:
        assert refusal(folder, table).startswith("connections.api")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("servers.docs.argv", ["{python}", "{exprt}"]),
        ("servers.docs.env", {"A": "{home}"}),
        ("servers.docs.cwd", "{exprt}"),
        ("servers.docs.version", ["{pyton}"]),
        ("servers.docs.identity", ["{study_}"]),
    ],
)
def test_an_unknown_placeholder_is_named(folder, place, value):
    line = refusal(folder, changed(place, value))

    assert line.startswith("servers.docs: found ")
    assert "placeholders among {checkout}, {config}, {engine}, {export}, {python}, {study}" in line
    assert line.endswith("}")
    assert line.rpartition(", not ")[2].strip("{}") in json.dumps(value)


def test_json_braces_are_no_placeholders(folder):
    write(folder, changed("servers.docs.argv", ["{python}", '{"limit": 1}', "{}", "{1}"]))

    assert load(folder).study.servers["docs"].uses("python")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("schema = 1\nschema = 1\n", "(at line 2"),
        ("[prices]\na = 1\n[prices]\nb = 1\n", "(at line 3"),
        ("schema = \n", "(at line 1"),
        ("schema = 1" + "0" * 5000, "4300 digits"),
        ("\x7f", "(at line 1"),
        (b"schema = 1\nid = '\xff'\n", "other bytes at offset 17"),
        (b"\xef\xbb\xbfschema = 1\n", "a byte order mark"),
        (TOML.encode("utf-16"), "other bytes at offset 0"),
    ],
)
def test_what_is_no_toml_is_refused_with_its_position(folder, text, found):
    line = refusal(folder, text)

    assert found in line
    assert line.endswith("required TOML in UTF-8")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"schema": 1, "schema": 1}', 'the key "schema" twice in one object'),
        ('{"tasks": [{"id": "a", "id": "b"}]}', 'the key "id" twice'),
        ('{"a\\u001b": 1, "a\\u001b": 2}', "twice"),
        ("", "line 1 column 1"),
        ('{"schema": 1,}', "line 1 column 1"),
        ("{'schema': 1}", "line 1 column 2"),
        ("[" * 100_000, "too deeply nested"),
        ('{"schema": 1' + "0" * 5000 + "}", "4300 digits"),
        ("\ufeff{}", "a byte order mark"),
        (b'{"id": "\xff"}', "other bytes at offset 8"),
    ],
)
def test_what_is_no_json_is_refused_with_its_position(folder, text, found):
    line = refusal(folder, text, name="study.json")

    assert found in line
    assert line.endswith("required JSON in UTF-8")


def test_many_keys_with_one_twice_are_refused_at_once(folder):
    keys = ",".join(f'"k{number}": 1' for number in range(100_000))

    assert '"k99999" twice' in refusal(folder, f'{{{keys}, "k99999": 1}}', name="study.json")


@pytest.mark.parametrize("text", ["[]", "1", '"study"', "null", "true"])
def test_json_that_is_no_object_is_refused(folder, text):
    assert (
        refusal(folder, text, name="study.json") == f"found {text}, required an object at the top"
    )


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ('{"limits": {"turns": NaN}}', "limits.turns", "nan"),
        ('{"limits": {"turns": [1, -Infinity]}}', "limits.turns[1]", "-inf"),
        ('{"limits": {"turns": 1e400}}', "limits.turns", "inf"),
        ('{"id": "\\ud800"}', "id", "a surrogate or NUL character"),
        ('{"id": "a\\u0000"}', "id", "a surrogate or NUL character"),
        ('{"servers": {"\\udc80": 1}}', "a key under servers", "a surrogate or NUL character"),
        ('{"\\u001b[31m": NaN}', "\\x1b[31m", "nan"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "a[0][0][0]", "too deeply nested values"),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", "a[0][0][0]", "too deeply nested values"),
    ],
)
def test_json_values_that_no_study_can_hold_are_refused_by_place(folder, text, place, found):
    line = refusal(folder, text, name="study.json")

    assert line.startswith(place)
    assert f": found {found}, required " in line


@pytest.mark.parametrize(
    ("line", "place", "found"),
    [
        ("date = 2026-10-10", "date", "a bare date"),
        ("date = 2026-10-10T07:32:00Z", "date", "a bare datetime"),
        ("date = 07:32:00", "date", "a bare time"),
        ("date = nan", "date", "nan"),
        ("date = [+inf]", "date[0]", "inf"),
        ("date = 1e400", "date", "inf"),
        ("date = 0x" + "F" * 5000, "date", "a huge integer"),
        ("date." + "a." * 1500 + "b = 1", "date.a.a", "too deeply nested values"),
        ('date."\\u001b[2J" = nan', "date.\\x1b[2J", "nan"),
    ],
)
def test_toml_values_that_no_study_can_hold_are_refused_by_place(folder, line, place, found):
    refused = refusal(folder, TOML.replace('date = "2026-10-10"', line))

    assert refused.startswith(f"prices.{place}")
    assert f": found {found}, required " in refused


def test_control_characters_of_a_file_never_reach_a_message(folder):
    for place, value in (
        ("id", "\x1b[31m\x7f\x9b"),
        ("title", {"\x1b": 1}),
        ("tasks[0].corpus", "\u202e\u2028"),
        ("prices.\x1b(2J\n", 1),
        ("connections.\x07bell", {}),
        ("servers.docs.argv", ["{\u202eexport}", "{a_b}"]),
        ("limits.\u2028", "\n"),
    ):
        refusal(folder, changed(place, value))


def test_both_files_are_refused_and_so_is_none(folder):
    folder.mkdir()
    with pytest.raises(StudyFileError) as none:
        load(folder)
    write(folder, TOML)
    write(folder, study_table())
    with pytest.raises(StudyFileError) as both:
        load(folder)

    required = "required one of study.toml or study.json"
    assert one_clean_line(str(none.value), folder) == f"found no study file, {required}"
    assert (
        one_clean_line(str(both.value), folder)
        == f"found both study.toml and study.json, {required}"
    )


@pytest.mark.parametrize("name", ["nowhere", "a\0b", "x" * 5000])
def test_a_place_that_is_none_is_refused(tmp_path, name):
    with pytest.raises(StudyFileError, match="found "):
        load(tmp_path / name)


def test_a_study_without_an_answer_key_is_refused(folder):
    write(folder, TOML)
    (folder / "answers.toml").unlink()

    with pytest.raises(StudyFileError, match=r"answers\.toml: found no such file or directory"):
        load(folder)


def test_a_file_larger_than_any_study_is_refused_without_being_read_whole(folder):
    line = refusal(folder, b"#" * (4 * 2**20 + 1))

    assert line == "found more than 4 MiB, required a smaller file"


def test_a_directory_in_the_place_of_the_key_is_refused(folder):
    write(folder, TOML)
    (folder / "answers.toml").unlink()
    (folder / "answers.toml").mkdir()

    with pytest.raises(StudyFileError, match="found is a directory, required a readable file"):
        load(folder)


READ_AS_NOBODY = """
import os, pathlib, sys
from pytest_studyminimal.protocol import errors, manifest
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
folder = pathlib.Path(sys.argv[1])
assert not manifest.is_study_folder(folder / "closed")
for name in ("closed", "open"):
    try:
        manifest.load(folder / name)
    except errors.StudyFileError as error:
        print(error)
"""


def test_what_cannot_be_read_is_refused_and_no_traceback(tmp_path):
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        top.chmod(0o755)
        for name in ("closed", "open"):
            write(top / name, TOML)
            (top / name).chmod(0o755)
        (top / "open" / "study.toml").chmod(0o000)
        (top / "closed").chmod(0o000)
        ran = subprocess.run(
            [sys.executable, "-c", READ_AS_NOBODY, place],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        (top / "closed").chmod(0o755)

    closed, opened = ran.stdout.splitlines()
    assert ran.stderr == ""
    assert closed == f"{top / 'closed'}: found permission denied, required a readable folder"
    assert (
        opened
        == f"{top / 'open' / 'study.toml'}: found permission denied, required a readable file"
    )


def digest(folder, content, key="[tasks]\n", name=None):
    for old in ("study.toml", "study.json"):
        (folder / old).unlink(missing_ok=True)
    write(folder, content, name)
    (folder / "answers.toml").write_text(key)
    return load(folder).digest


def test_toml_and_json_of_the_same_content_have_the_same_digest(folder):
    assert digest(folder, TOML) == digest(folder, study_table())


def test_formatting_comments_and_key_order_do_not_change_the_digest(folder):
    formatted = TOML.replace(" = ", "=").replace("\n\n", "\n\n\n# another comment\n")
    reordered = dict(sorted(study_table().items()))

    assert digest(folder, formatted) == digest(folder, TOML) == digest(folder, reordered)
    assert digest(folder, changed("budget.full_usd", "2.5")) == digest(folder, TOML)


def test_a_default_that_is_written_out_does_not_change_the_digest(folder):
    assert digest(folder, changed("limits.tool_s", 30)) == digest(folder, TOML)


def test_the_order_of_arms_and_of_tasks_is_part_of_the_digest(folder):
    table, arms, tasks = study_table(), study_table(), study_table()
    arms["scenarios"] = dict(reversed(arms["scenarios"].items()))
    tasks["tasks"].reverse()

    assert len({digest(folder, one) for one in (table, arms, tasks)}) == 3


def test_the_key_file_is_part_of_the_digest_to_the_byte(folder):
    assert digest(folder, TOML, "[tasks]\n") != digest(folder, TOML, "[tasks]\n\n")


def leaves(value, place=""):
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{place}[{index}]")
    else:
        yield place, value


OTHER = {
    "connections.api.base_url": "https://api.example.org",
    "prices.date": "2026-10-11",
    "corpora.project.commit": "a" * 40,
    "scenarios.plain.tools[0]": "search",
    "scenarios.plain.tools[1]": "search",
    "scenarios.docs-mcp.tools[0]": "search",
    "scenarios.docs-mcp.tools[1]": "search",
    "pilot.tasks": 2,
    "servers.docs.ready.arguments.limit": 1.25,
}
FIXED = {
    *("schema", "connections.api.transport", "tasks[0].corpus", "tasks[1].corpus"),
    *("scenarios.docs-mcp.servers[0]", "adjudicator.connection"),
}


@pytest.mark.parametrize(
    ("place", "value"), [leaf for leaf in leaves(study_table()) if leaf[0] not in FIXED]
)
def test_every_value_is_part_of_the_digest(folder, place, value):
    other = OTHER.get(place, value + 1 if isinstance(value, int) else f"{value}1")

    assert digest(folder, changed(place, other)) != digest(folder, study_table())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("pilot.tasks", ["one"]),
        ("schedule.parallel", True),
        ("connections.api.alias", True),
        ("connections.api.version", "2024-01-01"),
        ("prompt", REMOVED),
        ("adjudicator", REMOVED),
        ("corpora.project.bundle", "corpus.bundle"),
        ("servers.docs.cwd", "{export}"),
        ("tasks[0].kind", "other"),
        ("limits.start_s", 31),
    ],
)
def test_what_is_not_left_at_its_default_is_part_of_the_digest(folder, place, value):
    assert digest(folder, changed(place, value)) != digest(folder, study_table())


@pytest.mark.parametrize(
    "value", [1e300, -0.0, 1.5, True, [], {"a": ["b", {}]}, 2**53 - 1, "\u2028é😀"]
)
def test_any_argument_that_json_holds_has_a_digest(folder, value):
    table = changed("servers.docs.ready.arguments.query", value)

    assert digest(folder, table) != digest(folder, study_table())


def test_a_local_file_gives_roots_relative_to_the_study(folder, tmp_path):
    write(folder, TOML)
    (folder / "study.local.toml").write_text(
        f'[roots]\nproject = "../checkout"\nengine = "{tmp_path}"\n'
    )

    assert load(folder).roots == {
        "project": (tmp_path / "checkout").resolve(),
        "engine": tmp_path.resolve(),
    }


def test_roots_are_no_part_of_the_protocol(folder):
    before = digest(folder, TOML)
    (folder / "study.local.toml").write_text('[roots]\nproject = "/elsewhere"\n')

    assert digest(folder, TOML) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found other tables, required only [roots]"),
        ("[rots]\nproject = '/a'\n", "found other tables, required only [roots]"),
        ("[roots]\nproject = '/a'\n[more]\n", "found other tables, required only [roots]"),
        ("roots = '/a'\n", "found other tables, required only [roots]"),
        ("[roots]\nproject = 1\n", "roots.project: found 1, required a path in quotes"),
        ("[roots]\nproject = ''\n", 'roots.project: found "", required a path in quotes'),
        ("[roots]\nproject = '~no-such-user-here/a'\n", "required a path in quotes"),
        ('[roots]\n"\\u001b[2J" = 1\n', "roots.\\x1b[2J: found 1"),
        ('[roots]\nproject = "a\\u0000"\n', "found a surrogate or NUL character"),
        ("[roots]\nproject = 0x" + "F" * 5000 + "\n", "found a huge integer"),
        ("[roots]\nproject = 2026-10-10\n", "found a bare date"),
        ("[roots\n", "required TOML in UTF-8"),
    ],
)
def test_a_bad_local_file_is_refused_by_its_own_name(folder, text, said):
    write(folder, TOML)
    local = folder / "study.local.toml"
    local.write_text(text)

    with pytest.raises(StudyFileError) as refused:
        load(folder)

    assert said in one_clean_line(str(refused.value), local.resolve())


KEY = """
[tasks.one]
propositions = ["It is one."]
sources = ["src/one.py"]

[tasks.two]
propositions = ["It is two."]
sources = ["src/two.py"]
"""


def test_a_whole_answer_key_loads(folder):
    write(folder, TOML)
    (folder / "answers.toml").write_text(KEY)

    assert load_key(load(folder)).tasks["one"].propositions == ("It is one.",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[tasks.one]\npropositions = 'the secret'\n",
            "tasks.one.propositions: found another value",
        ),
        ("[tasks.one]\npropositions = ['the secret', 'the secret']\n", "tasks.one.propositions"),
        (
            "[tasks.one]\npropositions = [2026-01-02]\n",
            "tasks.one.propositions[0]: found a bare date",
        ),
        ('[tasks.one]\n"the secret" = true\n', "tasks.one"),
        ('[tasks.one]\n"the secret" = nan\n', "a value: found nan"),
        ('[tasks."the secret"]\n', "tasks: found another value"),
        ('"the secret" = 1\n[tasks]\n', "the top level: found an unknown key"),
        ('"the secret" = 1\n"the secret" = 1\n', "found unreadable text at "),
        ('["the secret"]\n["the secret"]\n', "found unreadable text at "),
        ("[tasks.one]\nsources = ['the secret\n", "found unreadable text at "),
        ("[tasks.one]\nsources = 'the secret", "found unreadable text at "),
        ("the secret", "found unreadable text at "),
        ("a = 1" + "0" * 5000, "found unreadable text"),
        ("a = 0x" + "F" * 5000, "a value: found a huge integer"),
    ],
)
def test_a_bad_answer_key_is_refused_and_never_quoted(folder, text, said):
    write(folder, TOML)
    key = folder / "answers.toml"
    key.write_text(text)

    with pytest.raises(StudyFileError) as refused:
        load_key(load(folder))

    line = one_clean_line(str(refused.value), key.resolve())
    assert said in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (KEY.replace("tasks.two", "tasks.three"), "tasks.three: found no such task in the study"),
        (KEY.partition("[tasks.two]")[0], "found no entry for task two, required one per task"),
    ],
)
def test_an_answer_key_has_one_entry_per_task(folder, text, said):
    write(folder, TOML)
    (folder / "answers.toml").write_text(text)

    with pytest.raises(StudyFileError) as refused:
        load_key(load(folder))

    assert said in str(refused.value)


def refused_or_loaded(content, name):
    with tempfile.TemporaryDirectory() as place:
        file = write(Path(place) / "study", content, name)
        try:
            said = load(file.parent).digest
        except StudyFileError as error:
            said = str(error)
    assert all(char.isprintable() for char in said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PLACES = sorted(
    {place for place, _ in leaves(study_table())}
    | {
        "tasks",
        "scenarios",
        "prices",
        "prices.tiers",
        "servers.docs",
        "servers.docs.ready.arguments",
    }
)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["study.toml", "study.json"]))
def test_random_bytes_are_refused_and_raise_nothing_else(garbage, name):
    refused_or_loaded(garbage, name)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="[]{}=\"\n.,#\\u01aT:-+e'x ", max_size=80))
def test_random_marks_of_toml_are_refused_and_raise_nothing_else(garbage):
    refused_or_loaded(garbage, "study.toml")


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_random_json_is_refused_and_raises_nothing_else(value):
    refused_or_loaded(json.dumps(value), "study.json")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PLACES), JSON)
def test_a_random_value_anywhere_is_refused_or_has_a_digest(place, value):
    table = copy.deepcopy(study_table())
    put(table, place, value)
    refused_or_loaded(json.dumps(table), "study.json")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted({place.rpartition(".")[0] for place in PLACES if "." in place})),
    st.text(),
)
def test_a_random_key_anywhere_is_refused_or_has_a_digest(place, name):
    table = copy.deepcopy(study_table())
    level = {}
    put(table, f"{place}.here", level)
    parent = json.dumps(table).replace('"here"', json.dumps(name))
    refused_or_loaded(parent, "study.json")
