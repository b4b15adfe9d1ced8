"""The cache of derived contexts."""

import torch
from checks import normal

from superpose import contexts


def test_the_cache_is_bounded_and_gives_back_the_same_contexts():
    cache = contexts.layer.ContextCache(max_bytes=10_000)
    layers = [contexts.LayerContext(contexts.Hadamard(), 0, f"layer {n}", 100) for n in range(4)]
    tables = [cache.table(layer, torch.device("cpu"), torch.float32) for layer in layers]
    x = normal(100, dtype=torch.float32)
    for table, layer in zip(tables, layers, strict=True):
        for task in [*range(40), 3, 7]:
            assert torch.equal(table.one(task).bind(x), layer.derive(task).bind(x))
            assert cache.bytes <= cache.max_bytes + 40 * 2 * 100
    assert cache.table(layers[3], torch.device("cpu"), torch.float32) is tables[3]
    assert cache.table(layers[0], torch.device("cpu"), torch.float32) is not tables[0]
    row = torch.tensor([1, 0, 1, 2])
    together = tables[3].rows([3, 77, 90], row).by_row().bind(x.expand(4, 1, 100))
    for i, task in enumerate([77, 3, 77, 90]):
        assert torch.equal(together[i, 0], layers[3].derive(task).bind(x))
    first = tables[3].one(3)
    assert tables[3].one(3) is first
    cache.clear()
    assert cache.bytes == 0


def test_the_cache_forgets_what_was_used_longest_ago():
    cache, device = contexts.layer.ContextCache(max_bytes=2500), torch.device("cpu")
    a, b, c = (contexts.LayerContext(contexts.Rotation(), 0, n, 16) for n in "abc")
    used = {}
    for layer in (a, b, a, c):  # 1024 bytes each, so that two of them fit
        used[layer] = cache.table(layer, device, torch.float32)
        used[layer].one(0)
    assert cache.table(a, device, torch.float32) is used[a]
    assert cache.table(b, device, torch.float32) is not used[b]


def test_one_layer_that_would_fill_the_cache_starts_again():
    cache = contexts.layer.ContextCache(max_bytes=1000)
    layer = contexts.LayerContext(contexts.Binary(), 0, "layer", 100)
    table = cache.table(layer, torch.device("cpu"), torch.float32)
    for task in range(200):
        assert torch.equal(table.one(task).signs, layer.derive(task).signs)
        assert cache.bytes <= 4 * cache.max_bytes


def test_a_context_is_as_exact_as_the_weight_that_it_meets():
    layer = contexts.LayerContext(contexts.Rotation(), 0, "exact", 16)
    layer.fixed(0, torch.device("cpu"), torch.float32)
    double = layer.fixed(0, torch.device("cpu"), torch.float64)
    off = double.bind(normal(16)) - layer.derive(0).bind(normal(16))
    assert off.abs().max() < 1e-12
