"""Faults planted in the library one at a time: which of them do the tests notice?

    python benchmarks/mutants.py --out results/mutants/before.jsonl         # the named tests
    python benchmarks/mutants.py --out results/mutants/before.jsonl --rest  # then all others
    python benchmarks/mutants.py --draw                             # benchmarks/mutants.jsonl

Two sorts: the faults in words of `faults.toml`, in nn and model, and mutants of the other parts,
which `--draw` draws from their source with a seed. A mutant is stated by its function and a piece
of source, so it can be planted as long as that is there. One that is not is "gone".

Each is planted in a temporary copy of the tree, and the tests named for it run until one fails.
`--rest` plants all that survived at once, runs the other tests, and each that fails then on every
survivor alone. The file has a line for each run, the last of a fault counts, and a summary at its
end; a run that was stopped goes on where it was. In the end all tests that killed something run
without a fault, and have to pass.
"""

import ast
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
import tyro

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "benchmarks/faults.toml"
MUTANTS = ROOT / "benchmarks/mutants.jsonl"
LIMIT, LONG_LIMIT = 900, 5400  # seconds, of the named tests and of all the others
NOT_RUN = 255  # an exit code
ALREADY = "pytest.PytestAssertRewriteWarning"  # of plugins that are imported before pytest runs
SHARED = ("hypothesis", "numpy", "safetensors.torch", "sklearn.datasets", "transformers")
LEFT_OUT = ("tests/test_site.py", "tests/lab")  # which do not test the library

PARTS = {  # of the source that mutants are drawn from: where it is, and the tests named for it
    "contexts": ("contexts", ["tests/contexts", "tests/test_golden.py", "tests/nn/test_keys.py"]),
    "functional": ("functional.py", ["src/superpose/functional.py", "tests/test_functional.py",
                                     "tests/contexts"]),
    "packing": ("packing", ["tests/packing", "tests/analysis"]),
    "recognition": ("recognition", ["tests/recognition"]),
    "files": ("checkpoint.py tensor_file.py", ["tests/test_checkpoint.py", "tests/test_golden.py"]),
    "serving": ("serving", ["tests/serving"]),
}  # fmt: skip
CORE = "nn and model"
EACH, AT_MOST = 12, 2  # mutants of a part, and of one function


@dataclass(frozen=True)
class Fault:
    """One edit of one file; `function` narrows where the piece `old` is looked for."""

    id: str
    part: str
    says: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    function: str = ""

    def plant(self, tree: Path) -> bool:
        """Plant it, if the piece is there once."""
        path = tree / self.file
        source = path.read_text() if path.exists() else ""
        place = dict(functions(source)).get(self.function, "") if self.function else source
        if place.count(self.old) != 1:
            return False
        write(path, source.replace(place, place.replace(self.old, self.new)))
        return True


def write(path: Path, source: str) -> None:
    """Write a source file, and forget what was compiled of the one before."""
    path.write_text(source)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def in_words() -> Iterator[Fault]:
    """Those of faults.toml, with the first edit that fits the source as it is."""
    for name, told in tomllib.loads(FAULTS.read_text()).items():
        edits = [(f"src/superpose/{e['file']}", e["old"], e["new"]) for e in told["edit"]]
        fits = (e for e in edits if (p := ROOT / e[0]).exists() and p.read_text().count(e[1]) == 1)
        edit = next(fits, edits[0])
        yield Fault(name, CORE, told["says"], *edit, tuple(told["tests"]))


def drawn() -> Iterator[Fault]:
    for line in MUTANTS.read_text().splitlines():
        told = json.loads(line)
        yield Fault(**told, tests=tuple(PARTS[told["part"]][1]))


# ---- mutants


def functions(source: str) -> Iterator[tuple[str, str]]:
    """The functions of a file: their names, with those of their classes, and their source."""

    def inside(node: ast.AST, outer: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{outer}{child.name}", "".join(lines[child.lineno - 1 : child.end_lineno])
            elif isinstance(child, ast.ClassDef):
                yield from inside(child, f"{outer}{child.name}.")

    lines = source.splitlines(keepends=True)
    return inside(ast.parse(source), "")


ROUND = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
NEAR = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
         ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin"}


def mutations(node: ast.AST) -> Iterator[tuple[str, str]]:
    """In words, and what stands in the place of a node then."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right):
            for kind, table in (("turned round", ROUND), ("off by one", NEAR)):
                if type(operator) in table:
                    changed = ast.Compare(left, [table[type(operator)]()], right)
                    yield f"a comparison {kind}", ast.unparse(changed)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OTHER:
            changed = ast.BinOp(left, OTHER[type(operator)](), right)
            yield "another operation", ast.unparse(changed)
        case ast.Constant(value=bool(value)):
            yield "a truth turned round", str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "another constant", str(value + 1 if isinstance(value, int) else value * 2)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "a not dropped", ast.unparse(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "a minus dropped", ast.unparse(operand)
        case ast.BoolOp(op=operator, values=values):
            changed = ast.BoolOp(ast.And() if isinstance(operator, ast.Or) else ast.Or(), values)
            yield "and for or, or for and", f"({ast.unparse(changed)})"
        case ast.Name(id=name) if name in NAMES:
            yield f"{NAMES[name]} for {name}", NAMES[name]
        case ast.Attribute(value=value, attr=name) if name in NAMES:
            yield f"{NAMES[name]} for {name}", f"{ast.unparse(value)}.{NAMES[name]}"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "a statement dropped", "pass"
        case ast.Return(value=ast.expr()):
            yield "nothing returned", "return None"


def candidates(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Of a file: function, in words, the piece before and after."""
    source = path.read_text()
    lines = source.encode().splitlines(keepends=True)
    bodies = dict(functions(source))
    for name, node in _functions_of(ast.parse(source), ""):
        for inner in (part for statement in node.body for part in _computing(statement)):
            first, last = inner.lineno - 1, inner.end_lineno or inner.lineno
            piece = b"".join(lines[first:last])
            end = len(piece) - len(lines[last - 1]) + (inner.end_col_offset or 0)
            for kind, text in mutations(inner):
                after = piece[: inner.col_offset] + text.encode() + piece[end:]
                old, new = piece.decode(), after.decode()
                changed = source.replace(bodies[name], bodies[name].replace(old, new))
                if bodies[name].count(old) == 1 and old != new and _compiles(changed):
                    yield name, kind, old, new


def _functions_of(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield f"{outer}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions_of(child, f"{outer}{child.name}.")


def _computing(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """What computes in a statement: no messages of errors, no types, no text."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.FunctionDef, ast.Assert)):
        return
    if isinstance(node, (ast.expr, ast.stmt)):
        yield node
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in ("annotation", "returns"):
                yield from _computing(child)


def _compiles(source: str) -> bool:
    try:
        compile(source, "", "exec")
    except SyntaxError:
        return False
    return True


def draw(seed: int) -> Iterator[dict[str, str]]:
    """Of each part some, of as many kinds as there are, and not many of one function."""
    for part, (places, _) in PARTS.items():
        folders = [ROOT / "src/superpose" / place for place in places.split()]
        paths = [p for f in folders for p in ([f] if f.is_file() else sorted(f.rglob("*.py")))]
        kinds: dict[str, list[dict[str, str]]] = defaultdict(list)
        for path in paths:
            file = str(path.relative_to(ROOT))
            for function, kind, old, new in candidates(path):
                told = {"file": file, "function": function, "old": old, "new": new}
                kinds[kind].append({"part": part, "says": kind, **told})
        generator = random.Random(f"{seed} {part}")
        for each in kinds.values():
            generator.shuffle(each)
        order = sorted(kinds)
        generator.shuffle(order)
        taken, often = 0, Counter[tuple[str, str]]()
        while taken < EACH and any(kinds.values()):
            for kind in order:
                free = (m for m in kinds[kind] if often[m["file"], m["function"]] < AT_MOST)
                found = next(free, None)
                if found is None:
                    kinds[kind] = []
                elif taken < EACH:
                    kinds[kind].remove(found)
                    often[found["file"], found["function"]] += 1
                    taken += 1
                    yield {"id": f"{part}-{taken}", **found}


# ---- runs


@dataclass(frozen=True)
class Run:
    """What became of a fault: killed, survived or gone; by which test, and among which tests."""

    id: str
    part: str
    says: str
    outcome: str
    by: str
    among: str  # named, or the paths of the rest
    seconds: int


class Tree:
    """A copy of the project in which faults are planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        torch.set_num_threads(1)
        for name in SHARED:
            importlib.import_module(name)
        away = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(ROOT, folder, ignore=away, dirs_exist_ok=True)
        self.environment = os.environ | {
            "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder / 'tests'}",
            "OMP_NUM_THREADS": "1",
        }
        where = [sys.executable, "-c", "import superpose; print(superpose.__file__)"]
        told = subprocess.run(where, env=self.environment, capture_output=True, text=True)
        assert told.stdout.startswith(str(folder)), told

    def restore(self, faults: Iterable[Fault]) -> None:
        for file in {fault.file for fault in faults}:
            if (ROOT / file).exists():
                write(self.folder / file, (ROOT / file).read_text())

    def failed(self, tests: Iterable[str], limit: int, *options: str) -> list[str]:
        """The tests that fail; "time" if they take too long."""
        there = [test for test in tests if (self.folder / test.partition("::")[0]).exists()]
        if not there:
            return []
        quiet = ["-q", "-p", "no:cacheprovider", "-rfE", "-W", f"ignore::{ALREADY}"]
        arguments = [*quiet, *options, *there]
        with tempfile.TemporaryFile("w+") as told:
            process = self._start(arguments, told.fileno())
            code = _ended(process, limit)
            told.seek(0)
            output = told.read()
        if code is None:
            return ["time"]
        lines = [line.split(maxsplit=1) for line in output.splitlines()]
        found = [one[1].split(" - ")[0] for one in lines if one[:1] in (["FAILED"], ["ERROR"])]
        if code == NOT_RUN:
            raise RuntimeError(f"pytest did not run: {output[-2000:]}")
        if code not in (0, 5) and not found:  # all passed, or there was none
            found = [f"pytest ended with {code}"]
        return found

    def _start(self, arguments: list[str], output: int) -> int:
        """Pytest in a copy of this process, which has imported what tests need: a third of it."""
        process = os.fork()
        if process:
            return process
        os.setsid()
        os.chdir(self.folder)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ.update(self.environment)
        sys.path[:1] = self.environment["PYTHONPATH"].split(os.pathsep)  # no benchmarks/serving.py
        code = NOT_RUN
        try:
            code = int(pytest.main(arguments))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(code)


def _ended(process: int, limit: int) -> int | None:
    """The exit code of a process; None if it took too long."""
    end = time.monotonic() + limit
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done or time.monotonic() > end:
            break
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):  # and what it left running
        os.killpg(process, signal.SIGKILL)
    if not done:
        os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) if done else None


def one(tree: Tree, fault: Fault, tests: Iterable[str], among: str) -> Run:
    start = time.monotonic()
    outcome, by = "gone", ""
    if fault.plant(tree.folder):
        failed = tree.failed(tests, LIMIT, "-x")
        outcome, by = ("killed", failed[0]) if failed else ("survived", "")
    tree.restore([fault])
    seconds = round(time.monotonic() - start)
    return Run(fault.id, fault.part, fault.says, outcome, by, among, seconds)


def known(out: Path) -> dict[str, Run]:
    """The last run of each fault."""
    lines = map(json.loads, out.read_text().splitlines()) if out.exists() else ()
    return {told["id"]: Run(**told) for told in lines if "id" in told}


def summary(runs: Iterable[Run]) -> dict[str, str]:
    """Of each part, how many were killed of those that could be planted."""
    parts: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        if run.part and run.outcome != "gone":
            parts[run.part].append(run.outcome)
    return {part: f"{all_.count('killed')} of {len(all_)}" for part, all_ in parts.items()}


@dataclass
class Mutants:
    out: Path = ROOT / "results/mutants/runs.jsonl"
    rest: bool = False
    among: tuple[str, ...] = ("src", "tests")  # the rest
    draw: bool = False
    seed: int = 0
    parts: tuple[str, ...] = (CORE, *PARTS)

    def run(self) -> None:
        if self.draw:
            lines = [json.dumps(told, ensure_ascii=False) for told in draw(self.seed)]
            MUTANTS.write_text("\n".join(lines) + "\n")
            return
        every = [fault for fault in (*in_words(), *drawn()) if fault.part in self.parts]
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            tree = Tree(Path(folder).resolve())
            (self._rest if self.rest else self._named)(tree, every)
            self._check(tree)
        runs = known(self.out).values()
        told = [json.dumps(asdict(run), ensure_ascii=False) for run in runs]
        told.append(json.dumps({"killed": summary(runs)}))
        self.out.write_text("\n".join(told) + "\n")
        print(told[-1])

    def _note(self, run: Run) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")
        print(f"{run.outcome:8} {run.id:28} {run.seconds:4} s  {run.by}", flush=True)

    def _named(self, tree: Tree, every: list[Fault]) -> None:
        done = known(self.out)
        turn = {part: place for place, part in enumerate((CORE, *PARTS))}
        every.sort(key=lambda f: (0 if f.part == CORE else int(f.id.split("-")[1]), turn[f.part]))
        for fault in every:
            if fault.id not in done:
                self._note(one(tree, fault, fault.tests, "named"))

    def _rest(self, tree: Tree, every: list[Fault]) -> None:
        done = known(self.out)
        among = " ".join(self.among)
        left = [f for f in every if f.id in done and done[f.id].outcome == "survived"]
        left = [fault for fault in left if done[fault.id].among != among]
        planted, failed = self._failed_before(among)
        if not planted:
            both = [fault for fault in left if fault.plant(tree.folder)]  # all at once
            planted = [fault.id for fault in both]
            options = [f"--ignore={path}" for path in LEFT_OUT]
            failed = tree.failed(self.among, LONG_LIMIT, *options)
            tree.restore(both)
            with self.out.open("a") as file:
                told = {"among": among, "planted": planted, "failed": failed}
                file.write(json.dumps(told) + "\n")
            print(f"{len(planted)} planted at once, {len(failed)} tests fail", flush=True)
        for fault in left:
            if fault.id in planted:
                self._note(one(tree, fault, failed, among))

    def _failed_before(self, among: str) -> tuple[list[str], list[str]]:
        """What failed with all of them planted, in a run that was stopped after that."""
        lines = map(json.loads, self.out.read_text().splitlines())
        each = [one for one in lines if "planted" in one and one["among"] == among]
        return (each[-1]["planted"], each[-1]["failed"]) if each else ([], [])

    def _check(self, tree: Tree) -> None:
        """That the tests which killed something pass without a fault."""
        start = time.monotonic()
        tests = dict.fromkeys(run.by for run in known(self.out).values() if "::" in run.by)
        failed = tree.failed(tests, LONG_LIMIT)
        outcome, seconds = "killed" if failed else "survived", round(time.monotonic() - start)
        self._note(Run("nothing", "", "no fault", outcome, " ".join(failed), "named", seconds))


if __name__ == "__main__":
    tyro.cli(Mutants).run()
