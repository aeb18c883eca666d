"""Chakra execution traces: a schedule as a graph of sends and receives that ASTRA-sim times on a clock that is not ours.

::

    trace_ranks     messages -> nodes of every rank, with the messages that each waits for
    encode_trace    nodes -> the bytes of one file
    network_of      the machine -> a network of ASTRA-sim's analytical back end, if that has one like it
    lower_chakra    all files of a folder

Formats: ``schema/protobuf/et_def.proto`` of mlcommons/chakra 21585d8; ASTRA-sim 518bd51, whose custom collectives
(``system/astraccl/custom_collectives/CustomAlgorithm.cc``) run such a graph, all ranks' sends at once where nothing holds them back.
"""

from taccl_py.lowering.chakra.files import ChakraFiles, lower_chakra

__all__ = ["ChakraFiles", "lower_chakra"]
