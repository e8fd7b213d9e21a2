"""compute: no value that is missing, NaN or infinite gets past the check, whatever its width."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch

from featuremill.base import arrays, faults

DTYPES = [np.float16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern_of_the_exponent_is_told_as_numpy_tells_it(dtype):
    limits = np.finfo(dtype)
    odd = [limits.max, limits.min, limits.tiny, limits.smallest_subnormal, 0.0, -0.0]
    numbers = [np.array([value], dtype) for value in [*odd, np.nan, -np.nan, np.inf, -np.inf]]
    if dtype is np.float16:
        numbers += [bits.view(dtype) for bits in np.arange(2**16, dtype=np.uint16).reshape(-1, 1)]
    for number in numbers:
        assert arrays.is_finite(number) == bool(np.isfinite(number).all()), number


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_looks_everywhere(dtype):
    size = 2 * arrays.PIECE_BYTES // np.dtype(dtype).itemsize + 17
    numbers = np.ones(size, dtype)
    assert arrays.is_finite(numbers) and arrays.is_finite(numbers[:0])
    for place in (0, size // 2, size - 1):
        numbers[place] = np.nan
        assert not arrays.is_finite(numbers)
        numbers[place] = 1


@pytest.mark.parametrize("number", [pa.float16(), pa.float32(), pa.float64()])
def test_rows_with_a_bad_value_are_found(number):
    good = np.array([1.0, 2.0])
    rows = [[good], [good, np.array([np.inf, 0.0])], [], None, [good, good]]
    vectors = pa.array(rows, pa.list_(pa.list_(number, 2)))
    names = pa.array(["a", None, "c", "d", "e"])
    values = pa.record_batch({"vectors": vectors})
    assert arrays.not_finite(values).tolist() == [False, True, False, True, False]
    assert arrays.not_finite(values.slice(4)).tolist() == [False]
    pairs = pa.record_batch({"pairs": pa.array([*rows[0], *rows[1]], pa.list_(number, 2))})
    assert arrays.not_finite(pairs).tolist() == [False, False, True]
    assert arrays.not_finite(pairs.slice(1)).tolist() == [False, True]
    assert arrays.not_finite(pairs.slice(0, 2)).tolist() == [False, False]
    both = pa.record_batch({"vectors": vectors, "names": names})
    assert arrays.not_finite(both).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    "text, is_memory, is_device",
    [
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory", True, False),
        ("could not create a primitive", True, False),
        ("could not create a primitive descriptor for a matmul", False, False),
        ("can't start new thread", True, False),
        ("CUDA error: out of memory", True, False),
        ("CUDA driver error: out of memory", True, False),
        ("Triton Error [CUDA]: out of memory", True, False),
        ("Triton Error [CUDA]: an illegal memory access was encountered", False, True),
        ("CUDA error: device-side assert triggered", False, True),
        ("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True, False),
        ("CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(…)`", False, True),
        ("mat1 and mat2 shapes cannot be multiplied", False, False),
    ],
)
def test_errors_of_libraries_are_told_apart(text, is_memory, is_device):
    error = RuntimeError(text)
    assert faults.is_out_of_memory(error) == is_memory
    assert faults.is_device_error(error) == is_device


REFUSALS = [
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(handle, opa, opb, …)`",
    "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasLtMatmul(…)`",
    "CUDA error: invalid argument",
    "CUDA error: too many resources requested for launch",
    "CUDA error: the provided PTX was compiled with an unsupported toolchain.",
    "CUDA error: peer access is not supported between these two devices",
    "Triton Error [CUDA]: device kernel image is invalid",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
]


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_is_no_dead_device_where_the_devices_still_compute(monkeypatch, text):
    error, asked = RuntimeError(text), []
    assert faults.is_device_error(error), "CUDA is not in use: there are its words alone"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for dead in ("cuda:1", "cuda:0", ""):
        monkeypatch.setattr(faults, "computes", lambda d: asked.append(d) or d != dead)  # noqa: B023
        assert faults.is_device_error(error) == bool(dead)
        assert faults.is_device_error(ValueError("any other")) == bool(dead)
    assert asked[-2:] == ["cuda:0", "cuda:1"]


def test_a_device_computes_that_only_has_an_error_left_from_before(monkeypatch):
    def ask(*answers):
        left = [*answers]

        def ones(*_, **__):
            if isinstance(answer := left.pop(0), Exception):
                raise answer
            return torch.tensor([1.0, answer])

        monkeypatch.setattr(torch, "ones", ones)
        return faults.computes("cuda:0")

    refused = RuntimeError("CUDA error: invalid argument")
    assert faults.computes("cpu")
    assert ask(1.0) and ask(refused, 1.0)
    assert ask(RuntimeError("CUDA error: out of memory")), "who says so is alive"
    assert not ask(refused, refused) and not ask(5.0)


ON_A_GPU = """
import torch
from featuremill.base import faults

def raised(call):
    try:
        call()
        torch.cuda.synchronize()
    except Exception as error:
        return error

torch.ones(1, device="cuda")
refused = raised(lambda: torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(1, 1, 0))))
print(faults.is_device_error(refused), faults.computes("cuda:0"))
dead = raised(lambda: torch.zeros(2, device="cuda")[torch.tensor([9], device="cuda")])
print(faults.is_device_error(dead), faults.is_device_error(ValueError("later")))
"""


@pytest.mark.gpu
def test_a_gpu_says_itself_whether_it_is_dead(environment):
    done = subprocess.run(
        [sys.executable, "-c", ON_A_GPU], env=environment, text=True, capture_output=True
    )
    assert done.stdout.split() == ["False", "True", "True", "True"], done.stderr


def test_a_batch_that_goes_well_imports_no_pandas():
    """A third of a second of each worker's start, and nothing in it needs any; no more does it need
    Arrow's functions."""
    code = (
        "import sys, numpy as np, pyarrow as pa; from featuremill.workload import compute; "
        "from featuremill.workload.arrays import vectors; "
        "values = pa.record_batch([vectors(np.ones((2, 3), np.float32))], ['mean']); "
        "part = compute.rows_of_part([b'a' * 32, b'b' * 32], values, [None, None]); "
        "assert part.to_pylist()[1] == "
        "{'sha256': b'b' * 32, 'status': 'ok', 'reason': None, 'mean': [1.0] * 3}; "
        "heavy = {'pandas', 'pyarrow.compute'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
