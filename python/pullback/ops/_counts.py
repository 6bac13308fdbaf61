COUNTS: dict[str, tuple[int, int]] = {}
