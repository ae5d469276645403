//! Logins and TLS with the Rust driver, as an application uses them, against the built server.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use mongodb::error::{Error, ErrorKind};
use mongodb::{Client, error};

/// The server, killed when the test is over, and its certificates.
struct Server {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Server {
    /// Requires logins and TLS; has a user `root`, and one named by the certificate client.pem.
    async fn start() -> Server {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let made = Command::new("bash")
            .arg(here.join("../certificates.sh"))
            .arg(folder.path())
            .status();
        assert!(made.unwrap().success());
        let binary = std::env::var_os("PANDO_BIN")
            .map_or_else(|| here.join("../../target/debug/pando"), PathBuf::from);
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        drop(probe);
        let child = Command::new(&binary)
            .args(["serve", "--port", &port.to_string(), "--auth", "--dbpath"])
            .arg(at("data"))
            .args(["--tlsMode", "requireTLS", "--tlsCertificateKeyFile"])
            .arg(at("server.pem"))
            .args(["--tlsAllowConnectionsWithoutCertificates", "--tlsCAFile"])
            .arg(at("authority.pem"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", binary.display()));
        let mut server = Server {
            child,
            port,
            folder,
        };
        server.make_users().await;
        server
    }

    async fn make_users(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let first = self.client("", "").await;
        let root = doc! { "createUser": "root", "pwd": "secret", "roles": ["root"] };
        while let Err(e) = first.database("admin").run_command(root.clone()).await {
            assert!(self.child.try_wait().unwrap().is_none(), "the server ended");
            assert!(Instant::now() < deadline, "{e}");
        }
        let role = doc! { "role": "readWrite", "db": "shop" };
        let ann = doc! { "createUser": "CN=ann,O=Pando", "roles": [role] };
        let root = self.client("root:secret@", "").await;
        root.database("$external").run_command(ann).await.unwrap();
    }

    async fn client(&self, login: &str, options: &str) -> Client {
        let uri = format!(
            "mongodb://{login}localhost:{}/?directConnection=true&serverSelectionTimeoutMS=5000&tls=true&tlsCAFile={}{options}",
            self.port,
            self.folder.path().join("authority.pem").display()
        );
        Client::with_uri_str(uri).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn who(client: &Client) -> error::Result<String> {
    let status = client
        .database("admin")
        .run_command(doc! { "connectionStatus": 1 })
        .await?;
    let info = status.get_document("authInfo").unwrap();
    let user = info.get_array("authenticatedUsers").unwrap()[0].as_document();
    Ok(user.unwrap().get_str("user").unwrap().to_string())
}

fn is_refused(e: &Error) -> bool {
    matches!(&*e.kind, ErrorKind::Command(c) if c.code == 13)
}

#[tokio::test]
async fn logins() {
    let server = Server::start().await;
    for mechanism in [
        "",
        "&authMechanism=SCRAM-SHA-256",
        "&authMechanism=SCRAM-SHA-1",
    ] {
        let right = server.client("root:secret@", mechanism).await;
        assert_eq!(who(&right).await.unwrap(), "root", "{mechanism}");
        let wrong = server.client("root:other@", mechanism).await;
        let e = who(&wrong).await.unwrap_err();
        assert!(
            matches!(&*e.kind, ErrorKind::Authentication { .. }),
            "{mechanism}: {e}"
        );
    }
    let certificate = server.folder.path().join("client.pem");
    let by_certificate = format!(
        "&authMechanism=MONGODB-X509&tlsCertificateKeyFile={}",
        certificate.display()
    );
    let ann = server.client("", &by_certificate).await;
    assert_eq!(who(&ann).await.unwrap(), "CN=ann,O=Pando");
    let things = ann.database("shop").collection::<Document>("things");
    things.insert_one(doc! { "_id": "rust" }).await.unwrap();
    let others = ann.database("other").collection::<Document>("things");
    assert!(is_refused(&others.find_one(doc! {}).await.unwrap_err()));
    let nobody = server.client("", "").await;
    let things = nobody.database("shop").collection::<Document>("things");
    assert!(is_refused(&things.find_one(doc! {}).await.unwrap_err()));
}
