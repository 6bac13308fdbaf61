"""Makes `python -m pullback` run the command `pullback`."""

from .cli import main

raise SystemExit(main())
