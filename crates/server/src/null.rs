//! Null service: answers recorded bytes. It measures the cost of the loops alone, and stands in for
//! a service in their tests.

use bson::doc;
use errors::Fallible;
use service::{Address, Client, Mode, Outcome, Request, Service};

/// Answers `hello` so that a driver can connect, and everything else with the same document.
pub struct Null {
    reply: Vec<u8>,
    hello: Vec<u8>,
}

impl Null {
    /// `reply` is a whole BSON document; it goes out as it is.
    pub fn new(reply: Vec<u8>) -> Null {
        let hello = doc! {
            "ismaster": true, "isWritablePrimary": true, "helloOk": true, "maxBsonObjectSize": wire::MAX_DOCUMENT_BYTES as i32,
            "maxMessageSizeBytes": wire::MAX_MESSAGE_BYTES as i32, "maxWriteBatchSize": wire::MAX_WRITE_BATCH as i32,
            "minWireVersion": 0, "maxWireVersion": 21, "readOnly": false, "ok": 1.0,
        };
        Null {
            reply,
            hello: hello.into_vec(),
        }
    }
}

impl Default for Null {
    fn default() -> Null {
        Null::new(doc! { "ok": 1.0 }.into_vec())
    }
}

impl Service for Null {
    type Local = ();
    type State = ();

    fn local(&self) {}

    fn connected(&self, _: i64, _: &Address) {}

    fn disconnected(&self, _: &Client<()>) {}

    fn run(
        &self,
        _: &mut (),
        _: Mode,
        _: &Client<()>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let command = request.command();
        let hello = command == "hello" || command.eq_ignore_ascii_case("ismaster");
        out.extend_from_slice(if hello { &self.hello } else { &self.reply });
        Outcome::Reply
    }

    fn commit(&self, _: &mut ()) -> Fallible<u64> {
        Ok(0)
    }

    fn durable(&self) -> Fallible<u64> {
        Ok(0)
    }

    fn request_sync(&self, _: u64) {}

    fn on_durable(&self, _: Box<dyn Fn() + Send + Sync>) {}

    fn finish(&self, _: &Client<()>, _: &mut Vec<u8>, _: usize) {}
}
