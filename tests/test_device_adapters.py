"""The adapters for device arrays, on stand-ins for their libraries (no GPU needed)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from adapter_checks import adapter_for, refused

from numfuse import fuse
from numfuse.arrays import adapter_of, common_adapter, is_array, lookup
from numfuse.errors import FusionError, FusionNotImplementedError, FusionTypeError
from numfuse.runner import RunnerWriter

F4, F8, U2 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint16)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put stand-in modules where libraries are looked for, and forget what was found before."""
    monkeypatch.setattr(lookup, "_known", dict(lookup._known))
    monkeypatch.setattr(lookup, "_adapters", {"numpy": lookup._NUMPY})

    def install(**modules: Any) -> None:
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name.replace("__", "."), module)

    return install


class Recorder:
    """A function that remembers its calls and answers with a fixed value."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return self.answer


def as_module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    return module


class FakeCupyArray:
    def __init__(self, shape: Any, dtype: Any = F4, memptr: Any = None, strides: Any = None, order: str = "C") -> None:
        assert strides is None or memptr is not None  # CuPy's own condition
        model = np.ndarray(shape, dtype, order=order)
        self.dtype, self.shape, self.strides = model.dtype, model.shape, strides or model.strides
        self.data = memptr or SimpleNamespace(ptr=4096, device_id=FakeCupyArray.current)

    current = 0


def fake_cupy(devices: int = 1) -> ModuleType:
    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            self.before, FakeCupyArray.current = FakeCupyArray.current, self.number

        def __exit__(self, *_: object) -> None:
            FakeCupyArray.current = self.before

    cuda = SimpleNamespace(
        get_current_stream=lambda device: SimpleNamespace(ptr=700 + device),
        alloc=lambda n: SimpleNamespace(ptr=8192, device_id=FakeCupyArray.current, size=n),
        runtime=SimpleNamespace(getDeviceCount=lambda: devices, getDevice=lambda: FakeCupyArray.current),
        Device=Device,
    )
    return as_module("cupy", ndarray=FakeCupyArray, cuda=cuda)


def test_cupy(libraries: Callable[..., None]) -> None:
    assert adapter_of(FakeCupyArray(3)) is None  # CuPy has not been imported
    lookup._known.pop(FakeCupyArray)
    libraries(cupy=fake_cupy())
    x = FakeCupyArray((2, 3, 4))
    adapter = adapter_for(x)
    assert adapter_for(FakeCupyArray(1)) is adapter
    assert adapter.name == "cupy"
    assert adapter.signature(x) == ("cupy", F4, (2, 3, 4), (48, 16, 4), 0)
    info = adapter.info(x)
    assert (info.address, info.device, adapter.stream(x)) == (4096, 0, 700)
    for order in [(0, 1, 2), (2, 1, 0), (1, 0, 2)]:
        out = adapter.allocator((2, 3, 4), F8, order, x)(x)
        assert (type(out), out.dtype, out.shape) == (FakeCupyArray, F8, (2, 3, 4))
        model = np.zeros((2, 3, 4))
        wanted = np.empty([model.shape[d] for d in order]).transpose(np.argsort(order)).strides
        assert out.strides == wanted
        assert getattr(out.data, "size", 24 * 8) == 24 * 8
    assert adapter.finish(x) is x
    assert isinstance(refused(FakeCupyArray(3, np.dtype(np.float16))), FusionNotImplementedError)

    class Sub(FakeCupyArray):
        pass

    assert "a subclass of cupy.ndarray" in str(refused(Sub(3)))


def test_cupy_outputs_are_made_on_the_arrays_device(libraries: Callable[..., None]) -> None:
    libraries(cupy=fake_cupy(devices=2))
    x, y = FakeCupyArray(3), FakeCupyArray(3)
    y.data.device_id = 1
    adapter = adapter_for(x)
    assert adapter.signature(x) != adapter.signature(y)
    assert adapter.stream(y) == 701
    for like in (x, y):
        out = adapter.allocator((3,), F4, (0,), like)(like)
        assert out.data.device_id == like.data.device_id
    assert FakeCupyArray.current == 0
    with pytest.raises(FusionTypeError, match="argument 'a' is on device 0 and argument 'b' on device 1"):
        common_adapter([("a", x), ("b", y)])


class FakeTensor:
    requires_grad = False
    is_cuda = True
    is_nested = False
    layout = "strided"
    conj = neg = False
    dtype: Any = "torch.float32"

    def __init__(self, *shape: int, **state: Any) -> None:
        self.shape = shape
        self.device = SimpleNamespace(type="cuda")
        self.new_empty, self.new_empty_strided = Recorder("new"), Recorder("strided")
        vars(self).update(state)

    def is_neg(self) -> bool:
        return self.neg

    def is_conj(self) -> bool:
        return self.conj

    def is_contiguous(self) -> bool:
        return self.layout == "strided" and getattr(self, "strides", None) is None

    def stride(self) -> tuple[int, ...]:
        if self.layout != "strided":
            raise RuntimeError("no strides")
        return tuple(s // 4 for s in np.zeros(self.shape, np.float32).strides)

    def get_device(self) -> int:
        return 0 if self.is_cuda else -1

    def data_ptr(self) -> int:
        if getattr(self, "wrapped", False):
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")
        return 640


class FakeDtype(str):
    is_floating_point = True
    is_complex = False


def fake_torch(**changes: Any) -> ModuleType:
    dtypes = {np.dtype(code).name: f"torch.{np.dtype(code).name}" for code in "?bhiqBHIQfd"}
    parts = {
        "Tensor": FakeTensor,
        "is_grad_enabled": Recorder(True),
        "empty_like": Recorder("like"),
        "_C": SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 55),
        "strided": "strided",
        "version": SimpleNamespace(hip=None),
        "nn": SimpleNamespace(Parameter=type("Parameter", (FakeTensor,), {})),
        "__version__": "2.x",
        **dtypes,
        **changes,
    }
    return as_module("torch", **parts)


def test_torch(libraries: Callable[..., None]) -> None:
    torch = fake_torch()
    libraries(torch=torch)
    x = FakeTensor(2, 3)
    adapter = adapter_for(x)
    assert adapter.signature(x) == ("torch.float32", (2, 3), None, 0)
    info = adapter.info(x)
    assert (info.dtype, info.shape, info.strides) == (F4, (2, 3), (12, 4))
    assert (info.address, info.device, adapter.stream(x)) == (640, 0, 55)
    assert (adapter.address(x), adapter.stream(x), adapter.device(x)) == (640, 55, 0)
    adapter.allocator((2, 3), F4, (0, 1), x)(x)
    assert torch.empty_like.calls == [((x,), {})]
    adapter.allocator((3,), F4, (0,), x)(x)
    adapter.allocator((2, 3), U2, (0, 1), x)(x)
    adapter.allocator((2, 3), F4, (1, 0), x)(x)
    adapter.allocator((2, 3), F8, (1, 0), x)(x)
    assert x.new_empty.calls == [((3,), {}), (((2, 3),), {"dtype": "torch.uint16"})]
    strided = ((2, 3), (1, 2))
    assert x.new_empty_strided.calls == [(strided, {}), (strided, {"dtype": "torch.float64"})]


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ({"requires_grad": True}, FusionNotImplementedError, "requires grad while grad mode is on"),
        (
            {"is_cuda": False, "device": SimpleNamespace(type="cpu")},
            FusionNotImplementedError,
            "CPU torch tensor, and these come with a later version; pass x.numpy()",
        ),
        ({"is_cuda": False}, FusionTypeError, "only CUDA tensors"),
        ({"neg": True}, FusionNotImplementedError, "lazily negated view of a torch tensor"),
        ({"conj": True, "dtype": FakeDtype("torch.complex64")}, FusionNotImplementedError, "conjugated view"),
        ({"dtype": FakeDtype("torch.bfloat16")}, FusionNotImplementedError, "bfloat16, not supported yet"),
        ({"layout": "sparse_coo"}, FusionTypeError, "sparse (sparse_coo) torch tensor"),
        ({"wrapped": True}, FusionTypeError, "without memory of its own"),
    ],
)
def test_tensors_that_are_refused(
    libraries: Callable[..., None], state: dict[str, Any], kind: type[FusionError], words: str
) -> None:
    libraries(torch=fake_torch())
    error = refused(FakeTensor(3, **state))
    assert type(error) is kind
    assert str(error).startswith("argument 'x' ")
    assert words in str(error)


def test_tensors_and_grad_mode(libraries: Callable[..., None]) -> None:
    torch = fake_torch(is_grad_enabled=Recorder(False))
    libraries(torch=torch)
    x = torch.nn.Parameter(3, requires_grad=True)
    assert adapter_for(x).info(x).shape == (3,)


def test_tensor_subclasses_are_refused(libraries: Callable[..., None]) -> None:
    libraries(torch=fake_torch())
    assert "a subclass of torch.Tensor" in str(refused(type("Distributed", (FakeTensor,), {})(3)))


def test_a_wrapped_tensor_met_by_an_existing_plan_is_an_error_for_the_user(
    libraries: Callable[..., None],
) -> None:
    libraries(torch=fake_torch())
    writer = RunnerWriter(1, adapter_for(FakeTensor(3)), 0, {0: "argument 'x'"})
    lines = [f"where = {writer.address(0)}"]
    read = compile("\n".join(writer.lines + lines), "runner", "exec")
    found = {**writer.namespace, "args": (FakeTensor(3),)}
    exec(read, found)
    assert found["where"] == 640
    found["args"] = (FakeTensor(3, wrapped=True),)
    with pytest.raises(FusionTypeError, match="argument 'x' is a torch tensor without memory of its own"):
        exec(read, found)


def test_torch_dtypes_that_a_version_lacks(libraries: Callable[..., None]) -> None:
    torch = fake_torch()
    del torch.uint16
    libraries(torch=torch)
    x = FakeTensor(3)
    with pytest.raises(FusionTypeError, match=r"dtype uint16, which torch 2\.x lacks"):
        adapter_for(x).allocator((3,), U2, (0,), x)


def test_rocm_tensors_are_refused(libraries: Callable[..., None]) -> None:
    libraries(torch=fake_torch(version=SimpleNamespace(hip="6.0")))
    assert "ROCm" in str(refused(FakeTensor(3)))


class DeviceNDArrayBase:
    def __init__(self, shape: tuple[int, ...], dtype: Any = F4, address: int | None = 512) -> None:
        model = np.zeros(shape, dtype)
        self.dtype, self.shape, self.strides, self.stream = model.dtype, shape, model.strides, 0
        self.device_ctypes_pointer = SimpleNamespace(value=address)
        self.gpu_data = SimpleNamespace(context=SimpleNamespace(device=SimpleNamespace(id=0)))


class DeviceNDArray(DeviceNDArrayBase):
    pass


class MappedNDArray(DeviceNDArrayBase, np.ndarray):
    def __new__(cls, shape: tuple[int, ...]) -> MappedNDArray:
        return np.ndarray.__new__(cls, shape)

    def __init__(self, shape: tuple[int, ...]) -> None:
        pass


def install_numba(libraries: Callable[..., None], device_array: Any, gpus: Any = (0,)) -> None:
    libraries(
        numba__cuda=as_module("numba.cuda", device_array=device_array, gpus=gpus),
        numba__cuda__cudadrv__devicearray=as_module("devicearray", DeviceNDArrayBase=DeviceNDArrayBase),
    )


def test_numba(libraries: Callable[..., None]) -> None:
    device_array = Recorder()
    install_numba(libraries, device_array)
    x = DeviceNDArray((2, 3))
    adapter = adapter_for(x)
    assert adapter.signature(x) == ("numba", F4, (2, 3), (12, 4), 0)
    info = adapter.info(x)
    assert (info.address, info.device, adapter.stream(x)) == (512, 0, 0)
    assert adapter.address(DeviceNDArray((0,), address=None)) == 0
    stream = SimpleNamespace(__cuda_stream__=lambda: (0, 99))
    x.stream = stream
    assert adapter.stream(x) == 99
    adapter.allocator((2, 3), F8, (0, 1), x)(x)
    adapter.allocator((2, 3), F8, (1, 0), x)(x)
    assert device_array.calls == [
        (((2, 3), F8, None), {"stream": stream}),
        (((2, 3), F8, (8, 16)), {"stream": stream}),
    ]
    error = refused(MappedNDArray((3,)))
    assert "is a MappedNDArray of Numba" in str(error)


def test_jax_arrays_are_refused_by_name(libraries: Callable[..., None]) -> None:
    class Array:
        pass

    libraries(jax=as_module("jax", Array=Array))
    error = refused(Array())
    assert isinstance(error, FusionNotImplementedError)
    assert "JAX array" in str(error)
    assert is_array(Array())


# ---- arrays of several libraries in one call


@pytest.mark.parametrize("reverse", [False, True])
def test_host_and_device_arrays_name_both_arguments(libraries: Callable[..., None], reverse: bool) -> None:
    libraries(cupy=fake_cupy())
    arguments = [("image", np.zeros(3)), ("mask", FakeCupyArray(3))]
    with pytest.raises(FusionTypeError) as caught:
        common_adapter(reversed(arguments) if reverse else arguments)
    assert "argument 'image' is a NumPy array in host memory" in str(caught.value)
    assert "argument 'mask' is a cupy array on a GPU" in str(caught.value)


def test_two_device_libraries_name_both_arguments(libraries: Callable[..., None]) -> None:
    libraries(cupy=fake_cupy(), torch=fake_torch())
    with pytest.raises(FusionTypeError) as caught:
        common_adapter([("a", FakeCupyArray(3)), ("b", FakeTensor(3))])
    assert str(caught.value).startswith("argument 'a' is a cupy array and argument 'b' is a torch array; ")
    assert "cupy.asarray(b)" in str(caught.value)


def test_captured_arrays_are_named_as_such(libraries: Callable[..., None]) -> None:
    libraries(cupy=fake_cupy())
    x, y = FakeCupyArray(3), FakeCupyArray(3)
    y.data.device_id = 1
    with pytest.raises(
        FusionTypeError, match="captured array 'table' is a NumPy array in host memory and argument 'x'"
    ):
        common_adapter([("x", x)], [("table", np.zeros(3))])
    with pytest.raises(FusionTypeError, match="argument 'x' is on device 0 and captured array 'table' on device 1"):
        common_adapter([("x", x)], [("table", y)])
    with pytest.raises(FusionTypeError, match="captured array 'table' is a masked array"):
        common_adapter([("x", np.ones(3))], [("table", np.ma.masked_array([1.0]))])


@pytest.mark.filterwarnings("error")
def test_a_captured_device_array_and_host_arguments(libraries: Callable[..., None]) -> None:
    libraries(cupy=fake_cupy())
    tables = {"now": np.ones(3, np.float32)}
    table = tables["now"]

    @fuse
    def shifted(x: Any) -> Any:
        return x + table

    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(shifted(x), x + 1)
    table = FakeCupyArray(3)  # a plan for host arrays exists
    with pytest.raises(FusionTypeError) as caught:
        shifted(x)
    assert "argument 'x' is a NumPy array in host memory and captured array 'table' is a cupy array" in str(
        caught.value
    )
    with pytest.raises(FusionTypeError, match="captured array 'table' is a cupy array"):
        fuse(shifted.py_func)(x)
