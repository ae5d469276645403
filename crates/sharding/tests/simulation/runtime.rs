//! Processes, their tasks, a clock and a network, in one thread. A task is a future that waits for the
//! clock or for an answer; a process that dies loses its tasks.
//!
//! Invariant: nothing but the seed decides what happens when.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub type Process = usize;
type TaskId = u64;
type Task = Pin<Box<dyn Future<Output = ()>>>;

enum Event {
    Wake(TaskId),
    Run(Process, Box<dyn FnOnce()>),
}

#[derive(Clone, Copy, Default)]
struct State {
    dead: bool,
    /// It does nothing until then.
    stopped_until: u64,
}

/// How the network is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Of 1000 messages.
    pub lost: u32,
    pub doubled: u32,
    pub slow: u32,
    /// These come to a shard when their sender waits for them no more, and later ones have come before.
    pub late: u32,
}

pub struct Sim {
    now: Cell<u64>,
    rng: RefCell<StdRng>,
    next: Cell<u64>,
    events: RefCell<BTreeMap<(u64, u64), Event>>,
    tasks: RefCell<BTreeMap<TaskId, (Process, Option<Task>)>>,
    current: Cell<(Process, TaskId)>,
    processes: RefCell<Vec<State>>,
    pub weather: Cell<Weather>,
    pub messages: Cell<u64>,
    /// Of so many steps of moves before one its process stands still for longer than a lock lasts.
    pub stalls: Cell<u64>,
}

/// What a process does not answer within.
const TIMEOUT: u64 = 3000;

impl Sim {
    pub fn new(seed: u64, processes: usize) -> Rc<Sim> {
        Rc::new(Sim {
            now: Cell::new(1_000_000),
            rng: RefCell::new(StdRng::seed_from_u64(seed)),
            next: Cell::new(1),
            events: RefCell::default(),
            tasks: RefCell::default(),
            current: Cell::new((0, 0)),
            processes: RefCell::new(vec![State::default(); processes]),
            weather: Cell::default(),
            messages: Cell::new(0),
            stalls: Cell::new(400),
        })
    }

    /// Milliseconds.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    pub fn clock(&self) -> Duration {
        Duration::from_millis(self.now())
    }

    pub fn below(&self, n: u64) -> u64 {
        self.rng.borrow_mut().random_range(0..n.max(1))
    }

    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of_1000(&self, n: u32) -> bool {
        self.below(1000) < u64::from(n)
    }

    fn number(&self) -> u64 {
        let n = self.next.get();
        self.next.set(n + 1);
        n
    }

    fn at(&self, time: u64, event: Event) {
        self.events
            .borrow_mut()
            .insert((time, self.number()), event);
    }

    pub fn spawn(&self, process: Process, task: impl Future<Output = ()> + 'static) {
        let id = self.number();
        self.tasks
            .borrow_mut()
            .insert(id, (process, Some(Box::pin(task))));
        self.at(self.now(), Event::Wake(id));
    }

    /// Whose task runs now.
    pub fn process(&self) -> Process {
        self.current.get().0
    }

    pub fn kill(&self, process: Process) {
        self.processes.borrow_mut()[process].dead = true;
        let gone: Vec<_> = {
            let mut tasks = self.tasks.borrow_mut();
            let ids: Vec<TaskId> = tasks
                .iter()
                .filter(|(_, (p, _))| *p == process)
                .map(|(id, _)| *id)
                .collect();
            ids.iter().filter_map(|id| tasks.remove(id)).collect()
        };
        drop(gone);
    }

    pub fn start(&self, process: Process) {
        self.processes.borrow_mut()[process] = State::default();
    }

    pub fn stop(&self, process: Process, millis: u64) {
        self.processes.borrow_mut()[process].stopped_until = self.now() + millis;
    }

    pub fn is_dead(&self, process: Process) -> bool {
        self.processes.borrow()[process].dead
    }

    pub fn sleep(self: &Rc<Self>, millis: u64) -> Sleep {
        Sleep {
            sim: self.clone(),
            until: self.now() + millis,
            asked: false,
        }
    }

    /// Asks a process, whose answer `make` gives. `None`: it is not known whether it was asked.
    pub async fn call<R, F>(
        self: &Rc<Self>,
        to: Process,
        make: impl Fn() -> F + 'static,
    ) -> Option<R>
    where
        R: 'static,
        F: Future<Output = R> + 'static,
    {
        let delay = self.delay();
        self.call_by(to, make, false, delay).await
    }

    /// The same of a shard. `again`: a sender in doubt may send it again, so it may arrive twice, at any
    /// time.
    pub async fn call_shard<R, F>(
        self: &Rc<Self>,
        to: Process,
        make: impl Fn() -> F + 'static,
        again: bool,
    ) -> Option<R>
    where
        R: 'static,
        F: Future<Output = R> + 'static,
    {
        let delay = match self.of_1000(self.weather.get().late) {
            true => TIMEOUT + self.below(2 * TIMEOUT),
            false => self.delay(),
        };
        self.call_by(to, make, again, delay).await
    }

    async fn call_by<R, F>(
        self: &Rc<Self>,
        to: Process,
        make: impl Fn() -> F + 'static,
        again: bool,
        mut delay: u64,
    ) -> Option<R>
    where
        R: 'static,
        F: Future<Output = R> + 'static,
    {
        let slot: Rc<RefCell<Option<R>>> = Rc::default();
        let caller = self.current.get();
        let make = Rc::new(make);
        let weather = self.weather.get();
        let doubled = again && self.of_1000(weather.doubled);
        let copies = match (self.of_1000(weather.lost), doubled) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        for _ in 0..copies {
            let (sim, make, slot) = (self.clone(), make.clone(), slot.clone());
            let arrive = move || {
                let task = sim.clone();
                sim.spawn(to, async move {
                    let answer = make().await;
                    task.clone().answer(caller, slot, answer);
                });
            };
            self.at(self.now() + delay, Event::Run(to, Box::new(arrive)));
            delay = self.delay();
        }
        self.messages.set(self.messages.get() + 1);
        Answered {
            sim: self.clone(),
            slot,
            until: self.now() + TIMEOUT,
            asked: false,
        }
        .await
    }

    fn answer<R: 'static>(
        self: Rc<Self>,
        (process, task): (Process, TaskId),
        slot: Rc<RefCell<Option<R>>>,
        answer: R,
    ) {
        if self.of_1000(self.weather.get().lost) {
            return;
        }
        let sim = self.clone();
        let arrive = move || {
            slot.borrow_mut().get_or_insert(answer);
            sim.at(sim.now(), Event::Wake(task));
        };
        self.at(
            self.now() + self.delay(),
            Event::Run(process, Box::new(arrive)),
        );
    }

    fn delay(&self) -> u64 {
        match self.of_1000(self.weather.get().slow) {
            true => self.below(600),
            false => self.below(4),
        }
    }

    /// Runs what happens before `until`, or until `done`.
    pub fn run(&self, until: u64, done: impl Fn() -> bool) {
        while !done() {
            let next = self.events.borrow_mut().pop_first();
            let Some(((time, number), event)) = next else {
                return;
            };
            if time > until {
                self.events.borrow_mut().insert((time, number), event);
                self.now.set(until);
                return;
            }
            self.now.set(self.now().max(time));
            self.happen(event);
        }
    }

    fn happen(&self, event: Event) {
        let process = match &event {
            Event::Run(process, _) => *process,
            Event::Wake(task) => match self.tasks.borrow().get(task) {
                Some((process, _)) => *process,
                None => return,
            },
        };
        let state = self.processes.borrow()[process];
        if state.stopped_until > self.now() {
            return self.at(state.stopped_until, event);
        }
        match event {
            Event::Run(..) if state.dead => {}
            Event::Run(_, run) => run(),
            Event::Wake(id) => self.poll(process, id),
        }
    }

    fn poll(&self, process: Process, id: TaskId) {
        let task = self
            .tasks
            .borrow_mut()
            .get_mut(&id)
            .and_then(|(_, task)| task.take());
        let Some(mut task) = task else { return };
        self.current.set((process, id));
        let mut context = Context::from_waker(Waker::noop());
        match task.as_mut().poll(&mut context) {
            Poll::Ready(()) => drop(self.tasks.borrow_mut().remove(&id)),
            Poll::Pending => {
                if let Some(entry) = self.tasks.borrow_mut().get_mut(&id) {
                    entry.1 = Some(task);
                }
            }
        }
    }
}

pub struct Sleep {
    sim: Rc<Sim>,
    until: u64,
    asked: bool,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.sim.now() >= self.until {
            return Poll::Ready(());
        }
        if !self.asked {
            self.asked = true;
            let task = self.sim.current.get().1;
            self.sim.at(self.until, Event::Wake(task));
        }
        Poll::Pending
    }
}

struct Answered<R> {
    sim: Rc<Sim>,
    slot: Rc<RefCell<Option<R>>>,
    until: u64,
    asked: bool,
}

impl<R> Future for Answered<R> {
    type Output = Option<R>;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<R>> {
        if let Some(answer) = self.slot.borrow_mut().take() {
            return Poll::Ready(Some(answer));
        }
        if self.sim.now() >= self.until {
            return Poll::Ready(None);
        }
        if !self.asked {
            self.asked = true;
            let task = self.sim.current.get().1;
            self.sim.at(self.until, Event::Wake(task));
        }
        Poll::Pending
    }
}

/// Runs futures side by side, and gives what they give in the same order. The last of them wakes the caller.
pub async fn together<R: 'static>(
    sim: &Rc<Sim>,
    all: Vec<Pin<Box<dyn Future<Output = R>>>>,
) -> Vec<R> {
    let many = all.len();
    let results: Rc<RefCell<Vec<Option<R>>>> =
        Rc::new(RefCell::new((0..many).map(|_| None).collect()));
    let left = Rc::new(Cell::new(many));
    let (process, caller) = sim.current.get();
    for (i, one) in all.into_iter().enumerate() {
        let (sim_of_one, results, left) = (sim.clone(), results.clone(), left.clone());
        sim.spawn(process, async move {
            let result = one.await;
            results.borrow_mut()[i] = Some(result);
            left.set(left.get() - 1);
            if left.get() == 0 {
                sim_of_one.at(sim_of_one.now(), Event::Wake(caller));
            }
        });
    }
    std::future::poll_fn(|_| match left.get() {
        0 => Poll::Ready(()),
        _ => Poll::Pending,
    })
    .await;
    results.borrow_mut().drain(..).flatten().collect()
}
