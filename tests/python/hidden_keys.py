"""Counts of the hidden keys that queries step over, for tests of deletes."""

from harness import until

# A query that begins behind a dead range steps over a few keys only: those deleted since the last look,
# and those that one look leaves to the next.
FEW = 200


def skipped(coll):
    """Hidden keys that commands have stepped over."""
    status = coll.database.client.admin.command("serverStatus")
    return status["metrics"]["queryExecutor"]["hiddenKeysSkipped"]


def steps(coll, work, of=skipped):
    before = of(coll)
    done = work()
    return done, of(coll) - before


def until_few(coll, work, wanted, most=FEW, of=skipped, timeout_s=20):
    """Waits until the query steps over a few keys only; it gives the same all the while."""

    def is_cheap():
        done, stepped = steps(coll, work, of)
        assert done == wanted
        return stepped <= most

    until(f"at most {most} hidden keys", is_cheap, timeout_s)


def first(coll, filter, by, way=1):
    found = coll.find_one(filter, sort=[(by, way)])
    return found and found[by]


def fill(coll, begin, end, **fields):
    coll.insert_many([{"at": at, **fields} for at in range(begin, end)])
