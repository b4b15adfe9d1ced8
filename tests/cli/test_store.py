"""superpose pack, unpack, inspect and plan, on files."""

import json
import warnings

import pytest
import torch
from packing.problems import MLP
from safetensors.torch import load_file, save_file

import superpose as sp
from superpose.cli import main

NET = "packing.problems:MLP"
SIZES = '{"inputs": 48, "units": 64, "classes": 5, "bias": true}'
ARCHITECTURE = ["--net", NET, "--net-args", SIZES]


def make():
    return MLP(**json.loads(SIZES))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    for name in "abc":
        save_file(make().state_dict(), f"{name}.safetensors")
        points = torch.randn(10, 48).repeat_interleave(10, 0)
        save_file({"x": points}, f"{name}_inputs.safetensors")
    return tmp_path


@pytest.fixture
def call(capsys):
    def run(*words):
        main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.fixture
def fails(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert out == ""
        return stopped.value.code, err

    return run


def pairs(names, kind=""):
    return [f"{name}={name}{kind}.safetensors" for name in names]


def packing(names, *options):
    return ["pack", *pairs(names), *ARCHITECTURE, "--out", "many.safetensors", *options]


def test_weights_go_in_and_come_out(files, call):
    told = json.loads(call(*packing("abc", "--json", "--calibration", *pairs("abc", "_inputs"))))
    assert told["tasks"] == ["a", "b", "c"]
    assert told["cost"]["separate_bytes"] == 3 * told["cost"]["plain_bytes"]
    call("unpack", "many.safetensors", "b", *ARCHITECTURE, "--out", "out.safetensors")
    out, given = load_file("out.safetensors"), load_file("b.safetensors")
    assert {n: t.shape for n, t in out.items()} == {n: t.shape for n, t in given.items()}
    nets = [make(), make()]
    for net, state in zip(nets, (out, given), strict=True):
        net.load_state_dict(state)
    x = load_file("b_inputs.safetensors")["x"]
    found, wanted = nets[0](x), nets[1](x)
    assert (found - wanted).norm() < 1e-3 * wanted.norm()
    assert sorted(path.name for path in files.iterdir() if path.name.startswith(".")) == []


def test_a_model_is_told_by_its_number_too(files, call):
    call(*packing("abc", "--calibration", *pairs("abc", "_inputs")))
    for task in ("b", "1"):
        call("unpack", "many.safetensors", task, *ARCHITECTURE, "--out", f"{task}.out")
    named, numbered = load_file("b.out"), load_file("1.out")
    assert all(torch.equal(named[key], numbered[key]) for key in named)


def test_what_is_read_is_not_written_over(files, call, fails):
    inputs = ["--calibration", *pairs("ab", "_inputs")]
    call(*packing("ab", *inputs))
    before = {path.name: path.read_bytes() for path in files.iterdir() if path.is_file()}
    words = ["pack", *pairs("ab"), *ARCHITECTURE, *inputs, "--out"]
    for out in ("a.safetensors", "./b_inputs.safetensors"):
        code, told = fails(*words, out)
        assert (code, "would overwrite a file that is read" in told) == (1, True)
    unpacking = ["unpack", "many.safetensors", "b", *ARCHITECTURE, "--out", "many.safetensors"]
    assert fails(*unpacking)[0] == 1
    assert before == {path.name: path.read_bytes() for path in files.iterdir() if path.is_file()}


def test_packing_with_noise_of_a_given_shape_warns_in_a_sentence(files, capsys):
    with pytest.warns(UserWarning, match="without calibration inputs"):
        main(packing("ab", "--input-shape", "48"))
    assert warnings.formatwarning("so", UserWarning, "file", 1) == "superpose: so\n"


def test_the_file_is_that_of_the_library(files, call):
    call(*packing("ab", "--method", "sum", "--family", "hadamard", "--seed", 4))
    nets = {}
    for name in "ab":
        nets[name] = make()
        nets[name].load_state_dict(load_file(f"{name}.safetensors"))
    expected = sp.pack(nets, "hadamard", method="sum", seed=4)
    loaded = sp.load("many.safetensors", make())
    for key, tensor in expected.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor)


def test_delta_with_a_base(files, call):
    call(*packing("ab", "--method", "delta", "--base", "c.safetensors"))
    loaded = sp.load("many.safetensors", make())
    base = load_file("c.safetensors")["hidden.0.weight"]
    assert torch.equal(loaded.hidden[0].base("weight"), base)
    call("unpack", "many.safetensors", "a", *ARCHITECTURE, "--out", "a_again.safetensors")
    assert load_file("a_again.safetensors").keys() == load_file("a.safetensors").keys()
    assert loaded.begun == ["a", "b"]


def test_low_rank_parts(files, call):
    call(*packing("ab", "--method", "delta", "--rank", 2))
    loaded = sp.load("many.safetensors", make())
    assert loaded.superposition.options.rank == 2
    assert loaded.private_tensors("a")["hidden.0.weight_up"].abs().max() > 0.01


def test_inspect_needs_no_architecture(files, call):
    call(*packing("ab", "--method", "sum"))
    facts = json.loads(call("inspect", "many.safetensors", "--json"))
    assert facts["tasks"] == ["a", "b"]
    assert (facts["method"], facts["family"]["name"], facts["seed"]) == ("sum", "binary", 0)
    assert facts["private_bytes"] == 4 * (64 + 64 + 5)  # the first model is what tasks start from
    assert facts["tensors"]["hidden.0.weight"] == [64, 48]
    text = call("inspect", "many.safetensors")
    assert "2 models: a, b" in text
    assert "532 bytes private" in text


def test_plan(files, call):
    words = ["plan", *ARCHITECTURE, "--tasks", 3, "--weights", "a.safetensors"]
    inputs = ["--inputs", "a_inputs.safetensors"]
    planned = json.loads(call(*words, *inputs, "--json"))
    assert planned["noise"] < 1e-3
    assert [layer["rank"] <= 10 for layer in planned["layers"]] == [True] * 3
    assert "the bottleneck is" in call(*words, "--rank", 40)
    worst = json.loads(call(*words, "--json"))
    assert worst["layers"][0]["noise"] == pytest.approx(2 / 3, rel=1e-3)
    net = make()
    net.load_state_dict(load_file("a.safetensors"))
    expected = sp.plan(net, tasks=3, inputs=load_file("a_inputs.safetensors")["x"])
    assert planned["noise"] == pytest.approx(expected.noise, abs=1e-9)


def test_an_architecture_from_transformers(files, call):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, architectures=["BertForSequenceClassification"],
    )  # fmt: skip
    config.to_json_file("config.json", use_diff=False)
    for name in "ab":
        net = transformers.BertForSequenceClassification(config)
        save_file({k: v.contiguous() for k, v in net.state_dict().items()}, f"{name}.safetensors")
        ids = {"input_ids": torch.randint(0, 30, (8, 4))}
        save_file({**ids, "attention_mask": torch.ones(8, 4)}, f"{name}_inputs.safetensors")
    net = ["--net", "config.json"]
    out = ["--out", "many.safetensors"]
    call("pack", *pairs("ab"), *net, *out, "--calibration", *pairs("ab", "_inputs"))
    call("unpack", "many.safetensors", "b", *net, "--out", "out.safetensors")
    assert load_file("out.safetensors").keys() == load_file("b.safetensors").keys()
    told = json.loads(call("inspect", "many.safetensors", "--json"))
    assert "bert.encoder.layer.0.output.dense.weight" in told["tensors"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (packing("aa"), "pack: the name a is given twice: choose another"),
        (["pack", "a", *ARCHITECTURE, "--out", "o"], "pack a: write it as NAME=FILE"),
        (["pack", *ARCHITECTURE, "--out", "o"], "there is no model to pack"),
        (packing("abd"), "d.safetensors: there is no such file"),
        (packing("ab", "--calibration", *pairs("a", "_inputs")), "no calibration inputs for 'b'"),
        (packing("ab", "--calibration", *pairs("c", "_inputs")), "the models to pack are a, b"),
        (packing("ab", "--family", "best"), "unknown family 'best'"),
        (packing("ab", "--method", "sum", "--finetune", "3"), "finetune=3 is for method 'solve'"),
        (["pack", "a=a.safetensors", "--net", "nowhere:f", "--out", "o"], "No module named 'nowhe"),
        (["pack", "a=a.safetensors", "--net", "math", "--out", "o"], "write it as MODULE:FUNCTION"),
        (["pack", "a=a.safetensors", "--net", "math:pi", "--out", "o"], "made: TypeError"),
        (["pack", "a=a.safetensors", "--net", ":make", "--out", "o"], "as MODULE:FUNCTION"),
        (["pack", "a=a.safetensors", "--net", "builtins:dict", "--out", "o"], "returned a dict: "),
        (["pack", "a=a.safetensors", "--net", NET, "--net-args", "{", "--out", "o"], "not JSON"),
        (["pack", "a=a.safetensors", "--net", NET, "--net-args", "[]", "--out", "o"], "as a JSON"),
        (["pack", "a=a.safetensors", "--net", "no.json", "--out", "o"], "not a config of transf"),
        (["pack", "a=a_inputs.safetensors", *ARCHITECTURE, "--out", "o"], "file has no tensor hid"),
        (["inspect", "a.safetensors"], "was not written by superpose.save"),
        (["inspect", "no.safetensors"], "there is no such file"),
        (["unpack", "a.safetensors", "b", *ARCHITECTURE, "--out", "o"], "was not written by"),
        (["plan", *ARCHITECTURE, "--tasks", "0"], "tasks=0: plan for at least one"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence_and_exit_with_1(files, fails, words, message):
    before = sorted(path.name for path in files.iterdir())
    code, error = fails(*words)
    assert code == 1
    assert error.startswith("superpose: ")
    assert error.count("\n") == 1
    assert message in error
    assert sorted(path.name for path in files.iterdir()) == before


def test_an_unknown_task_names_the_known_ones(files, call, fails):
    call(*packing("ab", "--method", "sum"))
    code, error = fails("unpack", "many.safetensors", "z", *ARCHITECTURE, "--out", "o")
    assert code == 1
    assert "unknown task 'z': the 2 known ones are 'a', 'b'" in error


@pytest.mark.parametrize("command", ["pack", "unpack", "inspect", "plan"])
def test_help_has_an_example_and_wrong_words_exit_with_2(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"Example: superpose {command}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main([command, "--nonsense"])
    assert stopped.value.code == 2
