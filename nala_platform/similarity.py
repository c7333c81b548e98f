"""How alike two images are, PSNR and SSIM as papers on super-resolution report them, and the scores made of them.

Shapes: N images, C channels, H W pixels.
"""

import torch
from torch import Tensor
from torchmetrics import Metric

from nala_platform.errors import UserError

WINDOW = 11  # pixels; edge of the window of SSIM
_SIMILARITIES = ("psnr_y", "ssim_y", "psnr_rgb", "ssim_rgb")


def luma(rgb_N3HW: Tensor) -> Tensor:
    """Y of BT.601 ``(N, 1, H, W)``, 16..235 and not rounded, of RGB on the scale 0..255; float64.

    ``Y = 16 + (65.481 R + 128.553 G + 24.966 B) / 255``.

    Examples:
        >>> luma(torch.tensor([0.0, 255.0]).repeat(3, 1)[None, :, None]).flatten().tolist()
        [16.0, 235.0]
    """
    factor_3 = torch.tensor((65.481, 128.553, 24.966), dtype=torch.float64, device=rgb_N3HW.device)
    return 16.0 + (rgb_N3HW.double() * factor_3[:, None, None]).sum(1, keepdim=True) / 255.0


def structural_similarity(one_NCHW: Tensor, other_NCHW: Tensor) -> Tensor:
    """SSIM ``(N, C)`` on the scale 0..255, float64: 11x11 Gaussian of deviation 1.5, windows wholly inside the image.

    ``(2 m n + c1)(2 s_xy + c2) / ((m^2 + n^2 + c1)(s_xx + s_yy + c2))``, the mean over the windows, with
    ``c1 = (0.01 * 255)^2``, ``c2 = (0.03 * 255)^2`` (Wang et al. 2004, and what super-resolution papers report).
    torchmetrics 1.9 takes windows over a mirrored border into its mean, which moves the third digit on small images.
    """
    x, y = one_NCHW.double(), other_NCHW.double()
    mean_x, mean_y = _blurred(x), _blurred(y)
    var_x, var_y = _blurred(x * x) - mean_x**2, _blurred(y * y) - mean_y**2
    covariance = _blurred(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    similarity = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return (similarity / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))).mean(dim=(2, 3))


def _blurred(x_NCHW: Tensor) -> Tensor:
    place = torch.arange(WINDOW, dtype=x_NCHW.dtype) - WINDOW // 2
    weights = (-(place**2) / (2 * 1.5**2)).exp()
    for axis in (2, 3):
        length = x_NCHW.shape[axis] - WINDOW + 1
        blurred = torch.zeros_like(x_NCHW.narrow(axis, 0, length))
        for first, weight in enumerate((weights / weights.sum()).tolist()):
            blurred.add_(x_NCHW.narrow(axis, first, length), alpha=weight)  # a list of them all is gigabytes at 2K
        x_NCHW = blurred
    return x_NCHW


class SuperResolutionScores(Metric):
    """PSNR in dB and SSIM, on Y (BT.601, 16..235) and on RGB, of each image and then averaged over each test set.

    Both images are clamped to 0..1 and rounded to 8 bits, and a border as wide as the scale is cut off, before anything
    is compared. ``PSNR = 10 log10(255^2 / MSE)``; an image that is reproduced exactly has an infinite one. On RGB the
    MSE runs over all three channels, and SSIM is the mean of theirs.

    Args:
        scale: S, the width of the border.
        alone: of this process's images alone, so others need not compute at the same time.

    Attributes:
        sets: names of K test sets, where the images are of several; see `divide`.
    """

    full_state_update = False
    psnr_y: Tensor
    ssim_y: Tensor
    psnr_rgb: Tensor
    ssim_rgb: Tensor
    count: Tensor

    def __init__(self, scale: int, alone: bool = False) -> None:
        super().__init__(sync_on_compute=not alone)
        self.scale = scale
        self.count = torch.zeros(())
        self.divide(())

    def divide(self, sets: tuple[str, ...]) -> None:
        """Begin anew, with images that are of these test sets; without any, of one that has no name."""
        self.sets = sets
        for name in (*_SIMILARITIES, "count"):
            kind = torch.int64 if name == "count" else torch.float64
            zeros_K = torch.zeros(max(1, len(sets)), dtype=kind, device=self.count.device)
            self.add_state(name, zeros_K, dist_reduce_fx="sum")

    @property
    def protocol(self) -> str:
        """How the numbers come about."""
        rows = f"; each test set by itself, without a name: {self.sets[0]}" if self.sets else ""
        return (
            f"x{self.scale}; of each image, then averaged; clamped, rounded to 8 bits, border of {self.scale} pixels "
            "cut off; *_y: Y of BT.601, 16..235, not rounded again; *_rgb: all three channels; SSIM: 11x11 Gaussian, "
            f"sigma 1.5, windows inside the image{rows}"
        )

    def update(self, prediction_N3HW: Tensor, target_N3HW: Tensor, part_N: Tensor | None = None) -> None:
        """Add a batch, both ``(N, 3, H, W)`` float in 0..1, of the test sets ``part (N,)``.

        Raises:
            UserError: an image smaller than the SSIM window once its border is cut off.
        """
        if prediction_N3HW.shape != target_N3HW.shape:
            raise UserError(f"the prediction is {(*prediction_N3HW.shape,)}, but the truth {(*target_N3HW.shape,)}")
        height, width = target_N3HW.shape[-2:]
        if min(height, width) < 2 * self.scale + WINDOW:
            raise UserError(
                f"a {height}x{width} image is too small to score: without its border of {self.scale} pixels it must "
                f"be {WINDOW}x{WINDOW} or more"
            )
        one, other = (_luma_and_colours(image, self.scale) for image in (prediction_N3HW, target_N3HW))
        error_N4 = (one - other).square().mean(dim=(2, 3))
        similarity_N4 = structural_similarity(one, other)
        if part_N is None:
            part_N = self.count.new_zeros(len(target_N3HW))
        is_of_NK = part_N[:, None] == torch.arange(len(self.count), device=part_N.device)
        values = (
            _decibel(error_N4[:, 0]),
            similarity_N4[:, 0],
            _decibel(error_N4[:, 1:].mean(1)),
            similarity_N4[:, 1:].mean(1),
        )
        for name, value_N in zip(_SIMILARITIES, values, strict=True):
            # not a product: infinity times zero
            getattr(self, name).add_(torch.where(is_of_NK, value_N[:, None], 0).sum(0))
        self.count += is_of_NK.sum(0)

    def compute(self) -> dict[str, Tensor]:
        """``psnr_y``, ``ssim_y``, ``psnr_rgb``, ``ssim_rgb``, float64: of the first test set.

        Of several, each has its own beside them, ``<set>/psnr_y`` and so on; one without images has none.
        """
        mean_K = {name: getattr(self, name) / self.count for name in _SIMILARITIES}
        found = {name: value_K[0] for name, value_K in mean_K.items()}
        for place, key in enumerate(self.sets):
            if self.count[place] > 0:
                found |= {f"{key}/{name}": value_K[place] for name, value_K in mean_K.items()}
        return found


def _luma_and_colours(image_N3HW: Tensor, border: int) -> Tensor:
    """Y, R, G, B on the scale 0..255 ``(N, 4, H - 2 border, W - 2 border)`` float64, of 8-bit RGB."""
    inner = image_N3HW[..., border : image_N3HW.shape[-2] - border, border : image_N3HW.shape[-1] - border]
    rgb = (inner.double().clamp(0, 1) * 255).round()
    return torch.cat((luma(rgb), rgb), dim=1)


def _decibel(error_N: Tensor) -> Tensor:
    return 10 * torch.log10(255.0**2 / error_N)
