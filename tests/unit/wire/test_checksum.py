"""CRC-32C however it is found."""

from __future__ import annotations

import subprocess
import sys

from duramen.wire.checksum import crc32c, load

CHECK = 0xE3069283
"""Of the digits 1 to 9, as every catalogue of CRCs says."""


def test_both_ways_to_the_function() -> None:
    for function in (crc32c, load("crc32c._renamed")):
        assert function(b"123456789") == CHECK
        assert function(memoryview(b"6789"), function(bytearray(b"12345"))) == CHECK


def test_the_package_itself_is_not_loaded() -> None:
    code = "import sys, duramen.wire.checksum; sys.exit('importlib.metadata' in sys.modules or 'crc32c' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
