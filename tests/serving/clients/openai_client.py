"""What the client of openai makes of examples/serve_text.py: `openai_client.py HTTP - FOLDER`."""

import json
import sys
from pathlib import Path

import numpy as np
import openai

WHERE, _, FOLDER = sys.argv[1:]
TEXTS = json.loads((Path(FOLDER) / "texts.json").read_text())
EXPECTED = dict(np.load(Path(FOLDER) / "expected.npz"))

client = openai.OpenAI(base_url=f"http://{WHERE}/v1", api_key="none", max_retries=0)
for task, expected in EXPECTED.items():
    answer = client.embeddings.create(model=task, input=TEXTS, encoding_format="float")
    assert answer.model == task
    found = np.array([one.embedding for one in answer.data])
    np.testing.assert_allclose(found, expected, atol=1e-4)
told = ""
try:
    client.embeddings.create(model="unknown", input=TEXTS)
except openai.NotFoundError as error:
    told = str(error)
assert "there is no model" in told, told
print("done")
