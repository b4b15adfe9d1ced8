"""Language models that generate rows of different tasks: caches, beams, and whose they are."""

import copy

import pytest
import torch
from checks import randomise_private
from scripts import loaded

import superpose as sp

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own deprecations are not ours
zoo = loaded("zoo")

TASKS = [1, 0, 2]
WAYS = {
    "LLaMA": {"direct"},
    "GPT-2": {"direct"},
    "OPT": {"direct", "grouped"},  # direct where a row is one token
    "Falcon": {"mapped"},
    "Mamba": {"mapped", "grouped"},
    "Mixtral": {"grouped"},
}
OPTIONS = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}


def made(name):
    kind, options, _ = zoo.MODELS[name]
    torch.manual_seed(1)
    return randomise_private(sp.superpose(zoo.network(kind, options), tasks=3)).eval()


def prompts(lengths=(7, 7, 7)):
    """Padded on the left."""
    ids = torch.randint(3, 60, (3, max(lengths)), generator=torch.Generator().manual_seed(3))
    mask = torch.stack([torch.arange(max(lengths)) >= max(lengths) - n for n in lengths]).long()
    return {"input_ids": torch.where(mask.bool(), ids, 0), "attention_mask": mask}


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("name", WAYS)
def test_each_row_is_generated_as_if_it_were_alone(name, beams):
    model = made(name)
    given = prompts() if name == "Mamba" else prompts((7, 5, 6))
    options = OPTIONS | {"num_beams": beams}
    texts = model.generate(**given, **options, task=torch.tensor(TASKS))
    alone = [
        model.generate(**{n: t[[row]] for n, t in given.items()}, **options, task=task)
        for row, task in enumerate(TASKS)
    ]
    assert torch.equal(texts, torch.cat(alone))
    with model.task(TASKS):
        assert beams > 1 or torch.equal(model.generate(**given, **options), texts)
    assert not torch.equal(texts, model.generate(**given, **options, task=2))
    assert {told.split()[0] for told in model.summary().mixed} == WAYS[name]


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *[(way, "DynamicCache") for way in ("direct", "mapped", "grouped")],
        *[(way, "StaticCache") for way in ("direct", "grouped")],  # which cannot be mapped
    ],
)
def test_a_cache_is_left_as_a_direct_pass_leaves_it(way, kind):
    model, ids = made("LLaMA"), prompts()["input_ids"]
    model.mixed = way
    made_cache = getattr(transformers, kind)
    options = {} if kind == "DynamicCache" else {"max_cache_len": 12}
    with torch.no_grad():
        whole = model(ids, task=TASKS).logits
        cache = made_cache(config=model.config, **options)
        first = model(ids[:, :4], past_key_values=cache, task=TASKS)
        assert first.past_key_values is cache
        assert cache.get_seq_length() == 4
        kept = copy.deepcopy(cache)
        rest = model(ids[:, 4:], past_key_values=cache, task=TASKS)
        assert cache.get_seq_length() == 7
        again = model(ids[:, 4:], past_key_values=kept, task=TASKS)
    found = torch.cat([first.logits, rest.logits], 1)
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(again.logits, rest.logits)
    assert (whole - model(ids, task=1).logits)[1:].abs().max() > 1e-2
