"""A receiver with a store, to be killed: prints its port and serves."""

import sys
import threading

import quiver
from quiver.receivers.otap.receiver import OtapGrpcReceiver
from quiver.receivers.settings import OtlpSettings


def main(directory: str) -> None:
    with quiver.open(directory) as store:
        store.register("kept", start="earliest")
        store.activate()
        with OtapGrpcReceiver(store, OtlpSettings(listening_addr="127.0.0.1:0")) as receiver:
            print(receiver.port, flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
