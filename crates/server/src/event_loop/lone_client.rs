//! Whether one client has the event loop to itself, as far as can be known: then nobody else loses
//! when the loop waits.
//!
//! Invariant: a request of another client ends it at once.

/// Requests of one client in a row after which it is taken for the only one.
const IN_A_ROW: u32 = 32;

#[derive(Default)]
pub(super) struct LoneClient {
    /// Whose requests came last, and how many in a row.
    client: i64,
    requests: u32,
}

impl LoneClient {
    /// A request of a client is about to be run.
    pub fn note(&mut self, client: i64) {
        if self.client != client {
            (self.client, self.requests) = (client, 0);
        }
        self.requests = self.requests.saturating_add(1);
    }

    /// Whether the request noted last is of a client that is alone.
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
