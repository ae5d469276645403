//! Several routers that pin and settle the same time, in all orders.

use super::*;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Written and prepared values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Numbers {
    shown: Vec<u32>,
    prepared: Vec<u32>,
}

impl State for Numbers {
    type Id = u32;
    type Parts = Vec<u32>;

    fn is_whole(&self) -> Result<bool> {
        Ok(self.prepared.is_empty())
    }

    fn parts(&self, ids: &[u32]) -> Result<Vec<u32>> {
        assert!(ids.iter().all(|id| self.prepared.contains(id)));
        Ok(ids.to_vec())
    }

    fn showing(&self, parts: Vec<u32>) -> Result<Numbers> {
        let shown = self.shown.iter().copied().chain(parts).collect();
        let prepared = self.prepared.clone();
        Ok(Numbers { shown, prepared })
    }
}

/// A lock that others may be before at.
#[derive(Default)]
struct Turn(RefCell<Kept<Numbers>>);

impl Exclusive<Kept<Numbers>> for Turn {
    async fn with<R>(&self, work: impl FnOnce(&mut Kept<Numbers>) -> R) -> R {
        Once(false).await;
        work(&mut self.0.borrow_mut())
    }
}

/// Waits once.
struct Once(bool);

impl Future for Once {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.0, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

fn go_on(task: &mut Option<Task>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let done = task
        .as_mut()
        .is_some_and(|t| t.as_mut().poll(&mut context).is_ready());
    if done {
        *task = None;
    }
    done
}

fn at_once<R>(work: impl Future<Output = R>) -> R {
    let mut work = std::pin::pin!(work);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
            return done;
        }
    }
}

type World = (Rc<SnapshotHistory<Turn>>, Rc<RefCell<(u64, Numbers)>>);

fn world() -> World {
    let first = Numbers {
        shown: Vec::new(),
        prepared: vec![1, 2],
    };
    let history = SnapshotHistory(Turn::default());
    (Rc::new(history), Rc::new(RefCell::new((5, first))))
}

/// A router: pins the state at 10, has what had committed in it shown, reads it.
fn router((history, log): World) -> Task {
    Box::pin(async move {
        let now = Duration::ZERO;
        let make = || {
            let log = log.borrow();
            Ok((log.0 <= 10).then(|| log.1.clone()))
        };
        let Some(pinned) = history.pin(10, now, make).await.unwrap() else {
            return;
        };
        assert_eq!(pinned.prepared, [1, 2]);
        // The log goes on.
        log.borrow_mut().0 = 20;
        log.borrow_mut().1.shown.push(99);
        history.settle(10, vec![2]).await.unwrap().unwrap();
        assert_eq!(history.at(10).await.unwrap().shown, [2]);
    })
}

/// Reads whenever it can.
fn reader((history, _): World) -> Task {
    Box::pin(async move {
        for _ in 0..6 {
            let seen = history.at(10).await;
            assert!(seen.is_none_or(|seen| seen.shown == [2]));
        }
    })
}

/// In every order at the lock: all reads at a time see one state.
#[test]
fn a_state_that_is_read_does_not_change() {
    // Two routers stand before a lock six times each at the most.
    for order in 0..1 << 12 {
        let world = world();
        let mut routers = [Some(router(world.clone())), Some(router(world.clone()))];
        let mut reader = Some(reader(world.clone()));
        for step in 0..12 {
            go_on(&mut routers[order >> step & 1]);
            go_on(&mut reader);
        }
        for router in &mut routers {
            while router.is_some() {
                go_on(router);
            }
        }
        assert_eq!(at_once(world.0.at(10)).unwrap().shown, [2]);
    }
}

fn pin(world: &World, ts: u64, now: u64) -> Option<Numbers> {
    let state = world.1.borrow().1.clone();
    let make = || Ok(Some(state));
    let pinned = world.0.pin(ts, Duration::from_secs(now), make);
    at_once(pinned).unwrap()
}

#[test]
fn it_is_read_when_it_is_settled() {
    let world = world();
    pin(&world, 10, 0);
    assert!(at_once(world.0.at(10)).is_none());
    assert!(at_once(world.0.pinned_at(10)).is_some());
    at_once(world.0.settle::<Numbers>(10, Vec::new()))
        .unwrap()
        .unwrap();
    assert_eq!(at_once(world.0.at(10)).unwrap().shown, Vec::<u32>::new());
    assert!(
        at_once(world.0.settle::<Numbers>(11, Vec::new()))
            .unwrap()
            .is_none()
    );
    // Where nothing is prepared nothing has to be told.
    world.1.borrow_mut().1.prepared.clear();
    pin(&world, 11, 0);
    assert!(at_once(world.0.at(11)).is_some());
}

#[test]
#[should_panic(expected = "the snapshot at 10 shows [1], and was to show [1, 2]")]
fn all_who_settle_it_say_the_same() {
    let world = world();
    pin(&world, 10, 0);
    at_once(world.0.settle::<Numbers>(10, vec![1])).unwrap();
    at_once(world.0.settle::<Numbers>(10, vec![2, 1])).unwrap();
}

#[test]
fn it_is_kept_from_when_it_was_last_pinned() {
    let world = world();
    world.1.borrow_mut().1.prepared.clear();
    pin(&world, 10, 1);
    pin(&world, 11, 1);
    pin(&world, 10, 5);
    at_once(world.0.forget(Duration::from_secs(4)));
    assert!(at_once(world.0.at(10)).is_some() && at_once(world.0.at(11)).is_none());
    for ts in 100..100 + MOST as u64 {
        pin(&world, ts, 6);
    }
    assert!(at_once(world.0.at(10)).is_none() && at_once(world.0.at(100)).is_some());
}
