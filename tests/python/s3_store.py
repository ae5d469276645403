"""A store that speaks as much S3 as an archive needs, and fails as networks do: some requests get 503, some replies break off.

It knows no signatures. A real one is run where `PANDO_S3` names the binary of versitygw.
"""

import hashlib
import ssl
import threading
import time
import urllib.parse
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
PAGE = 5


class Store(ThreadingHTTPServer):
    """`objects` by key, those `of_parts` among them; each `fails_each`th request fails. `most_at_once`: of requests that were
    there together, while each of objects takes `seconds`."""

    daemon_threads = True

    def __init__(self, fails_each=0, certificate=None, seconds=0):
        super().__init__(("127.0.0.1", 0), Request)
        self.scheme = "https" if certificate else "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.objects, self.written, self.uploads, self.of_parts = {}, {}, {}, set()
        self.fails_each, self.requests, self.lock = fails_each, 0, threading.Lock()
        self.seconds, self.at_once, self.most_at_once = seconds, 0, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def environment(self):
        return {
            "AWS_ENDPOINT_URL_S3": f"{self.scheme}://127.0.0.1:{self.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def keep(self, key, content):
        self.objects[key], self.written[key] = content, time.time()


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body go in one packet: the client's kernel would wait before it says that it has the first.
    wbufsize = -1

    def log_message(self, *_):
        pass

    def handle_one(self):
        store = self.server
        url = urllib.parse.urlsplit(self.path)
        query = {k: v[0] for k, v in urllib.parse.parse_qs(url.query, keep_blank_values=True).items()}
        _, bucket, *key = urllib.parse.unquote(url.path).split("/", 2)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with store.lock:
            store.at_once += 1
            store.most_at_once = max(store.most_at_once, store.at_once)
        if key and "files/" in key[0]:
            # So that requests that may be made beside each other are.
            time.sleep(store.seconds)
        with store.lock:
            store.at_once -= 1
            store.requests += 1
            fails = store.fails_each and store.requests % store.fails_each == 0
            if fails and store.requests % 2:
                return self.reply(503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
            if "X-Amz-Signature" not in query:
                return self.error(403, "AccessDenied")
            if bucket != "bucket":
                return self.error(404, "NoSuchBucket")
            self.answer(query, "".join(key), body, fails)

    do_GET = do_PUT = do_POST = do_DELETE = handle_one

    def answer(self, query, key, body, breaks):
        store = self.server
        match self.command:
            case "GET" if query.get("list-type") == "2":
                self.listed(query)
            case "GET" if key in store.objects:
                content, status = store.objects[key], 200
                if wanted := self.headers.get("range"):
                    content, status = content[int(wanted.removeprefix("bytes=").split("-")[0]) :], 206
                self.reply(status, content, breaks=breaks and len(content) > 10)
            case "PUT" if "uploadId" in query:
                store.uploads[query["uploadId"]][int(query["partNumber"])] = body
                self.reply(200, b"", etag=f'"{hashlib.md5(body).hexdigest()}"')
            case "PUT":
                store.keep(key, body)
                self.reply(200, b"")
            case "POST" if "uploads" in query:
                upload = f"u{store.requests}"
                store.uploads[upload] = {}
                self.xml("InitiateMultipartUploadResult", f"<Bucket>bucket</Bucket><Key>{key}</Key><UploadId>{upload}</UploadId>")
            case "POST" if query.get("uploadId") in store.uploads:
                parts = store.uploads.pop(query["uploadId"])
                assert sorted(parts) == list(range(1, body.count(b"<PartNumber>") + 1))
                store.keep(key, b"".join(parts[n] for n in sorted(parts)))
                store.of_parts.add(key)
                self.xml("CompleteMultipartUploadResult", f"<Key>{key}</Key>")
            case "DELETE" if "uploadId" in query:
                store.uploads.pop(query["uploadId"], None)
                self.reply(204, b"")
            case "DELETE":
                store.objects.pop(key, None)
                self.reply(204, b"")
            case "POST":
                self.error(404, "NoSuchUpload")
            case _:
                self.error(404, "NoSuchKey")

    def listed(self, query):
        store = self.server
        after = query.get("continuation-token", "")
        found = sorted(k for k in store.objects if k.startswith(query.get("prefix", "")) and k > after)
        shown, more = found[:PAGE], found[PAGE:]
        each = "".join(
            f"<Contents><Key>{urllib.parse.quote(k)}</Key><LastModified>{iso(store.written[k])}</LastModified>"
            f"<ETag>x</ETag><Size>{len(store.objects[k])}</Size></Contents>"
            for k in shown
        )
        token = f"<NextContinuationToken>{shown[-1]}</NextContinuationToken>" if more else ""
        self.xml("ListBucketResult", f"{each}{token}<EncodingType>url</EncodingType>")

    def xml(self, name, content):
        self.reply(200, f'<?xml version="1.0"?><{name} xmlns="{NAMESPACE}">{content}</{name}>'.encode())

    def error(self, status, code):
        self.reply(status, f"<Error><Code>{code}</Code><Message>{code} it is</Message></Error>".encode())

    def reply(self, status, content, breaks=False, etag=None):
        self.send_response_only(status)
        self.send_header("Date", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(content)))
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if breaks else content)
        if breaks:
            self.close_connection = True


def iso(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
