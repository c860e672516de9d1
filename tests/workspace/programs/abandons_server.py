"""Starts a server as an attempt does, says so, and waits to be killed."""

import sys
import time
from pathlib import Path

from pytest_studyminimal.protocol.study import Limits, Readiness, Server
from pytest_studyminimal.workspace.places import Places
from pytest_studyminimal.workspace.servers import RunningServer, preflight

program, mode, note = sys.argv[1:]
ready = Readiness(tool="doc.search", arguments={"query": "ready"})
spec = Server(argv=("{python}", program, mode, note), allow=("doc.search",), ready=ready)
places = Places(python=sys.executable, study=Path(note).parent)
facts = preflight("docs", spec, places, Limits())
with RunningServer("docs", spec, places, facts, Limits()) as server:
    sys.stdout.write(f"started {server.pid}\n")
    sys.stdout.flush()
    if mode == "call-hang":
        server.call("doc.search", {}, timeout_s=60)
    time.sleep(60)
