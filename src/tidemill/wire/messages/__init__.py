"""One module per API: its fields, types and version ranges.

``from tidemill.wire.messages import metadata as messages`` binds a module that is executed with the first use
of a name in it. A broker has handlers for nearly all APIs, and uses the messages of a few of them.
"""

from __future__ import annotations

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        spec = None if name.startswith("_") else find_spec(f"{__name__}.{name}")
        if spec is None or spec.loader is None:
            raise AttributeError(f"{__name__} has no {name}")
        spec.loader = LazyLoader(spec.loader)
        module = module_from_spec(spec)
        sys.modules[spec.name] = globals()[name] = module
        spec.loader.exec_module(module)
        return module
