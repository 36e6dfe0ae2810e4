# ruff: noqa: N802
"""The artifacts of the small W&B server: one version per distinct digest, as on the real server."""

import base64

ENTITY = "tester"


class Artifacts:
    """Operations on artifacts; mixed into the server."""

    def on_ArtifactType(self, v):
        return {"project": {"artifact": None}}

    def on_CreateArtifact(self, v):
        given = v["input"]
        name = given["artifactCollectionName"]
        versions = self.artifacts.setdefault(name, {})
        known = given["digest"] in versions
        found = versions.setdefault(given["digest"], {"id": node_id("Artifact", f"{name}:{len(versions)}")})
        found.setdefault("files", {})
        run = self.runs[given["runName"]]
        if name not in run.artifacts:
            run.artifacts.append(name)
        state = "COMMITTED" if known and found.get("committed") else "PENDING"
        sequence = {"latestArtifact": None}
        return {
            "createArtifact": {"artifact": {"id": found["id"], "state": state, "artifactSequence": sequence}}
        }

    def on_RunOutputArtifacts(self, v):
        nodes = [
            self._artifact_node(v["project"], name, i, found)
            for name in self.runs[v["run"]].artifacts
            for i, found in enumerate(self.artifacts[name].values())
        ]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        edges = [{"node": node, "cursor": "0"} for node in nodes]
        artifacts = {"totalCount": len(nodes), "pageInfo": page, "edges": edges}
        return {"project": {"run": {"artifacts": artifacts}}}

    def on_FetchArtifactManifest(self, v):
        url = self.url + self._artifact(v["id"])["manifest"]
        return {"artifact": {"currentManifest": {"file": {"directUrl": url}}}}

    def on_GetArtifactMembershipFileUrls(self, v):
        found = list(self.artifacts[v["collection"]].values())[int(v["alias"].removeprefix("v"))]
        edges = [
            {"node": {"__typename": "File", "name": name, "directUrl": self.url + path}}
            for name, path in found["files"].items()
        ]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        files = {"pageInfo": page, "edges": edges}
        collection = {"__typename": "ArtifactSequence", "artifactMembership": {"files": files}}
        return {"project": {"artifactCollection": collection}}

    def _artifact_node(self, project, name, index, found):
        owner = {"id": "1", "internalId": "1", "name": project, "entity": {"name": ENTITY}}
        collection = {"__typename": "ArtifactSequence", "name": name, "project": owner}
        alias = {
            "__typename": "ArtifactAlias",
            "id": "1",
            "alias": "latest",
            "artifactCollection": collection,
        }
        return {
            "__typename": "Artifact", "id": found["id"], "artifactSequence": collection,
            "versionIndex": index, "artifactType": {"name": "records"}, "description": None,
            "metadata": "{}", "ttlDurationSeconds": -1, "ttlIsInherited": True, "tags": [],
            "historyStep": None, "state": "COMMITTED", "size": 1, "digest": "d", "commitHash": "c",
            "fileCount": len(found["files"]), "createdAt": "2026-01-01T00:00:00Z",
            "updatedAt": "2026-01-01T00:00:00Z", "aliases": [alias],
        }  # fmt: skip

    def on_CreateArtifactManifest(self, v):
        found = self._artifact(v["artifactID"])
        found["manifest"] = f"/manifests/{v['artifactID']}"
        return {"createArtifactManifest": {"artifactManifest": self._manifest(found)}}

    def on_UpdateArtifactManifest(self, v):
        found = self._artifact(v["artifactManifestID"])
        return {"updateArtifactManifest": {"artifactManifest": self._manifest(found)}}

    def _manifest(self, found):
        file = {"id": found["id"], "uploadUrl": self.url + found["manifest"], "uploadHeaders": []}
        return {"id": found["id"], "file": file}

    def on_CreateArtifactFiles(self, v):
        edges = []
        for spec in v["input"]["artifactFiles"]:
            found = self._artifact(spec["artifactID"])
            path = f"/artifacts/{spec['artifactID']}/{spec['name']}"
            found["files"][spec["name"]] = path
            node = {
                "storagePath": path, "uploadUrl": self.url + path, "uploadHeaders": [],
                "uploadMultipartUrls": None, "artifact": {"id": found["id"]},
            }  # fmt: skip
            edges.append({"node": node})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def on_CommitArtifact(self, v):
        found = self._artifact(v["artifactID"])
        found["committed"] = True
        return {"commitArtifact": {"artifact": {"id": found["id"], "digest": "d"}}}

    def _artifact(self, artifact_id):
        return next(
            a for versions in self.artifacts.values() for a in versions.values() if a["id"] == artifact_id
        )


def node_id(kind, name):
    """An opaque id as W&B makes them."""
    return base64.b64encode(f"{kind}:{name}".encode()).decode()
