"""`python -m pullback` is the command `pullback`."""

from .cli import main

raise SystemExit(main())
