"""Reports on a tape: `tape.explain` lists what it keeps and why, `tape.diagnose` finds where gradients die or turn into NaN."""
