"""Reports on a tape: what it keeps and why (`tape.explain`), and where gradients die or break (`tape.diagnose`)."""
