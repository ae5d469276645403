//! Sessions of the page: a random word in a cookie, and two connections to the server under the user's
//! login, one for the state of the server and one for the user's queries, which may take long.
//!
//! Invariants: there are at most [`MOST`] sessions, and none is older than [`LONGEST`] or unused for [`IDLE`]; no password
//! and no word of a cookie is kept; a query runs alone in its session.

use crate::in_process::{Backend, ServerConnection, greet};
use outgoing::Credentials;
use parking_lot::{Mutex, MutexGuard};
use service::Address;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub const MOST: usize = 64;
pub const IDLE: Duration = Duration::from_secs(30 * 60);
pub const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);
/// How long a view waits for another one of the same session.
const TURN: Duration = Duration::from_secs(5);

pub struct ConsoleSession {
    /// `user@database`, or empty without access control.
    pub user: String,
    watch: Mutex<Box<dyn ServerConnection>>,
    query: Mutex<Box<dyn ServerConnection>>,
    cancel: [Arc<AtomicBool>; 2],
    began: Instant,
    used: Mutex<Instant>,
}

impl ConsoleSession {
    /// Logs in; the error is the server's.
    pub fn open(
        backend: &dyn Backend,
        peer: &Address,
        who: Option<&LoginForm>,
    ) -> Result<ConsoleSession, String> {
        let credentials = who.map(|l| Credentials::new(&l.user, &l.password, &l.source));
        let mut watch = backend.connect(peer.clone());
        greet(&mut *watch, credentials.as_ref())?;
        let mut query = backend.connect(peer.clone());
        greet(&mut *query, credentials.as_ref())?;
        Ok(ConsoleSession {
            user: who.map_or_else(String::new, |l| format!("{}@{}", l.user, l.source)),
            cancel: [watch.cancelled(), query.cancelled()],
            watch: Mutex::new(watch),
            query: Mutex::new(query),
            began: Instant::now(),
            used: Mutex::new(Instant::now()),
        })
    }

    /// For what the page shows; nothing when others take too long.
    pub fn watch(&self) -> Option<MutexGuard<'_, Box<dyn ServerConnection>>> {
        self.watch.try_lock_for(TURN)
    }

    /// For a query; nothing while another one runs.
    pub fn query(&self) -> Option<MutexGuard<'_, Box<dyn ServerConnection>>> {
        self.query.try_lock()
    }

    /// Ends what runs.
    pub fn cancel(&self) {
        self.cancel.iter().for_each(|c| c.store(true, Relaxed));
    }

    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.began) > LONGEST || now.duration_since(*self.used.lock()) > IDLE
    }
}

/// The login form's fields.
pub struct LoginForm {
    pub user: String,
    pub password: String,
    pub source: String,
}

#[derive(Default)]
pub struct ConsoleSessions(Mutex<HashMap<[u8; 32], Arc<ConsoleSession>>>);

impl ConsoleSessions {
    /// Keeps a session, and gives the word of its cookie. The one that was unused for the longest makes room.
    pub fn add(&self, session: ConsoleSession) -> String {
        let word = rand::random::<[u8; 32]>();
        let word: String = word.iter().map(|b| format!("{b:02x}")).collect();
        let mut all = self.0.lock();
        let now = Instant::now();
        all.retain(|_, s| !s.is_over(now));
        if all.len() >= MOST
            && let Some(oldest) = all.iter().min_by_key(|(_, s)| *s.used.lock())
        {
            let oldest = *oldest.0;
            all.remove(&oldest);
        }
        assert!(all.len() < MOST, "the sessions are bounded");
        all.insert(key(&word), Arc::new(session));
        word
    }

    pub fn find(&self, word: &str) -> Option<Arc<ConsoleSession>> {
        let (key, now) = (key(word), Instant::now());
        let mut all = self.0.lock();
        let session = all.get(&key)?.clone();
        if session.is_over(now) {
            all.remove(&key);
            return None;
        }
        *session.used.lock() = now;
        Some(session)
    }

    pub fn remove(&self, word: &str) {
        let removed = self.0.lock().remove(&key(word));
        if let Some(session) = removed {
            session.cancel();
        }
    }

    /// Forgets those that are over.
    pub fn tidy(&self) {
        let now = Instant::now();
        self.0.lock().retain(|_, s| !s.is_over(now));
    }

    pub fn end_all(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        all.values().for_each(|s| s.cancel());
    }
}

/// The table does not reveal cookies, and the time of a search says nothing of a word.
fn key(word: &str) -> [u8; 32] {
    Sha256::digest(word.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Doc, DocBuf, doc};

    struct Echo;

    impl Backend for Echo {
        fn connect(&self, _: Address) -> Box<dyn ServerConnection> {
            Box::new(Echo)
        }
    }

    impl ServerConnection for Echo {
        fn run(&mut self, _: &str, _: Doc<'_>) -> Result<DocBuf, String> {
            Ok(doc! {"ok": 1})
        }

        fn cancelled(&self) -> Arc<AtomicBool> {
            Arc::default()
        }
    }

    fn open() -> ConsoleSession {
        ConsoleSession::open(&Echo, &Address::Unix(String::new()), None).unwrap()
    }

    #[test]
    fn sessions_are_bounded_and_found_by_their_word() {
        let sessions = ConsoleSessions::default();
        let first = sessions.add(open());
        assert_eq!(first.len(), 64);
        assert!(sessions.find(&first).is_some() && sessions.find("").is_none());
        for _ in 0..MOST + 5 {
            sessions.add(open());
        }
        assert_eq!(sessions.0.lock().len(), MOST);
        assert!(sessions.find(&first).is_none(), "the oldest makes room");
        let last = sessions.add(open());
        let kept = sessions.find(&last).unwrap();
        sessions.remove(&last);
        assert!(sessions.find(&last).is_none());
        assert!(kept.cancel.iter().all(|c| c.load(Relaxed)));
    }

    #[test]
    fn one_query_at_a_time() {
        let session = open();
        let running = session.query();
        assert!(running.is_some() && session.query().is_none());
        assert!(session.watch().is_some(), "the views go on");
    }
}
