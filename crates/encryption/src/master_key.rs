//! The master key: a file of the operator's, in the form that MongoDB and Percona Server have.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// 32 bytes that wrap data keys.
#[derive(Clone)]
pub struct MasterKey(pub(crate) [u8; 32]);

impl MasterKey {
    /// A file with 32 bytes in base64, as `openssl rand -base64 32` makes them, that only its owner may
    /// read. The error is a sentence that names the file, and never its content.
    pub fn load(path: &Path) -> Result<MasterKey, String> {
        let shown = path.display();
        let fail = |e: std::io::Error| format!("cannot read the encryption key file {shown}: {e}");
        let mode = fs::metadata(path).map_err(fail)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(format!(
                "permissions on {shown} are too open: only its owner may read an encryption key file (chmod 600)"
            ));
        }
        let text = fs::read_to_string(path).map_err(fail)?;
        let bytes = BASE64_STANDARD.decode(text.trim()).ok();
        let key = bytes.and_then(|b| b.try_into().ok());
        key.map(MasterKey).ok_or_else(|| {
            format!(
                "{shown} is no encryption key: it should have 32 bytes in base64, as openssl rand -base64 32 makes them"
            )
        })
    }

    /// What tells one key from another, and nothing else of it.
    pub(crate) fn id(&self) -> [u8; 8] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let tag = hmac::sign(&key, b"pando master key id");
        let mut id = [0; 8];
        id.iter_mut()
            .zip(tag.as_ref())
            .for_each(|(to, from)| *to = *from);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let put = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            MasterKey::load(&path).map(|k| k.0)
        };
        let base64 = BASE64_STANDARD.encode([7; 32]);
        assert_eq!(put(&format!("{base64}\n"), 0o600).unwrap(), [7; 32]);
        for (text, mode, says) in [
            (base64.as_str(), 0o640, "too open"),
            ("", 0o600, "32 bytes"),
            (&BASE64_STANDARD.encode([1; 31]), 0o400, "32 bytes"),
        ] {
            let why = put(text, mode).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        assert!(MasterKey::load(&dir.path().join("none")).is_err());
    }
}
