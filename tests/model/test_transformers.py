"""The models people bring from `transformers`, from a config, with nothing downloaded."""

import pickle
import warnings

import pytest
import torch
from checks import learned_gradients, randomise_private

import superpose as sp

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own deprecations are not ours
TASKS = [1, 0, 2]
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def bert():
    config = transformers.BertConfig(vocab_size=30, intermediate_size=32, **SMALL)
    return transformers.BertForSequenceClassification(config), {
        "input_ids": torch.randint(0, 30, (3, 5)),
        "attention_mask": torch.tensor([[1] * 5, [1] * 5, [1, 1, 1, 0, 0]]),
    }


def gpt2():
    config = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 30, (3, 5))}


def vit():
    config = transformers.ViTConfig(image_size=8, patch_size=4, intermediate_size=32, **SMALL)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(3, 3, 8, 8)}


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    return transformers.ResNetForImageClassification(config), {
        "pixel_values": torch.randn(3, 3, 16, 16)
    }


def llama():
    config = transformers.LlamaConfig(
        vocab_size=30, intermediate_size=32, num_key_value_heads=1, **SMALL
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(0, 30, (3, 5))}


def t5():
    config = transformers.T5Config(
        vocab_size=30, d_model=16, d_ff=32, d_kv=8, num_layers=2, num_heads=2
    )
    ids = torch.randint(0, 30, (3, 5))
    inputs = {"input_ids": ids, "decoder_input_ids": ids}
    return transformers.T5ForConditionalGeneration(config), inputs


def wavlm():
    config = transformers.WavLMConfig(
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        intermediate_size=32,
        **SMALL,
    )
    net = transformers.WavLMForSequenceClassification(config)
    return net, {"input_values": torch.randn(3, 300)}


@pytest.mark.parametrize("make", [bert, gpt2, llama, t5, vit, resnet])
@pytest.mark.parametrize("family", ["binary", "hadamard"])
def test_models_from_transformers(make, family):
    torch.manual_seed(0)
    net, inputs = make()
    net.eval()
    model = randomise_private(sp.superpose(net, family, tasks=3)).eval()
    assert isinstance(model, type(net))
    assert model.state_dict().keys() >= net.state_dict().keys()
    with torch.no_grad():
        mixed = model(**inputs, task=TASKS).logits
        rows = [
            model(**{name: value[i : i + 1] for name, value in inputs.items()}, task=task).logits
            for i, task in enumerate(TASKS)
        ]
        torch.testing.assert_close(mixed, torch.cat(rows), rtol=1e-4, atol=1e-4)
        assert (mixed - model(**inputs, task=0).logits).abs().max() > 1e-3
        plain = sp.unsuperpose(model, 1)
        torch.testing.assert_close(
            plain(**inputs).logits, model(**inputs, task=1).logits, rtol=1e-4, atol=1e-4
        )
    model(**inputs, task=2).logits.sum().backward()
    identity = sp.superpose(net, "identity", tasks=2)
    assert torch.equal(identity(**inputs, task=1).logits, net(**inputs).logits)


@pytest.mark.parametrize("options", [{}, {"rank": 2, "centre": "task"}], ids=["base", "all"])
@pytest.mark.parametrize("make", [t5, bert])
def test_fine_tunes_start_from_their_base(make, options):
    """Law 9; T5 ties its table to the head, and its decoder reads what the encoder gives."""
    torch.manual_seed(0)
    net, inputs = make()
    model = sp.superpose(net.eval(), "hadamard", tasks=3, base=True, **options).eval()
    with torch.no_grad():
        expected = net(**inputs).logits
        assert torch.equal(model(**inputs, task=1).logits, expected)
    optimiser = torch.optim.Adam(model.train().parameters(), 1e-2)
    losses = []
    model.begin(0)
    for _ in range(12):
        optimiser.zero_grad()
        logits = model(**inputs, task=0).logits.flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(logits, torch.ones(len(logits)).long())
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        assert torch.equal(model.eval()(**inputs, task=1).logits, expected)
        mixed = model(**inputs, task=TASKS).logits
        torch.testing.assert_close(mixed[[0, 2]], expected[[0, 2]], rtol=1e-4, atol=1e-4)
        learned = model(**inputs, task=0).logits
        torch.testing.assert_close(mixed[1], learned[1], rtol=1e-4, atol=1e-4)
        assert (mixed[1] - expected[1]).abs().max() > 1e-2
        torch.testing.assert_close(sp.unsuperpose(model, 0)(**inputs).logits, learned)
        assert torch.equal(sp.unsuperpose(model, 1)(**inputs).logits, expected)
        if make is t5:
            given = inputs["input_ids"]
            text = {"max_new_tokens": 4, "do_sample": False, "decoder_start_token_id": 0}
            assert torch.equal(model.generate(given, task=1, **text), net.generate(given, **text))


@pytest.mark.parametrize("make", [gpt2, llama])
def test_activations_that_are_computed_again_are_the_tasks(make):
    torch.manual_seed(0)
    net, inputs = make()
    kept = sp.superpose(net, tasks=3).train()
    again = sp.superpose(net, tasks=3).train()
    again.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": sp.same_task})
    for module in (*kept.modules(), *again.modules()):
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for model in (kept, again):
        losses = [model(**inputs, task=task).logits.square().sum() for task in (1, 2)]
        torch.stack(losses).sum().backward()  # that of task 1 after task 2 has run
    found, expected = learned_gradients(again), learned_gradients(kept)
    assert {name[-5:] for name in expected} >= {" of 1", " of 2"}
    torch.testing.assert_close(found, expected)


def test_attention_that_uses_weights_without_calling_its_layers():
    torch.manual_seed(0)
    net, inputs = wavlm()
    model = randomise_private(sp.superpose(net.eval(), tasks=3)).eval()
    logits = model(**inputs, task=1).logits
    torch.testing.assert_close(logits, sp.unsuperpose(model, 1)(**inputs).logits)
    assert (logits - model(**inputs, task=2).logits).abs().max() > 1e-3
    logits.sum().backward()
    assert model.wavlm.encoder.layers[0].attention.k_proj.weight.grad.abs().max() > 0
    with torch.no_grad():
        mixed = model(**inputs, task=TASKS).logits
        each = [model(inputs["input_values"][[i]], task=t).logits for i, t in enumerate(TASKS)]
        torch.testing.assert_close(mixed, torch.cat(each))
    assert (mixed - logits).abs().max() > 1e-3


def of_rows(outputs, labels, num_items_in_batch=None):
    """The loss of a mixed batch, from the outputs, which have rows."""
    return torch.nn.functional.cross_entropy(outputs.logits, labels)


class Opposites(torch.utils.data.Dataset):
    """Two tasks whose labels are each other's opposite, one row of each in turn."""

    def __len__(self):
        return 128

    def __getitem__(self, row):
        ids = torch.randint(30, (5,), generator=torch.Generator().manual_seed(row))
        task = row % 2
        return {"input_ids": ids, "labels": int(ids[0] > 14) ^ task, "task": task}


def test_the_trainer_takes_a_column_of_tasks(tmp_path):
    torch.manual_seed(0)
    model = sp.superpose(bert()[0], tasks=2)
    options = transformers.TrainingArguments(
        tmp_path, per_device_train_batch_size=32, num_train_epochs=20, learning_rate=5e-3,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, options, train_dataset=Opposites(), compute_loss_func=of_rows
    )
    trainer.train()
    found = trainer.predict(Opposites())
    assert (found.predictions.argmax(1) == found.label_ids).mean() > 0.95


SAID = "from_pretrained cannot read superposed weights.*of BertForSequenceClassification .*sp.save"


def training(path, model, optimiser=None, data=None, loss=of_rows, **options):
    """A short run of the trainer."""
    arguments = transformers.TrainingArguments(
        path, per_device_train_batch_size=32, learning_rate=5e-3, report_to=[], disable_tqdm=True,
        use_cpu=True, **{"num_train_epochs": 2, "save_strategy": "no", **options},
    )  # fmt: skip
    data = Opposites() if data is None else data
    return transformers.Trainer(
        model, arguments, train_dataset=data, optimizers=(optimiser, None), compute_loss_func=loss
    )


@pytest.mark.parametrize("options", [{}, {"base": True, "rank": 2}])
def test_the_trainer_resumes_from_a_checkpoint(tmp_path, options):
    torch.manual_seed(0)
    net, inputs = bert()
    first, second = (sp.superpose(net, tasks=2, **options) for _ in range(2))
    first.begin(0, 1)
    with pytest.warns(UserWarning, match=SAID):
        training(tmp_path, first, save_strategy="epoch").train()
    resumed = training(tmp_path, second, save_strategy="epoch")
    with pytest.warns(UserWarning, match=SAID):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert torch.equal(
        first.eval()(**inputs, task=1).logits, second.eval()(**inputs, task=1).logits
    )


def test_save_pretrained_tells_once_that_it_is_not_for_from_pretrained(tmp_path):
    torch.manual_seed(0)
    net, inputs = bert()
    model = randomise_private(sp.superpose(net, tasks=["a", "b"], base=True)).eval()
    with pytest.warns(UserWarning, match=SAID) as told:
        model.save_pretrained(tmp_path / "all")
    assert __file__ in [one.filename for one in told]
    plain = type(net).from_pretrained(tmp_path / "all").eval()
    expected = model(**inputs, task="b").logits
    assert not torch.allclose(plain(**inputs).logits, expected, atol=1e-2)  # as the warning says
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "from_pretrained")
        model.save_pretrained(tmp_path / "all")
        sp.unsuperpose(model, "b").save_pretrained(tmp_path / "b")
    plain = type(net).from_pretrained(tmp_path / "b").eval()
    torch.testing.assert_close(plain(**inputs).logits, expected, rtol=1e-4, atol=1e-5)


class Rows(Opposites):
    """The same rows; the column of tasks is left out, or holds names."""

    def __init__(self, names):
        self.names = names

    def __getitem__(self, row):
        item = super().__getitem__(row)
        task = item.pop("task")
        return item | {"task": self.names[task]} if self.names else item


def test_the_trainer_centred_by_task_is_given_one_task_at_a_time(tmp_path):
    torch.manual_seed(0)
    options = {"base": True, "rank": 2, "centre": "task"}
    model = sp.superpose(bert()[0], "hadamard", tasks=["a", "b"], **options)
    model.begin("a", "b")
    with pytest.raises(sp.SuperposeError, match=r"such as a loss.*compute it from the outputs"):
        training(tmp_path, model, loss=None).train()
    groups = model.parameter_groups(1e-5, rank_lr=1e-4)
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
    start = {name: tensor.clone() for name, tensor in model.private_tensors("b").items()}
    with model.task("a"):
        training(tmp_path, model, optimiser, Rows(None)).train()
    assert [group["initial_lr"] for group in optimiser.param_groups] == [1e-5, 1e-4]
    assert model.private_tensors("a")["bert.pooler.dense.weight_up"].abs().sum() > 0
    assert all(torch.equal(t, start[name]) for name, t in model.private_tensors("b").items())


def test_a_column_of_names_does_not_reach_the_model(tmp_path):
    model = sp.superpose(bert()[0], tasks=["a", "b"])
    with pytest.raises(sp.SuperposeError, match="no task was given"):
        training(tmp_path, model, data=Rows(["a", "b"])).train()


def test_weight_decay_of_the_trainer_reaches_private_tensors(tmp_path):
    model = sp.superpose(bert()[0], tasks=2)
    groups = training(tmp_path, model, weight_decay=0.1).create_optimizer().param_groups
    private = {id(flat) for task in (0, 1) for flat in model.private_parameters(task)}
    decays = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert private <= decays


def test_beams_of_rows_of_different_tasks():
    torch.manual_seed(0)
    net, inputs = gpt2()
    model = randomise_private(sp.superpose(net, tasks=3)).eval()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "num_beams": 2}
    rows = len(next(iter(inputs.values())))
    tasks = torch.arange(rows) % 3
    text = model.generate(**inputs, **options, task=tasks)
    each = [model.generate(**inputs, **options, task=task) for task in range(3)]
    assert torch.equal(text, torch.stack([each[t][row] for row, t in enumerate(tasks)]))
    assert not torch.equal(each[0], each[1])


def test_generation_and_saving_of_tied_weights(tmp_path):
    torch.manual_seed(0)
    net, inputs = gpt2()
    model = sp.superpose(net, tasks=["a", "b"]).eval()
    assert "transformer.h.0.attn.c_attn.weight" in model.summary().superposed
    assert "transformer.wte.weight" in model.summary().shared
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with model.task("b"):
        text = model.generate(**inputs, **options)
    expected = sp.unsuperpose(model, "b").generate(**inputs, **options)
    assert torch.equal(text, expected)
    assert torch.equal(model.generate(**inputs, **options, task="b"), expected)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(**inputs, task="b").logits, model(**inputs, task="b").logits)
    sp.save(model, tmp_path / "gpt2.safetensors")
    loaded = sp.load(tmp_path / "gpt2.safetensors", gpt2()[0]).eval()
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert torch.equal(loaded(**inputs, task="b").logits, model(**inputs, task="b").logits)
