//! The files of the page, compressed in the binary.
//!
//! Invariant: only these files are served; a path never reaches the file system.

use flate2::read::GzDecoder;
use std::io::Read;

const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

pub struct Asset {
    pub content_type: &'static str,
    /// Compressed by gzip.
    pub gzip: &'static [u8],
}

impl Asset {
    pub fn plain(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        let read = GzDecoder::new(self.gzip).read_to_end(&mut plain);
        assert!(read.is_ok(), "an asset was compressed when this was built");
        plain
    }
}

pub fn find(path: &str) -> Option<Asset> {
    let path = if path == "/" { "/index.html" } else { path };
    let (name, gzip) = FILES.iter().find(|(name, _)| *name == path)?;
    Some(Asset {
        content_type: content_type(name),
        gzip,
    })
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_there_and_nothing_else() {
        let page = find("/").unwrap();
        assert_eq!(page.content_type, "text/html; charset=utf-8");
        assert!(page.plain().starts_with(b"<!doctype html>"));
        for path in [
            "",
            "/index",
            "/../Cargo.toml",
            "/%2e%2e/Cargo.toml",
            "/assets/index.html",
            "//index.html",
        ] {
            assert!(find(path).is_none(), "{path}");
        }
    }

    /// No file of the page names another place to load from, but for the licences' addresses.
    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for (name, _) in FILES {
            let text = String::from_utf8(find(name).unwrap().plain()).unwrap();
            for line in text.lines().filter(|l| l.contains("://")) {
                let harmless = line.contains("http://www.w3.org/")
                    || line.contains("github.com/leeoniya/uPlot");
                assert!(harmless, "{name} names another place");
            }
        }
    }
}
