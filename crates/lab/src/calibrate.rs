//! `pando lab calibrate`: the load client's own ceiling, against the null server in both its forms, and what its work on a
//! point read costs against a null client, which sends the same bytes again and again and only waits for whole replies.
//!
//! The clients take turns, so that what else the machine does meets both, and are compared by CPU time.

use crate::bench::place::NullProcess;
use crate::connection::MongoAddress;
use crate::fault::Result;
use crate::fleet::{Fleet, RunOutcome, catch_interrupts, interrupted};
use crate::lane::{Issued, Judged, Numbered, Workload};
use crate::measure::median;
use crate::null::Form;
use crate::output::{Journal, Output, Page};
use crate::process::{self, CorePlacement};
use crate::progress::say;
use crate::report::{CLIENT_BAR, CheckedFigure, Draft, MeasuredStep};
use crate::request::{Template, find_by_id};
use crate::targets::TargetDatabase;
use crate::targets::mongodb::MongoDb;
use crate::terms::{WriteDurability, duration, positive};
use crate::ycsb::{Shared, Spec, YcsbClient, YcsbPhase, scenario};
use bson::Doc;
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Connections; a list runs one after the other.
    #[arg(
        long,
        alias = "threads",
        value_delimiter = ',',
        default_value = "1,8,64"
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
    let placement = CorePlacement::new(args.server_core, args.client_core)?;
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
            if form == Form::Threads && spec.proportions()[1..] == [0.0; 5] {
                let ratio = against_null_client(&null, connections, &spec, args.duration)?;
                let name = format!("client's CPU a point read, {connections} connection(s)");
                let check = CheckedFigure::at_most(&name, ratio, "× null client", CLIENT_BAR);
                draft.check(check.note("median of the turns"));
            }
            journal.save(&draft);
        }
    }
    Ok(journal.finish(draft, Page::None)?.passed())
}

/// Turns of each client.
const TURNS: u32 = 6;
const SHORTEST: Duration = Duration::from_millis(50);

/// The client's CPU time of an operation against a null client's: the median over turns.
fn against_null_client(
    null: &NullProcess,
    connections: usize,
    spec: &Spec,
    limit: Duration,
) -> Result<f64> {
    let target = MongoDb::at(MongoAddress::local(null.port));
    let mut client = client(&target, connections, spec)?;
    let id = bson::Value::from("user6284781860667377211");
    let request = find_by_id("lab", &spec.table, id.as_val(), None);
    let address = MongoAddress::local(null.port);
    let mut null_client = Fleet::connect(&address, connections, 1, |_, _| Null(request.clone()))?;
    let turn = (limit / TURNS).max(SHORTEST);
    let mut ratios = Vec::new();
    for _ in 0..TURNS {
        let (own, other) = (
            client.run_quietly(Some(turn))?,
            null_client.run_quietly(Some(turn))?,
        );
        let cost = |o: &RunOutcome| o.client_cpu.as_secs_f64() / o.operations.max(1) as f64;
        ratios.push(cost(&own) / cost(&other));
        if interrupted() {
            break;
        }
    }
    let ratio = median(&ratios);
    Ok(if ratio.is_finite() { ratio } else { f64::MAX })
}

/// A client that looks at nothing.
struct Null(Template);

impl Workload for Null {
    fn kinds(&self) -> &'static [&'static str] {
        &["READ"]
    }

    fn next(&mut self, out: &mut Vec<u8>) -> Option<Issued> {
        self.0.write(out, &[]);
        Some(Issued::plain(1, 0))
    }

    fn reply(&mut self, _: &Issued, _: Doc<'_>, _: &mut Vec<u8>) -> Judged {
        Ok(None)
    }

    fn message(&mut self, _: &Issued, _: Numbered<'_>, _: &mut Vec<u8>) -> Judged {
        Ok(None)
    }
}

/// The load client with so many connections on one thread.
fn client(target: &MongoDb, connections: usize, spec: &Spec) -> Result<Fleet<YcsbClient>> {
    let mut shared = Shared::new(
        spec.clone(),
        "lab",
        WriteDurability::W1,
        YcsbPhase::Run,
        u64::MAX,
        1,
    );
    if let Some(s) = Arc::get_mut(&mut shared) {
        s.verify = false;
    }
    let dialect = target.dialect(&shared.table, WriteDurability::W1)?;
    Fleet::through(&*dialect, connections, 1, |i, n| {
        let dialect = target.dialect(&shared.table, WriteDurability::W1)?;
        Ok(YcsbClient::new(&shared, dialect, i, n))
    })
}

fn measure(
    null: &NullProcess,
    name: &str,
    connections: usize,
    spec: &Spec,
    limit: Duration,
) -> Result<MeasuredStep> {
    let target = MongoDb::at(MongoAddress::local(null.port));
    let mut fleet = client(&target, connections, spec)?;
    fleet.run_quietly(Some(limit / 4))?;
    let before = null.pid().and_then(process::cpu_time);
    let outcome = fleet.run_quietly(Some(limit))?;
    let after = null.pid().and_then(process::cpu_time);
    let spent = before.zip(after).map(|(b, a)| a.saturating_sub(b));
    Ok(MeasuredStep::new(name, connections, 1, &outcome, spent))
}
