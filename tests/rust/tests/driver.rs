//! The Rust driver, as an application uses it, against the built server.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};
use mongodb::error::{
    Error, ErrorKind, Result, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
    WriteFailure,
};
use mongodb::options::{IndexOptions, ReturnDocument, WriteConcern};
use mongodb::{Client, ClientSession, Collection, IndexModel};
use serde::{Deserialize, Serialize};

/// The server, killed when the test is over.
struct Server {
    child: Child,
    port: u16,
    _data: tempfile::TempDir,
}

impl Server {
    async fn start() -> Server {
        let binary = std::env::var_os("PANDO_BIN")
            .map(PathBuf::from)
            .unwrap_or_else(|| {
                PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/debug/pando")
            });
        let data = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let child = Command::new(&binary)
            .args(["serve", "--port", &port.to_string(), "--dbpath"])
            .arg(data.path().join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", binary.display()));
        let mut server = Server {
            child,
            port,
            _data: data,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let client = server.client("").await;
        while client
            .database("admin")
            .run_command(doc! { "ping": 1 })
            .await
            .is_err()
        {
            assert!(
                server.child.try_wait().unwrap().is_none(),
                "the server ended"
            );
            assert!(Instant::now() < deadline, "the server does not answer");
        }
        server
    }

    async fn client(&self, options: &str) -> Client {
        let uri = format!(
            "mongodb://127.0.0.1:{}/?serverSelectionTimeoutMS=5000{options}",
            self.port
        );
        Client::with_uri_str(uri).await.unwrap()
    }

    async fn things(&self) -> Collection<Document> {
        self.client("").await.database("rust").collection("things")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Book {
    #[serde(rename = "_id")]
    id: i32,
    title: String,
    pages: i64,
    tags: Vec<String>,
}

#[tokio::test]
async fn typed_documents() {
    let server = Server::start().await;
    let books: Collection<Book> = server.things().await.clone_with_type();
    let book = |id, pages| Book {
        id,
        title: format!("Book {id}"),
        pages,
        tags: vec!["x".into()],
    };
    assert_eq!(
        books
            .insert_many((0..200).map(|i| book(i, i as i64 * 3)))
            .await
            .unwrap()
            .inserted_ids
            .len(),
        200
    );
    let found: Vec<Book> = books
        .find(doc! { "pages": { "$gte": 590 } })
        .sort(doc! { "pages": -1 })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(found, [199, 198, 197].map(|i| book(i, i as i64 * 3)));
    let mut all = books.find(doc! {}).batch_size(7).await.unwrap();
    let mut count = 0;
    while let Some(b) = all.next().await {
        b.unwrap();
        count += 1;
    }
    assert_eq!(count, 200);
}

#[tokio::test]
async fn writes() {
    let server = Server::start().await;
    let things = server.things().await;
    let id = things
        .insert_one(doc! { "a": 1 })
        .await
        .unwrap()
        .inserted_id;
    assert!(matches!(id, Bson::ObjectId(_)));
    let updated = things
        .update_one(
            doc! { "a": 1 },
            doc! { "$set": { "b": [1, 2] }, "$inc": { "a": 1 } },
        )
        .await
        .unwrap();
    assert_eq!((updated.matched_count, updated.modified_count), (1, 1));
    let upserted = things
        .update_one(doc! { "_id": 7 }, doc! { "$set": { "x": 1 } })
        .upsert(true)
        .await
        .unwrap();
    assert_eq!(upserted.upserted_id, Some(Bson::Int32(7)));
    let after = things
        .find_one_and_update(doc! { "_id": 7 }, doc! { "$push": { "l": 1 } })
        .return_document(ReturnDocument::After)
        .await
        .unwrap();
    assert_eq!(after, Some(doc! { "_id": 7, "x": 1, "l": [1] }));
    things
        .replace_one(doc! { "_id": 7 }, doc! { "y": 2 })
        .await
        .unwrap();
    assert_eq!(
        things.find_one_and_delete(doc! { "_id": 7 }).await.unwrap(),
        Some(doc! { "_id": 7, "y": 2 })
    );
    assert_eq!(things.delete_many(doc! {}).await.unwrap().deleted_count, 1);
    assert_eq!(things.count_documents(doc! {}).await.unwrap(), 0);
}

#[tokio::test]
async fn errors() {
    let server = Server::start().await;
    let things = server.things().await;
    things.insert_one(doc! { "_id": 1 }).await.unwrap();
    match *things.insert_one(doc! { "_id": 1 }).await.unwrap_err().kind {
        ErrorKind::Write(WriteFailure::WriteError(ref e)) => assert_eq!(e.code, 11000),
        ref other => panic!("{other:?}"),
    }
    match *things.find(doc! { "$nope": 1 }).await.err().unwrap().kind {
        ErrorKind::Command(ref e) => assert_eq!((e.code, e.code_name.as_str()), (2, "BadValue")),
        ref other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn indexes_and_aggregation() {
    let server = Server::start().await;
    let things = server.things().await;
    let unique = IndexOptions::builder().unique(true).build();
    let made = things
        .create_index(
            IndexModel::builder()
                .keys(doc! { "k": 1, "v": -1 })
                .options(unique)
                .build(),
        )
        .await
        .unwrap();
    assert_eq!(made.index_name, "k_1_v_-1");
    things
        .insert_many((0..100).map(|i| doc! { "k": i % 10, "v": i }))
        .await
        .unwrap();
    assert_eq!(
        things.list_index_names().await.unwrap(),
        ["_id_", "k_1_v_-1"]
    );
    let sums: Vec<Document> = things
        .aggregate([
            doc! { "$match": { "k": { "$lt": 2 } } },
            doc! { "$group": { "_id": "$k", "s": { "$sum": "$v" } } },
            doc! { "$sort": { "_id": 1 } },
        ])
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(
        sums,
        [doc! { "_id": 0, "s": 450 }, doc! { "_id": 1, "s": 460 }]
    );
    assert_eq!(things.distinct("k", doc! {}).await.unwrap().len(), 10);
}

#[tokio::test]
async fn concerns_sessions_compression() {
    let server = Server::start().await;
    let things = server.things().await;
    for concern in [
        WriteConcern::nodes(1),
        WriteConcern::majority(),
        WriteConcern::builder().journal(true).build(),
    ] {
        things
            .insert_one(doc! { "_id": ObjectId::new() })
            .write_concern(concern)
            .await
            .unwrap();
    }
    let client = server.client("").await;
    let mut session = client.start_session().await.unwrap();
    let things: Collection<Document> = client.database("rust").collection("things");
    things
        .insert_one(doc! { "_id": "s" })
        .session(&mut session)
        .await
        .unwrap();
    assert!(
        things
            .find_one(doc! { "_id": "s" })
            .session(&mut session)
            .await
            .unwrap()
            .is_some()
    );
    for compressor in ["snappy", "zlib"] {
        let compressed = server.client(&format!("&compressors={compressor}")).await;
        let things: Collection<Document> = compressed.database("rust").collection(compressor);
        things
            .insert_many((0..50).map(|i| doc! { "_id": i, "text": "again ".repeat(100) }))
            .await
            .unwrap();
        assert_eq!(things.count_documents(doc! {}).await.unwrap(), 50);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks() {
    let server = Server::start().await;
    let things = server.things().await;
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let things = things.clone();
            tokio::spawn(async move {
                for i in 0..20 {
                    things
                        .insert_one(doc! { "_id": n * 100 + i })
                        .await
                        .unwrap();
                    things
                        .update_one(doc! { "_id": "sum" }, doc! { "$inc": { "n": 1 } })
                        .upsert(true)
                        .await
                        .ok();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(things.count_documents(doc! {}).await.unwrap(), 32 * 20 + 1);
}

/// The accounts of two databases; the first has 100, the second nothing.
async fn accounts(client: &Client) -> (Collection<Document>, Collection<Document>) {
    let from: Collection<Document> = client.database("rust").collection("accounts");
    let to: Collection<Document> = client.database("rust_other").collection("accounts");
    from.insert_one(doc! { "_id": "a", "n": 100 })
        .await
        .unwrap();
    to.insert_one(doc! { "_id": "b", "n": 0 }).await.unwrap();
    (from, to)
}

/// Moves one from the first to the second, by a read and two updates.
async fn transfer(
    from: &Collection<Document>,
    to: &Collection<Document>,
    session: &mut ClientSession,
) -> Result<()> {
    let found = from
        .find_one(doc! { "_id": "a" })
        .session(&mut *session)
        .await?;
    let n = found.unwrap().get_i32("n").unwrap();
    from.update_one(doc! { "_id": "a" }, doc! { "$set": { "n": n - 1 } })
        .session(&mut *session)
        .await?;
    to.update_one(doc! { "_id": "b" }, doc! { "$inc": { "n": 1 } })
        .session(session)
        .await?;
    Ok(())
}

/// A transaction as the manual has it for drivers without a call of its own for it: all of it again
/// after a transient error, the commit alone again after an unknown outcome.
async fn with_retries(
    from: &Collection<Document>,
    to: &Collection<Document>,
    session: &mut ClientSession,
) -> Result<()> {
    loop {
        session.start_transaction().await?;
        if let Err(e) = transfer(from, to, session).await {
            session.abort_transaction().await?;
            if e.contains_label(TRANSIENT_TRANSACTION_ERROR) {
                continue;
            }
            return Err(e);
        }
        loop {
            match session.commit_transaction().await {
                Err(e) if e.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {}
                Err(e) if e.contains_label(TRANSIENT_TRANSACTION_ERROR) => break,
                outcome => return outcome,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions() {
    let server = Server::start().await;
    let client = server.client("").await;
    let (from, to) = accounts(&client).await;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let (client, from, to) = (client.clone(), from.clone(), to.clone());
            tokio::spawn(async move {
                let mut session = client.start_session().await?;
                if n % 2 == 0 {
                    return with_retries(&from, &to, &mut session).await;
                }
                let run = session.start_transaction();
                run.and_run2(async move |session| transfer(&from, &to, session).await)
                    .await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let n = |found: Option<Document>| found.unwrap().get_i32("n").unwrap();
    assert_eq!(n(from.find_one(doc! {}).await.unwrap()), 92);
    assert_eq!(n(to.find_one(doc! {}).await.unwrap()), 8);

    // The first writer wins, the other is told to begin again.
    let mut first = client.start_session().await.unwrap();
    let mut second = client.start_session().await.unwrap();
    first.start_transaction().await.unwrap();
    second.start_transaction().await.unwrap();
    transfer(&from, &to, &mut first).await.unwrap();
    let conflict = transfer(&from, &to, &mut second).await.unwrap_err();
    assert!(conflict.contains_label(TRANSIENT_TRANSACTION_ERROR));
    assert!(matches!(*conflict.kind, ErrorKind::Command(ref e) if e.code == 112));
    second.abort_transaction().await.unwrap();
    first.abort_transaction().await.unwrap();
    assert_eq!(n(from.find_one(doc! {}).await.unwrap()), 92);

    // An error of the application's own ends it, and nothing of it stays.
    let things = from.clone();
    let run = first.start_transaction();
    let mine: Result<()> = run
        .and_run2(async move |session| {
            things
                .insert_one(doc! { "_id": "x" })
                .session(session)
                .await?;
            Err(Error::custom("mine"))
        })
        .await;
    assert_eq!(mine.unwrap_err().get_custom::<&str>(), Some(&"mine"));
    assert!(from.find_one(doc! { "_id": "x" }).await.unwrap().is_none());
}

/// A commit whose outcome the driver does not learn is sent again, and done once.
#[tokio::test]
async fn a_commit_is_sent_again() {
    let server = Server::start().await;
    let client = server.client("").await;
    let (from, to) = accounts(&client).await;
    let mut session = client.start_session().await.unwrap();
    let admin = client.database("admin");
    let fail =
        doc! { "failCommands": ["commitTransaction"], "errorCode": 6, "closeConnection": false };
    admin
        .run_command(
            doc! { "configureFailPoint": "failCommand", "mode": { "times": 2 }, "data": fail },
        )
        .await
        .unwrap();
    session.start_transaction().await.unwrap();
    transfer(&from, &to, &mut session).await.unwrap();
    let mut unknown = 0;
    while let Err(e) = session.commit_transaction().await {
        assert!(e.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT), "{e}");
        unknown += 1;
    }
    // The driver may have sent it again by itself.
    assert!((1..=2).contains(&unknown), "{unknown}");
    session.commit_transaction().await.unwrap();
    let found = to.find_one(doc! { "n": 1 }).await.unwrap();
    assert!(found.is_some());
}
