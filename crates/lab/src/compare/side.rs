//! One side of a comparison: a target that runs already, a program, or the null server; the last two are started afresh
//! for each round, on the records that the first round brought in.

use super::Args;
use crate::bench::place::{NullProcess, Server, ServerSetup};
use crate::fault::{Fault, Result, local};
use crate::fleet::Fleet;
use crate::null::Form;
use crate::process::CorePlacement;
use crate::report::TargetInfo;
use crate::targets;
use crate::ycsb::{Session, Spec, YcsbClient, YcsbPhase};
use std::path::{Path, PathBuf};

pub struct Side {
    what: What,
    /// One server may be both sides; then each has a table of its own.
    table: &'static str,
    placement: CorePlacement,
    session: Option<Session>,
}

enum What {
    Url(String),
    Null(Option<NullProcess>),
    Program(Box<Program>),
}

struct Program {
    // Before the room, whose end removes the server's files.
    server: Option<Server>,
    room: ServerSetup,
    dbpath: PathBuf,
    path: String,
}

impl Side {
    pub fn new(
        word: &str,
        table: &'static str,
        args: &Args,
        placement: &CorePlacement,
    ) -> Result<Side> {
        let what = if word == "null" {
            What::Null(None)
        } else if word.contains("://") {
            What::Url(word.to_string())
        } else {
            let program = Path::new(word);
            if !program.is_file() {
                return Err(Fault::Usage(format!(
                    "{word} is neither a target's URL nor a program"
                )));
            }
            let program = program.canonicalize().map_err(local(word))?;
            // What the room starts is said with each start.
            let room = ServerSetup::open(
                None,
                Some(""),
                args.dir.as_deref(),
                placement.clone(),
                Form::Threads,
            )?;
            What::Program(Box::new(Program {
                dbpath: room.fresh_dbpath()?,
                room,
                server: None,
                path: program.display().to_string(),
            }))
        };
        Ok(Side {
            what,
            table,
            placement: placement.clone(),
            session: None,
        })
    }

    /// Whether it is started here.
    pub fn ours(&self) -> bool {
        !matches!(self.what, What::Url(_))
    }

    pub fn url(&self) -> String {
        match &self.what {
            What::Url(url) => url.clone(),
            What::Null(null) => {
                let port = null.as_ref().map_or(0, |n| n.port);
                format!("mongodb://127.0.0.1:{port}")
            }
            What::Program(p) => p
                .server
                .as_ref()
                .map_or(String::new(), |s| s.target.url.clone()),
        }
    }

    /// A fresh process, where it is ours.
    fn start(&mut self, handicap: f64, records: u64) -> Result<()> {
        match &mut self.what {
            What::Url(_) => {}
            What::Null(null) => {
                *null = None;
                *null = Some(NullProcess::with_records(
                    records,
                    handicap,
                    &self.placement,
                )?);
            }
            What::Program(p) => {
                if let Some(mut old) = p.server.take() {
                    old.stop();
                }
                let words = ["serve", "--dbpath", "{dbpath}", "--port", "{port}"];
                let mut command = vec![p.path.clone()];
                command.extend(words.map(String::from));
                if handicap > 0.0 {
                    command.extend(["--handicap".to_string(), handicap.to_string()]);
                }
                p.room.launch = command;
                let cores: Vec<usize> = self.placement.server.into_iter().collect();
                p.server = Some(p.room.start(&p.dbpath, &cores)?);
            }
        }
        Ok(())
    }

    /// Connections that do the workload on a fresh process, and the process's id where its CPU can be read.
    pub fn open(
        &mut self,
        name: &str,
        spec: &Spec,
        handicap: f64,
        args: &Args,
    ) -> Result<(Fleet<YcsbClient>, Option<u32>)> {
        self.session = None;
        self.start(handicap, args.records)?;
        let spec = Spec {
            table: self.table.into(),
            operations: spec.records,
            ..spec.clone()
        };
        let target = targets::open(&self.url())?;
        let mut session = Session::open(target, name, spec, args.durability)?;
        session.quiet = args.to.quiet;
        if !session.prepare(false)? {
            return Err(Fault::Local("interrupted before the first slice".into()));
        }
        let shared = session.shared(YcsbPhase::Run, session.spec.clone(), u64::MAX);
        let fleet = session.fleet(&shared, args.connections)?;
        let pid = session.info.pid;
        let pid = pid.filter(|_| session.info.more_pids.is_empty());
        self.session = Some(session);
        Ok((fleet, pid))
    }

    pub fn info(&self) -> Option<TargetInfo> {
        Some(self.session.as_ref()?.info.clone())
    }

    /// Leaves nothing on a server that is not ours.
    pub fn clear(&self) -> Result<()> {
        match &self.session {
            Some(session) if !self.ours() => session.drop_table(),
            _ => Ok(()),
        }
    }
}
