"""pysyncobj without `cryptography`, in a process of its own: other tests have loaded it."""

import subprocess
import sys


def test_a_program_that_uses_pysyncobj_with_a_password_still_can() -> None:
    """The quorum keeps pysyncobj's encryptor out of its process until a password needs it."""
    code = """if True:
        import sys, barnabas.kraft.raft.consensus.engine
        from pysyncobj.encryptor import HAS_CRYPTO, getEncryptor
        assert HAS_CRYPTO and "cryptography" not in sys.modules
        from pysyncobj import SyncObj, SyncObjConf
        here = SyncObj(None, [], SyncObjConf(password="secret", autoTick=False))
        sealed = here._getEncryptor().encrypt(b"entry")
        print(getEncryptor(b"secret").decrypt(sealed).decode(), b"entry" in sealed)
    """
    assert subprocess.check_output([sys.executable, "-P", "-c", code], text=True).split() == ["entry", "False"]
