"""The products that a synthetic layer computes on a GPU, by torch on the CPU and of smaller matrices."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from cpkv.bench.copy.cuda_platform import MATMUL_SIZE, UNIT_DEPTH, CudaPlatform
from cpkv.bench.copy.platform import LAYER_UNITS


class FewRows(CudaPlatform):
    """Matrices as deep as the platform's, of few rows and columns, and no GPU."""

    def __init__(self):
        self.products = []
        self.torch = SimpleNamespace(cuda=SimpleNamespace(stream=nullcontext), mm=self.multiply)
        self._streams = {"compute": None}
        self._left = torch.randn(3, MATMUL_SIZE, dtype=torch.bfloat16)
        self._right = torch.randn(MATMUL_SIZE, 5, dtype=torch.bfloat16)
        self._layer_product = torch.empty(3, 5, dtype=torch.bfloat16)

    def multiply(self, left, right, out):
        assert left.stride() == (MATMUL_SIZE, 1), "rows of the whole matrix: nothing is copied to multiply it"
        assert right.is_contiguous()
        torch.mm(left, right, out=out)
        torch.testing.assert_close(out, left @ right)
        self.products.append(left.shape[1])


@pytest.mark.parametrize(
    ("units", "depths"),
    [(1, [64]), (LAYER_UNITS, [8192]), (LAYER_UNITS + 1, [64 * 64, 65 * 64]), (3 * LAYER_UNITS, [8192] * 3)],
)
def test_units_are_inner_dimensions_of_as_few_products_as_have_room(units, depths):
    platform = FewRows()
    platform.layer(units)
    assert platform.products == depths
    assert sum(platform.products) == units * UNIT_DEPTH


def test_a_layer_that_nothing_is_said_of_is_a_square_product():
    platform = FewRows()
    platform.layer()
    assert platform.products == [MATMUL_SIZE]
