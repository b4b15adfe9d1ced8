"""The page: whole in one file, and what a browser makes of it."""

import re
import shutil
import subprocess
from importlib.resources import files

import pytest
import torch
from serving.served import INPUTS, TASKS, call, infer

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def test_it_asks_nobody_else_for_anything(server):
    reply = call(server, "GET", "/")
    text = reply.content.decode()
    assert text == files("superpose.serving").joinpath("page.html").read_text(encoding="utf-8")
    assert re.findall(r"""(?:src|href)=["'](?!data:,)""", text) == []
    assert "://" not in text
    assert "default-src 'none'" in reply.headers["content-security-policy"]


def test_what_it_shows(server):
    x = torch.randn(3, INPUTS)
    infer(server, "dogs", x)
    infer(server, "dogs", x[:, :2])
    told = call(server, "GET", "/live.json").json
    assert [one["name"] for one in told["tasks"]] == TASKS
    dogs = told["tasks"][1]
    assert (dogs["requests"], dogs["rows"], dogs["errors"], dogs["ready"]) == (1, 3, 1, True)
    assert 0 < dogs["p50_ms"] <= dogs["p99_ms"]
    assert told["version"] == server.service.repository.version.name


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_lists_the_tasks(server):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    shown = subprocess.run(
        [*command, "--virtual-time-budget=5000", f"{server.url}/"],
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    for task in TASKS:
        assert f'<td title="{task}">{task}</td>' in shown
    assert '<h1 id="title">many</h1>' in shown
