//! Tests of the commit without log and engine: order of steps, and failures of each step.

use super::*;
use std::sync::mpsc;
use std::time::Duration;

/// What happened, in order. A group is the first bytes of its entries' keys.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Append(Vec<u8>),
    Decide(u64),
    Apply(Vec<u8>),
}
use Step::{Append, Apply, Decide};

#[derive(Default)]
struct World {
    steps: Vec<Step>,
    index: u64,
    /// The index before the newest group.
    before: u64,
    /// The number of next calls that fail.
    failing_appends: u32,
    failing_decisions: u32,
    failing_applies: u32,
    /// A group with an entry of this name panics when it is applied.
    panics_at: Option<u8>,
}

/// A fake environment: follows the test's instructions and records its calls.
#[derive(Clone, Default)]
struct Fake {
    world: Arc<Mutex<World>>,
    /// The next append waits until the test releases it.
    gate: Arc<Mutex<Option<mpsc::Receiver<()>>>>,
}

fn names(group: &Group<'_>) -> Vec<u8> {
    let effects = group.entries().flat_map(|e| &e.effects);
    effects.filter_map(|e| e.key().first().copied()).collect()
}

fn fails(left: &mut u32, what: &str) -> Fallible<()> {
    if *left == 0 {
        return Ok(());
    }
    *left -= 1;
    Err(err!(InternalError, "{what}"))
}

impl CommitEnv for Fake {
    fn admit(&mut self) -> Fallible<()> {
        Ok(())
    }

    fn append(&mut self, group: &Group<'_>, places: &mut Vec<Committed>) -> Fallible<()> {
        let gate = self.gate.lock().take();
        if let Some(gate) = gate {
            gate.recv().unwrap();
        }
        let mut world = self.world.lock();
        fails(&mut world.failing_appends, "no append")?;
        world.before = world.index;
        for _ in group.entries() {
            world.index += 1;
            places.push(Committed {
                index: world.index,
                ts: world.index << 32,
            });
        }
        world.steps.push(Append(names(group)));
        Ok(())
    }

    fn decide(&mut self, last: Committed) -> Fallible<()> {
        let mut world = self.world.lock();
        if let Err(e) = fails(&mut world.failing_decisions, "no decision") {
            // The group is out of the log again.
            world.index = world.before;
            return Err(e);
        }
        world.steps.push(Decide(last.index));
        Ok(())
    }

    fn apply(&mut self, group: &Group<'_>, places: &[Committed]) -> Fallible<Committed> {
        let mut world = self.world.lock();
        assert_eq!(places.len(), group.entries().count());
        if world.panics_at.is_some_and(|n| names(group).contains(&n)) {
            drop(world);
            panic!("as told");
        }
        fails(&mut world.failing_applies, "no apply")?;
        world.steps.push(Apply(names(group)));
        Ok(last_place(places))
    }
}

fn entry(name: u8) -> Entry {
    Entry::noop(vec![crate::Effect::Delete(vec![name])])
}

fn start() -> (Arc<Committer<Fake>>, Fake) {
    let fake = Fake::default();
    let committer = Committer::new(fake.clone(), Committed::default());
    (Arc::new(committer), fake)
}

impl Fake {
    fn steps(&self) -> Vec<Step> {
        self.world.lock().steps.clone()
    }

    fn set(&self, f: impl FnOnce(&mut World)) {
        f(&mut self.world.lock());
    }

    /// The next append waits until the returned sender sends.
    fn close(&self) -> mpsc::Sender<()> {
        let (open, gate) = mpsc::channel();
        *self.gate.lock() = Some(gate);
        open
    }
}

type Proposer = std::thread::JoinHandle<Fallible<Committed>>;

/// One proposer leads and hangs in its append; the others queue behind it, in order.
fn behind_a_leader(committer: &Arc<Committer<Fake>>, names: &[&[u8]]) -> Vec<Proposer> {
    let mut proposers = Vec::new();
    for (n, names) in names.iter().enumerate() {
        let (committer2, entries) = (committer.clone(), names.iter().map(|n| entry(*n)).collect());
        proposers.push(std::thread::spawn(move || {
            committer2.propose(Epoch::default(), entries)
        }));
        let queued = || {
            let queue = committer.queue.lock();
            queue.led && queue.waiting.len() == n
        };
        while !queued() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    proposers
}

fn outcomes(proposers: Vec<Proposer>) -> Vec<Result<u64, String>> {
    let join = |p: Proposer| match p.join() {
        Ok(outcome) => outcome.map(|at| at.index).map_err(|e| e.message.clone()),
        Err(_) => Err("panicked".into()),
    };
    proposers.into_iter().map(join).collect()
}

#[test]
fn a_proposal_is_appended_decided_and_applied() {
    let (committer, fake) = start();
    let at = committer
        .propose(Epoch::default(), vec![entry(1), entry(2)])
        .unwrap();
    assert_eq!((at.index, committer.applied()), (2, at));
    assert_eq!(
        fake.steps(),
        [Append(vec![1, 2]), Decide(2), Apply(vec![1, 2])]
    );
    assert_eq!(committer.propose(Epoch::default(), vec![]).unwrap(), at);
}

#[test]
fn who_queued_is_one_group_and_learns_its_own_place() {
    let (committer, fake) = start();
    let open = fake.close();
    let proposers = behind_a_leader(&committer, &[&[1], &[2, 3], &[4], &[5, 6, 7]]);
    open.send(()).unwrap();
    assert_eq!(
        outcomes(proposers),
        [Ok(1), Ok(3), Ok(4), Ok(7)],
        "each has the place of its own last entry"
    );
    let (first, second) = (vec![1], vec![2, 3, 4, 5, 6, 7]);
    let wanted = [
        Append(first.clone()),
        Decide(1),
        Apply(first),
        Append(second.clone()),
        Decide(7),
        Apply(second),
    ];
    assert_eq!(fake.steps(), wanted);
}

#[test]
fn a_log_that_fails_leaves_nothing_and_the_next_group_goes_on() {
    let (committer, fake) = start();
    let open = fake.close();
    let proposers = behind_a_leader(&committer, &[&[1], &[2], &[3]]);
    fake.set(|w| w.failing_appends = 2);
    open.send(()).unwrap();
    let failed = || Err("no append".to_string());
    assert_eq!(outcomes(proposers), [failed(), failed(), failed()]);
    assert_eq!(committer.applied(), Committed::default());
    assert_eq!(
        committer
            .propose(Epoch::default(), vec![entry(4)])
            .unwrap()
            .index,
        1
    );
    assert_eq!(fake.steps(), [Append(vec![4]), Decide(1), Apply(vec![4])]);
}

#[test]
fn what_is_decided_against_is_not_applied() {
    let (committer, fake) = start();
    fake.set(|w| w.failing_decisions = 1);
    let e = committer
        .propose(Epoch::default(), vec![entry(1)])
        .unwrap_err();
    assert_eq!(e.message, "no decision");
    assert_eq!(committer.applied(), Committed::default());
    assert_eq!(
        committer
            .propose(Epoch::default(), vec![entry(2)])
            .unwrap()
            .index,
        1
    );
    assert_eq!(fake.steps().last(), Some(&Apply(vec![2])));
    assert!(!fake.steps().contains(&Apply(vec![1])));
}

#[test]
fn nothing_overtakes_a_group_that_the_engine_refused() {
    let (committer, fake) = start();
    fake.set(|w| w.failing_applies = 3);
    for name in 1..=3 {
        let e = committer
            .propose(Epoch::default(), vec![entry(name)])
            .unwrap_err();
        assert_eq!(e.message, "no apply");
        assert!(committer.between_groups(|_| ()).is_err());
    }
    assert_eq!(committer.applied(), Committed::default());
    // Two were not even appended; the first is applied before the fourth is appended. A write that was
    // decided before that without having seen it is refused.
    let before = Epoch::default();
    let e = committer.propose(before, vec![entry(3)]).unwrap_err();
    assert_eq!(e.code, errors::Code::WriteConflict);
    let now = Epoch {
        applied_late: committer.applied_late(),
        ..before
    };
    assert_eq!(committer.propose(now, vec![entry(4)]).unwrap().index, 2);
    let wanted = [
        Append(vec![1]),
        Decide(1),
        Apply(vec![1]),
        Append(vec![4]),
        Decide(2),
        Apply(vec![4]),
    ];
    assert_eq!(fake.steps(), wanted);
    assert!(committer.between_groups(|_| ()).is_ok());
}

#[test]
fn what_is_cut_from_the_log_is_not_applied_any_more() {
    let (committer, fake) = start();
    committer.propose(Epoch::default(), vec![entry(1)]).unwrap();
    fake.set(|w| w.failing_applies = 1);
    let e = committer
        .propose(Epoch::default(), vec![entry(2)])
        .unwrap_err();
    assert_eq!(e.message, "no apply");
    assert!(!committer.cut(0, || panic!("the first is applied")).unwrap());
    assert!(committer.cut(1, || Ok(())).unwrap());
    committer
        .apply_appended(
            &[entry(3)],
            &[Committed {
                index: 2,
                ts: 2 << 32,
            }],
        )
        .unwrap();
    let applied = |s: &&Step| matches!(s, Apply(_));
    let steps = fake.steps();
    let applied: Vec<_> = steps.iter().filter(applied).collect();
    assert_eq!(applied, [&Apply(vec![1]), &Apply(vec![3])]);
    assert_eq!(committer.applied().index, 2);
}

#[test]
fn a_refusal_is_told_until_a_group_is_taken() {
    let (committer, fake) = start();
    let propose = |name| committer.propose(Epoch::default(), vec![entry(name)]);
    assert!(committer.refusal().is_none());
    fake.set(|w| w.failing_appends = 1);
    assert!(propose(1).is_err());
    assert_eq!(committer.refusal().unwrap().message, "no append");
    propose(2).unwrap();
    assert!(committer.refusal().is_none());
}

#[test]
fn after_a_panic_while_applying_nothing_is_appended() {
    let (committer, fake) = start();
    let open = fake.close();
    let proposers = behind_a_leader(&committer, &[&[1], &[2], &[3]]);
    open.send(()).unwrap();
    assert_eq!(outcomes(proposers), [Ok(1), Ok(2), Ok(3)]);
    let open = fake.close();
    let proposers = behind_a_leader(&committer, &[&[4], &[5], &[6]]);
    fake.set(|w| w.panics_at = Some(4));
    open.send(()).unwrap();
    let outcomes = outcomes(proposers);
    assert_eq!(outcomes[0], Err("panicked".into()));
    for outcome in &outcomes[1..] {
        assert!(outcome.as_ref().is_err_and(|e| e.contains("restart")));
    }
    assert!(!fake.steps().contains(&Append(vec![5, 6])));
    assert_eq!(committer.applied().index, 3);
}

#[test]
fn followers_of_a_leader_that_panics_are_woken() {
    let (committer, fake) = start();
    let open = fake.close();
    // The first hangs alone; the second leads the third, and panics.
    let proposers = behind_a_leader(&committer, &[&[1], &[2], &[3]]);
    fake.set(|w| w.panics_at = Some(2));
    open.send(()).unwrap();
    let lost = || "the leader of the write group was lost".to_string();
    assert_eq!(
        outcomes(proposers),
        [Ok(1), Err("panicked".into()), Err(lost())]
    );
    assert!(committer.propose(Epoch::default(), vec![entry(4)]).is_err());
}

#[test]
fn many_at_once_keep_the_order() {
    let (committer, fake) = start();
    let threads = (0..8u8).map(|t| {
        let committer = committer.clone();
        std::thread::spawn(move || {
            let places =
                (0..200).map(|_| committer.propose(Epoch::default(), vec![entry(t), entry(t)]));
            places.map(|at| at.unwrap().index).collect::<Vec<_>>()
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut all = Vec::new();
    for thread in threads {
        let places = thread.join().unwrap();
        assert!(places.is_sorted(), "each sees its own grow");
        all.extend(places);
    }
    all.sort_unstable();
    assert_eq!(all, (1..=1600).map(|n| n * 2).collect::<Vec<u64>>());
    // The applied entries are the appended ones, group by group.
    for group in fake.steps().chunks(3) {
        let [Append(appended), Decide(_), Apply(applied)] = group else {
            panic!("{group:?}")
        };
        assert_eq!(appended, applied);
    }
    assert_eq!(committer.applied().index, 3200);
}

#[test]
fn what_is_applied_is_not_applied_again() {
    let (committer, fake) = start();
    committer
        .propose(Epoch::default(), vec![entry(1), entry(2)])
        .unwrap();
    let places: Vec<Committed> = (1..=3)
        .map(|index| Committed {
            index,
            ts: index << 32,
        })
        .collect();
    let entries = [entry(1), entry(2), entry(3)];
    committer.apply_appended(&entries, &places).unwrap();
    committer.apply_appended(&entries, &places).unwrap();
    assert_eq!(committer.applied().index, 3);
    let applied = [
        Append(vec![1, 2]),
        Decide(2),
        Apply(vec![1, 2]),
        Apply(vec![3]),
    ];
    assert_eq!(fake.steps(), applied);
}

#[test]
fn a_mark_ends_its_group() {
    let (committer, fake) = start();
    let open = fake.close();
    let mut proposers = behind_a_leader(&committer, &[&[1], &[2]]);
    for n in 2..=4u8 {
        let committer2 = committer.clone();
        proposers.push(std::thread::spawn(move || {
            let what = if n == 2 {
                Entry::mark([7; 16])
            } else {
                entry(n)
            };
            committer2.propose(Epoch::default(), vec![what])
        }));
        while committer.queue.lock().waiting.len() != usize::from(n) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    open.send(()).unwrap();
    assert_eq!(outcomes(proposers), (1..=5).map(Ok).collect::<Vec<_>>());
    let decided: Vec<_> = fake
        .steps()
        .into_iter()
        .filter(|s| matches!(s, Decide(_)))
        .collect();
    assert_eq!(decided, [Decide(1), Decide(3), Decide(5)]);
}

#[test]
fn a_mark_ends_what_a_secondary_applies_at_once() {
    let (committer, fake) = start();
    let entries = [entry(1), Entry::mark([7; 16]), entry(2), entry(3)];
    let places: Vec<Committed> = (1..=4)
        .map(|index| Committed {
            index,
            ts: index << 32,
        })
        .collect();
    committer.apply_appended(&entries, &places).unwrap();
    assert_eq!(fake.steps(), [Apply(vec![1]), Apply(vec![2, 3])]);
    assert_eq!(committer.applied().index, 4);
}

#[test]
fn a_group_that_does_not_follow_is_neither_applied_nor_acknowledged() {
    let (committer, fake) = start();
    committer.propose(Epoch::default(), vec![entry(1)]).unwrap();
    fake.set(|w| w.index += 1);
    let open = fake.close();
    let proposers = behind_a_leader(&committer, &[&[2], &[3]]);
    open.send(()).unwrap();
    let outcomes = outcomes(proposers);
    assert_eq!(outcomes[0], Err("panicked".into()));
    assert!(outcomes[1].as_ref().is_err_and(|e| e.contains("restart")));
    assert_eq!(fake.steps().last(), Some(&Append(vec![2])));
    assert_eq!(committer.applied().index, 1);
}

#[test]
fn entries_of_a_log_with_a_hole_are_not_applied() {
    let (committer, fake) = start();
    let at = |index: u64| Committed {
        index,
        ts: index << 32,
    };
    let entries = [entry(1), entry(2)];
    let hole = committer.apply_appended(&entries, &[at(1), at(3)]);
    assert!(hole.is_err_and(|e| e.message.contains("no entry 2")));
    assert!(fake.steps().is_empty());
    committer.apply_appended(&entries, &[at(1), at(2)]).unwrap();
    assert_eq!(committer.applied(), at(2));
}
