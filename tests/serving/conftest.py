import pytest
import torch
from safetensors.torch import save_file
from serving.served import make, saved, service_of, serving

collect_ignore = ["clients"]  # they run in environments of their own


@pytest.fixture
def many(tmp_path):
    """The model in process; its file is many.safetensors."""
    return saved(tmp_path)


@pytest.fixture
def service(many, tmp_path):
    return service_of(tmp_path)


@pytest.fixture
def server(service):
    with serving(service) as running:
        yield running


@pytest.fixture
def nets(tmp_path):
    """Plain models, each with a file of its weights."""
    made = {}
    for seed, name in enumerate("abcd"):
        torch.manual_seed(seed)
        made[name] = make().eval()
        save_file(made[name].state_dict(), tmp_path / f"{name}.safetensors")
    return made
