"""Makes python/pullback/data/digits.npz from scikit-learn's copy of the UCI digits. Run once: python tools/make_digits.py

It needs scikit-learn, which nothing else here needs. The file holds `images` (1797, 8, 8) uint8 from 0 to 16 and `labels`
(1797,) uint8, in the order of the source. pullback splits them into training and test images when it reads the file.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).parent.parent / "python" / "pullback" / "data" / "digits.npz"

digits = load_digits()
np.savez_compressed(TARGET, images=digits.images.astype(np.uint8), labels=digits.target.astype(np.uint8))
print(f"{TARGET}: {TARGET.stat().st_size} bytes")
