//! PostgreSQL: protocol version 3 with prepared statements. `?layout=columns` (default) keeps a record as a row of text
//! columns, `?layout=jsonb` as one JSONB document beside its key.
//!
//! A request is Bind, Execute … and one Sync; its reply ends with ReadyForQuery. A batch of inserts is one implicit
//! transaction. Durability: `w1` is `synchronous_commit = off` (the log is written within 0.2 s), the others `on`.

mod dialect;
mod messages;
mod session;

use super::encryption::{Encryption, Route};
use super::mark::{self, Owner};
use super::{Dialect, Instruction, KeyRole, Table, TargetDatabase, Url, acknowledged_only};
use crate::fault::{Fault, Result};
use crate::report::{CollectionSizes, TargetInfo};
use crate::terms::WriteDurability;
use dialect::{PgDialect, quoted};
use session::Pg;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Columns,
    Jsonb,
}

pub struct Postgres {
    route: Route,
    text: String,
    layout: Layout,
}

impl Postgres {
    pub fn open(text: &str) -> Result<Postgres> {
        let url = Url::parse(text, 5432)?;
        let layout = match url.option("layout").unwrap_or("columns") {
            "columns" => Layout::Columns,
            "jsonb" => Layout::Jsonb,
            other => {
                return Err(Fault::Usage(format!(
                    "{}: layout={other} is not columns or jsonb",
                    url.text
                )));
            }
        };
        let encryption = Encryption::of_postgres(&url)?;
        Ok(Postgres {
            text: url.text.clone(),
            route: Route { url, encryption },
            layout,
        })
    }
}

impl TargetDatabase for Postgres {
    fn url(&self) -> &str {
        &self.text
    }

    fn info(&self) -> Result<TargetInfo> {
        let mut c = Pg::connect(&self.route)?;
        let mut settings = BTreeMap::new();
        for name in [
            "shared_buffers",
            "fsync",
            "full_page_writes",
            "wal_sync_method",
            "max_wal_size",
        ] {
            settings.insert(name.to_string(), c.value(&format!("SHOW {name}"))?);
        }
        if c.stream.is_encrypted() {
            settings.insert("tls".into(), "yes".into());
        }
        settings.insert("layout".into(), format!("{:?}", self.layout).to_lowercase());
        let version = c.value("SHOW server_version")?;
        let cache = c.value(
            "SELECT setting::bigint * 8192 FROM pg_settings WHERE name = 'shared_buffers'",
        )?;
        // The server process is the parent of the one that serves us.
        let pid = c
            .value("SELECT pg_backend_pid()")
            .ok()
            .and_then(|p| p.parse().ok());
        let local = self.route.url.host.is_local();
        // Only its superuser is told.
        let folder = c.value("SHOW data_directory").ok();
        let mut info = TargetInfo {
            url: self.text.clone(),
            product: match self.layout {
                Layout::Columns => "PostgreSQL".into(),
                Layout::Jsonb => "PostgreSQL JSONB".into(),
            },
            version: version.split(' ').next().unwrap_or_default().to_string(),
            pid: pid.filter(|_| local).and_then(crate::process::parent),
            cache_bytes: cache.parse().ok(),
            settings,
            ..TargetInfo::default()
        };
        info.keeps_data_in(folder, info.pid.is_some());
        Ok(info)
    }

    fn database(&self) -> Option<String> {
        self.route.url.database.clone()
    }

    fn owner(&self, table: &Table) -> Result<Owner> {
        let mut c = Pg::connect(&self.route)?;
        let name = quoted(&table.name);
        let comment = c.value(&format!(
            "SELECT CASE WHEN to_regclass('{name}') IS NULL THEN '-' \
             ELSE coalesce(obj_description(to_regclass('{name}'), 'pg_class'), '') END"
        ))?;
        Ok(match comment.as_str() {
            "-" => Owner::Nobody,
            mark::COMMENT => Owner::Ours,
            _ => Owner::Others,
        })
    }

    fn create(&self, table: &Table) -> Result<()> {
        mark::claim(self.owner(table)?, &self.text, &table.name)?;
        let mut c = Pg::connect(&self.route)?;
        let (name, key) = (quoted(&table.name), quoted(&table.key_name));
        c.run("SET client_min_messages = error")?;
        c.run(&format!("DROP TABLE IF EXISTS {name}"))?;
        let primary = if table.key == KeyRole::Primary {
            " PRIMARY KEY"
        } else {
            " NOT NULL"
        };
        let columns = match self.layout {
            Layout::Jsonb => "doc JSONB NOT NULL".to_string(),
            Layout::Columns => {
                let all: Vec<String> = table
                    .fields
                    .iter()
                    .map(|f| format!("{} TEXT", quoted(f)))
                    .collect();
                all.join(", ")
            }
        };
        c.run(&format!(
            "CREATE TABLE {name} ({key} VARCHAR(255) COLLATE \"C\"{primary}, {columns})"
        ))?;
        c.run(&format!("COMMENT ON TABLE {name} IS '{}'", mark::COMMENT))?;
        if table.key == KeyRole::Indexed {
            c.run(&format!("CREATE INDEX ON {name} ({key})"))?;
        }
        Ok(())
    }

    fn drop_table(&self, table: &Table) -> Result<()> {
        mark::claim(self.owner(table)?, &self.text, &table.name)?;
        let mut c = Pg::connect(&self.route)?;
        c.run("SET client_min_messages = error")?;
        c.run(&format!("DROP TABLE IF EXISTS {}", quoted(&table.name)))
    }

    fn count(&self, table: &Table) -> Result<u64> {
        let mut c = Pg::connect(&self.route)?;
        let name = quoted(&table.name);
        let there = c.value(&format!("SELECT to_regclass('{name}') IS NOT NULL"))?;
        if there != "t" {
            return Ok(0);
        }
        let n = c.value(&format!("SELECT count(*) FROM {name}"))?;
        n.parse()
            .map_err(|_| Fault::Target(format!("a count of '{n}'")))
    }

    fn sizes(&self, table: &Table, at: f64) -> Result<CollectionSizes> {
        let mut c = Pg::connect(&self.route)?;
        let name = quoted(&table.name);
        let row = c.row(&format!(
            "SELECT pg_table_size('{name}'), pg_indexes_size('{name}'), greatest(reltuples, 0)::bigint, \
             (SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = '{name}'::regclass) \
             FROM pg_class WHERE oid = '{name}'::regclass"
        ))?;
        let number = |i: usize| row.get(i).and_then(|v| v.parse().ok()).unwrap_or(0);
        Ok(CollectionSizes {
            at,
            documents: number(3).max(number(2)),
            data_bytes: number(0),
            storage_bytes: number(0),
            index_bytes: number(1),
            ..CollectionSizes::default()
        })
    }

    fn obey(&self, _: &str, order: &Instruction) -> Result<u64> {
        match order {
            Instruction::Sql(text) => Ok(Pg::connect(&self.route)?.query(text)?.len() as u64),
            Instruction::Command(_) => Err(Fault::Usage(format!("{}: SQL only", self.text))),
        }
    }

    fn dialect(&self, table: &Arc<Table>, durability: WriteDurability) -> Result<Box<dyn Dialect>> {
        acknowledged_only("PostgreSQL", durability)?;
        let dialect = PgDialect::new(&self.route, self.layout, durability, table);
        Ok(Box::new(dialect))
    }
}
