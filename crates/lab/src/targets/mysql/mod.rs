//! MySQL and MariaDB: the client/server protocol with prepared statements; a batch of inserts is one statement of text.
//! `?engine=innodb|myisam|aria` chooses the storage engine of the tables.
//!
//! Statements are prepared on every connection in the same order, so that their numbers are their places behind the
//! connection's first; requests are made with the places and fitted to the connection when they are sent. Durability, for
//! InnoDB: `w1` asks for `innodb_flush_log_at_trx_commit = 2` (written at once, synced each second), the others for 1. MyISAM
//! and Aria know no such promise: their tables take every durability and keep none.

mod dialect;
mod packets;
mod session;

use super::encryption::{Encryption, Route};
use super::mark::{self, Owner};
use super::{Dialect, KeyRole, Table, TargetDatabase, Url, acknowledged_only};
use crate::changed::{self, ChangedSetting};
use crate::fault::{Fault, Result};
use crate::report::{CollectionSizes, TargetInfo};
use crate::scratch;
use crate::terms::WriteDurability;
use dialect::{MyDialect, full_name, quoted};
use session::My;
use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;

pub struct MySql {
    route: Route,
    text: String,
    /// As it was given, with its password.
    given: String,
    engine: &'static str,
}

/// How InnoDB's log is synced: 1 with each commit; 0 and 2 each second.
const FLUSH: &str = "innodb_flush_log_at_trx_commit";

/// Sets a server's setting back to what it was.
pub fn set_back(setting: &ChangedSetting) -> Result<()> {
    let is_known = setting.name == FLUSH && matches!(&*setting.value, "0" | "1" | "2" | "3");
    if !is_known {
        return Err(Fault::Local(format!(
            "'{} = {}' is no setting that is ever changed",
            setting.name, setting.value
        )));
    }
    let server = MySql::open(&setting.url)?;
    let mut c = My::connect(&server.route)?;
    c.run(&format!("SET GLOBAL {FLUSH} = {}", setting.value))
}

const ENGINES: [&str; 3] = ["InnoDB", "MyISAM", "Aria"];

impl MySql {
    pub fn open(text: &str) -> Result<MySql> {
        let url = Url::parse(text, 3306)?;
        let asked = url.option("engine").unwrap_or("innodb");
        let Some(engine) = ENGINES.iter().find(|e| e.eq_ignore_ascii_case(asked)) else {
            return Err(Fault::Usage(format!(
                "{}: engine={asked} is not innodb, myisam or aria",
                url.text
            )));
        };
        let encryption = Encryption::of_mysql(&url)?;
        Ok(MySql {
            text: url.text.clone(),
            given: text.to_string(),
            route: Route { url, encryption },
            engine,
        })
    }
}

impl MySql {
    /// Whether the laboratory has started the server: its data lies in a folder of ours.
    fn is_of_the_laboratory(&self, c: &mut My) -> bool {
        let is_ours = |part: Component<'_>| {
            let name = part.as_os_str().to_string_lossy();
            name.starts_with(scratch::PREFIX)
        };
        self.route.url.host.is_local()
            && c.value("SELECT @@datadir")
                .is_ok_and(|dir| Path::new(&dir).components().any(is_ours))
    }

    /// What the table's file takes of the disk; MariaDB and MySQL name their list of files differently.
    fn tablespace(&self, c: &mut My, table: &Table) -> Option<u64> {
        let lists = ["innodb_sys_tablespaces", "innodb_tablespaces"];
        lists.iter().find_map(|list| {
            let size = c.value(&format!(
                "SELECT allocated_size FROM information_schema.{list} WHERE name = '{}/{}'",
                table.database, table.name
            ));
            size.ok()?.parse().ok()
        })
    }
}

impl TargetDatabase for MySql {
    fn url(&self) -> &str {
        &self.text
    }

    /// The setting is one of the whole server: unless we have started it, it is changed with `--change-settings` only. Without it a server that syncs more
    /// than was asked for is measured as it is, which its settings on the page say; one that syncs less is refused.
    fn ready(&self, durability: WriteDurability) -> Result<()> {
        acknowledged_only("MySQL", durability)?;
        if self.engine != "InnoDB" {
            return Ok(());
        }
        let mut c = My::connect(&self.route)?;
        let is = c.value(&format!("SELECT @@{FLUSH}"))?;
        let asked = if durability == WriteDurability::W1 {
            "2"
        } else {
            "1"
        };
        if is == asked {
            return Ok(());
        }
        let set = format!("SET GLOBAL {FLUSH} = {asked}");
        if self.is_of_the_laboratory(&mut c) {
            return c.run(&set);
        }
        if changed::is_allowed() {
            changed::remember(ChangedSetting {
                url: self.given.clone(),
                name: FLUSH.into(),
                value: is,
            })?;
            return c.run(&set);
        }
        if is == "1" {
            return Ok(());
        }
        Err(Fault::Usage(format!(
            "{}: {FLUSH} is {is}, and --durability {} needs {asked}: --change-settings sets it for the run, and sets it back",
            self.text,
            durability.name()
        )))
    }

    fn info(&self) -> Result<TargetInfo> {
        let mut c = My::connect(&self.route)?;
        let version = c.value("SELECT VERSION()")?;
        let mut settings = BTreeMap::new();
        settings.insert("engine".to_string(), self.engine.to_string());
        if c.stream.is_encrypted() {
            settings.insert("tls".into(), "yes".into());
        }
        let cache = match self.engine {
            "MyISAM" => "key_buffer_size",
            "Aria" => "aria_pagecache_buffer_size",
            _ => "innodb_buffer_pool_size",
        };
        for name in [
            "innodb_flush_log_at_trx_commit",
            "innodb_doublewrite",
            "sync_binlog",
            "log_bin",
            cache,
        ] {
            if let Ok(value) = c.value(&format!("SELECT @@{name}")) {
                settings.insert(name.to_string(), value);
            }
        }
        let maria = version.contains("MariaDB");
        let pid = c
            .value("SELECT @@pid_file")
            .ok()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let local = self.route.url.host.is_local();
        let folder = c.value("SELECT @@datadir").ok();
        let mut info = TargetInfo {
            url: self.text.clone(),
            product: format!(
                "{} {}",
                if maria { "MariaDB" } else { "MySQL" },
                self.engine
            ),
            version: version.split('-').next().unwrap_or_default().to_string(),
            pid: pid.filter(|_| local).and_then(|p| p.trim().parse().ok()),
            cache_bytes: settings.get(cache).and_then(|v| v.parse().ok()),
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
        let mut c = My::connect(&self.route)?;
        let rows = c.query(&format!(
            "SELECT table_comment FROM information_schema.tables \
             WHERE table_schema = '{}' AND table_name = '{}'",
            table.database, table.name
        ))?;
        Ok(match rows.first().and_then(|r| r.first()) {
            None => Owner::Nobody,
            Some(comment) if comment == mark::COMMENT => Owner::Ours,
            Some(_) => Owner::Others,
        })
    }

    fn create(&self, table: &Table) -> Result<()> {
        mark::claim(self.owner(table)?, self.url(), &table.name)?;
        let mut c = My::connect(&self.route)?;
        c.run(&format!(
            "CREATE DATABASE IF NOT EXISTS {}",
            quoted(&table.database)
        ))?;
        let (name, key) = (full_name(table), quoted(&table.key_name));
        c.run(&format!("DROP TABLE IF EXISTS {name}"))?;
        let mut columns = vec![format!(
            "{key} VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
        )];
        columns.extend(
            table
                .fields
                .iter()
                .map(|f| format!("{} TEXT CHARACTER SET ascii", quoted(f))),
        );
        match table.key {
            KeyRole::Primary => columns.push(format!("PRIMARY KEY ({key})")),
            KeyRole::Indexed => columns.push(format!("KEY ({key})")),
            KeyRole::Unkeyed => {}
        }
        c.run(&format!(
            "CREATE TABLE {name} ({}) ENGINE={} COMMENT='{}'",
            columns.join(", "),
            self.engine,
            mark::COMMENT
        ))
    }

    fn drop_table(&self, table: &Table) -> Result<()> {
        mark::claim(self.owner(table)?, self.url(), &table.name)?;
        let mut c = My::connect(&self.route)?;
        let db = c.query(&format!("SHOW DATABASES LIKE '{}'", table.database))?;
        if db.is_empty() {
            return Ok(());
        }
        c.run(&format!("DROP TABLE IF EXISTS {}", full_name(table)))
    }

    fn count(&self, table: &Table) -> Result<u64> {
        let mut c = My::connect(&self.route)?;
        let there = c.value(&format!(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{}' AND table_name = '{}'",
            table.database, table.name
        ))?;
        if there == "0" {
            return Ok(0);
        }
        let n = c.value(&format!("SELECT COUNT(*) FROM {}", full_name(table)))?;
        n.parse()
            .map_err(|_| Fault::Target(format!("a count of '{n}'")))
    }

    fn sizes(&self, table: &Table, at: f64) -> Result<CollectionSizes> {
        let mut c = My::connect(&self.route)?;
        let rows = c.query(&format!(
            "SELECT table_rows, data_length, index_length, data_free FROM information_schema.tables \
             WHERE table_schema = '{}' AND table_name = '{}'",
            table.database, table.name
        ))?;
        let number = |i: usize| {
            rows.first()
                .and_then(|r| r.get(i)?.parse().ok())
                .unwrap_or(0)
        };
        // InnoDB's figures are estimates; the file that holds the rows and all indexes is not. MyISAM and Aria have them exact.
        let file = (self.engine == "InnoDB").then(|| self.tablespace(&mut c, table));
        let file = file.flatten().map(|size| size.saturating_sub(number(2)));
        Ok(CollectionSizes {
            at,
            documents: number(0),
            data_bytes: file.unwrap_or(number(1)),
            storage_bytes: file.unwrap_or(number(1) + number(3)),
            index_bytes: number(2),
            ..CollectionSizes::default()
        })
    }

    fn dialect(&self, table: &Arc<Table>, durability: WriteDurability) -> Result<Box<dyn Dialect>> {
        acknowledged_only("MySQL", durability)?;
        Ok(Box::new(MyDialect::new(&self.route, table)))
    }
}
