import os
import socket


def test_the_port_its_name_and_its_holder_are_told(run):
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        one = run(env={"MASTER_PORT": str(port)}).start().finish()
    assert one.code == 2
    assert f"error: MASTER_PORT={port}: that port is taken" in one.errors[0]
    assert f"(pid {os.getpid()})" in one.errors[0]
