//! `pando lab calibrate`: the load client's own ceiling, against the null server in both its forms.

use crate::bench::place::NullProcess;
use crate::connection::Address;
use crate::fault::Result;
use crate::fleet::{Fleet, catch_interrupts, interrupted};
use crate::null::Form;
use crate::output::{Journal, Output, Page};
use crate::process::{self, Placement};
use crate::progress::say;
use crate::report::{Draft, Step};
use crate::targets::Target;
use crate::targets::mongodb::MongoDb;
use crate::terms::{Durability, duration, positive};
use crate::ycsb::{Client, Phase, Shared, Spec, scenario};
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Connections; a list runs one after the other.
    #[arg(
        long,
        alias = "threads",
        value_delimiter = ',',
        default_value = "1,32,128"
    )]
    connections: Vec<usize>,
    /// The scenario whose requests are sent.
    #[arg(long, default_value = "C.S5")]
    workload: String,
    /// Length of each run.
    #[arg(long, default_value = "3s", value_parser = duration)]
    duration: Duration,
    /// Core of the null server (default: the first).
    #[arg(long)]
    server_core: Option<usize>,
    /// Core of the client (default: the last).
    #[arg(long)]
    client_core: Option<usize>,
    #[command(flatten)]
    to: Output,
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    positive("--connections", &args.connections)?;
    let spec = scenario::spec(&args.workload, None)?;
    let placement = Placement::new(args.server_core, args.client_core)?;
    placement.pin_client()?;
    let mut draft = Draft::new("calibrate", &args.workload);
    draft.set("server_core", placement.server);
    draft.set("client_core", placement.client);
    let mut journal = Journal::open(&mut draft, &args.to)?;
    for form in [Form::Threads, Form::EventLoop] {
        let what = match form {
            Form::Threads => "null server, thread a connection",
            Form::EventLoop => "null server, event loop",
        };
        let null = NullProcess::start(None, form, &placement)?;
        for &connections in &args.connections {
            let key = format!("{what} / {connections}");
            if interrupted() || draft.has(&key) {
                continue;
            }
            say(
                args.to.quiet,
                format_args!("{what}, {connections} connection(s)"),
            );
            let step = measure(&null, what, connections, &spec, args.duration)?;
            draft.push(&key, step);
            journal.save(&draft);
        }
    }
    journal.finish(draft, Page::None)?;
    Ok(true)
}

fn measure(
    null: &NullProcess,
    name: &str,
    connections: usize,
    spec: &Spec,
    limit: Duration,
) -> Result<Step> {
    let mut shared = Shared::new(spec.clone(), "lab", Durability::W1, Phase::Run, u64::MAX, 1);
    if let Some(s) = Arc::get_mut(&mut shared) {
        s.verify = false;
    }
    let target = MongoDb::at(Address::local(null.port));
    let dialect = target.dialect(&shared.table, Durability::W1)?;
    let mut fleet = Fleet::through(&*dialect, connections, 1, |i, n| {
        let dialect = target.dialect(&shared.table, Durability::W1)?;
        Ok(Client::new(&shared, dialect, i, n))
    })?;
    fleet.run_quietly(Some(limit / 4))?;
    let before = null.pid().and_then(process::cpu_time);
    let outcome = fleet.run_quietly(Some(limit))?;
    let after = null.pid().and_then(process::cpu_time);
    let spent = before.zip(after).map(|(b, a)| a.saturating_sub(b));
    Ok(Step::new(name, connections, 1, &outcome, spent))
}
