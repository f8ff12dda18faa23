"""A process that has served something large gives the memory back."""

import subprocess
import sys

import pytest

# Blocks of 1 MB in between blocks that stay, as large and small requests come: without `mallopt` the heap keeps all of it.
CODE = """
import gc, re
{call}
def rss(): return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
before = rss()
large, small = [], []
for _ in range(100):
    bytearray(24 << 20)
    large.append(bytes(1_000_000)); small.append(bytes(100_000))
del large
print(rss() - before)
"""
CALL = "from barnabas.net.server.native_memory import return_freed_memory; assert return_freed_memory()"


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_large_blocks_go_back_to_the_system() -> None:
    told = subprocess.run(
        [sys.executable, "-P", "-c", CODE.format(call=CALL)], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(told.stdout) < 30
