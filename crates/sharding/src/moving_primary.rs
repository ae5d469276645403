//! A database on its way to another primary shard: the mover's steps, and how any router ends them.
//!
//! ```text
//! look ─► each collection that only the database says to be there says so itself, and moves like a range
//!      ─► look again, until there is none ─► what has chunks is known at the new primary
//!      ─► the end of before ─► fence ─► look ─► views ─► the metadata changes (moving → moved)
//!                                         └─ a collection has come to be: rolled back, and again
//! end: moving → left, unless it is moved ─► all sides are told ─► fence ─► other shards forget the views
//! ```
//! Invariant: when the metadata changes, nothing is on the old primary shard that only the database says
//! to be there. The `state` of the pending move's document alone holds the decision.

use errors::{Result, err};

/// How often collections may come to be while others are moved.
const MOST_ROUNDS: usize = 20;

/// What the mover does, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrimaryMoveStep {
    /// Which collections only the database says to be there: [`PrimaryMove::found`].
    Look,
    /// This collection says by itself where it is from now on, and moves like a range.
    MoveCollection(String),
    /// What says so already is known at the new primary shard too.
    MakeTracked,
    /// The document of the pending move.
    WriteDown,
    Fence,
    /// The same as the first, while nothing can come to be: [`PrimaryMove::found`].
    LookAgain,
    /// The new primary shard has the views that the old one has, and no other.
    MakeViews,
    ChangePrimary,
    /// The pending move ends: a collection was created before the fence.
    TakeBack,
}

/// The mover's way until the primary has changed or something fails. If the pending move was recorded,
/// it has to be ended then.
#[derive(Clone, Debug)]
pub struct PrimaryMove {
    now: Option<PrimaryMoveStep>,
    /// Collections that are to be moved.
    waiting: Vec<String>,
    rounds: usize,
}

impl Default for PrimaryMove {
    fn default() -> PrimaryMove {
        PrimaryMove::new()
    }
}

impl PrimaryMove {
    pub fn new() -> PrimaryMove {
        PrimaryMove {
            now: Some(PrimaryMoveStep::Look),
            waiting: Vec::new(),
            rounds: 0,
        }
    }

    /// The next step; `None` at the end.
    pub fn step(&self) -> Option<PrimaryMoveStep> {
        self.now.clone()
    }

    /// What [`PrimaryMoveStep::Look`] and [`PrimaryMoveStep::LookAgain`] have found.
    pub fn found(&mut self, collections: Vec<String>) {
        self.waiting = collections;
    }

    /// The step is done.
    pub fn done(&mut self) -> Result<()> {
        let next = match self.now.take() {
            None => panic!("a step that is done was begun"),
            Some(PrimaryMoveStep::Look | PrimaryMoveStep::MoveCollection(_)) => {
                match self.waiting.pop() {
                    Some(collection) => PrimaryMoveStep::MoveCollection(collection),
                    None => PrimaryMoveStep::MakeTracked,
                }
            }
            Some(PrimaryMoveStep::MakeTracked) => PrimaryMoveStep::WriteDown,
            Some(PrimaryMoveStep::WriteDown) => PrimaryMoveStep::Fence,
            Some(PrimaryMoveStep::Fence) => PrimaryMoveStep::LookAgain,
            Some(PrimaryMoveStep::LookAgain) if self.waiting.is_empty() => {
                PrimaryMoveStep::MakeViews
            }
            Some(PrimaryMoveStep::LookAgain) => PrimaryMoveStep::TakeBack,
            Some(PrimaryMoveStep::MakeViews) => {
                assert!(
                    self.waiting.is_empty(),
                    "nothing is left that only the database says to be there"
                );
                PrimaryMoveStep::ChangePrimary
            }
            Some(PrimaryMoveStep::ChangePrimary) => return Ok(()),
            Some(PrimaryMoveStep::TakeBack) => {
                self.rounds += 1;
                if self.rounds >= MOST_ROUNDS {
                    return Err(err!(
                        OperationFailed,
                        "collections come to be faster than they are moved"
                    )
                    .into());
                }
                PrimaryMoveStep::Look
            }
        };
        self.now = Some(next);
        Ok(())
    }
}

/// The steps that end a decided change of a database's primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndPrimaryMoveStep {
    /// The shards hear what the metadata says.
    Tell,
    /// The fence goes, where it stands still.
    Lift,
    /// Those that are not the primary have no views of it any more.
    ForgetViews,
}

/// The steps, in this order; then the lock's holder removes the document of the pending move. A router
/// without the lock only lets routers go on.
pub fn ending(moved: bool, holds_lock: bool) -> &'static [EndPrimaryMoveStep] {
    match (holds_lock, moved) {
        (true, _) => &[
            EndPrimaryMoveStep::Tell,
            EndPrimaryMoveStep::Lift,
            EndPrimaryMoveStep::ForgetViews,
        ],
        (false, true) => &[EndPrimaryMoveStep::Tell],
        (false, false) => &[EndPrimaryMoveStep::Lift],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(found: &mut dyn FnMut(&PrimaryMoveStep) -> Vec<String>) -> Result<Vec<PrimaryMoveStep>> {
        let (mut steps, mut did) = (PrimaryMove::new(), Vec::new());
        while let Some(step) = steps.step() {
            if matches!(step, PrimaryMoveStep::Look | PrimaryMoveStep::LookAgain) {
                steps.found(found(&step));
            }
            did.push(step);
            steps.done()?;
        }
        Ok(did)
    }

    #[test]
    fn what_has_come_to_be_is_moved_first() {
        let mut looks = vec![
            vec![],
            vec!["d.b".to_string()],
            vec!["d.b".into()],
            vec!["d.a".into()],
        ];
        let did = run(&mut |_| looks.pop().unwrap()).unwrap();
        let round = [
            PrimaryMoveStep::MakeTracked,
            PrimaryMoveStep::WriteDown,
            PrimaryMoveStep::Fence,
            PrimaryMoveStep::LookAgain,
        ];
        let mut expected = vec![
            PrimaryMoveStep::Look,
            PrimaryMoveStep::MoveCollection("d.a".into()),
        ];
        expected.extend(round.clone());
        expected.extend([
            PrimaryMoveStep::TakeBack,
            PrimaryMoveStep::Look,
            PrimaryMoveStep::MoveCollection("d.b".into()),
        ]);
        expected.extend(round);
        expected.extend([PrimaryMoveStep::MakeViews, PrimaryMoveStep::ChangePrimary]);
        assert_eq!(did, expected);
    }

    #[test]
    fn it_does_not_go_on_for_ever() {
        assert!(run(&mut |_| vec!["d.c".into()]).is_err());
    }
}
