"""The dense, slow, obvious version of every context, in NumPy, from the same keys."""

import numpy as np
from scipy.linalg import block_diag
from scipy.linalg import hadamard as walsh_hadamard

from superpose import keys
from superpose.keys import Key


def identity(key, dim):
    return np.eye(dim)


def binary(key, dim):
    return np.diag(keys.signs(key, dim).astype(float))


def complex_(key, dim):
    return np.diag(np.exp(2j * np.pi * keys.phases(key, dim)))


def onepower(key, dim):
    one = keys.phases(Key(key.seed, key.layer, 1), dim)
    return np.diag(np.exp(2j * np.pi * (key.task * one % 1.0)))


def haar(normals):
    q, r = np.linalg.qr(normals)
    return q * np.sign(np.diag(r))


def rotation(key, dim):
    return haar(keys.normals(key, dim * dim).reshape(dim, dim))


def block_rotation(key, dim, size):
    count = -(-dim // size)
    normals = keys.normals(key, count * size * size).reshape(count, size, size)
    rest = dim - (count - 1) * size
    return block_diag(*[haar(block) for block in normals[:-1]], haar(normals[-1, :rest, :rest]))


def permutation(key, dim):
    return np.eye(dim)[keys.permutation(key, dim)]


def phase(key, dim):
    angles = 2 * np.pi * keys.phases(key, (dim + 1) // 2)
    planes = [np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in angles]
    if dim % 2:
        planes[-1] = np.array([[-1.0 if angles[-1] < 0 else 1.0]])
    return block_diag(*planes)


def hadamard(key, dim):
    left, right = keys.signs(key, 2 * dim).reshape(2, dim)
    return left[:, None] * hadamard_matrix(dim) * right[None, :]


def hadamard_matrix(dim):
    power = dim & -dim
    odd = dim // power
    angle = 2 * np.pi * np.outer(np.arange(odd), np.arange(odd)) / odd
    hartley = (np.cos(angle) + np.sin(angle)) / np.sqrt(odd)
    return np.kron(hartley, walsh_hadamard(power) / np.sqrt(power))
