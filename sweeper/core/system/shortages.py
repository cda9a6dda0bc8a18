"""What a machine may lack while a program runs (disk, file handles, memory, rights), and what to do
about it.
"""

import errno

HINTS = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close other programs, which have all file handles of the machine",
    errno.ENOMEM: "free some memory",
    errno.EAGAIN: "end other processes, or raise their limit (ulimit -u)",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise your quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EACCES: "see to its rights",
    errno.EPERM: "see to its rights",
    errno.EROFS: "the file system can only be read",
    errno.EIO: "see what the kernel says of the disk (dmesg)",
}
# says nothing of the file that was asked for
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def describe(error: OSError) -> str:
    """Say what failed, where, and what to do, as the beginning of a sentence."""
    where = "" if error.filename is None else f" ({error.filename})"
    return f"{error.strerror or error}{where}; {hint(error)}"


def hint(error: OSError) -> str:
    return HINTS.get(error.errno or 0, "see to it")
