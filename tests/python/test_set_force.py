"""A set whose majority is gone for good: by force a member that is left goes on, and takes the others along."""

from harness import until
from pymongo import WriteConcern
from replica_set import ReplicaSet, sees


def admin(member, config, **options):
    with member.wire() as wire:
        return wire.command({"replSetReconfig": config, **options, "$db": "admin"})


def test_who_is_left_goes_on_by_force(tmp_path):
    with ReplicaSet(tmp_path, size=5) as members:
        members.initiate()
        with members.client() as client:
            coll = client.t.get_collection("c", write_concern=WriteConcern(w=5))
            coll.insert_many([{"_id": n} for n in range(100)])
            config = client.admin.command("replSetGetConfig")["config"]
        left = members.secondaries()[:2]
        config["version"] += 1
        assert "a primary is heard of" in admin(left[0], config, force=True)["errmsg"]
        for member in members.members:
            if member not in left:
                member.kill()
        config["members"] = [m for m in config["members"] if m["host"] in {m.address for m in left}]
        without = {**config, "members": [m for m in config["members"] if m["host"] != left[0].address]}
        assert admin(left[0], without, force=True)["code"] == 74
        assert admin(left[0], config)["code"] == 10107
        # Until it has heard of no other member for a while it takes the primary for alive.
        until("nobody is heard of", lambda: admin(left[0], config, force=True)["ok"])
        with left[0].client() as client:
            assert client.admin.command("hello")["isWritablePrimary"]
            client.t.get_collection("c", write_concern=WriteConcern("majority")).insert_one({"_id": 100})
            assert client.admin.command("replSetGetConfig")["config"]["version"] >= 10_000
            until("both vote", lambda: client.admin.command("replSetGetStatus")["votingMembersCount"] == 2)
        sees(left[1], {}, 101)
        # The other has come to the same voters: the two elect it, also after a start.
        for member in left:
            member.kill()
            member.start()
        with members.primary().client() as client:
            until("a successor is there", lambda: client.admin.command("replSetGetStatus")["members"][1]["health"] == 1)
            before = client.admin.command("hello")["me"]
            client.admin.command("replSetStepDown", 30, secondaryCatchUpPeriodSecs=20)
        after = until("the other is primary", lambda: "primary" in members.states() and members.primary())
        assert after.address != before
        with after.client() as client:
            client.t.get_collection("c", write_concern=WriteConcern(w=2)).insert_one({"_id": 101})
            assert client.t.c.count_documents({}) == 102
