"""Starts an MCP server for an agent CLI exactly as preflight did: folder, environment, program.

Run as `python -I -S launch.py FILE`; FILE is private JSON with `argv`, `cwd` and `env`. So nothing of
the agent's own environment reaches the server, and nothing secret stands in an argument.
"""

import json
import os
import sys

if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - -S keeps this start short
        start = json.load(file)
    os.chdir(start["cwd"])
    try:
        os.execvpe(start["argv"][0], start["argv"], start["env"])  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"{start['argv'][0]}: {error.strerror}")
