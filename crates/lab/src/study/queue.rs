//! `pando lab study queue`: study H, whether deleted records cost anything: a queue of jobs, or a window
//! by age.
//!
//! As many jobs are made as are taken, so about as many wait in the end as in the beginning, and a
//! falling rate falls because of deleted records. The check sets the last tenth of the seconds against
//! the first. PostgreSQL takes with `FOR UPDATE SKIP LOCKED`, MariaDB with `DELETE … ORDER BY … LIMIT
//! 1`.

use super::pains;
use crate::fault::{Fault, Result};
use crate::queries::{self, File, How, Steps};
use crate::report::{CheckedFigure, Draft, MeasuredStep};
use crate::targets::local::{Means, Started, Up};
use crate::terms::count;

#[derive(clap::Args)]
pub struct Args {
    /// A window by age in place of the queue: new documents come in, the oldest go out, and are asked
    /// for.
    #[arg(long)]
    pub window: bool,
    /// Jobs that wait, or documents of the window.
    #[arg(long, default_value = "1k", value_parser = count)]
    pub waiting: u64,
    /// Products that are started and measured beside each other: pando, mongod, postgres, mariadb.
    #[arg(long, value_name = "PRODUCT", value_delimiter = ',')]
    pub launch: Vec<String>,
    #[command(flatten)]
    pub means: Means,
    /// Connections, half of them takers at any time; a list runs one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    pub connections: Vec<usize>,
    #[command(flatten)]
    pub how: How,
}

const QUEUE: &str = include_str!("queue.queries");
const WINDOW: &str = include_str!("window.queries");

pub fn main(mut args: Args) -> Result<bool> {
    let waiting = i64::try_from(args.waiting).ok().filter(|n| *n > 0);
    let Some(waiting) = waiting else {
        return Err(Fault::Usage("--waiting must be more than zero".into()));
    };
    let (text, name) = match args.window {
        true => (WINDOW, "H-window"),
        false => (QUEUE, "H-queue"),
    };
    let file = File::parse(text, &[("waiting".to_string(), waiting)])?;
    let mut started: Option<Started> = None;
    for product in &args.launch {
        let mut means = args.means.clone();
        // With several products a given program is the one that is not found by itself.
        means.binary = means
            .binary
            .filter(|_| product == "mongod" || args.launch.len() == 1);
        let up = Up::new(product, means, 1);
        let url = match &mut started {
            Some(started) => started.add(&up, args.how.to.quiet)?,
            None => started.insert(Started::of(&up, args.how.to.quiet)?).url(),
        };
        args.how.url.push(url);
    }
    let mut draft = Draft::new("study", name);
    draft.set("waiting", waiting);
    let done = queries::run(
        &args.how,
        &file,
        draft,
        &args.connections,
        Steps::Whole(&flat),
    );
    drop(started);
    done
}

/// Whether the rate stays.
fn flat(key: &str, step: &MeasuredStep) -> Vec<CheckedFigure> {
    let said = pains::shape(step).into_iter();
    let last = said.filter(|c| c.name.starts_with("flatness: "));
    last.map(|c| CheckedFigure {
        name: format!("{key}: last tenth of the seconds against the first"),
        ..c
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::QueryLanguage;

    #[test]
    fn every_database_is_told_its_own() {
        let defined = [("waiting".to_string(), 7)];
        for (text, queries) in [(QUEUE, 2), (WINDOW, 3)] {
            let file = File::parse(text, &defined).unwrap();
            for language in [
                QueryLanguage::Commands,
                QueryLanguage::Sql,
                QueryLanguage::MySql,
            ] {
                assert_eq!(file.queries_in(language).unwrap().len(), queries);
                let filled = file.before.iter().filter(|o| o.is_told_in(language));
                assert_eq!(filled.map(|o| o.times).max(), Some(7));
            }
        }
        let file = File::parse(QUEUE, &defined).unwrap();
        let take = |language| file.queries_in(language).unwrap()[0].text.clone();
        assert!(take(QueryLanguage::Sql).contains("SKIP LOCKED"));
        assert!(!take(QueryLanguage::MySql).contains("SKIP LOCKED"));
    }
}
