#!/usr/bin/env python3
"""Writes small sound files for the fuzzers to start from: make_seeds.py FOLDER.

FOLDER/NAME_fuzz/ gets the seeds of the target NAME_fuzz. Standard library only.
"""

import base64
import gzip
import io
import pathlib
import struct
import sys
import tarfile
import zlib

import onnx_seeds

# 8x8 grey; the standard library cannot write a JPEG.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAIBAQEBAQIBAQECAgICAgQDAgICAgUEBAMEBgUGBgYFBgYGBwkIBgcJ"
    "BwYGCAsICQoKCgoKBggLDAsKDAkKCgr/wAALCAAIAAgBAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcI"
    "CQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcY"
    "GRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKj"
    "pKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/APnn"
    "wR/wRK+5/wAUj/5A/wDrV//Z"
)


def png(colour):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + bytes(range(4 * (3 if colour else 1)))
    header = struct.pack(">IIBBBBB", 4, 4, 8, 2 if colour else 0, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * 4))
            + chunk(b"IEND", b""))


def tar(mode):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in (("train/a/1.jpg", JPEG), ("train/b/1.png", png(True)),
                           ("test/a/1.png", png(False))):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def idx(*dimensions):
    count = 1
    for dimension in dimensions:
        count *= dimension
    header = struct.pack(f">BBBB{len(dimensions)}I", 0, 0, 8, len(dimensions), *dimensions)
    return header + bytes(i % 2 for i in range(count))


def idx_pair(images, labels):
    """What the target cuts apart again: the first byte is the length of the labels."""
    return bytes([len(labels)]) + images + labels


def message(*fields):
    """A short message of numbers below 128 and of bytes, by field."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += bytes([number << 3, value])
        else:
            out += bytes([number << 3 | 2, len(value)]) + value
    return out


def shard_steps():
    """A gradient, its commit, the next step and its end, as cluster_fuzz cuts them apart."""
    gradient = message((1, 1), (2, 1), (3, 1), (4, 18), (5, bytes(18 * 4)), (6, 3))
    begin = message((1, message((1, b"first"), (2, 3))), (2, 3))
    for kind, body in ((13, gradient),
                       (12, message((1, 1), (2, 2), (14, message((3, b""))))),
                       (12, message((1, 1), (2, 2), (14, message((2, begin))))),
                       (12, message((14, message((5, b""))))),
                       (12, message((14, message((4, b"")))))):
        yield struct.pack("<BH", kind, len(body)) + body


def element(mode, body):
    return struct.pack("<BH", mode, len(body)) + body


# What comes in an order and in a report, by the number of its field.
ORDERS = {
    "load": (4, b""),
    "train": (5, message((1, message((1, message((2, 0), (3, 3))))), (3, 3))),
    "evaluate": (6, message((2, 3))),
    "save": (7, b""),
    "form": (8, message((2, b"worker"))),
    "abort": (9, b""),
    "stop": (10, message((1, b"done"))),
    "host": (11, message((1, 1), (2, 1), (3, message((1, b"worker"), (2, b"key"))))),
    "shards": (13, message((1, message((1, 1), (2, b"worker"), (3, b"127.0.0.1:1"),
                                       (5, b"key"))))),
    "shard": (14, message((2, message((1, message((1, b"worker"), (2, 3))), (2, 3))))),
}
REPORTS = {
    "heartbeat": (2, b"\x09" + struct.pack("<d", 0.5)),
    "ready": (3, message((2, 1), (6, 3), (8, 1))),
    "done": (4, message((4, 1), (5, 2), (8, 1))),
    "leave": (5, b""),
    "failed": (6, message((2, b"smoke"), (3, 1), (4, b"member"))),
    "complaint": (7, message((1, b"member"), (2, b"peer"), (3, b"nonsense"))),
}


def cluster_seeds():
    """Each kind of order and of report, in each kind of job, after a few steps that go well."""
    for target, kinds in (("member", ORDERS), ("coordinator", REPORTS)):
        for kind, (number, body) in kinds.items():
            for job in range(4):
                well = element(0, b"") * (8 if target == "coordinator" else 0)
                yield (f"{target}_{kind}_fuzz", f"job{job}",
                       bytes([job]) + well + element(0, body) + element(1, body))
                yield (f"{target}_fuzz", f"{kind}{job}",
                       bytes([job]) + well + element(0, message((number, body))))
    for kind, (number, body) in REPORTS.items():
        report = element(1, message((number, body)))
        yield "cluster_report_fuzz", kind, report
        yield "cluster_fuzz", kind, report
    part = message((3, 1), (5, bytes(16)), (6, 2))
    for job in range(4):
        yield "coordinator_part_fuzz", f"job{job}", bytes([job]) + element(0, part) * 8


def seeds():
    yield from cluster_seeds()
    yield "idx_fuzz", "plain", idx_pair(idx(2, 5, 3), idx(2))
    yield "idx_fuzz", "colour", idx_pair(idx(2, 3, 2, 2), idx(2))
    yield "idx_fuzz", "gzip", idx_pair(gzip.compress(idx(2, 5, 3), mtime=0),
                                       gzip.compress(idx(2), mtime=0))
    yield "cifar_fuzz", "ten", b"\0" + (b"\1" + bytes(3072)) * 2
    yield "cifar_fuzz", "hundred", b"\1" + b"\0\1" + bytes(3072)
    yield "cluster_fuzz", "shard", b"".join(shard_steps())
    yield "images_fuzz", "grey.jpg", JPEG
    yield "images_fuzz", "grey.png", png(False)
    yield "images_fuzz", "colour.png", png(True)
    yield "images_fuzz", "set.tar", tar("w")
    yield "images_fuzz", "set.tar.gz", tar("w:gz")
    for name, data in onnx_seeds.onnx_files():
        yield "onnx_fuzz", name, data
    for name, data in onnx_seeds.safetensors_files():
        yield "safetensors_fuzz", name, data


def main():
    folder = pathlib.Path(sys.argv[1])
    for target, name, data in seeds():
        (folder / target).mkdir(parents=True, exist_ok=True)
        (folder / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
