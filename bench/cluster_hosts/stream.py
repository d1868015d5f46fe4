#!/usr/bin/env python3
"""One direction of a TCP stream, to measure what a network carries.

    stream.py receive ADDRESS PORT [--tls CERTIFICATE KEY]
    stream.py send ADDRESS PORT --seconds S [--tls CERTIFICATE KEY]

The receiver prints "ready" when it listens, takes one sender, and prints the bytes per second of
what arrived after the first fifth of S: until then TCP is finding its speed. The sender tells S."""

import argparse
import socket
import ssl
import struct
import time

CHUNK = 1 << 20
DEADLINE_SECONDS = 60
WARM_UP = 0.2


def secured(connection, args):
    """TLS as gRPC speaks it: an AES-GCM cipher. Trust costs nothing per byte and is left out."""
    if not args.tls:
        return connection
    server = args.role == "receive"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    if server:
        context.load_cert_chain(*args.tls)
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection, server_side=server)


def receive(args):
    with socket.create_server((args.address, args.port)) as listener:
        listener.settimeout(DEADLINE_SECONDS)
        print("ready", flush=True)
        connection, _ = listener.accept()
    connection.settimeout(DEADLINE_SECONDS)
    with secured(connection, args) as stream:
        (seconds,) = struct.unpack("<d", stream.recv(8))
        buffer = bytearray(CHUNK)
        begin = time.monotonic() + WARM_UP * seconds
        started = ended = None
        received = 0
        while count := stream.recv_into(buffer):
            ended = time.monotonic()
            if started is not None:
                received += count
            elif ended >= begin:
                started = ended
    if not received:
        raise SystemExit("too little has arrived")
    print(received / (ended - started), flush=True)


def send(args):
    with socket.create_connection((args.address, args.port), DEADLINE_SECONDS) as connection:
        with secured(connection, args) as stream:
            stream.sendall(struct.pack("<d", args.seconds))
            chunk = bytes(CHUNK)
            end = time.monotonic() + args.seconds
            while time.monotonic() < end:
                stream.sendall(chunk)


def main():
    parser = argparse.ArgumentParser(description="one direction of a TCP stream")
    parser.add_argument("role", choices=("receive", "send"))
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    args = parser.parse_args()
    receive(args) if args.role == "receive" else send(args)


if __name__ == "__main__":
    main()
