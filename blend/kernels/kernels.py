"""The kernels by name, each None where its compiler is missing. Numba is an extra, triton comes with torch for CUDA."""

try:
    from blend.kernels.gathered import gathered
    from blend.kernels.lone_kernel import lone_kernels
    from blend.kernels.place_kernel import place_kernel
except ImportError:
    gathered = lone_kernels = place_kernel = None
try:
    from blend.kernels import attend_rows
except ImportError:
    attend_rows = None
__all__ = ["attend_rows", "gathered", "lone_kernels", "place_kernel"]
