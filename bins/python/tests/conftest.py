import signal

import numpy as np
import pytest

# A shell ignores Ctrl-C in what it starts in the background, and Python keeps that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def digits():
    """Scans of handwritten digits, 0 to 1."""
    from sklearn.datasets import load_digits

    return (load_digits().data / 16).astype(np.float32)
