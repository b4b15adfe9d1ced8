import pytest
from serving.served import saved, service_of, serving

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
