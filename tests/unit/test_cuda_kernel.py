"""The copy kernel, run by an interpreter of the few instructions it has: every byte, and no other."""

import itertools
import re

import numpy as np
import pytest

from cpkv.device.cuda.kernel_code import CODE

ARRAYS_AT = 1 << 20
"""Where the arrays lie in the memory of the interpreter."""


def instructions():
    text = re.sub(r"//.*", "", CODE.decode())
    body = text[text.index("{") + 1 : text.rindex("}")]
    program, labels = [], {}
    for line in filter(None, (line.strip() for line in body.splitlines())):
        if line.endswith(":"):
            labels[line[:-1]] = len(program)
        elif not line.startswith("."):
            guard, rest = re.fullmatch(r"(?:@(\w+) )?(.*);", line).groups()
            operation, _, operands = rest.partition(" ")
            program.append((guard, operation, re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", operands)))
    return program, labels


PROGRAM, LABELS = instructions()


class Thread:
    """One thread; threads of the kernel do not speak with each other, so they can run one by one."""

    def __init__(self, memory, count, place, shape):
        (thread, block), (threads, blocks) = place, shape
        self.memory = memory
        self.registers = {
            "%tid.x": thread,
            "%ntid.x": threads,
            "%ctaid.x": block,
            "%nctaid.x": blocks,
            "[arrays_param]": ARRAYS_AT,
            "[count_param]": count,
        }
        self.written = []

    def value(self, operand):
        if operand in self.registers:
            return self.registers[operand]
        return int(operand, 0)

    def address(self, operand):
        name, _, offset = operand[1:-1].partition("+")
        return self.registers[name] + int(offset or "0")

    def load(self, address, size):
        assert address % size == 0, "a load that is not aligned"
        return int.from_bytes(self.memory[address : address + size].tobytes(), "little")

    def store(self, address, size, value):
        assert address % size == 0, "a store that is not aligned"
        self.memory[address : address + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)
        self.written.append((address, size))

    def run(self):
        at = 0
        while True:
            guard, operation, operands = PROGRAM[at]
            at += 1
            if guard and not self.registers[guard]:
                continue
            if operation == "ret":
                return
            if operation == "bra":
                at = LABELS[operands[0]]
            else:
                self.step(operation, operands)

    def step(self, operation, operands):
        kind, *modifiers = operation.split(".")
        if kind in ("ld", "st") and "param" not in modifiers:
            self.move(kind, modifiers, operands)
            return
        target, *rest = operands
        values = [self.value(one) for one in rest]
        bits = 32 if modifiers[-1] in ("u32", "b32") and modifiers[0] != "wide" else 64
        result = {
            "ld": lambda one: one,
            "mov": lambda one: one,
            "cvt": lambda one: one,
            "cvta": lambda one: one,
            "add": lambda one, other: one + other,
            "sub": lambda one, other: one - other,
            "mul": lambda one, other: one * other,
            "and": lambda one, other: one & other,
            "or": lambda one, other: one | other,
            "shl": lambda one, other: one << other,
            "shr": lambda one, other: one >> other,
            "min": min,
            "setp": {
                "ge": lambda one, other: one >= other,
                "lt": lambda one, other: one < other,
                "ne": lambda one, other: one != other,
            }.get(modifiers[0]),
        }[kind](*values)
        assert kind != "sub" or result >= 0, "a number below 0"
        self.registers[target] = result & (2**bits - 1)

    def move(self, kind, modifiers, operands):
        if kind == "ld":
            target, source = operands
            address = self.address(source)
        else:
            destination, target = operands
            address = self.address(destination)
        if "v4" in modifiers:
            assert address % 16 == 0
            names = re.findall(r"\w+", target)
            for place, name in enumerate(names):
                self.one(kind, name, address + 4 * place, 4)
        else:
            self.one(kind, target, address, {"u8": 1, "u64": 8}[modifiers[-1]])

    def one(self, kind, name, address, size):
        if kind == "ld":
            self.registers[name] = self.load(address, size)
        else:
            self.store(address, size, self.registers[name])


SIZES = [16, 2048, 0, 132, 2047, 4096 + 48 + 5, 1, 2064]


@pytest.mark.parametrize(("warps", "blocks"), [(1, 1), (2, 1), (2, 3), (4, 4)])
@pytest.mark.parametrize("shift", [(0, 0), (16, 48), (4, 4), (0, 1)], ids=str)
def test_the_kernel_copies_each_byte_once(warps, blocks, shift):
    random = np.random.default_rng(1)
    memory = random.integers(0, 256, ARRAYS_AT + 4096, np.uint8)
    before = memory.copy()
    step = 16_384
    sources = [step * place + shift[0] for place in range(len(SIZES))]
    destinations = [ARRAYS_AT // 2 + step * place + shift[1] for place in random.permutation(len(SIZES)).tolist()]
    arrays = np.array([destinations, sources, SIZES], np.int64)
    memory[ARRAYS_AT : ARRAYS_AT + arrays.nbytes] = arrays.ravel().view(np.uint8)
    written = []
    for thread, block in itertools.product(range(32 * warps), range(blocks)):
        one = Thread(memory, len(SIZES), (thread, block), (32 * warps, blocks))
        one.run()
        written += one.written
    wanted = before.copy()
    wanted[ARRAYS_AT:] = memory[ARRAYS_AT:]
    for destination, source, size in zip(destinations, sources, SIZES, strict=True):
        wanted[destination : destination + size] = before[source : source + size]
    assert np.array_equal(memory, wanted)
    assert sum(size for _, size in written) == sum(SIZES), "no byte is written twice"


def test_the_kernel_copies_nothing_if_there_is_nothing():
    memory = np.zeros(ARRAYS_AT + 64, np.uint8)
    one = Thread(memory, 0, (3, 0), (32, 1))
    one.run()
    assert one.written == []
