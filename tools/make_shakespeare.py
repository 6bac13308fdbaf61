"""Makes python/pullback/data/shakespeare.txt.gz. Run once: python tools/make_shakespeare.py input.txt

input.txt is data/tinyshakespeare/input.txt of https://github.com/karpathy/char-rnn, whose SHA-256 is checked.
"""

import gzip
import hashlib
import sys
from pathlib import Path

SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TARGET = Path(__file__).parent.parent / "python" / "pullback" / "data" / "shakespeare.txt.gz"

text = Path(sys.argv[1]).read_bytes()
if hashlib.sha256(text).hexdigest() != SHA256:
    sys.exit(f"{sys.argv[1]} is another text")
TARGET.write_bytes(gzip.compress(text, 9, mtime=0))
print(f"{TARGET}: {TARGET.stat().st_size} bytes")
