"""Guards in loops that are not ours: by hand, in a regression, the Trainer, after a restart."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from learning.problems import make_net, make_stream, same_weights
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import superpose as sp
from superpose.learning import EWC, SCHEDULES, SI, Guards, Projection, Quiet, Replay, train

OPTIONS = {"base": True, "rank": 1, "centre": "task", "recognise": True}


def by_hand(model, guard, stream, lr, rank_lr, schedule):
    """Task after task, an optimiser for each, with what a user would write."""
    torch.manual_seed(0)
    for task in range(stream.tasks):
        steps = range(task * stream.period, (task + 1) * stream.period)
        batches = [(stream.batch(step).x, stream.batch(step).y) for step in steps]
        model.begin(task)
        groups = guard.parameter_groups(task, lr=lr, rank_lr=rank_lr)
        optimiser = torch.optim.Adam(groups)
        scheduler = LambdaLR(optimiser, lambda step: SCHEDULES[schedule](step / stream.period))
        for x, y in batches:
            tasks, x, y = guard.rows(task, x, y)
            output = model(x, task=tasks)
            loss = F.cross_entropy(output, y) + guard.penalty(tasks, x, output)
            optimiser.zero_grad()
            loss.backward()
            guard.after_backward()
            optimiser.step()
            guard.after_step()
            scheduler.step()
        if task < stream.tasks - 1:
            guard.end(task, batches[::-1])
    return model


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize(
    "make",
    [
        Projection,
        lambda model: EWC(model, strength=30.0, samples=40),
        SI,
        lambda model: Replay(model, samples=50),
        sp.learning.Doubt,
        lambda model: Guards(Projection(model), EWC(model, samples=20), Replay(model, samples=50)),
    ],
    ids=["projection", "ewc", "si", "replay", "doubt", "three"],
)
def test_a_run_by_hand_and_one_of_ours_end_with_the_same_numbers(make, schedule):
    stream = make_stream(period=15)
    models = [
        sp.superpose(make_net(dropout=0.2), "hadamard", stream.tasks, **OPTIONS) for _ in range(2)
    ]
    lr, rank_lr = 3e-3, 1e-2
    hand = by_hand(models[0], make(models[0]), stream, lr, rank_lr, schedule)
    ours = train(
        models[1], stream, make(models[1]), optimiser="adam", lr=lr, rank_lr=rank_lr,
        schedule=schedule, reset=True, display=Quiet(),
    )  # fmt: skip
    assert same_weights(hand, ours.model)


def regression(task, rows=256):
    """Tasks that ask the same inputs for other values."""
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(task))
    return x, torch.stack([x[:, task].abs(), x[:, task + 1] * x[:, task]], 1)


def learn_values(model, guard, tasks, lr=3e-3, steps=200):
    for task in tasks:
        x, y = regression(task)
        model.begin(task)
        optimiser = torch.optim.AdamW(guard.parameter_groups(task, lr=lr))
        for step in range(steps):
            rows = torch.arange(step * 32, step * 32 + 32) % len(x)
            tasks_, a, b = guard.rows(task, x[rows], y[rows])
            loss = F.mse_loss(model(a, task=tasks_), b)
            optimiser.zero_grad()
            loss.backward()
            guard.after_backward()
            optimiser.step()
            guard.after_step()
        guard.end(task, list(zip(x.split(64), y.split(64), strict=True)))


def errors(model, tasks=3):
    model.eval()
    with torch.no_grad():
        found = [
            float(F.mse_loss(model(x, task=k), y)) for k in range(tasks) for x, y in [regression(k)]
        ]
    model.train()
    return found


def superposed(family="hadamard"):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    return sp.superpose(net, family, tasks=3)


@pytest.mark.parametrize("name", ["projection", "ewc", "si", "replay"])
def test_guards_keep_a_regression(name):
    def drawn(outputs, generator):
        return sp.learning.drawn_value(outputs, generator)

    makes = {
        "projection": Projection,
        "ewc": lambda model: EWC(model, strength=30.0, samples=200, likelihood=drawn),
        "si": lambda model: SI(model, strength=3.0),
        "replay": Replay,
    }
    found = []
    for make in (sp.learning.Guard, makes[name]):
        model = superposed()
        learn_values(model, make(model), range(3))
        found.append(errors(model))
    (plain, *_), (kept, *_) = found
    assert kept < 0.75 * plain, found


def test_a_task_is_learned_after_a_restart_from_files(tmp_path):
    def start():
        model = superposed()
        return model, Guards(Projection(model), SI(model, strength=0.3), Replay(model, samples=100))

    whole, guard = start()
    learn_values(whole, guard, range(3), steps=40)

    model, guard = start()
    learn_values(model, guard, range(2), steps=40)
    sp.save(model, tmp_path / "model.safetensors")
    torch.save(guard.state_dict(), tmp_path / "guard.pt")

    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    model = sp.load(tmp_path / "model.safetensors", net)
    _, guard = start()
    guard = Guards(*(type(one)(model, *options) for one, options in zip(
        guard.guards, [(), (0.3,), (100,)], strict=True)))  # fmt: skip
    guard.load_state_dict(torch.load(tmp_path / "guard.pt", weights_only=True))
    assert guard.pace < 1
    learn_values(model, guard, [2], steps=40)
    assert same_weights(whole, model)


def test_a_task_that_nobody_had_thought_of_is_added_after_a_restart(tmp_path):
    model = superposed()
    guard = Projection(model)
    learn_values(model, guard, range(2))
    state = guard.state_dict()
    sp.save(model, tmp_path / "model.safetensors")
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    before = errors(model, 2)
    paths = {}
    for name in ("guarded", "alone"):
        again = sp.load(tmp_path / "model.safetensors", net)
        later = Projection(again) if name == "guarded" else sp.learning.Guard(again)
        later.load_state_dict(state)
        new = again.add_task("later")
        x, y = regression(3)
        optimiser = torch.optim.AdamW(later.parameter_groups(new, lr=3e-3))
        for _ in range(100):
            optimiser.zero_grad()
            F.mse_loss(again(x, task=new), y).backward()
            later.after_backward()
            optimiser.step()
        paths[name] = [now - then for now, then in zip(errors(again, 2), before, strict=True)]
    assert sum(paths["guarded"]) < 0.5 * sum(paths["alone"])


def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("transformers")


def bert(module):
    torch.manual_seed(0)
    config = module.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    return module.BertForMaskedLM(config)


def sentences(task, rows=64):
    """One word again and again; where it is masked, what a task puts for it is asked for."""
    generator = torch.Generator().manual_seed(task)
    words = torch.randint(2, 40, (rows, 1), generator=generator).expand(-1, 12)
    other = (torch.randperm(38, generator=generator) + 2)[words - 2]
    asked = torch.arange(12).expand(rows, -1) % 3 == 1
    pairs = zip(words.masked_fill(asked, 1), other.masked_fill(~asked, -100), strict=True)
    return [{"input_ids": a, "labels": b} for a, b in pairs]


def trained(module, tmp_path, make, tasks=2):
    """A masked language model in the Trainer, task after task; its losses in the first task."""

    class Guarded(module.TrainerCallback):
        def on_pre_optimizer_step(self, *arguments, **named):
            guard.after_backward()

        def on_optimizer_step(self, *arguments, **named):
            guard.after_step()

    model = sp.superpose(
        bert(module), "hadamard", tasks=tasks, base=True, private_layers=["*.embeddings", "cls"]
    )
    guard, losses = make(model), []
    settings = module.TrainingArguments(
        str(tmp_path), max_steps=120, per_device_train_batch_size=16, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=0,
    )  # fmt: skip
    for task in range(tasks):
        data = sentences(task)
        model.begin(task)
        optimiser = torch.optim.AdamW(guard.parameter_groups(task, lr=1e-2))
        trainer = module.Trainer(
            model, settings, train_dataset=data, callbacks=[Guarded()], optimizers=(optimiser, None)
        )
        with model.task(task):
            trainer.train()
        batches = [module.default_data_collator(data[i : i + 16]) for i in range(0, 64, 16)]
        guard.end(task, batches)
        model.eval()
        with torch.no_grad():
            first = module.default_data_collator(sentences(0))
            losses.append(float(model(**first, task=0).loss))
        model.train()
    return losses


def test_the_recipe_in_the_trainer_of_transformers(tmp_path):
    module = transformers()
    learned, plain = trained(module, tmp_path, sp.learning.Guard)
    assert learned < 1.0
    for make in (Projection, lambda model: EWC(model, strength=100.0, samples=16)):
        own, kept = trained(module, tmp_path, make)
        assert own == pytest.approx(learned, rel=1e-4), "nothing is guarded in the first task"
        assert kept - own < 0.7 * (plain - learned)
