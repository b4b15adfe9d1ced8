"""The protocols by scale: data, network, method. Change a line, and the run is another one."""

from dataclasses import replace

from superpose.recognition import Statistics
from superpose_lab.experiments.recognition.after_learning import AfterLearning
from superpose_lab.experiments.recognition.doubting import Doubting
from superpose_lab.experiments.recognition.natural_images import NaturalImages
from superpose_lab.experiments.recognition.protocol import RecognitionProtocol
from superpose_lab.experiments.recognition.while_learning import WhileLearning

FIRST_ROWS = 2560  # of a context, that its statistics are made of while tasks are unknown
LARGER = {"lr": 1e-3, "schedule": "warm-cosine", "label_smoothing": 0.1}

TEN = AfterLearning(tasks=10, rows=10_000)
WIDE = AfterLearning(tasks=10, units=1000, steps=2000, rows=10_000, rate=LARGER)
FIFTY = AfterLearning(tasks=50)
MANY = AfterLearning(  # more tasks than weights of this size can learn, so none learns them
    tasks=250,
    units=1024,
    rows=10_000,
    method="hadamard",
    rate=LARGER | {"rank_lr": 3e-3},
    options={"bind_frozen": True, "rank": 4, "recognise": Statistics()},
    evidence=("inputs",),  # outputs need a forward pass for each of 250 tasks
)
TURNED = AfterLearning(
    tasks=36, stream="turning", options={"private": "none", "recognise": Statistics(rank=64)}
)

STREAM_10 = WhileLearning(length={"tasks": 10, "period": 500})
STREAM_50 = WhileLearning(length={"tasks": 50, "period": 1000})
RETURNING = WhileLearning(stream="returning", length={"tasks": 5, "period": 150})
FASHION = WhileLearning(
    stream="rotating",
    dataset="fashion-mnist",
    length={"steps": 50_000},
    options={
        "private": "none",
        "centre": "task",
        "recognise": Statistics(rank=16, most=FIRST_ROWS),
    },
)

DOUBT = Doubting()

PRETRAINED = NaturalImages(
    network="efficientnet-lite0",
    steps=80,
    batch_size=24,
    method="hadamard+projection",
    options={
        "base": True,
        "min_inputs": 33,
        "private_layers": ["head"],
        "rank": 2,
        "strength": 0.3,
    },
    rate={"lr": 1e-3, "rank_lr": 3e-3},
    features="last.conv",
    remembered=1920,
    rows=150,
)
SCRATCH = NaturalImages(
    network="resnet-18",
    steps=600,
    batch_size=64,
    method="hadamard+projection",
    options={"min_inputs": 145},
    features="blocks.7.conv2",
)

PAPER: dict[str, RecognitionProtocol] = {
    "permuted-10": TEN,
    "permuted-10-wide": WIDE,
    "permuted-50": FIFTY,
    "permuted-250": MANY,
    "rotated-36": TURNED,
    "stream-returning": RETURNING,
    "stream-permuted-10": STREAM_10,
    "stream-permuted-50": STREAM_50,
    "stream-rotating-fashion": FASHION,
    "doubt": DOUBT,
    "cifar100-pretrained": PRETRAINED,
    "cifar100-scratch": SCRATCH,
}
QUICK: dict[str, RecognitionProtocol] = {
    "permuted-10": replace(TEN, rows=1000),
    "permuted-50": replace(FIFTY, tasks=20, steps=300),
    "permuted-250": replace(MANY, tasks=25, steps=200, rows=200),
    "rotated-36": replace(TURNED, steps=200, rows=200),
    "stream-returning": RETURNING,
    "stream-permuted-10": STREAM_10,
    "stream-rotating-fashion": replace(FASHION, length={"steps": 5000}),
    "doubt": replace(DOUBT, steps=200, rows=500),
    "cifar100-pretrained": replace(PRETRAINED, steps=20, rows=100),
    "cifar100-scratch": replace(SCRATCH, steps=60, rows=100),
}
SMALL_TASKS = AfterLearning(
    dataset="digits", other="digits", tasks=3, steps=20, units=64, rows=100, rate={"lr": 1e-3}
)
SMALL_STREAM = WhileLearning(
    dataset="digits",
    length={"tasks": 3, "period": 20},
    units=64,
    rate={"lr": 1e-3},
    evaluate_every=20,
)
SMALL_IMAGES = NaturalImages(
    network="resnet-18",
    width=4,
    dataset="digits",
    tasks=3,
    classes=2,
    steps=6,
    batch_size=16,
    method="hadamard+projection",
    options={"min_inputs": 33},
    features="blocks.7.conv2",
    rank=2,
    remembered=64,
    rows=20,
)
SMOKE: dict[str, RecognitionProtocol] = {
    "permuted-10": SMALL_TASKS,
    "permuted-50": replace(SMALL_TASKS, tasks=4),
    "permuted-250": replace(
        MANY, dataset="digits", other="digits", tasks=5, steps=20, units=64, rows=100
    ),
    "rotated-36": replace(SMALL_TASKS, tasks=4, stream="turning", options=TURNED.options, rows=50),
    "stream-returning": replace(
        SMALL_STREAM, stream="returning", length={"tasks": 5, "period": 10}
    ),
    "stream-permuted-10": SMALL_STREAM,
    "stream-rotating-fashion": replace(
        SMALL_STREAM, stream="rotating", length={"steps": 60, "period": 20}, options=FASHION.options
    ),
    "doubt": Doubting(dataset="digits", tasks=3, steps=20, units=64, rows=100),
    "cifar100-pretrained": replace(
        SMALL_IMAGES, options={"base": True, "min_inputs": 33, "rank": 2, "strength": 0.3}
    ),
    "cifar100-scratch": SMALL_IMAGES,
}
SCALES = {"smoke": SMOKE, "quick": QUICK, "paper": PAPER}
"""Protocols by the name of their measures, `NAME.json`."""
