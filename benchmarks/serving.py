"""Throughput and latency of a server with 1, 10 and 100 clients on loopback.

    python benchmarks/serving.py BUNDLE [--seconds 3] [--turns 3] [--allow-code]
    python benchmarks/serving.py BUNDLE --large [--seconds 30]

BUNDLE is one of an image task, as `surefoot bundle` writes it.

Every client has its own connection, sends one image, waits for the response and sends the next. Clients
and server share the machine: one process each.

`--large`: three clients send images of 60 million pixels while one sends small images, as in the worst case
that is promised: the 99th percentile of the small ones stays below a second on two idle cores.
"""

import argparse
import asyncio
import io
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageFilter

CLIENTS = (1, 10, 100)
WARM = 0.5  # seconds of warm-up
LARGE, LARGE_CLIENTS = (10_000, 6_000), 3
SIZES = {"32 x 32 PNG": ((32, 32), "PNG"), "640 x 480 JPEG": ((640, 480), "JPEG")}


@dataclass
class Timings:
    """Response times and errors after the warm-up."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0


def picture(size: tuple[int, int], kind: str) -> bytes:
    """Smooth noise, which compresses about as well as photographs; large ones are enlarged from smaller."""
    factor = 10 if size[0] > 5000 else 1
    noise = np.random.default_rng(0).integers(
        0, 255, (size[1] // factor, size[0] // factor, 3), dtype=np.uint8
    )
    file = io.BytesIO()
    smooth = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(3))
    smooth.resize(size, Image.Resampling.NEAREST).save(file, kind)
    return file.getvalue()


async def client(port: int, request: bytes, start: float, end: float, timings: Timings) -> None:
    """Send requests until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (asked := time.perf_counter()) < end:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
        if asked >= start:
            timings.seconds.append(time.perf_counter() - asked)
            timings.errors += not head.startswith(b"HTTP/1.1 200 ")
    writer.close()
    await writer.wait_closed()


def request_of(data: bytes, kind: str) -> bytes:
    """A request with an image as its body."""
    head = f"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: image/{kind.lower()}\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def small_beside_large(port: int, seconds: float, kind: str) -> tuple[Timings, Timings]:
    """One client with small images, three with large ones: the timings of both."""
    large, small = request_of(picture(LARGE, kind), kind), request_of(picture((32, 32), "PNG"), "PNG")
    of_small, of_large, start = Timings(), Timings(), time.perf_counter() + WARM
    clients = [client(port, large, start, start + seconds, of_large) for _ in range(LARGE_CLIENTS)]
    await asyncio.gather(client(port, small, start, start + seconds, of_small), *clients)
    return of_small, of_large


def report_large(port: int, seconds: float) -> None:
    """As Markdown."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(
        f"{LARGE_CLIENTS} clients with {LARGE[0]:,} x {LARGE[1]:,} pixels, one with 32 x 32; {cores} cores."
    )
    print(f"{seconds:g} seconds each. Load of the machine before the start: {load:.1f}.\n")
    print("| large images | answered | errors | small answered | errors | p50, ms | p99, ms | longest, ms |")
    print("|:--|--:|--:|--:|--:|--:|--:|--:|")
    for kind in ("JPEG", "PNG"):
        small, large = asyncio.run(small_beside_large(port, seconds, kind))
        p50, p99, most = np.quantile(small.seconds, (0.5, 0.99, 1.0)) * 1000
        counts = f"{len(large.seconds)} | {large.errors} | {len(small.seconds):,} | {small.errors}"
        print(f"| {kind} | {counts} | {p50:.0f} | {p99:.0f} | {most:.0f} |", flush=True)


async def crowd(port: int, data: bytes, kind: str, clients: int, seconds: float) -> Timings:
    """Run that many clients concurrently."""
    timings, start = Timings(), time.perf_counter() + WARM
    request = request_of(data, kind)
    await asyncio.gather(*(client(port, request, start, start + seconds, timings) for _ in range(clients)))
    return timings


def main() -> None:
    """Start the server, send requests, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--allow-code", action="store_true")
    options = parser.parse_args()
    extra = ["--allow-code"] if options.allow_code else []
    command = [sys.executable, "-c", "from surefoot.cli import main; main()", "serve", options.bundle]
    command += ["--port", "0", "--device", options.device, *extra]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        name, port = re.match(r"serving (.*) on http://.*:(\d+) ", server.stdout.readline()).groups()  # type: ignore[union-attr]
        if options.large:
            report_large(int(port), options.seconds)
        else:
            report(name, options, int(port))
    finally:
        server.terminate()
        server.wait()


def report(name: str, options: argparse.Namespace, port: int) -> None:
    """As Markdown."""
    print(f"# {name}, served\n")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[1]
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {cores} cores, {options.device}; the best of "
        f"{options.turns} runs of {options.seconds:g} seconds; errors of all runs. "
        f"Load of the machine before the start: {load:.1f}.\n"
    )
    print("| image | clients | requests | errors | requests per second | p50, ms | p99, ms |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for image, (size, kind) in SIZES.items():
        data = picture(size, kind)
        for clients in CLIENTS:
            turns = [
                asyncio.run(crowd(port, data, kind, clients, options.seconds)) for _ in range(options.turns)
            ]
            timings = max(turns, key=lambda turn: len(turn.seconds))
            errors = sum(turn.errors for turn in turns)
            p50, p99 = np.quantile(timings.seconds, (0.5, 0.99)) * 1000
            rate = len(timings.seconds) / options.seconds
            print(
                f"| {image}, {len(data) / 1000:.0f} kB | {clients} | {len(timings.seconds):,} | {errors} "
                f"| {rate:,.0f} | {p50:.1f} | {p99:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
