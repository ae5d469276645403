//! Worker threads, for requests that may block. A thread is started when a request finds no idle
//! one, up to a limit (threads that wait for an event are not counted). Idle threads end after a
//! while.
//!
//! Invariant: every request that is submitted comes back to its loop exactly once, also when the
//! service panics and when the pool is being stopped.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use service::{Client, Control, Mode, Outcome, Resumed, Service};

use crate::connection::Resume;
use crate::inbox::{Done, Inbox, Item};
use crate::runner::{Executed, Runner};

/// An idle thread leaves after this long.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) struct Job<S: Service> {
    pub key: usize,
    pub client: Arc<Client<S::State>>,
    pub message: Vec<u8>,
    pub respond_to: Option<i32>,
    /// What an earlier run on the loop has kept.
    pub resume: Option<Resume>,
    pub out: Vec<u8>,
    pub back: Arc<Inbox<S>>,
}

struct Queue<S: Service> {
    jobs: VecDeque<Job<S>>,
    threads: usize,
    /// Idle threads, the most recent one last. The most recent one is woken first, so that few
    /// threads work, with warm memory, and the others end.
    idle: Vec<Arc<Condvar>>,
}

pub(crate) struct Workers<S: Service> {
    service: Arc<S>,
    control: Arc<Control>,
    queue: Mutex<Queue<S>>,
    left: Condvar,
    max: usize,
}

impl<S: Service> Workers<S> {
    pub fn new(service: Arc<S>, control: Arc<Control>, max: usize) -> Workers<S> {
        Workers {
            service,
            control,
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                threads: 0,
                idle: Vec::new(),
            }),
            left: Condvar::new(),
            max: max.max(1),
        }
    }

    pub fn submit(self: &Arc<Self>, job: Job<S>) {
        self.control.metrics.offloaded.fetch_add(1, Relaxed);
        self.control.metrics.active.fetch_add(1, Relaxed);
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        if let Some(sleeper) = queue.idle.pop() {
            drop(queue);
            sleeper.notify_one();
            return;
        }
        if queue.threads >= self.max + self.control.waiting() {
            return;
        }
        queue.threads += 1;
        drop(queue);
        self.control.metrics.workers.fetch_add(1, Relaxed);
        let this = Arc::clone(self);
        let spawned = std::thread::Builder::new()
            .name("worker".into())
            .stack_size(own_process::COMMAND_STACK_BYTES)
            .spawn(move || this.work());
        if let Err(e) = spawned {
            self.control.metrics.workers.fetch_sub(1, Relaxed);
            tracing::error!(target: "NETWORK", error = %e, "Cannot start a worker thread");
            let mut queue = self.queue.lock();
            queue.threads -= 1;
            // Without any thread the job would never run.
            if queue.threads == 0 {
                let jobs = std::mem::take(&mut queue.jobs);
                drop(queue);
                jobs.into_iter()
                    .for_each(|job| self.give_back(job, |_| Executed::bare(Outcome::Close)));
            }
        }
    }

    fn work(&self) {
        let mut runner = Runner::new(Arc::clone(&self.service), Mode::Worker, usize::MAX);
        let wake = Arc::new(Condvar::new());
        while let Some(job) = self.next(&wake) {
            self.give_back(job, |job| {
                let ran = catch_unwind(AssertUnwindSafe(|| {
                    let (kept, since) = (job.resume.take())
                        .map(|resume| (resume.kept, resume.since))
                        .unzip();
                    let kept = RefCell::new(kept.flatten());
                    let resumed = since.map(|since| Resumed {
                        kept: &kept,
                        reads: &[],
                        since,
                    });
                    let mut executed = runner.execute(
                        &job.client,
                        &job.message,
                        job.respond_to,
                        resumed,
                        &mut job.out,
                    );
                    if let (Outcome::Reply | Outcome::ReplyMore, Some(head)) =
                        (&executed.outcome, &executed.head)
                    {
                        let more = matches!(executed.outcome, Outcome::ReplyMore);
                        if !runner.finish(&job.client, head, more, &mut job.out) {
                            executed.outcome = Outcome::Close;
                        }
                    }
                    executed
                }));
                let executed = ran.unwrap_or_else(|_| Executed::bare(Outcome::Close));
                if executed.panicked {
                    runner.reset();
                }
                executed
            });
        }
        drop(runner);
        self.control.metrics.workers.fetch_sub(1, Relaxed);
        self.left.notify_all();
    }

    /// The next job, or `None` when the thread should end; `wake` is the thread's own.
    fn next(&self, wake: &Arc<Condvar>) -> Option<Job<S>> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            let mut leave = self.control.is_stopping();
            if !leave {
                queue.idle.push(wake.clone());
                let timed_out = wake.wait_for(&mut queue, IDLE).timed_out();
                // A thread that was woken is no longer in the list, and a job counts on it.
                if let Some(at) = queue.idle.iter().position(|w| Arc::ptr_eq(w, wake)) {
                    queue.idle.remove(at);
                    leave = timed_out && queue.jobs.is_empty();
                }
            }
            if leave {
                queue.threads -= 1;
                return None;
            }
        }
    }

    fn give_back(&self, mut job: Job<S>, run: impl FnOnce(&mut Job<S>) -> Executed) {
        let executed = run(&mut job);
        let active = self.control.metrics.active.fetch_sub(1, Relaxed);
        assert!(active > 0, "a request comes back once");
        let Job {
            key,
            client,
            message,
            out,
            back,
            ..
        } = job;
        back.push(Item::Done(Done {
            key,
            id: client.id,
            executed,
            out,
            message,
        }));
    }

    /// After the loops have stopped: waits until all threads have ended, up to the deadline; false
    /// when some have not.
    pub fn stop(&self, deadline: Instant) -> bool {
        let mut queue = self.queue.lock();
        queue.jobs.clear();
        while queue.threads > 0 {
            for sleeper in queue.idle.drain(..) {
                sleeper.notify_one();
            }
            let step = (Instant::now() + Duration::from_millis(20)).min(deadline);
            if self.left.wait_until(&mut queue, step).timed_out() && Instant::now() >= deadline {
                return false;
            }
        }
        true
    }
}
