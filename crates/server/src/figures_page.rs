//! One page over HTTP, for programs that collect figures: `GET /metrics`.
//!
//! Invariant: one request at a time, of bounded size and for a bounded time; a slow or hostile client
//! holds up only other readers of the page.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Weak;
use std::time::{Duration, Instant};

const HEAD_BYTES: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves the text of `page`, until its last owner drops it. Gives the address that is listened on.
pub fn serve<P>(address: SocketAddr, page: Weak<P>) -> Result<SocketAddr, String>
where
    P: Fn() -> Result<String, String> + Send + Sync + 'static,
{
    let failed = |e: std::io::Error| format!("figures cannot be served on {address}: {e}");
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let run = move || {
        for client in listener.incoming() {
            let Some(page) = page.upgrade() else { return };
            if let Ok(client) = client {
                // A client that is gone misses the page.
                let _ = answer(client, &*page);
            }
        }
    };
    std::thread::Builder::new()
        .name("figures".into())
        .spawn(run)
        .map_err(failed)?;
    Ok(bound)
}

fn answer(mut client: TcpStream, page: &dyn Fn() -> Result<String, String>) -> std::io::Result<()> {
    let (status, text) = match requested_path(&mut client)? {
        Some(path) if path == "/metrics" => match page() {
            Ok(text) => ("200 OK", text),
            Err(why) => ("500 Internal Server Error", format!("{why}\n")),
        },
        Some(_) => ("404 Not Found", "The figures are at /metrics\n".into()),
        None => ("400 Bad Request", "Only GET is understood\n".into()),
    };
    client.set_write_timeout(Some(PATIENCE))?;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    client.write_all(head.as_bytes())?;
    client.write_all(text.as_bytes())
}

/// The path of a GET request; `None` for anything else.
fn requested_path(client: &mut TcpStream) -> std::io::Result<Option<String>> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                let path = request.path.filter(|_| request.method == Some("GET"));
                let path = path.map(|p| p.split('?').next().unwrap_or(p).to_string());
                return Ok(path);
            }
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES => {}
            _ => return Ok(None),
        }
        let left = until.saturating_duration_since(Instant::now());
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut part = [0; 1024];
        match client.read(&mut part)? {
            0 => return Ok(None),
            n => head.extend(part.iter().take(n)),
        }
        if Instant::now() > until {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn reply(to: SocketAddr, request: &[u8]) -> String {
        let mut client = TcpStream::connect(to).unwrap();
        client.write_all(request).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_page_is_given_and_all_else_is_refused() {
        let page = Arc::new(|| Ok("figure 1\n".to_string()));
        let at = serve("127.0.0.1:0".parse().unwrap(), Arc::downgrade(&page)).unwrap();
        let text = reply(at, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\nfigure 1\n"),
            "{text}"
        );
        assert!(reply(at, b"GET / HTTP/1.1\r\n\r\n").contains("404"));
        assert!(reply(at, b"POST /metrics HTTP/1.1\r\n\r\n").contains("400"));
        assert!(reply(at, b"\xff\xfe\r\n\r\n").contains("400"));
        assert!(reply(at, &[b'x'; HEAD_BYTES]).contains("400"));
    }
}
