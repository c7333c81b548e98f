"""What the libraries underneath raise, as errors of ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jsonargparse import Namespace

from nala_platform.errors import ExhaustedError, NalaError, UserError, from_os_error
from nala_platform.setting_errors import chain, components, explain_setting

_CPU_EXHAUSTED = "DefaultCPUAllocator: can't allocate memory"  # torch raises a plain RuntimeError for it
_MISFIT = re.compile(r"Error\(s\) in loading state_dict for \w+:\s+(?P<what>.*)", re.DOTALL)
_SHAPES = re.compile(r"size mismatch for (\S+): .*?torch\.Size\(\[(.*?)\]\).*?torch\.Size\(\[(.*?)\]\)")
_KEYS = re.compile(r"(Missing|Unexpected) key\(s\) in state_dict: \"(.*?)\"")
_KNOWN = {  # in the words of Lightning and torch
    "out of shared memory": "shared memory is full: lower --data.num_workers, or enlarge /dev/shm",
    "unable to write to file </torch_": "shared memory is full: lower --data.num_workers, or enlarge /dev/shm",
    "requires a GPU accelerator": "trainer.strategy FSDP runs on GPUs alone: on CPU take --trainer.strategy ddp",
    "SyncBatchNorm layers only work with GPU": "trainer.sync_batchnorm works only on GPUs: on CPU set it to false",
    "SyncBatchNorm expected input tensor": "trainer.sync_batchnorm works only on GPUs: on CPU set it to false",
}


@contextmanager
def translated(checkpoint: str | None = None, config: Namespace | None = None) -> Iterator[None]:
    """Inside, an error that means a user's mistake or a full disk is raised as the one of ours that says so.

    Args:
        checkpoint: the file that is loaded inside, if one is.
        config: what is built and run inside.
    """
    try:
        yield
    except NalaError:
        raise
    except OSError as error:
        if ours := from_os_error(error):
            raise ours from error
        if text := _explained(error, checkpoint, config):
            raise UserError(text) from error
        raise
    except Exception as error:
        for cause in chain(error):
            if isinstance(cause, torch.OutOfMemoryError | MemoryError) or _CPU_EXHAUSTED in str(cause):
                said = str(cause).partition("\n")[0][:120] or "the system gave no more"
                raise ExhaustedError(
                    f"out of memory ({said}): lower --data.batch_size, raise "
                    "--trainer.accumulate_grad_batches by as much, or take a smaller network or crop"
                ) from error
        if text := _explained(error, checkpoint, config):
            raise UserError(text) from error
        for cause in chain(error):
            if isinstance(cause, UserError):
                raise cause from None
        raise


def _explained(error: Exception, checkpoint: str | None, config: Namespace | None) -> str | None:
    """The line for an error that means a user's mistake; None: it means a bug."""
    if isinstance(error, RuntimeError) and (misfit := _misfit(str(error), checkpoint)):
        return misfit
    if "Expected more than 1 value per channel" in str(error):  # BatchNorm's word for it
        return "a training batch of one sample is too small for batch normalisation: raise --data.batch_size"
    for said, fix in _KNOWN.items():
        if said in str(error):
            return fix
    if any(isinstance(cause, NalaError) for cause in chain(error)):
        return None
    return explain_setting(error, components(config) if config is not None else [])


def _misfit(said: str, checkpoint: str | None) -> str | None:
    """What to say when weights do not fit the network; None: torch's message means something else.

    Examples:
        >>> said = "size mismatch for network.w: copying a param with shape torch.Size([2, 3]) from checkpoint, the"
        >>> said = f"Error(s) in loading state_dict for T:\\n\\t{said} shape in current model is torch.Size([4, 3])."
        >>> _misfit(said, "a.ckpt").partition(": give")[0]
        'a.ckpt does not fit this network: network.w is (2, 3) there and (4, 3) here'
    """
    if (found := _MISFIT.search(said)) is None:
        return None
    what = found["what"]
    if shapes := _SHAPES.search(what):
        key, there, here = shapes.groups()
        differs = f"{key.removeprefix('module.')} is ({there}) there and ({here}) here"
    elif keys := _KEYS.search(what):
        places = "here alone" if keys[1] == "Missing" else "there alone"
        differs = f"{keys[2].removeprefix('module.')} is {places}"
    else:
        differs = what.splitlines()[0]
    mend = "give the --model.network options that it was trained with; config.yaml of its run has them"
    return f"{checkpoint or 'the checkpoint'} does not fit this network: {differs}: {mend}"
