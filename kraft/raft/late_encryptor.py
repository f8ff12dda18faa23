"""Keeps `cryptography` out of brokers: pysyncobj imports it for passwords, which this quorum does not use.

It would be an eighth of the memory of an idle broker. Importing this module, before pysyncobj, puts a stand-in where pysyncobj
looks for its encryptor. A program that uses pysyncobj with a password, in the same process, gets the real one when it needs it.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

_NAME: Final = "pysyncobj.encryptor"


def _encryptor(password: str | bytes) -> Any:
    """What pysyncobj's function of this place returns."""
    if isinstance(sys.modules.get(_NAME), _Late):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME).getEncryptor(password)


class _Late(ModuleType):
    HAS_CRYPTO = importlib.util.find_spec("cryptography") is not None
    getEncryptor = staticmethod(_encryptor)


if _NAME not in sys.modules:
    sys.modules[_NAME] = _Late(_NAME)
