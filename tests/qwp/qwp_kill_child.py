"""A producer to be killed: it sends numbers, and records each that was stored."""

import sys

from quiver.qwp import Sender


def main() -> None:
    conf, first, journal = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with Sender.from_conf(conf) as sender, open(journal, "a", buffering=1, encoding="ascii") as kept:
        number = first
        while True:
            for _ in range(3):
                sender.row("t", symbols={"s": f"s{number % 5}"}, columns={"v": number})
                number += 1
            sender.flush()
            kept.write(f"{number}\n")


if __name__ == "__main__":
    main()
