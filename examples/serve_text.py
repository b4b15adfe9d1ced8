"""Serve eight text encoders from one file, at the path that the `openai` client asks.

    client = openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="-")
    client.embeddings.create(model="law", input=["a contract", "two parties agree"])

The model of a request is the task. Texts of different lengths and tasks share a batch: they are
padded, and the mask keeps what was added out of the sums. The encoder is a small BERT with random
weights; put a pretrained one, and its tokenizer, in its place.
"""

import asyncio
import json
import tempfile
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

import superpose as sp
from superpose.serving import Options, Repository, RequestError, Server, Service, TensorData
from superpose.serving import TensorSpec as Spec

TASKS = ["law", "medicine", "news", "poetry", "chat", "code", "sports", "travel"]
WORDS, LONGEST = 1000, 32
INPUTS = (
    Spec.parse(f"input_ids=INT64[tokens<={LONGEST}]"),
    Spec.parse(f"attention_mask=INT64[tokens<={LONGEST}]"),
)


class Encoder(torch.nn.Module):
    """One vector a text: the mean of its words' last states."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = BertConfig(vocab_size=WORDS, intermediate_size=128, **sizes)
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids, attention_mask):
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[..., None].to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)


def tokens(text):
    """Numbers of words: a stand-in for a tokenizer."""
    return [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.lower().split()][:LONGEST]


def tensors(text):
    ids = torch.tensor([tokens(text)])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def sent(text):
    return {name: TensorData.of(tensor) for name, tensor in tensors(text).items()}


def serving(service, port):
    return Server(service, port=port, posts={"/v1/embeddings": embeddings(service)}, grpc_port=None)


def embeddings(service):
    """The answer to POST /v1/embeddings."""

    async def answer(asked):
        texts = asked.get("input")
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(t, str) and t.split() for t in texts):
            raise RequestError(400, "input is not a text, or a list of texts, with words in them")
        task = str(asked.get("model"))
        found = await asyncio.gather(*(service.infer(task, sent(text)) for text in texts))
        data = [
            {"object": "embedding", "index": place, "embedding": one.outputs["output"].to_list()}
            for place, one in enumerate(found)
        ]
        used = sum(len(tokens(text)) for text in texts)
        usage = {"prompt_tokens": used, "total_tokens": used}
        return {"object": "list", "model": task, "data": data, "usage": usage}

    return answer


def ask(url, task, text):
    body = json.dumps({"model": task, "input": text}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/embeddings", body, headers)
    with urllib.request.urlopen(request) as answer:
        return torch.tensor(json.load(answer)["data"][0]["embedding"])


def main():
    torch.manual_seed(0)
    model = sp.superpose(Encoder(), "binary", tasks=TASKS).eval()
    texts = [" ".join(f"word{n * place}" for n in range(1 + place % 7)) for place in range(24)]
    asked = [TASKS[place % 8] for place in range(24)]

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.safetensors"
        sp.save(model, file)
        options = Options(INPUTS, pad={"input_ids": 0, "attention_mask": 0})
        service = Service(Repository(file, Encoder, options))
        with serving(service, port=0) as server, ThreadPoolExecutor(12) as clients:
            answers = list(clients.map(ask, [server.url] * 24, asked, texts))

    with torch.no_grad():
        pairs = zip(texts, asked, strict=True)
        alone = [model(**tensors(text), task=task)[0] for text, task in pairs]
    batches = service.traffic.batches.total()
    print(f"{len(texts)} texts of {len(TASKS)} tasks in {batches} batches")
    return torch.stack(answers), torch.stack(alone)


if __name__ == "__main__":
    main()
