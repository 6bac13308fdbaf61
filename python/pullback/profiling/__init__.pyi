# Written by tools/generate.py from __init__.py.
# ruff: noqa

from .figures import Figures as Figures
from .figures import Group as Group
from .figures import Row as Row
from .session import Host as Host
from .session import Memory as Memory
from .session import Profile as Profile
from .session import Span as Span
from .session import profile as profile
