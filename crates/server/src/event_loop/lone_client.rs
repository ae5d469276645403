//! Lone client: detects that one client has the event loop to itself, so that no other client loses
//! when the loop waits.
//!
//! Invariant: a request of another client ends this state at once.

/// The number of successive requests of one client after which it counts as the only one.
const IN_A_ROW: u32 = 32;

#[derive(Default)]
pub(super) struct LoneClient {
    /// The client of the last requests, and how many came in a row.
    client: i64,
    requests: u32,
}

impl LoneClient {
    /// Notes that a request of a client is about to run.
    pub fn note(&mut self, client: i64) {
        if self.client != client {
            (self.client, self.requests) = (client, 0);
        }
        self.requests = self.requests.saturating_add(1);
    }

    /// Whether the last noted request is from a lone client.
    pub fn is_there(&self) -> bool {
        self.requests > IN_A_ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_client_ends_it() {
        let mut lone = LoneClient::default();
        for _ in 0..IN_A_ROW {
            lone.note(7);
            assert!(!lone.is_there());
        }
        lone.note(7);
        assert!(lone.is_there());
        lone.note(8);
        assert!(!lone.is_there());
    }
}
