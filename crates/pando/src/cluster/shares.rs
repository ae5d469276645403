//! What the servers of one machine share: cores, memory, ports for their figures.

use crate::memory;

/// No server works well with less.
const LEAST_CACHE_MB: u64 = 16;

/// The option by which the router and the primaries of shards share the machine's cores: with more
/// event loops than there are cores each turn of one serves fewer requests, and costs as much.
pub(super) fn shared_cores(shards: Option<u16>, given: &[String]) -> Vec<String> {
    let names = |word: &String| word.split('=').next() == Some("--event-loops");
    let Some(shards) = shards.filter(|_| !given.iter().any(names)) else {
        return Vec::new();
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let loops = (cores / (usize::from(shards) + 1)).max(1);
    vec!["--event-loops".into(), loops.to_string()]
}

/// The options of one of so many servers, whose port is so far behind the first one. What it has of the memory is found when
/// it starts: a deployment grows and shrinks.
pub(super) fn options_of(
    given: &[String],
    servers: usize,
    behind: u16,
) -> Result<Vec<String>, String> {
    let mut options = with_own_metrics(given, behind)?;
    options.extend(shared_memory(servers, given));
    Ok(options)
}

/// The option by which all servers share half of the memory. One alone takes what it takes by itself.
fn shared_memory(servers: usize, given: &[String]) -> Vec<String> {
    let names = |word: &String| {
        let name = word.split('=').next();
        matches!(
            name,
            Some("--cache" | "--wiredTigerCacheSizeGB" | "--wiredTigerCacheSizePct")
        )
    };
    if servers < 2 || given.iter().any(names) {
        return Vec::new();
    }
    let memory = memory::available_bytes();
    let part = memory / 2 / servers as u64;
    let cache = part.min(memory::default_cache_bytes(memory));
    vec![
        "--cache".into(),
        format!("{}MB", (cache >> 20).max(LEAST_CACHE_MB)),
    ]
}

/// The options of a server whose port is so far behind the first one: each has a port of its own for
/// its figures.
fn with_own_metrics(given: &[String], behind: u16) -> Result<Vec<String>, String> {
    let mut options = given.to_vec();
    let is_metrics = |word: &String| word == "--metrics" || word.starts_with("--metrics=");
    let Some(found) = options.iter().position(is_metrics) else {
        return Ok(options);
    };
    let own = |text: &str| -> Result<String, String> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (format!("{host}:"), port),
            None => (String::new(), text),
        };
        let first: u16 = port
            .parse()
            .map_err(|_| format!("--metrics wants a port, not '{text}'"))?;
        let port = first
            .checked_add(behind)
            .ok_or("there are no ports above 65535 for --metrics")?;
        Ok(format!("{host}{port}"))
    };
    if let Some(text) = options
        .get(found)
        .and_then(|w| w.strip_prefix("--metrics="))
    {
        let text = own(text)?;
        options[found] = format!("--metrics={text}");
    } else if let Some(text) = options.get(found + 1) {
        let text = own(text)?;
        options[found + 1] = text;
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_shards_share_the_cores() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(shared_cores(Some(100), &[]), words("--event-loops 1"));
        assert!(shared_cores(None, &[]).is_empty());
        assert!(shared_cores(Some(2), &words("--event-loops 4")).is_empty());
        assert!(shared_cores(Some(2), &words("--event-loops=4")).is_empty());
    }

    #[test]
    fn servers_share_the_memory() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        let megabytes = |servers| {
            let option = shared_memory(servers, &[]);
            assert_eq!(option[0], "--cache");
            option[1].trim_end_matches("MB").parse::<u64>().unwrap()
        };
        let all = memory::available_bytes() >> 20;
        for servers in [3, 13, 40] {
            let sum = megabytes(servers) * servers as u64;
            assert!(
                sum <= all / 2 || megabytes(servers) == LEAST_CACHE_MB,
                "{servers}: {sum}"
            );
        }
        assert!(shared_memory(1, &[]).is_empty());
        assert!(shared_memory(13, &words("--cache 64MB")).is_empty());
        assert!(shared_memory(13, &words("--wiredTigerCacheSizeGB=1")).is_empty());
    }

    #[test]
    fn each_server_has_a_port_for_its_figures() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        for (given, at, own) in [
            ("--quiet --metrics 9216", 2, "--quiet --metrics 9218"),
            ("--metrics=127.0.0.1:9216", 1, "--metrics=127.0.0.1:9217"),
            ("--quiet", 5, "--quiet"),
        ] {
            assert_eq!(with_own_metrics(&words(given), at), Ok(words(own)));
        }
        assert!(with_own_metrics(&words("--metrics 65535"), 1).is_err());
        assert!(with_own_metrics(&words("--metrics x"), 1).is_err());
    }
}
