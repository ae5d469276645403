//! Both sides of an exchange with each other, with the examples of the standards, and with nonsense.

use super::*;
use bson::doc;

fn exchange(client: &mut ScramClient, credential: Credential, genuine: bool) -> ScramStep {
    let first = First::parse(client.first().as_bytes()).unwrap();
    let (server, reply) = Exchange::begin(first, credential, genuine, &nonce());
    let last = client.last(&reply).unwrap();
    server.end(last.as_bytes()).unwrap()
}

fn proven(step: &ScramStep, client: &ScramClient) -> bool {
    matches!(step, ScramStep::Proven(last) if client.proven(last))
}

/// The example of RFC 7677.
#[test]
fn the_example_of_the_standard() {
    let salt = decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    let credential = Credential::with_salt(Hash::Sha256, "pencil", salt, 4096);
    let first = First::parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").unwrap();
    assert_eq!(first.user, "user");
    let server_nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let (exchange, reply) = Exchange::begin(first, credential, true, server_nonce);
    assert_eq!(
        reply,
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    );
    let last = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    let ScramStep::Proven(reply) = exchange.end(last).unwrap() else {
        panic!("refused")
    };
    assert_eq!(reply, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
}

#[test]
fn the_right_password_is_proven_and_no_other() {
    for hash in Hash::ALL {
        let credential = Credential::new(hash, "a=b,c", "pässword", 100).unwrap();
        let mut kept = bson::Writer::new();
        kept.doc(hash.mechanism(), credential.document().as_doc());
        let kept = kept.finish();
        let credential = Credential::read(kept.as_doc(), hash).unwrap();
        for (password, right) in [("pässword", true), ("password", false), ("", false)] {
            let password = match hash {
                Hash::Sha1 => digest_password("a=b,c", password),
                Hash::Sha256 => password.to_string(),
            };
            let mut client = ScramClient::new(hash, "a=b,c", &password, &nonce());
            let step = exchange(&mut client, credential.clone(), true);
            assert_eq!(proven(&step, &client), right);
            let step = exchange(&mut client, credential.clone(), false);
            assert!(matches!(step, ScramStep::Refused));
        }
    }
}

#[test]
fn an_unknown_user_looks_like_a_known_one() {
    let nobody = |name: &str| Credential::of_unknown_user(Hash::Sha256, name, b"secret", 15000);
    assert!(nobody("a@b") == nobody("a@b") && nobody("a@b").salt != nobody("c@b").salt);
    let real = Credential::of_prepared(Hash::Sha256, "x", 1);
    assert_eq!(nobody("a@b").salt.len(), real.salt.len());
}

#[test]
fn bent_messages_are_errors() {
    let first = [
        "",
        "n",
        "n,,",
        "n,,n=,r=x",
        "n,,n=u",
        "n,,n=u,r=",
        "p=tls-unique,,n=u,r=x",
        "n,a=v,n=u,r=x",
        "n,,n=u=2,r=x",
        "n,,n=u=2X,r=x",
        "n,,m=ext,n=u,r=x",
    ];
    for message in first {
        assert!(First::parse(message.as_bytes()).is_err(), "{message}");
    }
    assert!(First::parse(b"n,,n=\xff,r=x").is_err());
    assert!(First::parse(&[b'n'; 10_000]).is_err());
    assert!(First::parse(b"n,a=u,n=u,r=x").is_ok());
    let last = [
        "",
        "c=biws",
        "c=biws,r=xy",
        "c=biws,r=xy,p=",
        "c=biws,r=xy,p=AAAA",
        "c=AAAA,r=xy,p=AAAA",
        "r=xy,c=biws,p=AAAA",
        "c=biws,r=x,p=AAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "c=biws,r=xy,p=%",
    ];
    for message in last {
        let first = First::parse(b"n,,n=u,r=x").unwrap();
        let credential = Credential::of_prepared(Hash::Sha1, "p", 1);
        let (exchange, _) = Exchange::begin(first, credential, true, "y");
        assert!(exchange.end(message.as_bytes()).is_err(), "{message}");
    }
}

#[test]
fn damaged_credentials_are_none() {
    let whole = Credential::of_prepared(Hash::Sha256, "p", 5).document();
    let with = |field: &str, v: bson::Value| {
        let mut w = bson::Writer::new();
        for e in whole.as_doc().iter() {
            match e.name == field {
                true => w.val(field, v.as_val()),
                false => w.val(e.name, e.val),
            };
        }
        let kept = doc! { "SCRAM-SHA-256": w.finish() };
        Credential::read(kept.as_doc(), Hash::Sha256).is_some()
    };
    assert!(with("none", 1.into()));
    for field in ["salt", "storedKey", "serverKey"] {
        assert!(!with(field, "%".into()) && !with(field, 1.into()));
    }
    assert!(!with("storedKey", "AAAA".into()) && !with("iterationCount", 0.into()));
}

/// The example of RFC 5802, and the client's part of it.
#[test]
fn the_client_of_the_older_standard() {
    let mut s = ScramClient::new(Hash::Sha1, "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL");
    assert!(!s.proven("v="));
    assert_eq!(s.first(), "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL");
    let last = s.last("r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096");
    assert_eq!(
        last.as_deref(),
        Some("c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=")
    );
    assert!(s.proven("v=rmF9pqV8S7suAoZWja4dJRkFsKQ="));
}

#[test]
fn challenges_that_make_no_sense_are_not_answered() {
    assert_eq!(Hash::named("SCRAM-SHA-1"), Some(Hash::Sha1));
    assert_eq!(Hash::named("MONGODB-X509"), None);
    assert_ne!(nonce(), nonce());
    let mut s = ScramClient::new(Hash::Sha256, "a=b,c", "p", "x");
    assert_eq!(s.first(), "n,,n=a=3Db=2Cc,r=x");
    for bad in [
        "",
        "r=xy",
        "r=xy,s=!,i=1",
        "r=xy,s=QQ==,i=0",
        "r=xy,s=QQ==,i=9999999",
        "r=other,s=QQ==,i=1",
    ] {
        assert!(s.last(bad).is_none(), "{bad}");
    }
}
