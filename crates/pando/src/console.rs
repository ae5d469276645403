//! The wiring of the console: where it listens, and what it is told of the process.
//!
//! Invariant: without an address in the configuration, a console that cannot listen is a warning only,
//! and the server goes on.

use commands::Commands;
use console::{Console, ConsoleOptions, Process, TlsSource};
use router::Router;
use server::tls::Tls;
use service::config::{CONSOLE_PORT_OFFSET, ConsoleAt, ServerConfig};
use service::{Control, Service};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

/// Opens the socket that the configuration asks for.
pub fn listen(config: &ServerConfig) -> Result<Option<TcpListener>, String> {
    let warn = |why: &str| {
        tracing::warn!(target: "NETWORK", ctx = "initandlisten", startup_warning = true,
            "There is no console (see --console): {why}");
    };
    let listener = match config.console {
        ConsoleAt::Off => return Ok(None),
        ConsoleAt::Address { address, .. } => console::listen(address)?,
        ConsoleAt::Loopback => {
            let Some(port) = config.port.checked_add(CONSOLE_PORT_OFFSET) else {
                warn("there is no port so far above the server's");
                return Ok(None);
            };
            match console::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) {
                Ok(listener) => listener,
                Err(why) => {
                    warn(&why);
                    return Ok(None);
                }
            }
        }
    };
    if let Some(url) = address_of(config, &listener) {
        tracing::info!(target: "NETWORK", ctx = "listener", address = url, "The console is served over HTTP");
    }
    Ok(Some(listener))
}

/// The page's address, for people.
pub fn address_of(config: &ServerConfig, listener: &TcpListener) -> Option<String> {
    let address = listener.local_addr().ok()?;
    let scheme = if is_encrypted(config) {
        "https"
    } else {
        "http"
    };
    Some(format!("{scheme}://{address}/"))
}

/// Loopback is not overheard, and no certificate has that name: TLS there only on request.
fn is_encrypted(config: &ServerConfig) -> bool {
    matches!(
        config.console,
        ConsoleAt::Address {
            encrypted: true,
            ..
        }
    )
}

pub struct ConsoleStart<'a> {
    pub config: &'a ServerConfig,
    pub listener: Option<TcpListener>,
    pub control: Arc<Control>,
    pub tls: Option<Arc<Tls>>,
}

impl ConsoleStart<'_> {
    pub fn of_server(self, commands: &Arc<Commands>) -> Result<Option<Console>, String> {
        let [asked, measured] = [commands.clone(), commands.clone()];
        let process = Process {
            ask: Box::new(move |command| asked.ask_own(command)),
            disk: Box::new(move || measured.disk()),
        };
        self.of(commands, process)
    }

    pub fn of_router(self, router: &Arc<Router>) -> Result<Option<Console>, String> {
        let [asked, measured] = [router.clone(), router.clone()];
        let process = Process {
            ask: Box::new(move |command| asked.ask_own(command)),
            disk: Box::new(move || measured.disk()),
        };
        self.of(router, process)
    }

    fn of<S: Service>(self, service: &Arc<S>, process: Process) -> Result<Option<Console>, String> {
        let Some(listener) = self.listener else {
            return Ok(None);
        };
        let tls = self.tls.filter(|_| is_encrypted(self.config));
        let tls = tls.map(|tls| Box::new(move || tls.config()) as TlsSource);
        let options = ConsoleOptions {
            listener,
            tls,
            authorization: self.config.security.authorization,
            names: names(self.config),
        };
        console::start(options, service.clone(), self.control, process).map(Some)
    }
}

/// The names that the server was told to have.
fn names(config: &ServerConfig) -> Vec<String> {
    let advertised = config.advertise.as_deref();
    let advertised = advertised
        .and_then(|a| a.rsplit_once(':'))
        .map(|(host, _)| host);
    let bound = config.bind.iter().map(String::as_str);
    bound.chain(advertised).map(String::from).collect()
}
