"""Places a data set can be had from. Each gets files into a folder and reads them from there.

A place is a website, or a package in a registry that is asked for by name through the registry's
own client, so that whatever mirror or proxy the client is set up for is the one that is used.
"""

import importlib.util
import queue
import re
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol
from urllib.request import Request, urlopen

from superpose_lab.data.archives import UnusableError
from superpose_lab.data.extraction import Contents, Extract

CONNECT_SECONDS = 5  # for a first answer, and for each silence after it
CLIENT_SECONDS = 1200  # for a whole package on a slow line; the clients have short time-outs inside

Report = Callable[[str, int, int | None], None]  # what is going on, bytes so far, bytes in all


class Place(Protocol):
    """Somewhere the files of a data set may be."""

    @property
    def name(self) -> str: ...

    def files(self, folder: Path, report: Report) -> Contents:
        """Yield each file; raise `UnusableError` or `OSError` when that cannot be done."""


@dataclass(frozen=True)
class Web:
    """Files at `base` + name, such as the official location of a data set.

    A user may download them too, and put them into the folder `by_hand` of the data directory.
    """

    base: str
    downloads: tuple[str, ...]
    by_hand: str
    limit: int
    extract: Extract

    @property
    def name(self) -> str:
        return self.base

    def files(self, folder: Path, report: Report) -> Contents:
        paths = [folder / download for download in self.downloads]
        for path in paths:
            _download(self.base + path.name, path, self.limit, report)
        return self.extract(paths)


@dataclass(frozen=True)
class ByHand:
    """The downloads of a website that are in the data directory already."""

    web: Web
    root: Path

    @property
    def name(self) -> str:
        return str(self.root / self.web.by_hand)

    @property
    def paths(self) -> list[Path]:
        return [self.root / self.web.by_hand / download for download in self.web.downloads]

    def files(self, folder: Path, report: Report) -> Contents:
        return self.web.extract(self.paths)


@dataclass(frozen=True)
class Package:
    """One package of a registry, fetched by the registry's client and never installed."""

    client: str
    package: str
    extract: Extract

    @property
    def name(self) -> str:
        return f"{self.client} {self.package}"

    def files(self, folder: Path, report: Report) -> Contents:
        for command in COMMANDS[self.client](self.package):
            report(self.name, 0, None)
            _run(command, folder)
        return self.extract(sorted(path for path in folder.iterdir() if path.is_file()))


def official(places: Iterable[Web | Package]) -> Web | None:
    """The first website among them."""
    return next((place for place in places if isinstance(place, Web)), None)


def _pip(package: str) -> list[list[str]]:
    # Only wheels: to look into a source package, pip would run it.
    options = "--quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all:"
    limits = f"--retries 0 --timeout {CONNECT_SECONDS}"
    return [[*_pip_command(), "download", *options.split(), *limits.split(), package]]


def _pip_command() -> list[str]:
    for name in ("pip", "pip3"):
        if path := shutil.which(name):
            return [path]
    with warnings.catch_warnings(action="ignore"):  # of setuptools, about distutils
        has_pip = importlib.util.find_spec("pip")
    return [sys.executable, "-m", "pip"] if has_pip else ["pip"]


def _npm(package: str) -> list[list[str]]:
    # The time-out of npm is for a whole download, so a short one only asks whether it is there.
    quick = f"--fetch-retries=0 --fetch-timeout={1000 * CONNECT_SECONDS}".split()
    return [
        ["npm", "view", *quick, package, "version"],
        ["npm", "pack", "--ignore-scripts", "--fetch-retries=0", package],
    ]


def _apt(package: str) -> list[list[str]]:
    limits = {"Retries": 0, "http::Timeout": CONNECT_SECONDS, "https::Timeout": CONNECT_SECONDS}
    options = [word for key, value in limits.items() for word in ("-o", f"Acquire::{key}={value}")]
    return [["apt-get", "download", "--quiet", *options, package]]


COMMANDS = {"pip": _pip, "npm": _npm, "apt": _apt}


def _run(command: list[str], folder: Path) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise UnusableError(f"there is no {command[0]} on this machine")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CLIENT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnusableError(f"no end after {error.timeout:.0f} seconds") from error
    if done.returncode:
        raise UnusableError(_complaint(done.stderr) or f"it failed with code {done.returncode}")


def _complaint(said: str) -> str:
    """Pick what went wrong from what a client said: its first two lines that speak of an error."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [line for line in lines if re.match(r"(npm )?err|E:", line, re.IGNORECASE)]
    return "; ".join((errors or lines[-1:])[:2])[:300]


def _download(url: str, target: Path, limit: int, report: Report) -> None:
    try:
        with _open(url) as response, target.open("wb") as file:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            while chunk := response.read(1 << 16):
                file.write(chunk)
                report(url, file.tell(), total)
                if file.tell() > limit:
                    raise UnusableError(f"{url} is larger than the {limit} bytes it may have")
            if total is not None and file.tell() != total:
                raise UnusableError(f"{url} broke off after {file.tell()} of {total} bytes")
    except HTTPException as error:
        raise UnusableError(f"{url}: {error!r}") from error


def _open(url: str) -> HTTPResponse:
    """Open a URL, or give up in time: looking up a name has no time-out of its own."""
    answer: queue.SimpleQueue[HTTPResponse | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            request = Request(url, headers={"User-Agent": "superpose"})
            answer.put(urlopen(request, timeout=CONNECT_SECONDS))
        except Exception as error:
            answer.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        response = answer.get(timeout=CONNECT_SECONDS + 1)
    except queue.Empty:
        raise UnusableError(f"no answer within {CONNECT_SECONDS} seconds") from None
    if isinstance(response, Exception):
        raise UnusableError(str(response)) from response
    return response
