//! How much of the log's past a data directory keeps, if that was changed while it was open: a file of
//! two lines, which is whole or absent.
//!
//! ```text
//! max_bytes 1073741824
//! min_age_millis 3600000
//! ```

use errors::{Fallible, err};
use oplog::Window;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

const NAME: &str = "log-window";

/// `None` if it was not changed.
pub(crate) fn load(dir: &Path) -> Fallible<Option<Window>> {
    let path = dir.join(NAME);
    match fs::read_to_string(&path) {
        Ok(text) => parse(&text).map(Some).ok_or_else(|| {
            err!(
                UnsupportedFormat,
                "{} is damaged; without that file the window of the log is what the options say",
                path.display()
            )
        }),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(err!(FileNotOpen, "cannot read {}: {e}", path.display())),
    }
}

fn parse(text: &str) -> Option<Window> {
    let value = |name: &str| -> Option<u64> {
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(n, _)| *n == name)?.1.parse().ok()
    };
    Some(Window {
        max_bytes: value("max_bytes")?,
        min_age: Duration::from_millis(value("min_age_millis")?),
    })
}

pub(crate) fn save(dir: &Path, window: &Window) -> Fallible<()> {
    let draft = dir.join("log-window.new");
    let text = format!(
        "max_bytes {}\nmin_age_millis {}\n",
        window.max_bytes,
        window.min_age.as_millis()
    );
    let written = File::create(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, dir.join(NAME))?;
        File::open(dir)?.sync_all()
    });
    written.map_err(|e| {
        err!(
            OutOfDiskSpace,
            "cannot write the window of the log to {}: {e}",
            dir.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
        let window = Window {
            max_bytes: 7 << 30,
            min_age: Duration::from_millis(5_400_000),
        };
        save(dir.path(), &window).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(window));
        fs::write(dir.path().join(NAME), "max_bytes many\n").unwrap();
        assert!(load(dir.path()).unwrap_err().message.contains("log-window"));
    }
}
