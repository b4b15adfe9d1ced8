"""The image and the manifest of docs/serving.md, as far as they can be checked here."""

import json
import re

import pytest
import yaml
from scripts import ROOT
from serving.served import call

from superpose import cli
from superpose.cli import ServeCommand

TEXT = (ROOT / "docs" / "serving.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def image():
    """The instructions of the image, and their arguments."""
    (text,) = blocks("dockerfile")
    return dict(line.split(" ", 1) for line in text.splitlines())


def manifests():
    return [one for text in blocks("yaml") for one in yaml.safe_load_all(text)]


def containers():
    for one in manifests():
        if "template" in one["spec"]:
            yield from one["spec"]["template"]["spec"]["containers"]


@pytest.fixture
def understood(monkeypatch):
    """What the command line makes of words."""

    def run(words):
        ran = []
        monkeypatch.setattr(ServeCommand, "run", lambda command: ran.append(command))
        cli.main(words)
        return ran[0]

    return run


def test_the_image_runs_a_command_that_is_understood(understood):
    assert list(image()) == ["FROM", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"]
    program, *words = json.loads(image()["ENTRYPOINT"])
    command = understood([*words, *json.loads(image()["CMD"])])
    assert (program, command.host) == ("superpose", "0.0.0.0")
    assert image()["EXPOSE"].split() == [str(command.port), str(command.grpc_port)]


def test_the_manifests_fit_the_image_and_the_server(understood, server):
    kinds = [one["kind"] for one in manifests()]
    assert kinds == ["Deployment", "Service"]
    deployment, service = manifests()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    found = list(containers())
    assert len(found) == 1
    for container in found:
        _, *words = json.loads(image()["ENTRYPOINT"])
        command = understood([*words, *container.get("args", json.loads(image()["CMD"]))])
        ports = {command.port, command.grpc_port} - {-1}
        assert {one["containerPort"] for one in container["ports"]} == ports
        for kind in ("readinessProbe", "livenessProbe"):
            probe = container.get(kind, {}).get("httpGet")
            if probe:
                assert probe["port"] == command.port
                assert call(server, "GET", probe["path"]).status == 200
        mounts = {one["mountPath"] for one in container["volumeMounts"]}
        needed = (command.file, command.token_file, command.control_token_file)
        assert {str(path.parent) for path in needed if path} <= mounts
