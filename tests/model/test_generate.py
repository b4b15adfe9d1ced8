"""`generate` of transformers: one task, rows of several, beams, samples, encoders, time series."""

import copy

import pytest
import torch
from checks import randomise_private
from scripts import loaded

import superpose as sp
from superpose.model.views import Views

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own deprecations are not ours
zoo = loaded("zoo")

TASKS = [1, 0, 2, 1]
TEXT = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 1, "eos_token_id": 5}
DECODERS = ["LLaMA", "Mistral", "GPT-2", "OPT", "Falcon", "Mamba", "Mixtral"]
PAIRS = ["T5", "BART"]
SERIES = {
    "prediction_length": 3, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1,
    "num_parallel_samples": 3, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}  # fmt: skip


def made(name, way=None, **options):
    kind, config, _ = zoo.MODELS[name]
    net = zoo.network(kind, config)
    with torch.no_grad():  # so that texts depend on the task, and some end early
        for parameter in net.parameters():
            parameter.mul_(3)
    return randomise_private(sp.superpose(net, tasks=3, mixed=way, **options)).eval()


def prompts(name):
    """Padded on the left, if there are no states that padding would change."""
    ids = torch.randint(6, 60, (4, 7), generator=torch.Generator().manual_seed(3))
    lengths = [7] * 4 if name in ("Mamba", *PAIRS) else [7, 5, 6, 7]
    mask = torch.stack([torch.arange(7) >= 7 - length for length in lengths]).long()
    return {"input_ids": torch.where(mask.bool(), ids, 0), "attention_mask": mask}


def each_alone(model, given, options):
    """The texts of each row run alone, padded to the longest."""
    texts = [
        model.generate(**{n: t[[row]] for n, t in given.items()}, **options, task=task)
        for row, task in enumerate(TASKS)
    ]
    longest = max(text.shape[1] for text in texts)
    return torch.cat(
        [torch.nn.functional.pad(t, (0, longest - t.shape[1]), value=1) for t in texts]
    )


@pytest.mark.parametrize(
    "beams", [{}, {"num_beams": 2}, {"num_beams": 3, "num_return_sequences": 2}]
)
@pytest.mark.parametrize("way", ["grouped", "direct"])
@pytest.mark.parametrize("name", [*DECODERS, *PAIRS])
def test_each_row_is_generated_as_if_it_were_alone(name, way, beams):
    if way == "direct" and name in ("Mixtral", "Mamba", "OPT"):
        pytest.skip("not right in the direct way")
    model, given, options = made(name, way), prompts(name), TEXT | beams
    texts = model.generate(**given, **options, task=torch.tensor(TASKS))
    assert torch.equal(texts, each_alone(model, given, options))
    with model.task(TASKS):
        assert torch.equal(model.generate(**given, **options), texts)
    assert not torch.equal(texts, model.generate(**given, **options, task=2))
    config = transformers.GenerationConfig(**beams, **TEXT)
    assert torch.equal(model.generate(**given, generation_config=config, task=TASKS), texts)
    assert torch.equal(model.generate(given.pop("input_ids"), config, **given, task=TASKS), texts)


@pytest.mark.parametrize("name", [*DECODERS, *PAIRS])
def test_one_task_generates_what_its_own_network_does(name):
    model, given = made(name), prompts(name)
    for options in (TEXT, TEXT | {"num_beams": 2}):
        plain = [sp.unsuperpose(model, task).generate(**given, **options) for task in range(3)]
        for task in range(3):
            assert torch.equal(model.generate(**given, **options, task=task), plain[task])
        with model.task(2):
            assert torch.equal(model.generate(**given, **options), plain[2])


def test_texts_of_different_lengths_are_padded():
    """Tasks of whose texts one ends at once."""
    model, given = made("GPT-2", "grouped"), prompts("GPT-2")
    first = model.generate(**given, **TEXT, task=1)[0, 7]
    options = TEXT | {"eos_token_id": int(first), "pad_token_id": 59}
    texts = model.generate(**given, **options, task=TASKS)
    assert (texts[0, 8:] == 59).all()
    assert texts.shape == (4, 13)
    direct = copy.deepcopy(model)
    direct.mixed = "direct"
    assert torch.equal(direct.generate(**given, **options, task=TASKS), texts)


@pytest.mark.parametrize("way", ["grouped", "direct"])
def test_scores_come_with_the_texts_where_they_are_a_batch(way):
    model, given = made("LLaMA", way), prompts("LLaMA")
    options = TEXT | {"min_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    found = model.generate(**given, **options, task=TASKS)
    for row, task in enumerate(TASKS):
        alone = model.generate(**{n: t[[row]] for n, t in given.items()}, **options, task=task)
        assert torch.equal(found.sequences[[row]], alone.sequences)
        for step in range(6):
            torch.testing.assert_close(found.scores[step][[row]], alone.scores[step])


def test_scores_of_texts_of_different_lengths_are_refused():
    model, given = made("GPT-2", "grouped"), prompts("GPT-2")
    first = model.generate(**given, **TEXT, task=1)[0, 7]
    options = TEXT | {"eos_token_id": int(first), "return_dict_in_generate": True}
    rows = {name: tensor[:2] for name, tensor in given.items()}
    with pytest.raises(sp.SuperposeError, match="leave out return_dict_in_generate"):
        model.generate(**rows, **options, output_scores=True, task=[1, 0])


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("name", ["LLaMA", "T5"])
def test_a_task_for_each_row_not_for_each_beam(name, beams):
    with pytest.raises(sp.SuperposeError, match=r"there are 8 tasks.*'input_ids'.*\(4, 7\)"):
        made(name).generate(**prompts(name), **TEXT, num_beams=beams, task=[0, 1] * 4)


@pytest.mark.parametrize("name", ["TimeSeriesTransformer", "Informer", "Autoformer"])
def test_forecasts_of_rows_of_many_tasks(name):
    options = SERIES | ({"label_length": 4, "moving_average": 3} if name == "Autoformer" else {})
    net = zoo.network(f"{name}ForPrediction", options)
    model = randomise_private(sp.superpose(net, tasks=3)).eval()
    generator = torch.Generator().manual_seed(0)
    given = {
        "past_values": torch.rand(4, 10, generator=generator),
        "past_time_features": torch.rand(4, 10, 1, generator=generator),
        "past_observed_mask": torch.ones(4, 10),
        "future_time_features": torch.rand(4, 3, 1, generator=generator),
    }
    torch.manual_seed(0)
    found = model.generate(**given, task=TASKS).sequences
    assert found.shape == (4, 3, 3)
    torch.manual_seed(0)
    rows = {name: tensor[[0, 3]] for name, tensor in given.items()}
    assert torch.equal(model.generate(**rows, task=1).sequences, found[[0, 3]])
    torch.manual_seed(0)
    assert torch.equal(sp.unsuperpose(model, 1).generate(**rows).sequences, found[[0, 3]])


def test_whisper_has_a_task_of_its_own():
    model = _whisper()
    features = zoo.MODELS["Whisper"][2]["input_features"]
    options = {"max_new_tokens": 4, "do_sample": False}
    for task in range(3):
        plain = sp.unsuperpose(model, task).generate(features, **options)
        with model.task(task):
            assert torch.equal(model.generate(features, **options), plain)
    with model.task([1, 0, 1]):
        texts = model.generate(features, **options)
    with model.task(1):
        assert torch.equal(model.generate(features[[0, 2]], **options), texts[[0, 2]])
    with pytest.raises(sp.SuperposeError, match="no task was given"):
        model.generate(features, **options)


def _whisper():
    _, config, _ = zoo.MODELS["Whisper"]
    net = zoo.network("WhisperForConditionalGeneration", config)
    return randomise_private(sp.superpose(net, tasks=3)).eval()


@pytest.mark.parametrize("tasks", [1, TASKS])
def test_one_view_is_held_for_the_whole_run(monkeypatch, tasks):
    model, given, views = made("LLaMA", "direct"), prompts("LLaMA"), []
    view_of = vars(Views)["view_of"]
    view_of = getattr(view_of, "function", view_of)
    monkeypatch.setattr(
        Views,
        "view_of",
        lambda self, ids: views.append(ids) or view_of(self, ids),
    )
    model.generate(**given, **TEXT, task=tasks)
    assert len([ids for ids in views if ids == tasks]) == 1


def test_a_closed_task_generates_as_its_base_and_not_in_training():
    kind, config, _ = zoo.MODELS["LLaMA"]
    net, given = zoo.network(kind, config), prompts("LLaMA")
    model = sp.superpose(net, tasks=3, base=True, rank=2).eval()
    plain = net.generate(**given, **TEXT)
    assert torch.equal(model.generate(**given, **TEXT, task=1), plain)
    assert torch.equal(model.generate(**given, **TEXT, task=TASKS), plain)
    with pytest.raises(sp.SuperposeError, match="has not begun"):
        model.train().generate(**given, **TEXT, task=1)


@pytest.mark.parametrize("way", ["grouped", "direct"])
def test_caches_may_hold_numbers_that_have_no_rows(way):
    """A sliding window keeps its size as a tensor; a static cache, how many tokens it has seen."""
    model, ids = made("Mistral", way), prompts("LLaMA")["input_ids"]
    first = model(ids[:, :6], task=TASKS)
    static = transformers.StaticCache(config=model.config, max_cache_len=8)
    model(ids[:, :6], past_key_values=static, task=TASKS)
    alone = torch.cat([model(ids[[r]], task=t).logits[:, -1:] for r, t in enumerate(TASKS)])
    for cache in (first.past_key_values, static):
        y = model(ids[:, 6:], past_key_values=cache, task=TASKS)
        torch.testing.assert_close(y.logits, alone)
