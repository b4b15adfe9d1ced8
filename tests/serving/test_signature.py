"""Inputs and outputs of networks: declared, found, padded."""

import math

import pytest
import torch
from serving.served import Gate, call, service_of, serving, together, until

import superpose as sp
from superpose import SuperposeError
from superpose.serving import Options, TensorSpec, Version
from superpose.serving.request_error import RequestError
from superpose.serving.tensors import DATATYPES, TensorData, from_bytes, from_list


def specs(*words):
    return tuple(map(TensorSpec.parse, words))


def version(net, *words, tasks=("a", "b"), **options):
    made = sp.superpose(net, tasks=list(tasks), **options.pop("conversion", {}))
    return Version(made, "0" * 64, Options(specs(*words), **options))


class Reader(torch.nn.Module):
    """Means of words, where they are not masked; and each word's own scores."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(20, 16)
        self.words = torch.nn.Linear(16, 16)
        self.score = torch.nn.Linear(16, 3)

    def forward(self, ids, mask):
        seen = self.words(self.table(ids)).tanh()
        mean = (seen * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return {"label": self.score(mean), "words": self.score(seen), "cache": None}


READER = ("ids=INT64[tokens<=12]", "mask=FP32[tokens<=12]")


def reader(**options):
    torch.manual_seed(0)
    return version(Reader(), *READER, conversion={"skip": ["table"]}, **options)


def test_outputs_are_found_with_the_sizes_that_they_follow():
    found = [str(spec) for spec in reader().signature.outputs]
    assert found == ["label=FP32[3]", "words=FP32[tokens<=12,3]"]


def test_an_input_is_found_where_the_first_layer_tells_it():
    net = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    signature = version(net).signature
    assert list(map(str, signature.inputs)) == ["input=FP32[7]"]
    assert list(map(str, signature.outputs)) == ["output=FP32[2]"]


def test_inputs_that_are_not_known_are_asked_for():
    with pytest.raises(SuperposeError, match=r"--inputs input=FP32\[3,32,32\]"):
        version(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten()))
    with pytest.raises(SuperposeError, match="the inputs of SuperposedReader are not known"):
        version(Reader())


def test_images_of_any_size():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())
    made = version(net, "input=FP32[3,height<=9,width<=9]")
    assert list(map(str, made.signature.outputs)) == ["output=FP32[8,height<=9,width<=9]"]


def test_several_outputs_have_names():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            out = self.layer(x)
            return out, out.argmax(1)

    found = version(Two()).signature.outputs
    assert list(map(str, found)) == ["output_0=FP32[3]", "output_1=INT64[]"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("x", "write it as NAME"),
        ("x=FP99[3]", "types are BOOL"),
        ("x=FP32[n]", "n is no size"),
        ("x=FP32[0]", "0 is no size"),
        ("x=FP32[-1]", "-1 is no size"),
    ],
)
def test_declarations_that_cannot_be_read(word, message):
    with pytest.raises(SuperposeError, match=message):
        TensorSpec.parse(word)


def test_declarations_that_do_not_fit():
    net = torch.nn.Linear(4, 2)
    with pytest.raises(SuperposeError, match="declared twice"):
        version(net, "input=FP32[4]", "input=FP32[4]")
    with pytest.raises(SuperposeError, match="two different limits"):
        version(Reader(), "ids=INT64[n<=4]", "mask=FP32[n<=5]", conversion={"skip": ["table"]})
    with pytest.raises(SuperposeError, match="give a larger limit"):
        version(Reader(), "ids=INT64[n<=1]", "mask=FP32[n<=1]", conversion={"skip": ["table"]})
    with pytest.raises(SuperposeError, match="no input 'y'"):
        version(net, pad={"y": 0})
    with pytest.raises(SuperposeError, match="no size of input 'input' varies"):
        version(net, pad={"input": 0})
    with pytest.raises(SuperposeError, match="input 'mask' has tokens too"):
        reader(pad={"ids": 0})


class Rowless(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x).mean(0)


def test_an_output_without_rows_is_not_served():
    with pytest.raises(SuperposeError, match="rows have to be in the first"):
        version(Rowless(), "x=FP32[4]")


def sent(inputs):
    return {name: TensorData.of(tensor) for name, tensor in inputs.items()}


def texts(*lengths):
    generator = torch.Generator().manual_seed(0)
    made = []
    for length in lengths:
        ids = torch.randint(1, 20, (1, length), generator=generator)
        made.append({"ids": ids, "mask": torch.ones(1, length)})
    return made


def test_texts_of_different_lengths_are_padded_and_cut():
    made = reader(pad={"ids": 0, "mask": 0})
    given = texts(3, 7, 5)
    works = [made.chunks(task, sent(x), 64)[0] for task, x in zip("aba", given, strict=True)]
    assert len({work.kind for work in works}) == 1
    results = made.run(works)
    for task, x, result in zip("aba", given, results, strict=True):
        alone = made.model(**x, task=task)
        for name in ("label", "words"):
            found = result.outputs[name].tensor()
            torch.testing.assert_close(found, alone[name], atol=1e-5, rtol=1e-5)
        assert result.batch_rows == 3
        assert result.tasks == [task]


def test_without_padding_only_equal_lengths_share_a_batch():
    made = reader()
    kinds = [made.chunks("a", sent(x), 64)[0].kind for x in texts(3, 7, 3)]
    assert kinds[0] == kinds[2] != kinds[1]


def test_sizes_that_do_not_fit():
    made = reader()
    for wrong, message in (
        ({"ids": torch.zeros(1, 13, dtype=torch.int64)}, "tokens is at least 1, at most 12"),
        ({"ids": torch.zeros(1, 3, dtype=torch.int64)}, "another input"),
        ({"ids": torch.zeros(2, 5, dtype=torch.int64)}, "another input"),
        ({"ids": torch.zeros(1, 5)}, "is FP32, and the network takes INT64"),
    ):
        with pytest.raises(RequestError, match=message) as refused:
            made.chunks("a", sent(texts(5)[0] | wrong), 64)
        assert refused.value.status == 400


def test_tasks_that_are_numbers():
    made = version(torch.nn.Linear(4, 2), tasks=range(3))
    assert list(made.tasks) == ["0", "1", "2"]
    x = torch.randn(2, 4)
    result = made.run(made.chunks("2", sent({"input": x}), 64))[0]
    torch.testing.assert_close(result.outputs["output"].tensor(), made.model(x, task=2))


def test_padded_texts_over_http(tmp_path):
    torch.manual_seed(0)
    made = sp.superpose(Reader(), tasks=["a", "b"], skip=["table"]).eval()
    sp.save(made, tmp_path / "many.safetensors")
    options = Options(specs(*READER), {"ids": 0, "mask": 0})
    service = service_of(tmp_path, options=options, net=Reader)

    def ask(task, x):
        inputs = [
            {"name": "ids", "datatype": "INT64"},
            {"name": "mask", "datatype": "FP32"},
        ]
        for one in inputs:
            tensor = x[one["name"]]
            one |= {"shape": list(tensor.shape), "data": tensor.tolist()}
        wanted = [{"name": "words"}]
        body = {"inputs": inputs, "outputs": wanted}
        return call(server, "POST", f"/v2/models/{task}/infer", body)

    given = texts(4, 9, 6)
    with serving(service) as server:
        gate = Gate(service.repository.version)
        first = together(lambda: ask("a", given[0]))
        gate.entered.acquire()
        others = together(lambda: ask("b", given[1]), lambda: ask("a", given[2]))
        until(lambda: service.batcher.waiting_rows == 2)
        gate.open()
        for task, x, reply in zip("aba", given, [*first, *others], strict=True):
            output = reply.result().json["outputs"]
            assert [one["name"] for one in output] == ["words"]
            found = torch.tensor(output[0]["data"]).reshape(output[0]["shape"])
            expected = made(**x, task=task)["words"]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert len(gate.batches) == 2


@pytest.mark.parametrize("datatype", DATATYPES)
def test_tensors_come_back_as_they_were(datatype):
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(DATATYPES[datatype])
    for one in (tensor, tensor.T):
        shape, data = list(one.shape), TensorData.of(one)
        for found in (
            from_bytes("x", datatype, shape, data.to_bytes()),
            from_list("x", datatype, shape, data.to_list()),
            from_list("x", datatype, shape, one.tolist()),
        ):
            assert found.datatype == datatype
            assert torch.equal(found.tensor(), one)


def test_bf16_is_rounded_as_pytorch_does():
    numbers = [0.1, -3.14159, 1e-30, 65504.0]
    found = from_list("x", "BF16", [4], numbers)
    assert torch.equal(found.tensor(), torch.tensor(numbers, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("INT8", [128]),
        ("BF16", [1e39]),
        ("FP16", [1e6]),
        ("UINT8", [-1]),
        ("INT64", [2**63]),
        ("INT32", [1.0]),
        ("BOOL", [1]),
    ],
)
def test_numbers_that_do_not_fit_their_type(datatype, data):
    with pytest.raises(RequestError, match="does not fit"):
        from_list("x", datatype, [1], data)


def test_numbers_that_only_bytes_can_carry():
    raw = TensorData.of(torch.tensor([math.nan, math.inf])).to_bytes()
    assert from_bytes("x", "FP32", [2], raw).tensor().isfinite().tolist() == [False, False]
    with pytest.raises(RequestError, match="a byte of BOOL is 0 or 1"):
        from_bytes("x", "BOOL", [1], b"\x02")
