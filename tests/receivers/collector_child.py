"""A receiver on a given port with its own store, to be killed: it reports that it listens, then serves."""

import sys
import threading

import quiver
from quiver.receivers.otlp.grpc_receiver import OtlpGrpcReceiver
from quiver.receivers.settings import OtlpSettings


def main(directory: str, port: str, handling: str) -> None:
    settings = OtlpSettings(listening_addr=f"127.0.0.1:{port}", otlp_handling=handling)
    with quiver.open(directory) as store:
        store.register("kept", start="earliest")
        store.activate()
        with OtlpGrpcReceiver(store, settings):
            print("listens", flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
