"""Key → signs, phases, permutations, normals. The rules below are a file format: never change them.

A key is (seed, layer name, task). Its canonical byte string is four fields, each preceded by its
length in bytes as 8 bytes big-endian: the version tag, the seed in decimal, the layer name in
UTF-8, the task in decimal. SHAKE-256 of that string is an endless sequence of bytes, read from its
start:

- signs: one bit each, the least significant bit of a byte first; 0 → +1, 1 → −1.
- phases: 4 bytes little-endian u each; the phase is u / 2³² − ½ turns, so it lies in [−½, ½).
- permutation: 8 bytes little-endian each; the stable order that sorts them.
- normals: 16 bytes little-endian (a, b) for two of them; with r = √(−2 ln((⌊a / 2¹¹⌋ + 1) / 2⁵³))
  and t = ⌊b / 2¹¹⌋ / 2⁵³ turns, they are r cos t and r sin t.

Cosine, sine and logarithm are evaluated here in float64 with +, −, ×, ÷ and √ alone, which IEEE 754
rounds the same way everywhere, so that no two machines or NumPy versions ever differ in a bit.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

VERSION = "superpose-key-1"
LN_2 = 0.6931471805599453
SQRT_HALF = 0.7071067811865476


@dataclass(frozen=True)
class Key:
    """What a context is derived from.

    >>> signs(Key(seed=0, layer="0.weight", task=3), 8).tolist()
    [-1, -1, 1, 1, -1, -1, 1, -1]
    """

    seed: int
    layer: str
    task: int

    def encode(self) -> bytes:
        """The canonical byte string."""
        fields = (VERSION, str(self.seed), self.layer, str(self.task))
        encoded = (field.encode() for field in fields)
        return b"".join(len(field).to_bytes(8, "big") + field for field in encoded)

    def bytes(self, count: int) -> bytes:
        """The first `count` bytes of SHAKE-256 over the canonical byte string."""
        return hashlib.shake_256(self.encode()).digest(count)


def signs(key: Key, count: int) -> npt.NDArray[np.int8]:
    """`count` independent signs, −1 or +1."""
    packed = np.frombuffer(key.bytes((count + 7) // 8), np.uint8)
    bits = np.unpackbits(packed, count=count, bitorder="little").astype(np.int8)
    return (1 - 2 * bits).astype(np.int8)


def phases(key: Key, count: int) -> Floats:
    """`count` independent uniform phases in turns, in [−½, ½), multiples of 2⁻³²."""
    return np.frombuffer(key.bytes(4 * count), "<u4") / 2.0**32 - 0.5


def permutation(key: Key, count: int) -> npt.NDArray[np.int64]:
    """A uniform permutation of 0 … count − 1."""
    return np.argsort(np.frombuffer(key.bytes(8 * count), "<u8"), kind="stable").astype(np.int64)


def normals(key: Key, count: int) -> Floats:
    """`count` independent standard normals."""
    pairs = np.frombuffer(key.bytes(16 * ((count + 1) // 2)), "<u8").reshape(-1, 2) >> 11
    radius = np.sqrt(-2.0 * _log((pairs[:, 0] + 1) / 2.0**53))
    cosine, sine = unit(pairs[:, 1] / 2.0**53)
    return np.stack([radius * cosine, radius * sine], axis=1).reshape(-1)[:count]


def unit(turns: Floats) -> tuple[Floats, Floats]:
    """(cos 2πt, sin 2πt), the same bits on every machine.

    >>> [part.tolist() for part in unit(np.array([0.0, 0.25, 0.5]))]
    [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]
    """
    quarter = np.rint(4.0 * turns)
    angle = (turns - quarter / 4.0) * (2.0 * np.pi)  # in [−π/4, π/4]
    square = angle * angle
    cosine, sine = np.ones_like(square), np.ones_like(square)
    for n in range(20, 0, -2):  # Horner's scheme for 1 − a²/2 (1 − …) and a (1 − a²/6 (1 − …))
        cosine = 1.0 - square / (n * (n - 1)) * cosine
        sine = 1.0 - square / (n * (n + 1)) * sine
    sine = sine * angle
    turned = quarter.astype(np.int64) % 4
    return (
        np.choose(turned, [cosine, -sine, -cosine, sine]) + 0.0,  # + 0.0 makes −0.0 into 0.0
        np.choose(turned, [sine, cosine, -sine, -cosine]) + 0.0,
    )


def _log(value: Floats) -> Floats:
    """ln v = e ln 2 + 2 artanh((m − 1)/(m + 1)) for v = m 2ᵉ with m in [√½, √2)."""
    mantissa, exponent = np.frexp(value)
    low = mantissa < SQRT_HALF
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    exponent = exponent - low
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.zeros_like(square)
    for n in range(23, 0, -2):
        series = series * square + 1.0 / n
    return exponent * LN_2 + 2.0 * s * series
