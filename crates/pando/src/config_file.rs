//! A configuration file in mongod's format: YAML, nested by dots; or the format from before it, a flag a line (`port = 27017`).

use std::path::Path;

use saphyr::{LoadableYamlNode, Scalar, Yaml};

use crate::options::{FLAGS, FlagValue, Options, is_key};

pub fn read(path: &Path) -> Result<Options, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("cannot read the configuration file {}: {e}", path.display()))?;
    parse(&text, &path.display().to_string())
}

fn parse(text: &str, file: &str) -> Result<Options, String> {
    if let Some(lines) = flags(text) {
        return from_flags(&lines, file);
    }
    let documents = Yaml::load_from_str(text).map_err(|e| format!("{file} is not YAML: {e}"))?;
    let mut options = Options::default();
    match documents.as_slice() {
        [] => {}
        [one] => walk(one, "", file, &mut options)?,
        _ => return Err(format!("{file} has more than one YAML document")),
    }
    Ok(options)
}

/// The names and values of a file of the old format; `None` where a line is none of it.
fn flags(text: &str) -> Option<Vec<(&str, &str)>> {
    let lines = text.lines().map(str::trim);
    let lines: Vec<_> = lines
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .map(|line| {
            let (name, value) = line.split_once('=')?;
            let (name, value) = (name.trim(), value.trim());
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            (!name.is_empty() && name.chars().all(is_word)).then_some((name, value))
        })
        .collect::<Option<_>>()?;
    (!lines.is_empty()).then_some(lines)
}

fn from_flags(lines: &[(&str, &str)], file: &str) -> Result<Options, String> {
    let mut options = Options::default();
    for (name, value) in lines {
        let flag = FLAGS.iter().find(|f| f.names.contains(name));
        let flag = flag.ok_or_else(|| format!("Unrecognized option: {name} (in {file})"))?;
        let origin = format!("{name} in {file}");
        match flag.takes {
            FlagValue::Fixed(fixed) if *value == "true" => options.set(flag.key, fixed, origin)?,
            FlagValue::Fixed(_) if *value == "false" => {}
            FlagValue::Fixed(_) => {
                return Err(format!("{origin} wants true or false, not '{value}'"));
            }
            FlagValue::Value(_) | FlagValue::Switch => options.set(flag.key, *value, origin)?,
        }
    }
    Ok(options)
}

fn walk(node: &Yaml<'_>, key: &str, file: &str, options: &mut Options) -> Result<(), String> {
    if let Yaml::Mapping(fields) = node {
        for (name, value) in fields {
            let name =
                scalar(name).ok_or_else(|| format!("{file}: a name under '{key}' is not text"))?;
            if matches!(name.as_str(), "__rest" | "__exec") {
                return Err(format!("{file}: expansion with {name} is not supported"));
            }
            let path = if key.is_empty() {
                name
            } else {
                format!("{key}.{name}")
            };
            walk(value, &path, file, options)?;
        }
        return Ok(());
    }
    if let Yaml::Value(Scalar::Null) = node {
        return Ok(()); // a section with nothing in it
    }
    let value = match node {
        Yaml::Sequence(items) => items
            .iter()
            .map(scalar)
            .collect::<Option<Vec<_>>>()
            .map(|items| items.join(",")),
        other => scalar(other),
    };
    let value = value.ok_or_else(|| format!("{file}: the value of {key} is of no use"))?;
    let origin = format!("{key} in {file}");
    match key.strip_prefix("setParameter.") {
        Some(parameter) => options.set("setParameter", format!("{parameter}={value}"), origin),
        None if is_key(key) => options.set(key, value, origin),
        None => Err(format!("Unrecognized option: {key} (in {file})")),
    }
}

fn scalar(node: &Yaml<'_>) -> Option<String> {
    match node {
        Yaml::Value(Scalar::Boolean(b)) => Some(b.to_string()),
        Yaml::Value(Scalar::Integer(i)) => Some(i.to_string()),
        Yaml::Value(Scalar::FloatingPoint(f)) => Some(f.to_string()),
        Yaml::Value(Scalar::String(s)) => Some(s.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_file() {
        let text = "
systemLog:
  destination: file
  path: /var/log/x.log
  logAppend: true
storage:
  dbPath: /var/lib/x
  wiredTiger: { engineConfig: { cacheSizeGB: 0.5 } }
net:
  port: 27018
  bindIp: [127.0.0.1, ::1]
replication:
  replSetName: 'rs1'
security:
#processManagement:
setParameter:
  enableTestCommands: 1
";
        let options = parse(text, "x.conf").unwrap();
        let get = |k: &str| options.keys.get(k).map(|g| g.value.as_str());
        assert_eq!(get("systemLog.logAppend"), Some("true"));
        assert_eq!(
            get("storage.wiredTiger.engineConfig.cacheSizeGB"),
            Some("0.5")
        );
        assert_eq!(get("net.port"), Some("27018"));
        assert_eq!(get("net.bindIp"), Some("127.0.0.1,::1"));
        assert_eq!(get("replication.replSetName"), Some("rs1"));
        assert_eq!(
            options.parameters,
            [("enableTestCommands".into(), "1".into())]
        );
        assert_eq!(options.keys["net.port"].origin, "net.port in x.conf");
    }

    #[test]
    fn the_format_of_old() {
        let text = "# as of 2.4\ndbpath=/var/lib/x\n\nport = 27018\nbind_ip = 127.0.0.1,::1\nnojournal = true\nnoauth = false\nsetParameter = a=b\n";
        let options = parse(text, "x.conf").unwrap();
        let get = |k: &str| options.keys.get(k).map(|g| g.value.as_str());
        assert_eq!(get("storage.dbPath"), Some("/var/lib/x"));
        assert_eq!(get("net.port"), Some("27018"));
        assert_eq!(get("net.bindIp"), Some("127.0.0.1,::1"));
        assert_eq!(get("storage.journal.enabled"), Some("false"));
        assert_eq!(get("security.authorization"), None);
        assert_eq!(options.parameters, [("a".into(), "b".into())]);
        assert_eq!(options.keys["net.port"].origin, "port in x.conf");
        for (text, says) in [
            ("prot = 1", "Unrecognized option: prot"),
            ("noauth = x", "noauth in x.conf wants true or false"),
        ] {
            let error = parse(text, "x.conf").unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn mistakes() {
        for (text, says) in [
            ("net:\n  prot: 1", "Unrecognized option: net.prot"),
            ("net: 1", "Unrecognized option: net"),
            ("net:\n\tport: 1", "is not YAML"),
            ("net: { port: { __exec: x } }", "__exec"),
            ("a: 1\n---\nb: 1", "more than one"),
        ] {
            let error = parse(text, "x.conf").unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert!(parse("", "x.conf").unwrap().keys.is_empty());
    }
}
