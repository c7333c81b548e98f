"""What the libraries underneath raise, as errors of ours."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from nala_platform.errors import ExhaustedError, StorageError, UserError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
_CPU_EXHAUSTED = "DefaultCPUAllocator: can't allocate memory"  # torch raises a plain RuntimeError for it


@contextmanager
def translated() -> Iterator[None]:
    """Inside, an error that means a user's mistake or a full disk is raised as the one of ours that says so."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise StorageError(
            f"cannot write {error.filename or 'to the run folder'}: {error.strerror}. What was saved before is whole: "
            "make room there, then go on with nala fit --resume"
        ) from error
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and _CPU_EXHAUSTED not in str(error):
            raise
        said = str(error).partition("\n")[0][:120] or "the system gave no more"
        raise ExhaustedError(
            f"out of memory ({said}): lower --data.batch_size, raise "
            "--trainer.accumulate_grad_batches by as much, or take a smaller network or crop"
        ) from error
    except MisconfigurationException as error:  # Lightning's own word for a user's mistake
        raise UserError(" ".join(str(error).split())) from error
    except (ValueError, TypeError) as error:
        if "Expected more than 1 value per channel" in str(error):  # BatchNorm's word for it
            raise UserError(
                "a training batch of one sample is too small for batch normalisation: raise --data.batch_size"
            ) from error
        cause: BaseException | None = error  # jsonargparse wraps what a constructor raises
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from None
