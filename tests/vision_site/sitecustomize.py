"""torchvision beside a CPU build of torch, for tests: put this folder on PYTHONPATH.

PyPI's torchvision is built against CUDA. With a CPU torch its library does not load, and its import fails
where it describes the operators ``nms`` and ``qnms``, which images never need. They are declared, without an
implementation, just before torchvision is imported; in every process, since transformers and vLLM import it.
"""

import sys
from importlib.machinery import PathFinder

_libraries = []  # a declaration lasts as long as its object


class _BeforeTorchvision:
    """A finder that declares the operators when torchvision is looked for, and finds it as Python does."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torchvision":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and not _libraries:
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _libraries.append(library)
        return spec


sys.meta_path.insert(0, _BeforeTorchvision)
