"""The kernels by name, each None where its compiler is missing. Numba is an extra, triton comes with torch for CUDA."""

try:
    from blend.kernels.cpu_rows_kernel import cpu_rows_kernels
    from blend.kernels.gathered import gathered
    from blend.kernels.place_kernel import place_kernel
except ImportError:
    gathered = cpu_rows_kernels = place_kernel = None
try:
    from blend.kernels import attend_rows, place_spans
except ImportError:
    attend_rows = place_spans = None
__all__ = ["attend_rows", "cpu_rows_kernels", "gathered", "place_kernel", "place_spans"]
