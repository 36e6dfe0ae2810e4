# ruff: noqa: N802, N815
"""The sweeps of the small W&B server: a grid, handed out trial by trial at an agent's heartbeats."""

import itertools
import json

import yaml


class Sweeps:
    """Operations on sweeps; mixed into the server."""

    def on_UpsertSweep(self, v):
        name = f"sweep{len(self.sweeps)}"
        config = yaml.safe_load(v["config"])
        values = [p.get("values", [p.get("value")]) for p in config["parameters"].values()]
        trials = [dict(zip(config["parameters"], x, strict=True)) for x in itertools.product(*values)]
        self.sweeps[name] = {"config": v["config"], "project": v["projectName"], "left": trials, "runs": []}
        return {"upsertSweep": {"sweep": self._sweep(name), "configValidationWarnings": []}}

    def _sweep(self, name):
        found = self.sweeps[name]
        return {
            "id": name, "name": name, "method": "grid", "state": "RUNNING", "description": None,
            "config": found["config"], "createdAt": "2026-01-01T00:00:00Z", "heartbeatAt": None,
            "updatedAt": None, "earlyStopJobRunning": False, "controller": None, "scheduler": None,
            "priorRuns": {"edges": []}, "runs": {"edges": []}, "project": self._project(found["project"]),
        }  # fmt: skip

    def on_Sweep(self, v):
        return {"project": {"sweep": self._sweep(v["sweep"])}}

    on_SweepWithRuns = on_Sweep

    def on_CreateAgent(self, v):
        self.agents["agent"] = v["sweep"]
        return {"createAgent": {"agent": {"id": "agent"}}}

    def on_Heartbeat(self, v):
        sweep = self.sweeps[self.agents[v["id"]]]
        alive = any(json.loads(v["runState"]).values())
        commands = []
        if sweep["left"] and not alive:
            args = {k: {"value": x} for k, x in sweep["left"].pop(0).items()}
            run_id = f"trial{len(sweep['runs'])}"
            sweep["runs"].append(run_id)
            # The real server makes the run, with these settings as its config, before the process does.
            run = self.new_run(sweep["project"], run_id)
            run.config, run.sweep = dict(args), self.agents[v["id"]]
            commands = [{"type": "run", "run_id": run_id, "args": args, "program": "study/run.py"}]
        elif not alive:
            commands = [{"type": "exit", "exit_flag": True}]
        answer = {"agent": {"id": v["id"]}, "commands": json.dumps(commands)}
        return {"agentHeartbeat": answer}
