import numpy as np
import pytest


@pytest.fixture
def digits():
    """Scans of handwritten digits, 0 to 1."""
    from sklearn.datasets import load_digits

    return (load_digits().data / 16).astype(np.float32)
