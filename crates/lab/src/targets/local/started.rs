//! Servers that live no longer than the run that started them.

use super::{Life, Means, Running, Up, start, stop, url_of};
use crate::fault::{Fault, Result};
use crate::progress::say;
use crate::scratch::Scratch;
use crate::targets::{self, TargetDatabase};
use std::sync::Arc;

/// For studies that start their target themselves.
#[derive(clap::Args, Clone)]
pub struct Launch {
    /// Start the target for this run (pando, mongod, mariadb, postgres) and remove it afterwards.
    #[arg(long, value_name = "PRODUCT", conflicts_with = "url")]
    pub launch: Option<String>,
    /// Processes of it, with --launch.
    #[arg(long, default_value_t = 1)]
    pub shards: usize,
    #[command(flatten)]
    pub means: Means,
}

impl Launch {
    /// Whether the launched product has a router before several processes.
    pub fn has_router(&self) -> bool {
        let product = self.launch.as_deref().unwrap_or_default();
        Up::new(product, self.means.clone(), self.shards).has_router()
    }

    /// The target, when one is to be started: also where none was `given`.
    pub fn start(&self, given: bool, quiet: bool) -> Result<Option<Started>> {
        match &self.launch {
            Some(product) => {
                let up = Up::new(product, self.means.clone(), self.shards);
                Ok(Some(Started::of(&up, quiet)?))
            }
            None if self.shards > 1 => Err(Fault::Usage(
                "--shards needs --launch; of a cluster that runs give the router's URL".into(),
            )),
            None if given => Ok(None),
            None => Ok(Some(Started::own(self.means.clone(), quiet)?)),
        }
    }
}

/// The targets of a command that writes. Without a URL it has a server of its own, which lives as long
/// as the first part of the result: no other server is written to.
pub fn given_or_own(
    urls: &[String],
    quiet: bool,
) -> Result<(Option<Started>, Vec<Arc<dyn TargetDatabase>>)> {
    if !urls.is_empty() {
        return Ok((None, targets::open_all(urls)?));
    }
    let own = Started::own(Means::with_memory(OWN_CACHE), quiet)?;
    let targets = targets::open_all(&[own.url()])?;
    Ok((Some(own), targets))
}

/// As much as `--memory` gives a server by default.
const OWN_CACHE: u64 = 512_000_000;

/// Servers of one run, stopped and removed at its end.
#[derive(Default)]
pub struct Started {
    home: Option<Scratch>,
    pub running: Vec<Running>,
}

impl Started {
    /// Our own server.
    fn own(means: Means, quiet: bool) -> Result<Started> {
        say(quiet, "no --url: a server of this run's own is measured");
        Started::of(&Up::new("pando", means, 1), quiet)
    }

    pub fn of(up: &Up, quiet: bool) -> Result<Started> {
        let mut started = Started::default();
        started.add(up, quiet)?;
        Ok(started)
    }

    /// Starts one more target; gives its URL.
    pub fn add(&mut self, up: &Up, quiet: bool) -> Result<String> {
        let what = match up.shards {
            1 => format!("starting {}", up.product),
            n => format!("starting {} in {n} processes", up.product),
        };
        say(quiet, what);
        let home = match self.home.take() {
            Some(home) => home,
            None => Scratch::new("started", None)?,
        };
        let all = start(&self.home.insert(home).dir, up, Life::OfRun)?;
        let url = url_of(&all);
        self.running.extend(all);
        Ok(url)
    }

    pub fn url(&self) -> String {
        url_of(&self.running)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            self.running.iter().rev().for_each(|r| stop(&home.dir, r));
        }
    }
}
