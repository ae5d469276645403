//! Separate servers as one target: each key lives on the one that its hash names, and the client knows which. That is what
//! micro-sharding is without a router; nothing moves, and a query that names no key cannot be asked.
//!
//! `URL+URL+…` names it. Each server gets its share of the connections, and these touch only its keys.

use super::mark::{self, Owner};
use super::{Dialect, Table, TargetDatabase};
use crate::fault::{Fault, Result};
use crate::report::{CollectionSizes, TargetInfo};
use crate::terms::WriteDurability;
use outgoing as url;
use std::sync::Arc;

pub struct Split {
    shown: String,
    parts: Vec<Arc<dyn TargetDatabase>>,
}

impl Split {
    pub fn open(parts: &[&str]) -> Result<Split> {
        let parts = parts.iter().map(|p| super::open(p));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let shown: Vec<String> = parts
            .iter()
            .map(|p| url::without_password(p.url()))
            .collect();
        Ok(Split {
            shown: shown.join("+"),
            parts,
        })
    }
}

impl TargetDatabase for Split {
    fn url(&self) -> &str {
        &self.shown
    }

    fn ready(&self, durability: WriteDurability) -> Result<()> {
        self.parts.iter().try_for_each(|p| p.ready(durability))
    }

    fn info(&self) -> Result<TargetInfo> {
        let infos = self.parts.iter().map(|p| p.info());
        let infos = infos.collect::<Result<Vec<_>>>()?;
        let mut urls: Vec<&str> = self.parts.iter().map(|p| p.url()).collect();
        urls.sort_unstable();
        if urls.windows(2).any(|w| w.first() == w.last()) {
            return Err(Fault::Usage(format!(
                "{}: a server is named twice",
                self.shown
            )));
        }
        let mut pids: Vec<u32> = infos.iter().flat_map(TargetInfo::pids).collect();
        let all_here = pids.len() == infos.len();
        let told = infos.iter().all(|i| !i.data.is_empty());
        let data = infos.iter().flat_map(|i| i.data.clone()).filter(|_| told);
        let data = data.collect();
        pids.sort_unstable();
        pids.dedup();
        let mut all = infos.into_iter().next().unwrap_or_default();
        let n = self.parts.len();
        all.data = data;
        all.product = format!("{n} × {}", all.product);
        all.url.clone_from(&self.shown);
        let mut pids = pids.into_iter().filter(|_| all_here);
        all.pid = pids.next();
        all.more_pids = pids.collect();
        all.settings.insert(
            "sharding".into(),
            format!("by the client, hash of the key over {n} servers"),
        );
        Ok(all)
    }

    fn database(&self) -> Option<String> {
        self.parts.first().and_then(|p| p.database())
    }

    fn owner(&self, table: &Table) -> Result<Owner> {
        let mut of_all = Owner::Nobody;
        for part in &self.parts {
            match part.owner(table)? {
                Owner::Nobody => {}
                Owner::Ours if of_all != Owner::Others => of_all = Owner::Ours,
                _ => of_all = Owner::Others,
            }
        }
        Ok(of_all)
    }

    fn create(&self, table: &Table) -> Result<()> {
        // All are asked before the first loses anything.
        mark::claim(self.owner(table)?, &self.shown, &table.name)?;
        self.parts.iter().try_for_each(|p| p.create(table))
    }

    fn drop_table(&self, table: &Table) -> Result<()> {
        self.parts.iter().try_for_each(|p| p.drop_table(table))
    }

    fn count(&self, table: &Table) -> Result<u64> {
        self.parts.iter().map(|p| p.count(table)).sum()
    }

    fn sizes(&self, table: &Table, at: f64) -> Result<CollectionSizes> {
        let mut all = CollectionSizes {
            at,
            ..CollectionSizes::default()
        };
        for part in &self.parts {
            let one = part.sizes(table, at)?;
            all.documents += one.documents;
            all.data_bytes += one.data_bytes;
            all.storage_bytes += one.storage_bytes;
            all.index_bytes += one.index_bytes;
            for (name, bytes) in one.indexes {
                *all.indexes.entry(name).or_default() += bytes;
            }
        }
        Ok(all)
    }

    fn activity(&self) -> Vec<&'static str> {
        let mut all: Vec<&'static str> = self.parts.iter().flat_map(|p| p.activity()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn dialect(&self, _: &Arc<Table>, _: WriteDurability) -> Result<Box<dyn Dialect>> {
        Err(Fault::Usage(format!(
            "{}: servers side by side take YCSB workloads only",
            self.shown
        )))
    }

    fn parts(&self) -> &[Arc<dyn TargetDatabase>] {
        &self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_apart() {
        let two = "mongodb://127.0.0.1:1/db?w=1+mongodb://u:a+b@127.0.0.1:2/";
        assert_eq!(
            url::parts(two),
            [
                "mongodb://127.0.0.1:1/db?w=1",
                "mongodb://u:a+b@127.0.0.1:2/"
            ]
        );
        let one = "mongodb://u:a+b@127.0.0.1/?x=c://d";
        assert_eq!(url::parts(one), [one]);
        let open = super::super::open("mongodb://127.0.0.1:1/db+mongodb://127.0.0.1:2/db").unwrap();
        assert_eq!(
            (open.parts().len(), open.database()),
            (2, Some("db".into()))
        );
        assert!(super::super::open("mongodb://127.0.0.1:1+redis://127.0.0.1:2").is_err());
        assert_eq!(
            url::without_password("mongodb://u:p@h/+mongodb://v:q@i/"),
            "mongodb://u:***@h/+mongodb://v:***@i/"
        );
    }
}
