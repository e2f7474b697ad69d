"""Goal: a script and a test get devices that programs run on. Method: perftest and ibverbs-utils of the system."""

import subprocess
import sys

import pytest

import verbs_rdma


def test_programs_share_an_address():
    said = subprocess.run(["ibv_devinfo"], env=verbs_rdma.environment(), capture_output=True, text=True, check=True)
    assert "roce0" in said.stdout and "PORT_ACTIVE" in said.stdout


def test_what_is_wrong_is_said():
    with pytest.raises(verbs_rdma.VerbsError, match="no-such-device"):
        verbs_rdma.environment("no-such-device")
    with pytest.raises(ValueError, match="loss"):
        verbs_rdma.Network(seed=7)


def test_a_client_that_fails_is_told(verbs_network):
    one, _ = verbs_network.devices
    with pytest.raises(subprocess.CalledProcessError) as failed:
        one.run(sys.executable, "-c", "raise SystemExit(3)")
    assert failed.value.returncode == 3


def test_the_fixture_has_two_devices(verbs_network):
    one, two = verbs_network.devices
    assert one.address != two.address
    server = one.start("ib_write_bw", "-n", "100", stdout=subprocess.PIPE, text=True)
    client = two.run("ib_write_bw", "-n", "100", one.address, wait_for=server, capture_output=True, text=True)
    assert "BW average" in client.stdout


@pytest.mark.verbs_network(loss=30, seed=7)
def test_a_lossy_network_is_repaired(verbs_network):
    one, two = verbs_network.devices
    assert two.environment["VERBS_LOSS"] == "30"
    server = one.start("ib_send_bw", "-s", "4096", "-n", "300", stdout=subprocess.DEVNULL)
    two.run("ib_send_bw", "-s", "4096", "-n", "300", one.address, wait_for=server, stdout=subprocess.DEVNULL)


def test_programs_end_with_their_network():
    with verbs_rdma.Network(1) as network:
        waits = network.devices[0].start("ib_write_bw", stdout=subprocess.DEVNULL)
    assert waits.returncode is not None
