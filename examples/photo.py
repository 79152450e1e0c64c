"""Grade a photograph: a dozen small helpers, three outputs, one kernel.

    python examples/photo.py                       # the portrait among matplotlib's sample data
    python examples/photo.py holiday.jpg --output graded.png --exposure 0.7
    python examples/photo.py --scale 6             # the photograph repeated 6 x 6, for longer timings

Every helper below is an ordinary function of arrays, so the same `grade_plain` runs in NumPy, one operation
after another, and as one kernel once it is fused. It runs on a GPU if CuPy, torch or numba-cuda finds one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from device import choose, median_ms
from numfuse import fuse

EXPOSURE = 1.8  # stops
WHITE = 5.0  # the light that becomes white
TEMPERATURE = 0.04  # > 0 is warmer
SATURATION = 1.3
CONTRAST = 1.1
VIGNETTE = 0.4


# --- between bytes and light ----------------------------------------------------------------------


def from_bytes(v):
    """0..255 to 0..1 in float32."""
    return v.astype(np.float32) / 255


def srgb_to_linear(v):
    """IEC 61966-2-1, the decoding function of sRGB."""
    return np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)


def linear_to_srgb(v):
    """IEC 61966-2-1, the encoding function of sRGB."""
    return np.where(v <= 0.0031308, v * 12.92, 1.055 * np.maximum(v, 0.0031308) ** (1 / 2.4) - 0.055)


def clip01(v):
    return np.minimum(np.maximum(v, 0), 1)


def to_bytes(v):
    return np.rint(clip01(v) * 255).astype(np.uint8)


# --- light ----------------------------------------------------------------------------------------


def white_balance(r, g, b, warmth=0.0):
    return r * (1 + warmth), g, b * (1 - warmth)


def expose(v, stops):
    return v * 2.0**stops


def vignette(v, across, down, amount):
    """Darken towards the corners; `across` is a row and `down` a column of positions from -1 to 1."""
    return v * (1 - amount * (across * across + down * down) / 2)


def shoulder_and_toe(v):
    """John Hable's film curve (2010), before scaling."""
    return (v * (0.15 * v + 0.05) + 0.004) / (v * (0.15 * v + 0.5) + 0.06) - 0.02 / 0.3


def filmic(v):
    # The divisor depends on numbers only, so Python computes it once a call and the kernel never does.
    return shoulder_and_toe(v) / shoulder_and_toe(WHITE)


# --- colour ---------------------------------------------------------------------------------------


def luma(r, g, b):
    """ITU-R BT.709 weights."""
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def to_luma_chroma(r, g, b):
    y = luma(r, g, b)
    return y, r - y, b - y


def from_luma_chroma(y, red, blue):
    return y + red, y - (0.2126 * red + 0.0722 * blue) / 0.7152, y + blue


def saturate(r, g, b, amount):
    y, red, blue = to_luma_chroma(r, g, b)
    return from_luma_chroma(y, red * amount, blue * amount)


def contrast(v, amount, pivot=0.5):
    return (v - pivot) * amount + pivot


# --- the whole ------------------------------------------------------------------------------------


def develop(v, across, down):
    """One channel of light, from the sensor to the print."""
    return filmic(vignette(expose(v, EXPOSURE), across, down, VIGNETTE))


def finish(v):
    return to_bytes(contrast(linear_to_srgb(v), CONTRAST))


def grade_plain(r, g, b, across, down):
    r, g, b = srgb_to_linear(from_bytes(r)), srgb_to_linear(from_bytes(g)), srgb_to_linear(from_bytes(b))
    r, g, b = white_balance(r, g, b, warmth=TEMPERATURE)
    r, g, b = develop(r, across, down), develop(g, across, down), develop(b, across, down)
    r, g, b = saturate(r, g, b, SATURATION)
    return finish(r), finish(g), finish(b)


grade = fuse(grade_plain)


# --- around it ------------------------------------------------------------------------------------


def load(path: str | None, scale: int) -> np.ndarray:
    """The photograph as an array of shape (height, width, 3) and dtype uint8."""
    from PIL import Image

    if path is None:
        from matplotlib.cbook import get_sample_data

        path = str(get_sample_data("grace_hopper.jpg", asfileobj=False))
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    return np.tile(pixels, (scale, scale, 1))


def positions(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each column and each row is, from -1 to 1, in shapes that broadcast to the picture's."""
    across = np.linspace(-1, 1, width, dtype=np.float32)
    down = np.linspace(-1, 1, height, dtype=np.float32)[:, np.newaxis]
    return across, down


def side_by_side(before: np.ndarray, after: np.ndarray, gap: int = 12) -> np.ndarray:
    white = np.full((before.shape[0], gap, 3), 255, np.uint8)
    return np.concatenate([before, white, after], axis=1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Grade a photograph with one fused kernel.")
    parser.add_argument("photo", nargs="?", help="any picture file (default: matplotlib's sample portrait)")
    parser.add_argument("--output", type=Path, default=Path("photo-graded.png"), help="default: %(default)s")
    parser.add_argument("--exposure", type=float, default=EXPOSURE, help="in stops (default: %(default)s)")
    parser.add_argument("--scale", type=int, default=1, help="repeat the picture this often each way")
    parser.add_argument("--runs", type=int, default=9, help="timed runs (default: %(default)s)")
    parser.add_argument("--device", choices=("auto", "numpy", "cupy", "torch", "numba"), default="auto")
    parser.add_argument("--show", action="store_true", help="open the result in a viewer")
    parser.add_argument("--explain", action="store_true", help="print the kernel")
    return parser.parse_args()


def main() -> None:
    global EXPOSURE
    options = parse_arguments()
    EXPOSURE = options.exposure  # read by the kernel at its next call: nothing is compiled for a new value

    image = load(options.photo, options.scale)
    height, width, _ = image.shape
    across, down = positions(height, width)
    device = choose(options.device)
    print(f"photograph   {width} x {height}, {image.nbytes / 1e6:.1f} MB")
    print(f"device       {device}")

    # Views of one interleaved array: every third byte, which the kernel reads where it lies.
    pixels = device.put(np.ascontiguousarray(image))
    red, green, blue = (pixels[:, :, channel] for channel in range(3))
    arguments = (red, green, blue, device.put(across), device.put(down))

    start = time.perf_counter()
    channels = grade(*arguments)
    device.synchronize()
    first = (time.perf_counter() - start) * 1e3
    graded = np.stack([device.get(channel) for channel in channels], axis=-1)

    explanation = grade.explain(*arguments)
    if options.explain:
        print(explanation)
    print(f"kernels      {explanation.launches}, of {len(explanation.helpers)} helpers and three outputs")

    plain_arguments = (image[..., 0], image[..., 1], image[..., 2], across, down)
    expected = np.stack(grade_plain(*plain_arguments), axis=-1)
    steps = np.abs(graded.astype(np.int16) - expected.astype(np.int16))
    host = choose("numpy")
    fused_ms = median_ms(lambda: grade(*arguments), device, options.runs)
    plain_ms = median_ms(lambda: grade_plain(*plain_arguments), host, options.runs)
    faster = plain_ms / fused_ms
    print(f"time         {fused_ms:.3f} ms fused, {plain_ms:.1f} ms in NumPy ({faster:.1f} times)")
    print(f"first call   {first:.0f} ms, with compilation")
    print(f"difference   at most {steps.max()} of 255, in {np.count_nonzero(steps)} of {steps.size} values")

    from PIL import Image

    picture = Image.fromarray(side_by_side(image, graded))
    picture.save(options.output)
    print(f"written      {options.output}")
    if options.show:
        picture.show()


if __name__ == "__main__":
    main()
