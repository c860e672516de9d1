#!/usr/bin/env python3
"""A stand-in for Claude Code: reads its own arguments as the real one does, answers without a model.

It writes what it was started with beside itself (`started-N.json`), then behaves as `behaviour.json`
beside it says. Everything else is a clean attempt.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(os.path.abspath(__file__)).parent  # noqa: PTH100
SAID = HERE / "behaviour.json"
BEHAVIOUR = json.loads(SAID.read_text()) if SAID.exists() else {}
VALUES = (
    *("--model", "--output-format", "--max-budget-usd", "--permission-mode"),
    *("--permission-prompts", "--tools", "--allowedTools", "--disallowedTools", "--mcp-config"),
)
VARIADIC = {"--tools", "--allowedTools", "--disallowedTools", "--mcp-config"}


def parsed(arguments):
    """Options and positional words as a parser with variadic options takes them."""
    options, words, place = {}, [], 0
    while place < len(arguments):
        word = arguments[place]
        if word == "--":
            words += arguments[place + 1 :]
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
        elif word in VARIADIC:
            values = []
            while place + 1 < len(arguments) and not arguments[place + 1].startswith("-"):
                place += 1
                values.append(arguments[place])
            options[word] = values
        elif word in VALUES:
            place += 1
            options[word] = arguments[place]
        else:
            name, _, value = word.partition("=")
            options[name] = value or True
        place += 1
    return options, words


def counted(name):
    for number in range(10_000):
        try:
            return (HERE / f"{name}-{number}.json").open("x"), number
        except FileExistsError:
            continue
    raise AssertionError


def version():
    file, number = counted("version")
    file.close()
    if BEHAVIOUR.get("vanishes"):
        Path(sys.argv[0]).chmod(0o644)
    versions = BEHAVIOUR.get("versions", ["2.1.296 (Claude Code)"])
    sys.stdout.write(versions[min(number, len(versions) - 1)] + "\n")


def say(event):
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def init(options):
    servers = list(json.loads(options["--mcp-config"][0])["mcpServers"])
    tools = [name for name in options["--allowedTools"][0].split(",") if name]
    say(
        {
            "type": "system",
            "subtype": "init",
            "cwd": str(Path.cwd()),
            "tools": sorted(tools),
            "mcp_servers": [{"name": name, "status": "connected"} for name in servers],
            "model": options["--model"],
            "claude_code_version": BEHAVIOUR.get("init_version", "2.1.296"),
        }
    )


def turn(options, content, name):
    usage = {"input_tokens": 600, "output_tokens": 1, "cache_read_input_tokens": 2600}
    message = {"id": name, "model": options["--model"], "role": "assistant", "content": content}
    say({"type": "assistant", "message": {**message, "usage": usage}})


def result(options, text):
    usage = {
        "input_tokens": 1200,
        "output_tokens": 340,
        "cache_read_input_tokens": 5200,
        "cache_creation_input_tokens": 3100,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 3100},
    }
    counts = {
        "inputTokens": 1200,
        "outputTokens": 340,
        "cacheReadInputTokens": 5200,
        "cacheCreationInputTokens": 3100,
    }
    return {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "duration_ms": 40,
        "duration_api_ms": 30,
        "num_turns": 2,
        "result": text,
        "stop_reason": "end_turn",
        "total_cost_usd": 0.000962,
        "usage": usage,
        "modelUsage": {options["--model"]: counts},
        "permission_denials": [],
        **BEHAVIOUR.get("result", {}),
    }


def start_others():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    for own_session in BEHAVIOUR.get("children", []):
        subprocess.Popen([sys.executable, "-c", code, str(HERE)], start_new_session=own_session)


def main():
    if "--version" in sys.argv:
        version()
        return 0
    options, words = parsed(sys.argv[1:])
    file, _ = counted("started")
    with file:
        record = {
            "argv": sys.argv[1:],
            "prompt": words,
            "cwd": str(Path.cwd()),
            "env": dict(os.environ),
        }
        record["writable"] = os.access(".", os.W_OK) and os.geteuid() != 0
        record["mode"] = oct(Path().stat().st_mode)[-4:]
        json.dump(record, file)
    sys.stdin.read()
    if BEHAVIOUR.get("ignores_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_others()
    init(options)
    for line in BEHAVIOUR.get("lines", []):
        say(line)
    sys.stdout.write(BEHAVIOUR.get("text", ""))
    sys.stderr.write(BEHAVIOUR.get("stderr", ""))
    answer = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": "x" * BEHAVIOUR.get("bytes", 9),
    }
    turn(
        options, [{"type": "tool_use", "id": "c1", "name": "Grep", "input": {"pattern": "a"}}], "m1"
    )
    say({"type": "user", "message": {"role": "user", "content": [answer]}})
    if BEHAVIOUR.get("dies"):
        os.kill(os.getpid(), getattr(signal, BEHAVIOUR["dies"]))
    (HERE / "half").touch()
    if BEHAVIOUR.get("hangs") == "before":
        time.sleep(600)
    text = BEHAVIOUR.get("answer", "The cap is cumulative: docs/budget.md:3.")
    turn(options, [{"type": "text", "text": text}], "m2")
    say(result(options, text))
    if BEHAVIOUR.get("hangs") == "after":
        time.sleep(600)
    return BEHAVIOUR.get("exit", 0)


if __name__ == "__main__":
    sys.exit(main())
