"""The pytest fixture of the package, as a user writes it."""

from pymongo import MongoClient


def test_the_fixture_is_a_server(pando, pando_uri):
    assert pando.uri == pando_uri
    with MongoClient(pando_uri) as client:
        client.shop.things.insert_one({"_id": 1})
        with client.start_session() as session, session.start_transaction():
            client.shop.things.insert_one({"_id": 2}, session=session)
        assert client.shop.things.count_documents({}) == 2


def test_the_session_has_one_server(pando_uri):
    with MongoClient(pando_uri) as client:
        assert client.shop.things.count_documents({}) == 2
