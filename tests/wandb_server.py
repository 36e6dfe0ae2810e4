# ruff: noqa: N802, N815
"""A small W&B server on the loopback interface: what the real client needs of it, in memory.

Runs (upsert, resume, file stream), history, files, artifacts, sweeps and their agents. A row of the file
stream stands at its offset, as on the real server: sent again it is not doubled. `fault` makes it fail.
"""

import contextlib
import gzip
import json
import math
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from tests.wandb_artifacts import ENTITY, Artifacts, node_id
from tests.wandb_sweeps import Sweeps

KEY = "0123456789abcdef" * 2 + "01234567"


class Run:
    """What the server knows of one run."""

    def __init__(self, project, name):
        self.project, self.name = project, name
        self.config, self.summary, self.tags, self.files = {}, {}, [], {}
        self.group = self.display = self.sweep = None
        self.lines = {}
        """Rows of the history by offset."""
        self.exit_code, self.preempting, self.complete = None, False, False
        self.artifacts = []

    @property
    def history(self):
        return [json.loads(self.lines[i]) for i in sorted(self.lines)]

    @property
    def state(self):
        if not self.complete:
            return "running"
        return "preempted" if self.preempting else "failed" if self.exit_code else "finished"


class WandbServer(Sweeps, Artifacts):
    """Serves until closed; use as a context manager."""

    def __init__(self):
        self.runs, self.artifacts, self.blobs, self.sweeps, self.agents = {}, {}, {}, {}, {}
        self.views = {}
        self.calls, self.unknown = Counter(), []
        self.fault: Callable[[str], object] | None = None
        """Given the operation's name, returns an HTTP status, "drop", seconds to wait, or None."""
        self.page = 50
        """Most runs in one answer."""
        self.lock = threading.RLock()
        server = self

        class Handler(_Handler):
            world = server

        self.http = _Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def environment(self, home):
        """What a client needs in its environment to talk to this server and to nobody else."""
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": KEY,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_CACHE_DIR": str(home / "cache"),
            "WANDB_CONFIG_DIR": str(home / "config"),
            "WANDB_DATA_DIR": str(home / "data"),
        }

    def clear(self):
        """Forget everything."""
        with self.lock:
            for kept in (
                self.runs,
                self.sweeps,
                self.artifacts,
                self.blobs,
                self.views,
                self.calls,
                self.unknown,
            ):
                kept.clear()
            self.fault, self.page = None, 50

    def run(self, name=None):
        """The run of this name, or the only one."""
        if name is None:
            (found,) = self.runs.values()
            return found
        return self.runs[name]

    def new_run(self, project, name):
        """The run of this name, made if there is none."""
        return self.runs.setdefault(name, Run(project, name))

    # File stream.

    def stream(self, project, name, body):
        run = self.runs.setdefault(name, Run(project, name))
        for file, chunk in (body.get("files") or {}).items():
            if file == "wandb-history.jsonl":
                for i, line in enumerate(chunk["content"]):
                    run.lines[chunk["offset"] + i] = line
            elif file == "wandb-summary.json":
                run.summary = json.loads(chunk["content"][-1])
        if "preempting" in body:
            run.preempting = body["preempting"]
        if body.get("complete"):
            run.complete, run.exit_code = True, body.get("exitcode", 0)
        return {}

    # GraphQL operations, by the name the client gives them.

    def on_GetDefaultEntity(self, _):
        return {"viewer": self._viewer()}

    on_Viewer = on_GetDefaultEntity

    def _viewer(self):
        return {
            "id": "u1", "flags": "{}", "entity": ENTITY, "username": ENTITY, "email": "t@example.org",
            "name": ENTITY, "admin": False, "teams": {"edges": []}, "apiKeys": {"edges": []},
        }  # fmt: skip

    def on_RunResumeStatus(self, v):
        run = self.runs.get(v["name"])
        bucket = None
        if run is not None:
            run.complete = run.preempting = False
            bucket = {
                "id": run.name, "name": run.name, "summaryMetrics": json.dumps(run.summary),
                "displayName": run.display, "logLineCount": 0, "historyLineCount": len(run.lines),
                "eventsLineCount": 0, "historyTail": json.dumps([json.dumps(r) for r in run.history[-1:]]),
                "eventsTail": "[]", "config": json.dumps(run.config), "tags": run.tags, "notes": None,
                "wandbConfig": json.dumps({"t": 1} if run.config else {}),
            }  # fmt: skip
        return {"model": {**self._project(v["project"]), "bucket": bucket}}

    def on_UpsertBucket(self, v):
        inserted = v["name"] not in self.runs
        run = self.runs.setdefault(v["name"], Run(v["project"], v["name"]))
        run.project = v["project"] or run.project
        for ours, theirs in (
            ("group", "groupName"), ("display", "displayName"), ("sweep", "sweep"), ("tags", "tags")
        ):  # fmt: skip
            if v.get(theirs) is not None:
                setattr(run, ours, v[theirs])
        if v.get("config"):
            run.config = json.loads(v["config"])
        if v.get("summaryMetrics"):
            run.summary = json.loads(v["summaryMetrics"])
        bucket = {
            "id": run.name, "name": run.name, "displayName": run.display, "description": None,
            "config": json.dumps(run.config), "sweepName": run.sweep, "project": self._project(run.project),
            "historyLineCount": len(run.lines),
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def on_CreateRunFiles(self, v):
        files = [{"name": f, "uploadUrl": f"{self.url}/storage/{v['run']}/{f}"} for f in v["files"]]
        return {"createRunFiles": {"runID": v["run"], "uploadHeaders": [], "files": files}}

    def on_ServerFeaturesQuery(self, _):
        return {"serverInfo": {"features": []}}

    # Reading back.

    def on_Run(self, v):
        run = self.runs.get(v["name"])
        return {"project": {"run": run and self._described(run)}}

    on_RunHistoryKeys = on_FullRun = on_RunFullData = on_Run

    def on_Runs(self, v):
        found = [r for r in self.runs.values() if r.project == v["project"]]
        first = int(v.get("cursor") or 0)
        last = min(len(found), first + min(v["perPage"], self.page))
        edges = [
            {"node": self._described(r), "cursor": str(i)} for i, r in enumerate(found[first:last], first + 1)
        ]
        page = {"endCursor": str(last), "hasNextPage": last < len(found)}
        listed = {"edges": edges, "pageInfo": page}
        return {"project": {"internalId": "1", "runCount": len(found), "readOnly": False, "runs": listed}}

    def on_RunParquetHistory(self, v):
        live = [_as_served(r) for r in self.runs[v["runName"]].history]
        return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": live}}}}

    def on_HistoryPage(self, v):
        rows = [r for r in self.runs[v["run"]].history if v["minStep"] <= r["_step"] < v["maxStep"]]
        return {"project": {"run": {"history": [json.dumps(_as_served(r)) for r in rows]}}}

    def _described(self, run):
        steps = [r["_step"] for r in run.history]
        return {
            "projectId": "1", "id": run.name, "name": run.name, "displayName": run.display, "tags": run.tags,
            "sweepName": run.sweep, "state": run.state, "config": json.dumps(run.config), "group": run.group,
            "jobType": None, "commit": None, "readOnly": False, "createdAt": "2026-01-01T00:00:00Z",
            "heartbeatAt": "2026-01-01T00:00:00Z", "description": None, "notes": None,
            "systemMetrics": "{}", "summaryMetrics": json.dumps(run.summary),
            "historyLineCount": len(run.lines), "user": {"name": ENTITY, "username": ENTITY},
            "historyKeys": {"lastStep": max(steps, default=-1), "keys": {}},
        }  # fmt: skip

    # Views (workspaces).

    def on_View(self, v):
        found = [x for x in self.views.values() if x["name"] == v["viewName"]]
        edges = [{"node": {k: x[k] for k in ("id", "name", "displayName", "spec")}} for x in found]
        return {"project": {"allViews": {"edges": edges}}}

    def on_UpsertView2(self, v):
        inserted = "id" not in v
        key = v.get("id") or node_id("View", str(len(self.views)))
        self.views[key] = {**v, "id": key}
        return {"upsertView": {"view": {"id": key, "name": v["name"]}, "inserted": inserted}}

    def _project(self, name):
        return {"id": name, "name": name, "entityName": ENTITY, "entity": {"id": ENTITY, "name": ENTITY}}

    # Requests.

    def graphql(self, name, query, variables):
        known = getattr(self, f"on_{name}", None)
        if known is None:
            self.unknown.append((name, query, variables))
            return {"errors": [{"message": f"unknown operation {name}"}]}
        return {"data": known(variables)}


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Clients that go away are part of the tests; anything else is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    world: WandbServer
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self._body()
        if self.path == "/graphql":
            request = json.loads(body)
            name = request.get("operationName") or _operation(request["query"])
            self._answer(
                name, lambda: self.world.graphql(name, request["query"], request.get("variables") or {})
            )
        elif match := re.fullmatch(r"/files/(?:([^/]+)/)?([^/]+)/([^/]+)/file_stream", self.path):
            self._answer("file_stream", lambda: self.world.stream(match[2], match[3], json.loads(body)))
        else:
            self._reply(404, b"{}")

    def do_PUT(self):
        body = self._body()

        def keep():
            self.world.blobs[unquote(self.path)] = body
            return {}

        self._answer("upload", keep)

    def do_GET(self):
        def give():
            return self.world.blobs[unquote(self.path)]

        self._answer("download", give) if unquote(self.path) in self.world.blobs else self._reply(404, b"{}")

    def _body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, name, work):
        world = self.world
        with world.lock:
            world.calls[name] += 1
            fault = world.fault(name) if world.fault else None
        if fault == "drop":
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(2)
            return
        if isinstance(fault, float):
            time.sleep(fault)
        elif fault is not None:
            self._reply(fault, json.dumps({"errors": [{"message": "no"}], "error": "no"}).encode())
            return
        with world.lock:
            result = work()
        self._reply(200, result if isinstance(result, bytes) else json.dumps(result).encode())

    def _reply(self, status, body):
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def _as_served(value):
    """A history row as W&B gives it back: numbers that JSON lacks are texts."""
    if isinstance(value, dict):
        return {k: _as_served(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _operation(query):
    found = re.search(r"(?:query|mutation)\s+(\w+)", query)
    return found[1] if found else "anonymous"
