"""Program ⇄ torch.export's ExportedProgram.

    from_exported(ep)      importer.py
    to_exported(program)   exporter.py
    read_archive("m.pt2")  archive.py

The two forms are close: both are lifted FX graphs with torch.export's metadata. Where they differ, and what is done:

    ExportedProgram                                      Program
    an unused placeholder for each constant argument     a literal in the signature, no placeholder
    constants among the graph's outputs                  a literal in the signature, no output
    TreeSpec, in which a dataclass drops its None fields Tree, in which None is a leaf like any other
    range_constraints by symbol (s77)                    dims by name ("s77"; our own "s_batch" is "batch")
    guards as Python text                                constraints as expressions
    autocast and no_grad as regions                      regions, or switches as the trace left them
    module stacks by torch's key ("L__self__fc@1")       module stacks by call ("fc@1")

Neither form shares what it writes with the other: buffers are copied, and node values live in a new environment of
symbols, so nothing that is asked of one program's sizes narrows the other's. Parameters and constants are shared.
"""

from ingot.interop.torch_export.archive import is_archive, read_archive
from ingot.interop.torch_export.exporter import to_exported
from ingot.interop.torch_export.importer import from_exported

__all__ = ["from_exported", "is_archive", "read_archive", "to_exported"]
