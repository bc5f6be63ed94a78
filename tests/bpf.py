"""Classic BPF as seccomp(2) runs it, for filters of an architecture that this machine is not.

    struct sock_filter  { u16 code; u8 jt; u8 jf; u32 k; }                  linux/filter.h
    struct seccomp_data { int nr; u32 arch; u64 ip; u64 args[6]; }          linux/seccomp.h

Only what the kernel's own checker lets a seccomp filter hold is understood (seccomp_check_filter); anything else, a
load outside of `seccomp_data` and a jump past the end are errors of the filter.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALLOW: Final = 0x7FFF0000
ERRNO: Final = 0x00050000
INSTRUCTION: Final = struct.Struct("<HBBI")
_DATA: Final = struct.Struct("<iIQ6Q")
_MASK: Final = 0xFFFFFFFF


class InvalidFilter(Exception):
    """The kernel would refuse it, or it does not end."""


@dataclass(slots=True)
class _Machine:
    accumulator: int = 0
    index: int = 0


def verdict(  # noqa: C901, PLR0912 - the loop of an interpreter: one case an instruction class
    code: bytes, number: int, arguments: Sequence[int] = (), *, architecture: int
) -> int:
    """What the filter returns for a system call: `ALLOW`, or `ERRNO` with an errno in the lower 16 bits."""
    if len(code) % INSTRUCTION.size or not 0 < len(code) // INSTRUCTION.size <= 4096:
        raise InvalidFilter("not an array of instructions, or too long (BPF_MAXINSNS)")
    program = list(INSTRUCTION.iter_unpack(code))
    signed = (number & _MASK) - (1 << 32 if number & 0x80000000 else 0)
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = _DATA.pack(signed, architecture, 0, *(value & (1 << 64) - 1 for value in padded))
    machine, memory, at = _Machine(), [0] * 16, 0
    while at < len(program):
        opcode, yes, no, k = program[at]
        at += 1
        match opcode & 7:
            case 0 if opcode & 0xE0 == 0x20:
                machine.accumulator = _word(data, k)
            case 0 | 1 as register:
                value = _loaded(opcode, k, memory, len(data))
                if register == 0:
                    machine.accumulator = value
                else:
                    machine.index = value
            case 2:
                memory[k] = machine.accumulator
            case 3:
                memory[k] = machine.index
            case 4:
                machine.accumulator = _computed(opcode, machine, k)
            case 5 if opcode & 0xF0 == 0:
                at += k
            case 5:
                at += yes if _holds(opcode, machine, k) else no
            case 6:
                return machine.accumulator if opcode & 0x18 == 0x10 else k
            case _:
                if opcode & 0xF8 == 0x80:
                    machine.accumulator = machine.index
                else:
                    machine.index = machine.accumulator
    raise InvalidFilter("runs past its end")


def _word(data: bytes, offset: int) -> int:
    if offset % 4 or offset + 4 > len(data):
        raise InvalidFilter(f"loads from {offset}, outside of seccomp_data")
    return int.from_bytes(data[offset : offset + 4], "little")


def _loaded(opcode: int, k: int, memory: Sequence[int], length: int) -> int:
    match opcode & 0xE0:
        case 0x00:
            return k
        case 0x60:
            return memory[k]
        case 0x80:
            return length
        case mode:
            raise InvalidFilter(f"load mode {mode:#x}")


def _operand(opcode: int, machine: _Machine, k: int) -> int:
    return machine.index if opcode & 8 else k


def _computed(opcode: int, machine: _Machine, k: int) -> int:
    left, right = machine.accumulator, _operand(opcode, machine, k)
    match opcode & 0xF0:
        case 0x00:
            value = left + right
        case 0x10:
            value = left - right
        case 0x40:
            value = left | right
        case 0x50:
            value = left & right
        case 0x60:
            value = left << right
        case 0x70:
            value = left >> right
        case 0xA0:
            value = left ^ right
        case operation:
            raise InvalidFilter(f"operation {operation:#x}")
    return value & _MASK


def _holds(opcode: int, machine: _Machine, k: int) -> bool:
    left, right = machine.accumulator, _operand(opcode, machine, k)
    match opcode & 0xF0:
        case 0x10:
            return left == right
        case 0x20:
            return left > right
        case 0x30:
            return left >= right
        case 0x40:
            return bool(left & right)
        case operation:
            raise InvalidFilter(f"jump {operation:#x}")
