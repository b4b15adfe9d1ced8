"""The page: whole in one file, and what it reads of the metrics."""

import json
import re
import shutil
import subprocess
from importlib.resources import files

import pytest
import torch
from serving.served import INPUTS, TASKS, call, infer

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
NODE = shutil.which("node")


def html():
    return files("superpose.serving").joinpath("page.html").read_text(encoding="utf-8")


def test_it_asks_nobody_else_for_anything(server):
    reply = call(server, "GET", "/")
    text = reply.content.decode()
    assert text == html()
    assert re.findall(r"""(?:src|href)=["'](?!data:,)""", text) == []
    assert "://" not in text
    assert "default-src 'none'" in reply.headers["content-security-policy"]


READ = """
const {server, tasks} = countersOf(parseMetrics(require("fs").readFileSync(0, "utf8")));
for (const task of tasks.values()) task.median = quantile(task.buckets, 0.5);
console.log(JSON.stringify({server, tasks: Object.fromEntries(tasks)}));
"""


def read_by_the_page(text):
    functions = re.findall(r"^function \w+\(.*?^}$", html(), re.MULTILINE | re.DOTALL)
    script = "\n".join(functions) + READ
    ran = subprocess.run([NODE, "-e", script], input=text, capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
def test_it_reads_the_metrics(server):
    x = torch.randn(3, INPUTS)
    infer(server, "últimos", x)
    infer(server, "a/b c", x)
    infer(server, "a/b c", x[:, :2])
    shown = read_by_the_page(call(server, "GET", "/metrics").content)
    assert shown["server"]["superpose_batch_rows_sum"] == 6
    assert shown["server"]["superpose_queue_rows"] == 0
    one, other = shown["tasks"]["últimos"], shown["tasks"]["a/b c"]
    assert (one["requests"], one["rows"], one["errors"]) == (1, 3, 0)
    assert (other["requests"], other["rows"], other["errors"]) == (1, 3, 1)
    assert 0 < one["median"] < 10


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
def test_quantiles_and_names_that_are_quoted():
    text = 'superpose_latency_seconds_bucket{le="%s",task="a \\"b\\" \\\\c"} %d\n'
    buckets = (("0.1", 0), ("0.2", 3), ("0.4", 4), ("+Inf", 4))
    shown = read_by_the_page("".join(text % bucket for bucket in buckets).encode())
    assert list(shown["tasks"]) == ['a "b" \\c']
    assert shown["tasks"]['a "b" \\c']["median"] == pytest.approx(0.1 + 0.1 * 2 / 3)


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
