"""bfloat16 and DLPack, against torch where it is there."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot_runtime import BFloat16Array, FieldTuple, Record, dtypes
from ingot_runtime.native import dlpack

torch = pytest.importorskip("torch")


class TestBFloat16:
    @given(st.lists(st.floats(width=32), max_size=20))
    def test_it_rounds_as_torch_does(self, numbers: list[float]) -> None:
        given_numbers = np.array(numbers, np.float32)
        ours = BFloat16Array.of(given_numbers)
        theirs = torch.from_numpy(given_numbers).to(torch.bfloat16).float().numpy()
        np.testing.assert_array_equal(ours.float32(), theirs)

    def test_nans_stay_nans_and_ties_go_to_even(self) -> None:
        words = np.array([0x7F800001, 0xFF80FFFF, 0x7FFFFFFF, 0x3F808000, 0x3F818000, 0x7F7FFFFF], np.uint32)
        made = BFloat16Array.of(words.view(np.float32))
        assert np.isnan(made.float32()[:3]).all()
        assert made.bits[3:].tolist() == [0x3F80, 0x3F82, 0x7F80]

    def test_every_bfloat16_is_kept(self) -> None:
        bits = np.arange(2**16, dtype=np.uint16)
        numbers = BFloat16Array(bits).float32()
        back = BFloat16Array.of(numbers).bits
        real = ~np.isnan(numbers)
        np.testing.assert_array_equal(back[real], bits[real])
        expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
        np.testing.assert_array_equal(numbers, expected)

    def test_as_an_array(self) -> None:
        made = BFloat16Array.of([[1.0, 2.5]])
        assert (made.shape, made.ndim, made.size, made.dtype, len(made)) == ((1, 2), 2, 2, "bfloat16", 1)
        assert np.asarray(made).dtype == np.float32
        assert np.asarray(made, np.float64).tolist() == [[1.0, 2.5]]
        assert BFloat16Array.of(1.5).shape == ()
        assert BFloat16Array.of(np.zeros((0, 3))).shape == (0, 3)
        assert "2.5" in repr(made)
        with pytest.raises(TypeError, match="uint16"):
            BFloat16Array(np.zeros(2, np.float32))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="copy"):
            np.array(made, copy=False)
        with pytest.raises(TypeError):
            made + 1  # type: ignore[operator]

    def test_dlpack_to_torch_shares_memory(self) -> None:
        made = BFloat16Array.of(np.arange(6.0).reshape(2, 3))
        tensor = torch.from_dlpack(made)
        assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
        tensor[0, 0] = 9
        assert made.float32()[0, 0] == 9
        bits = made.bits
        del made
        assert tensor.tolist()[0] == [9, 1, 2] and bits[0, 1] == 0x3F80


class TestDlpack:
    @pytest.mark.parametrize(
        "name",
        dtypes.BY_NAME,
    )
    def test_every_dtype_of_torch(self, name: str) -> None:
        tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
        found, made, held = dlpack.import_(tensor)
        assert found == name and made.shape == (2, 3)
        assert made.__array_interface__["data"][0] == tensor.data_ptr()
        made[1, 2] = 0
        assert tensor[1, 2].item() == 0
        del held

    @pytest.mark.parametrize("view", [
        lambda t: t.T, lambda t: t[:, 1], lambda t: t[1:, ::2], lambda t: t[0, 0], lambda t: t[:0],
        lambda t: t[0, 0].expand(3, 2), lambda t: t.reshape(1, 3, 1, 4),
    ])  # fmt: skip
    def test_views(self, view: Any) -> None:
        tensor = view(torch.arange(12.0).reshape(3, 4))
        _, made, held = dlpack.import_(tensor)
        np.testing.assert_array_equal(made, tensor.numpy(), strict=True)
        del held

    @pytest.mark.parametrize("version", [None, (1, 0)])
    def test_both_versions_of_dlpack(self, version: Any) -> None:
        class Exporter:
            def __init__(self, array: Any) -> None:
                self.array = array
                self.given: list[dict[str, Any]] = []

            def __dlpack__(self, **options: Any) -> Any:
                self.given.append(options)
                if version is None and options:
                    raise TypeError("unexpected keyword max_version")
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self) -> tuple[int, int]:
                return (1, 0)

        source = np.arange(6.0).reshape(2, 3)
        for array in (source, source.T, source[:, ::2]):
            exporter = Exporter(array)
            _, made, held = dlpack.import_(exporter)
            np.testing.assert_array_equal(made, array)
            assert made.flags.writeable and exporter.given[-1] == ({} if version is None else {"max_version": (1, 0)})
            del held
        if version is not None:
            source.flags.writeable = False
            _, made, held = dlpack.import_(Exporter(source))
            assert not made.flags.writeable
            del held

    def test_what_cannot_be_used(self) -> None:
        for tensor, why in (
            (torch.ones(2, requires_grad=True), "detach"),
            (torch.ones(2, dtype=torch.complex64), "type"),
            (torch.ones(2, device="meta"), "meta"),
        ):
            with pytest.raises(dlpack.NotImportable, match=why):
                dlpack.import_(tensor)

    def test_the_tensor_lives_as_long_as_what_is_held(self) -> None:
        tensor = torch.full((1000,), 7.0)
        _, made, held = dlpack.import_(tensor)
        del tensor
        torch.full((1000,), 1.0)
        assert made.sum() == 7000
        del held


class TestResultClasses:
    def test_field_tuple(self) -> None:
        made = FieldTuple(["values", "indices"], [1, 2])
        values, indices = made
        assert (values, indices) == (made.values, made.indices) == (made[0], made[1]) == made == (1, 2)
        assert repr(made) == "(values=1, indices=2)"
        assert pickle.loads(pickle.dumps(made)).indices == 2
        with pytest.raises(AttributeError):
            made.other  # noqa: B018

    def test_record(self) -> None:
        made = Record(logits=1)
        assert made.logits == made["logits"] == 1
        with pytest.raises(AttributeError):
            made.other  # noqa: B018
