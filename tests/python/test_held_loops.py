"""The suite fails on an event loop that one turn has held, and blames the work of that turn alone."""

import harness


def test_a_held_loop_is_noted_once(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(harness, "held_loops", found)
    server = harness.Server(tmp_path / "data", port=1)

    def line(worked_ms):
        attr = f'{{"eventLoop":0,"millis":60000,"workedMillis":{worked_ms}}}'
        return f'{{"c":"NETWORK","msg":"An event loop is held by one turn; its connections wait","attr":{attr}}}\n'

    # It has waited for others, on a busy machine.
    server.log.write_text(line(harness.MOST_WORK_OF_TURN_MS - 1))
    server.kill()
    assert not found
    with open(server.log, "a") as log:
        log.write(line(harness.MOST_WORK_OF_TURN_MS))
    server.kill()
    server.kill()
    assert ["test_held_loops" in test for test, _ in found] == [True]
