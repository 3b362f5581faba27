"""A mark for tests that one session of the three runs: neither annotations nor the kernel make a difference to them.

These are tests of processes that the import hook does not reach, of files, and of numbers over many draws where others
call the same functions with their annotations checked.
"""

import os

import pytest

once = pytest.mark.skipif(
    os.environ.get("CLEARHEAD_TYPECHECK") == "1" or os.environ.get("CLEARHEAD_KERNEL") == "off",
    reason="neither annotations nor the kernel make a difference: one session of the tests runs it",
)
