"""Collectives for PyTorch scripts, carried out by installed algorithm files on torch.distributed's own messages.

::

    import taccl_py.torch

    comm = taccl_py.torch.load("algorithms")  # a directory of taccl install or taccl synth --sizes
    comm.all_reduce(gradients)                 # in place of torch.distributed.all_reduce(gradients)

``docs/pytorch.md`` tells how to use it. A file is compiled to rounds of messages and proved right before it is first used.
"""

from taccl_py.torch.communicator import Communicator, load

__all__ = ["Communicator", "load"]
