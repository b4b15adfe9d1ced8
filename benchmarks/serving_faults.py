"""Clients that vanish, signals, changes, nonsense requests and overload against a running server.

    OMP_NUM_THREADS=1 python benchmarks/serving_faults.py --out results/serving/faults.json

Every trial is against `superpose serve` in a process of its own, on loopback. Every answer is
compared with the model in process; one that differs is counted as wrong.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import nn

import superpose as sp

INPUTS = 64
TOKEN = "control"
TASKS = [f"task {number}" for number in range(16)]
ATOL = 1e-3


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 256), nn.ReLU(), nn.Linear(256, 10))


class Known:
    """A file of many models, inputs, and the right answers of each task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.x = torch.randn(32, INPUTS, generator=torch.Generator().manual_seed(0))
        self.file = folder / "many.safetensors"
        (folder / "token").write_text(TOKEN)
        self.right = self.save(0)

    def save(self, seed: int) -> dict[str, np.ndarray]:
        """Write a file of other models, and return their answers."""
        torch.manual_seed(seed)
        model = sp.superpose(make(), tasks=TASKS).eval()
        sp.save(model, self.file)
        with torch.no_grad():
            return {task: model(self.x, task=task).numpy() for task in TASKS}

    def body(self, row: int) -> bytes:
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, INPUTS]}
        return json.dumps({"inputs": [{**tensor, "data": self.x[row].tolist()}]}).encode()


class Running:
    """`superpose serve` as a process."""

    def __init__(self, known: Known, *words: str) -> None:
        command = [sys.executable, "-m", "superpose", "serve", str(known.file), "--json"]
        net = ["--net", f"{Path(__file__).stem}:make"]
        ports = ["--port", "0", "--grpc-port", "-1"]
        token = ["--control-token-file", str(known.folder / "token")]
        self.process = subprocess.Popen(
            [*command, *net, *ports, *token, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parent,
        )
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["url"]
        self.port = int(self.url.rpartition(":")[2])

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        with self.process:
            return self.process.wait(60)

    def post(self, path: str, body: bytes, control: bool = False) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {TOKEN}"} if control else {}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def infer(self, known: Known, task: str, row: int) -> tuple[int, bool]:
        """The status, and whether the answer is right."""
        path = f"/v2/models/{task.replace(' ', '%20')}/infer"
        status, answer = self.post(path, known.body(row))
        if status != 200:
            return status, True
        numbers = np.array(answer["outputs"][0]["data"])
        return status, bool(np.abs(numbers - known.right[task][row]).max() < ATOL)


def vanishing(known: Known, count: int) -> dict[str, Any]:
    """Clients that are gone in the middle of a request, while others are answered."""
    server = Running(known)
    statuses: list[tuple[int, bool]] = []
    over = threading.Event()

    def others() -> None:
        while not over.is_set():
            statuses.append(server.infer(known, random.choice(TASKS), random.randrange(32)))

    watch = [threading.Thread(target=others) for _ in range(4)]
    for one in watch:
        one.start()
    body = known.body(0)
    head = (
        f"POST /v2/models/task%200/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    whole = head.encode() + body

    async def vanish() -> None:
        for number in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(whole[: random.randrange(1, len(whole))] if number % 2 else whole)
            writer.transport.abort()
            await asyncio.sleep(0.02)

    asyncio.run(vanish())
    over.set()
    for one in watch:
        one.join()
    after = server.infer(known, "task 1", 1)
    return {
        "clients that vanished": count,
        "requests of others": len(statuses),
        "of these failed": sum(status != 200 for status, _ in statuses),
        "of these wrong": sum(not right for _, right in statuses),
        "answers after it": after == (200, True),
        "exit code": server.stop(),
    }


def terminated(known: Known, count: int) -> dict[str, Any]:
    """SIGTERM under load: whatever was accepted is answered."""
    lost = answered = wrong = refused = 0
    codes = []
    for _ in range(count):
        server = Running(known)
        outcome = asyncio.run(_until_gone(server, known))
        codes.append(server.process.wait(60))
        lost += outcome["lost"]
        answered += outcome["answered"]
        wrong += outcome["wrong"]
        refused += outcome["refused"]
    return {
        "SIGTERMs": count,
        "answered": answered,
        "accepted and lost": lost,
        "wrong": wrong,
        "refused while it stopped (503)": refused,
        "exit codes": sorted(set(codes)),
    }


async def _until_gone(server: Running, known: Known) -> dict[str, int]:
    """Clients ask on until the server is gone.

    A request is lost if it was sent on a connection on which the server sends half an answer. One
    that the server closes, without a byte, was not accepted: HTTP lets a client send it again.
    """
    found = {"answered": 0, "lost": 0, "wrong": 0, "refused": 0}

    async def client() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            except OSError:
                return
            while True:
                task, row = random.choice(TASKS), random.randrange(32)
                body = known.body(row)
                path = f"/v2/models/{task.replace(' ', '%20')}/infer"
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                try:
                    writer.write(head.encode() + body)
                    top = await reader.readuntil(b"\r\n\r\n")
                except asyncio.IncompleteReadError as error:
                    found["lost"] += bool(error.partial)
                    break
                except OSError:
                    break
                size = int(top.lower().partition(b"content-length:")[2].split()[0])
                try:
                    told = json.loads(await reader.readexactly(size))
                except (asyncio.IncompleteReadError, OSError):
                    found["lost"] += 1
                    break
                if b" 200 " not in top[:15]:
                    found["refused"] += 1
                    break
                answer = np.array(told["outputs"][0]["data"])
                found["answered"] += 1
                found["wrong"] += bool(np.abs(answer - known.right[task][row]).max() >= ATOL)
                if b"connection: close" in top.lower():
                    break
            writer.close()

    clients = [asyncio.create_task(client()) for _ in range(16)]
    await asyncio.sleep(0.2)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*clients)
    return found


def changing(known: Known, count: int) -> dict[str, Any]:
    """Load and unload while requests run: the file is another one, and tasks come and go."""
    server = Running(known)

    def version() -> str:
        index = server.post("/v2/repository/index", b"{}")[1]
        return str(index[0]["version"])

    right = {version(): known.right}
    answers: list[tuple[int, str, str, int, Any]] = []
    over = threading.Event()

    def request() -> None:
        while not over.is_set():
            task, row = random.choice(TASKS), random.randrange(32)
            path = f"/v2/models/{task.replace(' ', '%20')}/infer"
            status, answer = server.post(path, known.body(row))
            numbers = np.array(answer["outputs"][0]["data"]) if status == 200 else None
            answers.append((status, answer.get("model_version", ""), task, row, numbers))

    clients = [threading.Thread(target=request) for _ in range(3)]
    for client in clients:
        client.start()
    before = server.memory_mb()
    failures = 0
    for cycle in range(count):
        loading = cycle % 2 == 0
        saved = known.save(cycle // 2 % 4) if loading else {}
        for call in ("many/load",) if loading else ("task%2015/unload", "task%2015/load"):
            status, _ = server.post(f"/v2/repository/models/{call}", b"{}", control=True)
            failures += status != 200
        if loading:
            right[version()] = saved
    over.set()
    for client in clients:
        client.join()
    known.right = known.save(0)
    judged = [answer for answer in answers if answer[0] == 200]
    wrong = sum(np.abs(x - right[v][t][r]).max() >= ATOL for _, v, t, r, x in judged)
    others = sorted({answer[0] for answer in answers} - {200})
    return {
        "cycles": count,
        "calls that failed": failures,
        "versions served": len(right),
        "answers compared": len(judged),
        "wrong": int(wrong),
        "other statuses (404: the task was unloaded)": {
            status: sum(answer[0] == status for answer in answers) for status in others
        },
        "memory before and after, MB": [round(before), round(server.memory_mb())],
        "exit code": server.stop(),
    }


def fuzzed(known: Known, count: int) -> dict[str, Any]:
    """Requests that are nonsense in many ways."""
    server = Running(known, "--body-mb", "1")
    generator = random.Random(0)
    good = known.body(0)
    statuses: dict[int, int] = {}
    memory = []

    def value(depth: int = 0) -> Any:
        simple = [None, True, -1, 0, 3, 1e300, 2**70, "", "x", "FP32", "\ud800", [], {}, [1.5] * 64]
        if depth < 3 and generator.random() < 0.4:
            return [value(depth + 1) for _ in range(generator.randrange(4))]
        return generator.choice(simple)

    def body() -> bytes:
        kind = generator.randrange(5)
        if kind == 0:
            return generator.randbytes(generator.randrange(200))
        if kind == 1:
            cut = bytearray(good)
            for _ in range(generator.randrange(1, 5)):
                cut[generator.randrange(len(cut))] = generator.randrange(256)
            return bytes(cut)
        asked = json.loads(good)
        if kind == 2:
            asked["inputs"][0][generator.choice(["name", "datatype", "shape", "data"])] = value()
        elif kind == 3:
            asked[generator.choice(["inputs", "outputs", "parameters", "id"])] = value()
        else:
            keys = ["task", "timeout", "binary_data_output", "priority"]
            asked["parameters"] = {generator.choice(keys): value() for _ in range(2)}
            asked["inputs"][0]["parameters"] = {"binary_data_size": value()}
        return json.dumps(asked).encode()

    names = ["task%200", "many", "..", "%2e%2e%2f", "%00", "x" * 500, "task%200/versions/1", "%ff"]
    for number in range(count):
        path = f"/v2/models/{generator.choice(names)}/infer"
        headers = {}
        if generator.random() < 0.2:
            length = generator.choice(["-1", "0", "10", "99999999999", "x", str(len(good))])
            headers["inference-header-content-length"] = length
        request = urllib.request.Request(server.url + path, body(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            with error:
                status = error.code
        statuses[status] = statuses.get(status, 0) + 1
        if number % (count // 4) == count // 4 - 1:
            memory.append(round(server.memory_mb()))
    return {
        "requests": count,
        "statuses": dict(sorted(statuses.items())),
        "5xx": sum(n for status, n in statuses.items() if status >= 500),
        "memory after each quarter, MB": memory,
        "right after it": server.infer(known, "task 3", 3) == (200, True),
        "exit code": server.stop(),
    }


def overloaded(known: Known, seconds: float) -> dict[str, Any]:
    """Many more clients than the queue takes, for a while."""
    server = Running(known, "--queue-rows", "64", "--batch-rows", "16")
    began = time.perf_counter()
    alone = []
    while time.perf_counter() - began < 3:
        start = time.perf_counter()
        server.infer(known, "task 0", 0)
        alone.append(time.perf_counter() - start)
    accepted: list[float] = []
    refused: list[float] = []
    wrong = 0
    end = time.perf_counter() + seconds

    async def clients() -> None:
        nonlocal wrong
        body = {row: known.body(row) for row in range(32)}

        async def one() -> None:
            nonlocal wrong
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            while time.perf_counter() < end:
                task, row = random.choice(TASKS), random.randrange(32)
                path = f"/v2/models/{task.replace(' ', '%20')}/infer"
                head = (
                    f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body[row])}\r\n\r\n"
                )
                start = time.perf_counter()
                writer.write(head.encode() + body[row])
                top = await reader.readuntil(b"\r\n\r\n")
                size = int(top.lower().partition(b"content-length:")[2].split()[0])
                told = json.loads(await reader.readexactly(size))
                took = time.perf_counter() - start
                if b" 200 " in top[:15]:
                    accepted.append(took)
                    answer = np.array(told["outputs"][0]["data"])
                    wrong += bool(np.abs(answer - known.right[task][row]).max() >= ATOL)
                else:
                    assert b" 429 " in top[:15], top
                    refused.append(took)
            writer.close()

        await asyncio.gather(*(one() for _ in range(640)))  # ten times what may wait

    before = server.memory_mb()
    asyncio.run(clients())
    ordered = sorted(accepted)
    return {
        "clients": 640,
        "rows that may wait": 64,
        "seconds": seconds,
        "accepted": len(accepted),
        "refused (429)": len(refused),
        "wrong": wrong,
        "ms of one client alone, median": round(1e3 * sorted(alone)[len(alone) // 2], 2),
        "ms of accepted requests, median and 99 %": [
            round(1e3 * ordered[int(share * (len(ordered) - 1))], 1) for share in (0.5, 0.99)
        ],
        "memory before and after, MB": [round(before), round(server.memory_mb())],
        "exit code": server.stop(),
    }


@dataclass
class Faults:
    out: Path | None = None
    only: tuple[str, ...] = ()
    """Trials to run; the others stay as they are in the file. All, if none is named."""
    vanishing: int = 100
    terminated: int = 20
    changing: int = 1000
    fuzzed: int = 10_000
    overloaded: float = 60.0

    def run(self) -> None:
        random.seed(0)
        trials = {
            trial.__name__: trial for trial in (vanishing, terminated, changing, fuzzed, overloaded)
        }
        found = json.loads(self.out.read_text()) if self.only and self.out else {}
        found["command"] = "python benchmarks/serving_faults.py"
        with tempfile.TemporaryDirectory() as folder:
            known = Known(Path(folder))
            for name in self.only or trials:
                found[name] = trials[name](known, getattr(self, name))
                print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
        text = json.dumps(found, indent=1)
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(text + "\n")
        print(text)


if __name__ == "__main__":
    tyro.cli(Faults).run()
