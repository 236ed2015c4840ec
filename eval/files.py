"""Files that are never seen torn: written beside their place and moved in whole."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, with its ending; it takes its place when all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    os.chmod(name, 0o666 & ~_umask())  # as open() would: mkstemp's files are for their owner alone
    temporary = Path(name)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_empty(folder: Path) -> None:
    """Remove a folder with nothing in it; another process may be about the same, or writing."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
