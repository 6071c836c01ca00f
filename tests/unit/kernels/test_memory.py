import numpy as np
import pytest

from penstock.kernels import memory
from penstock.kernels.jit import kernel


@pytest.mark.parametrize("kind", ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"])
@pytest.mark.parametrize("lead", [0, 1, 3])
def test_loads_read_little_endian_numbers_anywhere(kind: str, lead: int) -> None:
    load = getattr(memory, f"load_{kind}")

    def read(address: int) -> int:
        return load(np.uint64(address))

    data = np.frombuffer(b"?" * lead + bytes(range(0xF8, 0x100)) + b"?", np.uint8)
    size = int(kind[1:]) // 8
    expected = int.from_bytes(data[lead : lead + size].tobytes(), "little", signed=kind[0] == "i")
    # Not cached: the closure differs from case to case.
    import numba

    assert numba.njit(read)(data.ctypes.data + lead) == expected


@kernel
def _write(to: int, source: int) -> None:
    memory.store_u8(np.uint64(to + 1), np.uint8(0x81))
    memory.store_u16(np.uint64(to + 2), np.uint16(0x8283))
    memory.store_u64(np.uint64(to + 4), np.uint64(0x8485868788898A8B))
    memory.copy_bytes(np.uint64(to + 12), np.uint64(source), np.uint64(3))


def test_stores_and_copies_write_what_they_say() -> None:
    out, source = np.zeros(16, np.uint8), np.frombuffer(b"abcd", np.uint8)
    _write(out.ctypes.data, source.ctypes.data)
    assert out.tobytes() == b"\0" + bytes.fromhex("81 8382 8b8a898887868584") + b"abc" + b"\0"
