"""73 operations of OpenCV's T-API on an OpenCL device, each of which makes OpenCV compile kernels of its own.

Prints one checksum per operation, so that two runs can be compared. cv2.Canny is left out: with other programs on the same
cores its result differs from call to call, also in one process on the bare driver. Wants opencv-python-headless and numpy, and in the environment
OPENCV_OPENCL_DEVICE=:CPU:0 (any OpenCL device will do) and OPENCV_OPENCL_CACHE_ENABLE=0 (OpenCV's own cache off).
"""

import sys

import cv2
import numpy as np


def operations(grey, colour, real):
    """Name and function of every operation, over the three images (8 bit, 8 bit with 3 channels, 32 bit floating point)."""
    kernel = np.ones((5, 5), np.uint8)
    turn = cv2.getRotationMatrix2D((128, 128), 30, 1.1)
    tilt = np.float32([[1, 0.1, 3], [0.05, 1, 2], [0.0001, 0.0002, 1]])
    rows, columns = np.mgrid[0:256, 0:256].astype(np.float32)
    map_x, map_y = cv2.UMat(columns * 0.9 + 3), cv2.UMat(rows * 0.9 + 5)
    other = cv2.flip(grey, 0)
    real2 = cv2.flip(real, 1)
    table = np.arange(255, -1, -1, np.uint8)
    return [
        ("add", lambda: cv2.add(grey, other)),
        ("subtract", lambda: cv2.subtract(grey, other)),
        ("multiply", lambda: cv2.multiply(real, real2)),
        ("divide", lambda: cv2.divide(real, cv2.add(real2, 1.0))),
        ("absdiff", lambda: cv2.absdiff(grey, other)),
        ("min", lambda: cv2.min(grey, other)),
        ("max", lambda: cv2.max(grey, other)),
        ("and", lambda: cv2.bitwise_and(grey, other)),
        ("or", lambda: cv2.bitwise_or(grey, other)),
        ("xor", lambda: cv2.bitwise_xor(grey, other)),
        ("not", lambda: cv2.bitwise_not(grey)),
        ("add weighted", lambda: cv2.addWeighted(grey, 0.3, other, 0.6, 4)),
        ("scale add", lambda: cv2.scaleAdd(real, 2.5, real2)),
        ("compare", lambda: cv2.compare(grey, other, cv2.CMP_GT)),
        ("in range", lambda: cv2.inRange(grey, 40, 180)),
        ("look-up table", lambda: cv2.LUT(grey, table)),
        ("absolute scale", lambda: cv2.convertScaleAbs(real, alpha=100, beta=1)),
        ("square root", lambda: cv2.sqrt(real)),
        ("power", lambda: cv2.pow(real, 3.5)),
        ("exponential", lambda: cv2.exp(real)),
        ("logarithm", lambda: cv2.log(cv2.add(real, 1.0))),
        ("magnitude", lambda: cv2.magnitude(real, real2)),
        ("phase", lambda: cv2.phase(real, real2)),
        ("to polar", lambda: cv2.cartToPolar(real, real2)),
        ("from polar", lambda: cv2.polarToCart(real, real2)),
        ("transpose", lambda: cv2.transpose(grey)),
        ("flip", lambda: cv2.flip(colour, -1)),
        ("rotate", lambda: cv2.rotate(grey, cv2.ROTATE_90_CLOCKWISE)),
        ("repeat", lambda: cv2.repeat(grey, 2, 2)),
        ("border", lambda: cv2.copyMakeBorder(grey, 4, 4, 4, 4, cv2.BORDER_REFLECT)),
        ("split", lambda: cv2.split(colour)),
        ("merge", lambda: cv2.merge([grey, other, grey])),
        ("sum", lambda: cv2.sumElems(grey)),
        ("mean", lambda: cv2.mean(real)),
        ("non-zero", lambda: cv2.countNonZero(grey)),
        ("extremes", lambda: cv2.minMaxLoc(grey)),
        ("reduce", lambda: cv2.reduce(real, 0, cv2.REDUCE_AVG)),
        ("normalise", lambda: cv2.normalize(real, None, 0, 2, cv2.NORM_MINMAX)),
        ("matrix product", lambda: cv2.gemm(real, real2, 0.5, None, 0)),
        ("Fourier transform", lambda: cv2.dft(real)),
        ("grey", lambda: cv2.cvtColor(colour, cv2.COLOR_BGR2GRAY)),
        ("HSV", lambda: cv2.cvtColor(colour, cv2.COLOR_BGR2HSV)),
        ("Lab", lambda: cv2.cvtColor(colour, cv2.COLOR_BGR2Lab)),
        ("YCrCb", lambda: cv2.cvtColor(colour, cv2.COLOR_BGR2YCrCb)),
        ("resize, linear", lambda: cv2.resize(colour, (400, 300))),
        ("resize, cubic", lambda: cv2.resize(real, (400, 300), interpolation=cv2.INTER_CUBIC)),
        ("resize, area", lambda: cv2.resize(grey, (100, 90), interpolation=cv2.INTER_AREA)),
        ("affine", lambda: cv2.warpAffine(grey, turn, (256, 256))),
        ("perspective", lambda: cv2.warpPerspective(grey, tilt, (256, 256))),
        ("remap", lambda: cv2.remap(grey, map_x, map_y, cv2.INTER_LINEAR)),
        ("pyramid down", lambda: cv2.pyrDown(grey)),
        ("pyramid up", lambda: cv2.pyrUp(grey)),
        ("box filter", lambda: cv2.blur(grey, (5, 5))),
        ("Gauss", lambda: cv2.GaussianBlur(real, (7, 7), 1.5)),
        ("median", lambda: cv2.medianBlur(grey, 5)),
        ("bilateral", lambda: cv2.bilateralFilter(grey, 7, 40, 40)),
        ("Laplace", lambda: cv2.Laplacian(grey, cv2.CV_32F, ksize=3)),
        ("Sobel", lambda: cv2.Sobel(real, cv2.CV_32F, 1, 0)),
        ("Scharr", lambda: cv2.Scharr(grey, cv2.CV_32F, 0, 1)),
        ("filter", lambda: cv2.filter2D(real, -1, np.float32([[0, -1, 0], [-1, 5, -1], [0, -1, 0]]))),
        ("erode", lambda: cv2.erode(grey, kernel)),
        ("dilate", lambda: cv2.dilate(real, kernel)),
        ("opening", lambda: cv2.morphologyEx(grey, cv2.MORPH_OPEN, kernel)),
        ("gradient", lambda: cv2.morphologyEx(grey, cv2.MORPH_GRADIENT, kernel)),
        ("threshold", lambda: cv2.threshold(grey, 90, 255, cv2.THRESH_BINARY)[1]),
        ("adaptive threshold", lambda: cv2.adaptiveThreshold(grey, 255, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY, 9, 2)),
        ("corners", lambda: cv2.cornerHarris(grey, 3, 3, 0.04)),
        ("integral", lambda: cv2.integral(grey)),
        ("histogram", lambda: cv2.calcHist([grey], [0], None, [32], [0, 256])),
        ("equalise", lambda: cv2.equalizeHist(grey)),
        ("CLAHE", lambda: cv2.createCLAHE(2.0, (4, 4)).apply(grey)),
        ("template", lambda: cv2.matchTemplate(real, cv2.UMat(real.get()[40:60, 40:60]), cv2.TM_CCORR)),
        ("accumulate", lambda: cv2.accumulateWeighted(grey, cv2.UMat(np.zeros((256, 256), np.float32)), 0.25)),
    ]


def checksum(result):
    """One number for a result of any shape."""
    if isinstance(result, (tuple, list)):
        return sum(checksum(part) for part in result)
    values = result.get() if isinstance(result, cv2.UMat) else np.asarray(result)
    return float(np.sum(np.abs(np.nan_to_num(values.astype(np.float64)))))


def main():
    cv2.ocl.setUseOpenCL(True)
    if not cv2.ocl.useOpenCL():
        sys.exit("tapi.py: OpenCV finds no OpenCL device")
    print("device:", cv2.ocl.Device.getDefault().name())
    random = np.random.default_rng(1)
    grey = cv2.UMat(random.integers(0, 256, (256, 256), np.uint8))
    colour = cv2.UMat(random.integers(0, 256, (256, 256, 3), np.uint8))
    real = cv2.UMat(random.random((256, 256), np.float32))
    for name, operation in operations(grey, colour, real):
        print(f"{name}: {checksum(operation()):.4f}")


if __name__ == "__main__":
    main()
