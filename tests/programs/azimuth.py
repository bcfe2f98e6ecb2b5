"""Azimuthal integration of a made-up diffraction image with pyFAI on an OpenCL device, in the ways that pyFAI has for OpenCL.

    azimuth.py [ALGORITHM...]   csr, lut, histogram; all of them by default

Prints one line per way, with sums that two runs can be compared by. Wants pyFAI and pyopencl, and in the environment
PYOPENCL_NO_CACHE=1: with its own cache PyOpenCL gives each source a new name, and no two processes build the same.
"""

import sys

import numpy as np
from pyFAI.integrator.azimuthal import AzimuthalIntegrator
from pyFAI.opencl import ocl

# Pixel splitting and algorithm.
ONE = [("no", "csr"), ("bbox", "csr"), ("full", "csr"), ("bbox", "lut"), ("no", "histogram")]
TWO = [("bbox", "csr"), ("no", "histogram")]


def image(shape):
    """Rings on a slope, with a little noise that is the same each time."""
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    distance = np.hypot(rows - shape[0] / 2, columns - shape[1] / 2)
    noise = np.random.default_rng(1).random(shape)
    return (1000 * (1 + np.cos(distance / 8)) + rows + noise).astype(np.float32)


def total(values):
    return float(np.sum(np.asarray(values, np.float64)))


def main():
    if ocl is None or not ocl.platforms:
        sys.exit("azimuth.py: pyFAI finds no OpenCL device")
    wanted = sys.argv[1:] or ["csr", "lut", "histogram"]
    integrator = AzimuthalIntegrator(dist=0.1, poni1=0.01, poni2=0.02, detector="Pilatus100k", wavelength=1e-10)
    data = image(integrator.detector.shape)
    for split, algorithm in ONE:
        if algorithm in wanted:
            result = integrator.integrate1d(data, 300, unit="2th_deg", error_model="poisson", method=(split, algorithm, "opencl"))
            print(f"1D {split} {algorithm} {result.method.impl_lower}: {total(result.intensity):.6e} {total(result.sigma):.6e}")
    for split, algorithm in TWO:
        if algorithm in wanted:
            result = integrator.integrate2d(data, 100, 60, unit="2th_deg", method=(split, algorithm, "opencl"))
            print(f"2D {split} {algorithm} {result.method.impl_lower}: {total(result.intensity):.6e}")
    if "csr" in wanted:
        clipped = integrator.sigma_clip(data, 300, unit="2th_deg", error_model="poisson", method=("no", "csr", "opencl"))
        print(f"sigma clip: {total(clipped.intensity):.6e}")


if __name__ == "__main__":
    main()
