import gzip
import io
import lzma
import random
import stat
import tarfile
import zipfile

import pytest

from superpose_lab.data import archives
from superpose_lab.data.archives import UnusableError, deb, gunzip, tar_gz, wheel

BODY = bytes(range(256)) * 4
WANTED = {"package/a": len(BODY)}


def tarred(*members: tuple[str, bytes, dict]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, body, extra in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            for key, value in extra.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(body))
    return stream.getvalue()


def debian(*members: tuple[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, body in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode()
        out += body + b"\n" * (len(body) % 2)
    return out


@pytest.fixture
def package(tmp_path):
    path = tmp_path / "package.tgz"

    def write(*members, cut=None):
        path.write_bytes(gzip.compress(tarred(*members))[:cut])
        return path

    return write


def test_only_what_is_wanted_comes_out_and_nothing_is_written(package, tmp_path):
    path = package(
        ("../../escape", b"evil", {}),
        ("/package/a", b"absolute", {}),
        ("package/a", BODY, {}),
        ("package/b", b"more", {}),
    )
    before = set(tmp_path.rglob("*"))
    assert list(tar_gz(path, WANTED)) == [("package/a", BODY)]
    assert set(tmp_path.rglob("*")) == before
    assert not (tmp_path.parent.parent / "escape").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_what_is_no_plain_file_is_refused(package, kind):
    path = package(("package/a", b"", {"type": kind, "linkname": "/etc/passwd"}))
    with pytest.raises(UnusableError, match=r"package/a is .* not a plain file"):
        list(tar_gz(path, WANTED))


def test_a_member_that_comes_twice_is_refused(package):
    twice = ("package/a", BODY, {})
    path = package(twice, twice, ("package/b", b"more", {}))
    with pytest.raises(UnusableError, match="twice"):
        list(tar_gz(path, {**WANTED, "package/b": 9}))


def test_a_member_that_is_too_large_is_refused(package):
    with pytest.raises(UnusableError, match="larger than the 1024 bytes"):
        list(tar_gz(package(("package/a", BODY + b"x", {})), WANTED))


def test_a_missing_member_is_named(package):
    with pytest.raises(UnusableError, match="no package/a in the archive"):
        list(tar_gz(package(("package/b", BODY, {})), WANTED))


@pytest.mark.parametrize("cut", [5, 100, 3000])
def test_a_cut_off_archive_is_refused(package, cut):
    noise = random.Random(0).randbytes(4096)
    path = package(("package/a", noise, {}), cut=cut)
    with pytest.raises(UnusableError, match=r"package\.tgz: "):
        list(tar_gz(path, {"package/a": len(noise)}))


def test_an_archive_that_unpacks_without_end_is_refused(package, monkeypatch):
    monkeypatch.setattr(archives, "OVERHEAD", 1 << 16)
    path = package(("package/bomb", bytes(1 << 22), {}), ("package/a", BODY, {}))
    with pytest.raises(UnusableError, match="far more than it should"):
        list(tar_gz(path, WANTED))


def test_gzip_is_bounded_and_checked():
    assert gunzip(io.BytesIO(gzip.compress(BODY)), len(BODY)) == BODY
    with pytest.raises(UnusableError, match="larger than the 1023 bytes"):
        gunzip(io.BytesIO(gzip.compress(BODY)), len(BODY) - 1)


def test_a_wheel_gives_members_by_name(tmp_path):
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../package/a", b"escape")
        archive.writestr("package/a", BODY)
    assert list(wheel(path, WANTED)) == [("package/a", BODY)]
    with pytest.raises(UnusableError, match="larger than the 9 bytes"):
        list(wheel(path, {"package/a": 9}))
    with pytest.raises(UnusableError, match="no package/b in the archive"):
        list(wheel(path, {"package/b": 9}))


def test_a_link_in_a_wheel_is_only_its_text(tmp_path):
    link = zipfile.ZipInfo("package/a")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    assert list(wheel(path, WANTED)) == [("package/a", b"/etc/passwd")]


@pytest.mark.parametrize("spoil", [lambda b: b[:-30], lambda b: b"no zip", lambda b: b""])
def test_a_broken_wheel_is_refused(tmp_path, spoil):
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/a", BODY)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UnusableError, match=r"a\.whl"):
        list(wheel(path, WANTED))


@pytest.mark.parametrize(("end", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_debian_package_gives_members_by_name(tmp_path, end, pack):
    path = tmp_path / "a.deb"
    data = pack(tarred(("./package/a", BODY, {})))
    path.write_bytes(debian(("debian-binary", b"2.0\n"), ("odd", b"x"), (f"data.tar.{end}", data)))
    assert list(deb(path, WANTED)) == [("package/a", BODY)]


@pytest.mark.parametrize(
    "contents",
    [
        b"no package",
        debian(("debian-binary", b"2.0\n")),
        debian(("data.tar.zst", b"?")),
        debian(("data.tar.xz", b"?")),
        debian(("data.tar.xz", lzma.compress(tarred(("package/a", BODY, {})))))[:-90],
    ],
    ids=["other", "empty", "zstd", "damaged", "cut off"],
)
def test_a_broken_debian_package_is_refused(tmp_path, contents):
    path = tmp_path / "a.deb"
    path.write_bytes(contents)
    with pytest.raises(UnusableError, match=r"a\.deb"):
        list(deb(path, WANTED))
