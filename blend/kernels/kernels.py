"""The kernels by name, each None where its compiler is missing. Numba is an extra, triton comes with torch for CUDA."""

try:
    from blend.kernels.cpu_place_kernel import cpu_place_kernel
    from blend.kernels.cpu_rows_kernels import cpu_rows_kernels
    from blend.kernels.gathered import gathered
except ImportError:
    gathered = cpu_rows_kernels = cpu_place_kernel = None
try:
    from blend.kernels import gpu_place_kernel, gpu_rows_kernels
except ImportError:
    gpu_rows_kernels = gpu_place_kernel = None
__all__ = ["cpu_place_kernel", "cpu_rows_kernels", "gathered", "gpu_place_kernel", "gpu_rows_kernels"]
