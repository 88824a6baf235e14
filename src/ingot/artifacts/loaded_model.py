"""A compiled file in a process that has torch: tensors in and out, without the Program that it was compiled from.

model = ingot.load("m.ingot")        of a file that compiled.save wrote
model(*args, **kwargs)               the model's own call
model.model                          the ingot_runtime.Model underneath: out=, self_test, describe
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ingot.artifacts.device_calls import DeviceCalls
from ingot.artifacts.tensor_exchange import native_of, run_model, wants_arrays
from ingot_runtime import Model, pytree
from ingot_runtime.native.copy_guard import Uncopied


class LoadedModel(Uncopied):
    """The model of a compiled file. Any number of threads may call it at once. `model` is the ingot_runtime.Model."""

    def __init__(self, model: Model) -> None:
        """Use `ingot.load`."""
        self.model = model
        self._device_calls = DeviceCalls.create(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model. Returns torch tensors, or NumPy arrays if the arguments hold arrays and no tensor.

        Results are nested as the original's; a class is returned as a Record, with access by key and by attribute.
        Raises CallError if the model was not compiled for these arguments, and what the model itself raises.
        """
        if self._device_calls is not None and not kwargs:
            plain = self._device_calls.run(args)
            if plain is not None:
                return pytree.unflatten(self.model.spec.result, {"input": args, "output": plain})
        if wants_arrays(args, kwargs):
            return self.model.call(args, kwargs)
        leaves = [native_of(leaf) for leaf in self.model.leaves(args, kwargs)]
        results = run_model(self.model, leaves)
        return pytree.unflatten(self.model.spec.result, {"input": leaves, "output": results})

    def __repr__(self) -> str:
        return self.model.describe()

    def seed(self, value: int) -> None:
        """Seeds the random numbers of later calls."""
        self.model.seed(value)

    def self_test(self) -> float:
        """Runs the stored sample on this machine; returns the largest difference. Raises SelfTestFailed."""
        return self.model.self_test()

    def close(self) -> None:
        """Releases the model's threads and memory."""
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
