"""Archives of pictures, made as the tests of their layouts want them."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from nala_platform.data.images.image_folder import ImageFolderData, Pixels


def data_of(root, layout, **options):
    return ImageFolderData(str(root), **{"layout": layout, "pixels": Pixels(size=16), "batch_size": 2, **options})


def png(seed, mode="RGB", form="PNG"):
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, form)
    return buffer.getvalue()


def pixels_of(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def write_parquet(path, rows, *, names=None, column="image", label="label", struct=True, group=3):
    """``rows``: (bytes, label) each; as ``datasets`` writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": data, "path": f"{i}.png"} if struct else data for i, (data, _) in enumerate(rows)]
    table = pa.table({column: images, label: pa.array([value for _, value in rows], pa.int64())})
    if names:
        features = {column: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=group)


def write_shard(path, files):
    """``files``: (name, bytes) in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def sample(key, seed, label, suffix="jpg"):
    form = "JPEG" if suffix.startswith("jp") else "PNG"
    return [(f"{key}.{suffix}", png(seed, form=form)), (f"{key}.cls", str(label).encode()), (f"{key}.json", b"{}")]
