//! Documents that follow a donor's log to their recipients: a snapshot, then what the log says was touched,
//! until little is left; without fences as often as it takes, and once more behind them.
//!
//! The log gives the documents themselves, of each the newest state among the entries of one reply; so
//! they are not read, and what was written many times goes once. A state may be older than what a
//! recipient has of it from the snapshot. Then a later entry of the log has the newer one, and all of
//! them up to the fence are heard.
//!
//! Invariant: a document is at least as new as the place up to which the log was read. A document that a
//! recipient does not take for now (another has its unique key, and may lose it) is put again with the
//! next ones; one that it does not take in the end fails the move.

use bson::{DocBuf, Value};
use errors::{Result, err};
use std::collections::HashSet;
use std::time::Duration;

/// Documents of one message to a recipient.
pub const PUT_DOCUMENTS: usize = 1000;
/// The catch-up ends when a round had no more documents than this, which is one message, or took no
/// longer.
const FEW: usize = 500;
const SHORT: Duration = Duration::from_millis(50);
const MOST_ROUNDS: usize = 50;
/// The first round of the catch-up may be throttled for this long. One that takes longer than this
/// without being throttled has writers slowed down, and more so with each further second.
const PATIENCE: Duration = Duration::from_secs(2);
const HURRIED_EACH: Duration = Duration::from_secs(1);
pub const MOST_HURRY: u32 = 7;

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum FollowRequest {
    /// What the log says behind the entry `after` of this `term`; without one, where it ends.
    Changes(Option<(i64, i64)>),
    /// These go at the recipients, and their newest states are put there: [`Follow::put`].
    Renew(Vec<Touched>),
}

/// A document that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Touched {
    pub id: Value,
    pub newest: Newest,
}

/// What is known of a document that was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Newest {
    /// Nothing: the donor has to be asked for it.
    Unknown,
    Document(DocBuf),
    /// It is deleted, or has left the range.
    Gone,
}

impl Touched {
    pub fn unknown(id: Value) -> Touched {
        Touched {
            id,
            newest: Newest::Unknown,
        }
    }
}

/// What the log says.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Each document once.
    pub touched: Vec<Touched>,
    pub up_to: i64,
    pub term: i64,
    /// Where the log ended then; the greatest number where the donor does not say.
    pub end: i64,
    /// The donor's time then.
    pub time: u64,
    /// The reply was full before the end.
    pub more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Mark,
    Near,
    Finish,
    /// Behind the fence no document changes any more: refused documents are put again until nothing
    /// changes.
    Again,
    Done,
}

/// One donor's documents.
#[derive(Clone, Debug)]
pub struct Follow {
    phase: Phase,
    after: i64,
    term: i64,
    /// Reads are not older than this.
    time: u64,
    more: bool,
    /// Where the log ended when the round began, which is where the round ends.
    round_end: Option<i64>,
    /// What the log has told of, that was not renewed yet.
    waiting: Vec<Touched>,
    /// What a recipient did not take.
    again: Vec<Value>,
    rounds: usize,
    touched: usize,
    /// The documents touched in the round before.
    before: usize,
    /// Whether the last round was at most half of the one before.
    halved: bool,
    /// Until when this step may be throttled.
    rests_until: Duration,
    /// From when on writers may have to be slowed down.
    hurries_after: Duration,
    hurry: u32,
    /// When that was raised last.
    hurried: Duration,
    since: Duration,
    /// Documents that are renewed at once.
    part: usize,
}

impl Default for Follow {
    fn default() -> Follow {
        Follow::new()
    }
}

impl Follow {
    /// Begins with where the log ends now. The snapshot is read when that is known.
    pub fn new() -> Follow {
        Follow {
            phase: Phase::Mark,
            after: 0,
            term: 0,
            time: 0,
            more: true,
            round_end: None,
            waiting: Vec::new(),
            again: Vec::new(),
            rounds: 0,
            touched: 0,
            before: 0,
            halved: false,
            rests_until: Duration::ZERO,
            hurries_after: Duration::ZERO,
            hurry: 0,
            hurried: Duration::ZERO,
            since: Duration::ZERO,
            part: PUT_DOCUMENTS,
        }
    }

    /// Reads at the donor wait until it has come to this time.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// The entry that the log was read up to, and its term.
    pub fn place(&self) -> (i64, i64) {
        (self.after, self.term)
    }

    /// Documents that are known to have changed and wait.
    pub fn backlog(&self) -> usize {
        self.waiting.len() + self.again.len()
    }

    /// Whether this step may be throttled: later writes are for the next round, and rounds without
    /// pauses come to an end.
    pub fn may_rest(&self, now: Duration) -> bool {
        self.phase == Phase::Near && self.rounds == 0 && now < self.rests_until
    }

    /// How much writers have to be slowed down, from 0 (not at all) to [`MOST_HURRY`]: more with every
    /// second of a catch-up whose rounds do not become half as long.
    pub fn hurry(&mut self, now: Duration) -> u32 {
        if self.phase != Phase::Near || now < self.hurries_after {
            return 0;
        }
        let comes_near = self.rounds > 1 && self.halved;
        if !comes_near && now.saturating_sub(self.hurried) >= HURRIED_EACH {
            (self.hurry, self.hurried) = ((self.hurry + 1).min(MOST_HURRY), now);
        }
        self.hurry
    }

    /// Documents that are renewed at once from now on.
    pub fn renew_at_once(&mut self, documents: usize) {
        self.part = documents.clamp(1, PUT_DOCUMENTS);
    }

    /// Rounds until little is left.
    pub fn come_near(&mut self, now: Duration) {
        self.go(Phase::Near, now);
    }

    /// The last round, when nothing is written any more.
    pub fn finish(&mut self, now: Duration) {
        self.go(Phase::Finish, now);
    }

    fn go(&mut self, phase: Phase, now: Duration) {
        (self.phase, self.since) = (phase, now);
        (self.more, self.rounds, self.touched) = (true, 0, 0);
        self.round_end = None;
        (self.before, self.halved, self.hurry) = (0, false, 0);
        (self.rests_until, self.hurried) = (now + PATIENCE, Duration::ZERO);
        self.hurries_after = self.rests_until + PATIENCE;
    }

    /// `None`: the round, or the rounds, are done.
    pub fn ask(&self) -> Option<FollowRequest> {
        let part = |all: &[Touched]| all.iter().take(self.part).cloned().collect();
        match self.phase {
            Phase::Done => None,
            Phase::Mark => Some(FollowRequest::Changes(None)),
            _ if !self.waiting.is_empty() => Some(FollowRequest::Renew(part(&self.waiting))),
            _ => Some(FollowRequest::Changes(Some((self.after, self.term)))),
        }
    }

    /// The answer to [`FollowRequest::Changes`].
    pub fn heard(&mut self, changes: Changes, now: Duration) -> Result<()> {
        (self.after, self.term) = (changes.up_to, changes.term);
        self.time = self.time.max(changes.time);
        if self.phase == Phase::Mark {
            self.phase = Phase::Done;
            return Ok(());
        }
        let round_end = *self.round_end.get_or_insert(changes.end);
        self.more = changes.more && changes.up_to < round_end;
        self.touched += changes.touched.len();
        self.waiting = changes.touched;
        self.wait_again();
        self.go_on(now)
    }

    /// What was refused goes with the next ones, unless the log has told of it since.
    fn wait_again(&mut self) {
        if self.again.is_empty() {
            return;
        }
        let told: HashSet<&Value> = self.waiting.iter().map(|t| &t.id).collect();
        let mut again = std::mem::take(&mut self.again);
        again.retain(|id| !told.contains(id));
        self.waiting.extend(again.into_iter().map(Touched::unknown));
    }

    /// The ids that a recipient did not take, of the snapshot.
    pub fn copied(&mut self, refused: Vec<Value>) {
        self.again.extend(refused);
    }

    /// The answer to [`FollowRequest::Renew`]: the ids that were not taken.
    pub fn put(&mut self, refused: Vec<Value>, now: Duration) -> Result<()> {
        let done = self.waiting.len().min(self.part);
        self.waiting.drain(..done);
        self.again.extend(refused);
        self.go_on(now)
    }

    fn go_on(&mut self, now: Duration) -> Result<()> {
        if !self.waiting.is_empty() || self.more {
            return Ok(());
        }
        match self.phase {
            Phase::Near => self.end_round(now),
            Phase::Finish | Phase::Again => self.put_again(),
            Phase::Mark | Phase::Done => Ok(()),
        }
    }

    fn end_round(&mut self, now: Duration) -> Result<()> {
        self.rounds += 1;
        self.hurries_after = self.hurries_after.min(now + PATIENCE);
        if self.touched <= FEW || now.saturating_sub(self.since) < SHORT {
            self.phase = Phase::Done;
            return Ok(());
        }
        if self.rounds >= MOST_ROUNDS {
            return Err(err!(
                OperationFailed,
                "the range is written faster than it is copied"
            )
            .into());
        }
        // The first round is of all that the copy took.
        self.halved = self.touched * 2 <= self.before;
        self.before = self.touched;
        (self.since, self.touched, self.more) = (now, 0, true);
        self.round_end = None;
        Ok(())
    }

    /// Documents that a whole round refuses again are refused for good.
    fn put_again(&mut self) -> Result<()> {
        if self.again.is_empty() {
            self.phase = Phase::Done;
            return Ok(());
        }
        if self.phase == Phase::Again && self.again.len() >= self.touched {
            return Err(err!(
                DuplicateKey,
                "a receiving shard has another document with the _id, or a unique key, of {}",
                self.again[0].as_val()
            )
            .into());
        }
        self.phase = Phase::Again;
        self.touched = self.again.len();
        let again = std::mem::take(&mut self.again);
        self.waiting = again.into_iter().map(Touched::unknown).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn ids(n: usize) -> Vec<Value> {
        (0..n).map(|n| Value::from(n as i64)).collect()
    }

    fn unknown(n: usize) -> Vec<Touched> {
        ids(n).into_iter().map(Touched::unknown).collect()
    }

    fn changes(n: usize, up_to: i64, end: i64) -> Changes {
        Changes {
            touched: unknown(n),
            up_to,
            end,
            term: 1,
            time: up_to as u64,
            more: up_to < end,
        }
    }

    fn begun() -> Follow {
        let mut follow = Follow::new();
        assert_eq!(follow.ask(), Some(FollowRequest::Changes(None)));
        follow.heard(changes(0, 7, 7), NOW).unwrap();
        assert_eq!((follow.ask(), follow.time()), (None, 7));
        follow
    }

    #[test]
    fn a_round_goes_on_while_there_is_more() {
        let mut follow = begun();
        follow.come_near(NOW);
        assert_eq!(follow.ask(), Some(FollowRequest::Changes(Some((7, 1)))));
        follow.heard(changes(1500, 9, 11), NOW).unwrap();
        for n in [1000, 500] {
            let Some(FollowRequest::Renew(part)) = follow.ask() else {
                panic!("{:?}", follow.ask());
            };
            assert_eq!(part.len(), n);
            follow.put(Vec::new(), NOW).unwrap();
        }
        assert_eq!(follow.ask(), Some(FollowRequest::Changes(Some((9, 1)))));
        // What was written since the round began is for the next one.
        follow.heard(changes(0, 11, 15), SHORT * 2).unwrap();
        // Many were touched, and it took long: another round.
        assert_eq!(follow.ask(), Some(FollowRequest::Changes(Some((11, 1)))));
        follow.heard(changes(0, 15, 15), SHORT * 4).unwrap();
        assert_eq!(follow.ask(), None);
    }

    /// Only the first round is at leisure, so the others end.
    #[test]
    fn parts_are_as_large_as_is_said() {
        let mut follow = begun();
        follow.come_near(NOW);
        follow.renew_at_once(250);
        follow.heard(changes(600, 9, 9), NOW).unwrap();
        for n in [250, 250, 100] {
            assert!(follow.may_rest(NOW) && !follow.may_rest(PATIENCE));
            assert!(matches!(follow.ask(), Some(FollowRequest::Renew(part)) if part.len() == n));
            follow.put(Vec::new(), SHORT * 2).unwrap();
        }
        assert_eq!(follow.ask(), Some(FollowRequest::Changes(Some((9, 1)))));
        assert!(!follow.may_rest(NOW));
    }

    /// Writers are slowed down when the catch-up takes long, more and more until its rounds halve.
    #[test]
    fn a_catch_up_that_takes_long() {
        let seconds = Duration::from_secs_f64;
        let mut follow = begun();
        follow.come_near(seconds(8.0));
        assert!(follow.may_rest(seconds(9.9)) && !follow.may_rest(seconds(10.1)));
        assert_eq!(
            follow.hurry(seconds(11.9)),
            0,
            "it has rested for two seconds"
        );
        assert_eq!(follow.hurry(seconds(12.1)), 1);
        assert_eq!(follow.hurry(seconds(12.9)), 1);
        assert_eq!(follow.hurry(seconds(13.2)), 2);
        let round = |follow: &mut Follow, n: usize, at: f64| {
            follow.heard(changes(n, 9, 9), seconds(at)).unwrap();
            while let Some(FollowRequest::Renew(_)) = follow.ask() {
                follow.put(Vec::new(), seconds(at)).unwrap();
            }
            follow.hurry(seconds(at))
        };
        assert_eq!(
            round(&mut follow, 9000, 15.0),
            3,
            "the first round tells nothing"
        );
        assert_eq!(round(&mut follow, 4500, 17.0), 3, "it comes nearer");
        assert_eq!(round(&mut follow, 4000, 19.0), 4, "too slowly");
        assert_eq!(round(&mut follow, 1000, 30.0), 4);
        assert_eq!(round(&mut follow, 100, 31.0), 0);
        assert_eq!(follow.ask(), None);
        follow.come_near(Duration::ZERO);
        for second in 0..20 {
            follow.hurry(seconds(f64::from(second)));
        }
        assert_eq!(follow.hurry(seconds(20.0)), MOST_HURRY);
        follow.finish(seconds(20.0));
        assert_eq!(follow.hurry(seconds(40.0)), 0);
        // A first round that has ended is not waited for.
        follow.come_near(NOW);
        round(&mut follow, 9000, 0.5);
        assert_eq!(follow.hurry(seconds(2.4)), 0);
        assert_eq!(follow.hurry(seconds(2.6)), 1);
    }

    #[test]
    fn what_is_refused_is_put_again() {
        let mut follow = begun();
        follow.copied(ids(3));
        follow.finish(NOW);
        follow.heard(changes(0, 8, 8), NOW).unwrap();
        assert_eq!(follow.ask(), Some(FollowRequest::Renew(unknown(3))));
        follow.put(ids(2), NOW).unwrap();
        assert_eq!(follow.ask(), Some(FollowRequest::Renew(unknown(2))));
        follow.put(ids(1), NOW).unwrap();
        let mut other = follow.clone();
        follow.put(Vec::new(), NOW).unwrap();
        assert_eq!(follow.ask(), None);
        assert!(other.put(ids(1), NOW).is_err());
    }

    /// The log's state of a refused document is newer than what would be read for the refusal.
    #[test]
    fn what_was_refused_and_is_written_again_goes_once() {
        let mut follow = begun();
        follow.copied(ids(2));
        follow.finish(NOW);
        let written = Touched {
            id: Value::from(1i64),
            newest: Newest::Document(bson::doc! {"_id": 1i64, "n": 2}),
        };
        let told = Changes {
            touched: vec![written.clone()],
            ..changes(0, 8, 8)
        };
        follow.heard(told, NOW).unwrap();
        let first = Touched::unknown(Value::from(0i64));
        assert_eq!(
            follow.ask(),
            Some(FollowRequest::Renew(vec![written, first]))
        );
    }
}
