import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tests run side by side; threads of several processes that wait for each other would take many times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
