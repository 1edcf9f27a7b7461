"""The official protobuf messages decode our statuses."""

import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from quiver.receivers.rpc_status import encode_retry_info, encode_status


@pytest.mark.parametrize("delay", [0.0, 0.25, 1.0, 30.0, 1e6, 0.000000001])
def test_retry_info_reads_back(delay):
    read = RetryInfo.FromString(encode_retry_info(delay)).retry_delay
    assert read.seconds + read.nanos / 1e9 == delay


def test_a_status_reads_back_with_its_detail():
    read = Status.FromString(encode_status(14, "voll: ü", retry_after_s=1.5))
    assert (read.code, read.message) == (14, "voll: ü")
    info = RetryInfo()
    assert read.details[0].Unpack(info)
    assert (info.retry_delay.seconds, info.retry_delay.nanos) == (1, 500_000_000)


def test_a_status_without_a_delay_has_no_detail():
    read = Status.FromString(encode_status(3, "x" * 300))
    assert (read.code, read.message, len(read.details)) == (3, "x" * 300, 0)
