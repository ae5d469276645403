"""SCRAM-SHA-256 over a connection without a driver."""

import base64
import hashlib
import hmac
import os


def log_in(wire, user, password, db):
    """Logs in, and checks that the server knows the password too."""
    nonce = base64.b64encode(os.urandom(18)).decode()
    bare = f"n={user},r={nonce}"
    reply = wire.command({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": f"n,,{bare}".encode(), "$db": db})
    first = bytes(reply["payload"]).decode()
    parts = dict(part.split("=", 1) for part in first.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))

    def mac(key, text):
        return hmac.new(key, text if isinstance(text, bytes) else text.encode(), hashlib.sha256).digest()

    client_key = mac(salted, "Client Key")
    without_proof = f"c=biws,r={parts['r']}"
    signed = f"{bare},{first},{without_proof}"
    signature = mac(hashlib.sha256(client_key).digest(), signed)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature))).decode()
    last = {"saslContinue": 1, "conversationId": 1, "payload": f"{without_proof},p={proof}".encode(), "$db": db}
    reply = wire.command(last)
    expected = "v=" + base64.b64encode(mac(mac(salted, "Server Key"), signed)).decode()
    assert bytes(reply["payload"]).decode() == expected and reply["done"] is False
    reply = wire.command({"saslContinue": 1, "conversationId": 1, "payload": b"", "$db": db})
    assert reply["done"] is True and reply["ok"] == 1
