//! SCRAM-SHA-256: vectors of RFC 7677, exchanges, and messages that break the rules.

use braid_auth::scram::{
    MAX_MESSAGE_BYTES, MAX_NONCE_BYTES, Nonce, ScramClient, ScramClientFinal, ScramCredential, ScramError,
    ScramLookup, ScramServer, ScramServerFinal,
};

use crate::generator::for_each_seed;

const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                            p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

const CREDENTIAL: &str = crate::password::SCRAM;

fn nonce(text: &str) -> Nonce {
    Nonce::parse(text).expect("a nonce")
}

fn credential() -> ScramCredential {
    ScramCredential::parse(CREDENTIAL).expect("a credential")
}

fn known(user: &str) -> ScramLookup {
    assert_eq!(user, "user");
    ScramLookup::Known(credential())
}

/// Server of the RFC, before the first message.
fn server() -> ScramServer {
    ScramServer::new(nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"), [1; 32])
}

fn first(message: &str) -> Result<(String, ScramServerFinal), ScramError> {
    let (message, state) = server().handle_first(message.as_bytes(), known)?;
    Ok((String::from_utf8(message).expect("text"), state))
}

/// Client of the RFC, before the first message of the server.
fn client(password: &str) -> ScramClient {
    ScramClient::start("user", password.as_bytes(), nonce("rOprNGfwEbeRWgbNEkqO")).expect("a client").1
}

fn client_final() -> ScramClientFinal {
    client("pencil").handle_first(SERVER_FIRST.as_bytes()).expect("an answer").1
}

#[test]
fn server_agrees_with_the_example_of_the_rfc() {
    let (message, state) = first(CLIENT_FIRST).expect("an answer");
    assert_eq!((&*message, state.user()), (SERVER_FIRST, "user"));
    let success = state.handle_final(CLIENT_FINAL.as_bytes()).expect("success");
    assert_eq!((&*success.user, &*success.message), ("user", SERVER_FINAL.as_bytes()));
}

#[test]
fn client_agrees_with_the_example_of_the_rfc() {
    let (message, state) =
        ScramClient::start("user", b"pencil", nonce("rOprNGfwEbeRWgbNEkqO")).expect("a client");
    assert_eq!(message, CLIENT_FIRST.as_bytes());
    let (message, state) = state.handle_first(SERVER_FIRST.as_bytes()).expect("an answer");
    assert_eq!(message, CLIENT_FINAL.as_bytes());
    assert_eq!(state.handle_final(SERVER_FINAL.as_bytes()), Ok(()));
}

/// Each row: a first message of a client, and the error.
#[test]
fn each_bad_first_message_of_a_client_has_its_error() {
    let cases = [
        ("", ScramError::Gs2Header),
        ("n", ScramError::Gs2Header),
        ("n,", ScramError::Gs2Header),
        ("x,,n=user,r=abc", ScramError::Gs2Header),
        ("N,,n=user,r=abc", ScramError::Gs2Header),
        ("n,b=user,n=user,r=abc", ScramError::Gs2Header),
        ("n=user,r=abc", ScramError::Gs2Header),
        ("p=tls-exporter,,n=user,r=abc", ScramError::ChannelBinding),
        ("n,a=other,n=user,r=abc", ScramError::AuthorizationIdentity),
        ("n,a=,n=user,r=abc", ScramError::AuthorizationIdentity),
        ("n,a=us=er,n=user,r=abc", ScramError::User),
        ("n,,", ScramError::Attribute('n')),
        ("n,,r=abc,n=user", ScramError::Attribute('n')),
        ("n,,n:user,r=abc", ScramError::Attribute('n')),
        ("n,,n=user", ScramError::Attribute('r')),
        ("n,,n=user,x=1,r=abc", ScramError::Attribute('r')),
        ("n,,m=x,n=user,r=abc", ScramError::MandatoryExtension),
        ("n,,n=user,r=abc,m=x", ScramError::MandatoryExtension),
        ("n,,n=user,r=abc,", ScramError::Extension),
        ("n,,n=user,r=abc,xx=1", ScramError::Extension),
        ("n,,n=user,r=abc,1=1", ScramError::Extension),
        ("n,,n=user,r=abc,x=", ScramError::Extension),
        ("n,,n=,r=abc", ScramError::User),
        ("n,,n=\u{AD},r=abc", ScramError::User),
        ("n,,n=us=er,r=abc", ScramError::User),
        ("n,,n=us=2cer,r=abc", ScramError::User),
        ("n,,n=user=,r=abc", ScramError::User),
        ("n,,n=us\u{7}er,r=abc", ScramError::User),
        ("n,,n=us\u{E000}er,r=abc", ScramError::User),
        ("n,,n=user,r=", ScramError::Nonce),
        ("n,,n=user,r=a b", ScramError::Nonce),
        ("n,,n=user,r=a\u{e9}", ScramError::Nonce),
        ("n,,n=us\0er,r=abc", ScramError::NotText),
    ];
    for (message, expected) in cases {
        assert_eq!(first(message).map(|_| ()), Err(expected), "{message:?}");
    }
    assert_eq!(server().handle_first(b"n,,n=\xFF,r=abc", known).map(|_| ()), Err(ScramError::NotText));
    for (length, expected) in [(MAX_NONCE_BYTES, Ok(())), (MAX_NONCE_BYTES + 1, Err(ScramError::Nonce))] {
        assert_eq!(first(&format!("n,,n=user,r={}", "x".repeat(length))).map(|_| ()), expected);
    }
    let mut long = format!("{CLIENT_FIRST},x=");
    long.push_str(&"y".repeat(MAX_MESSAGE_BYTES - long.len()));
    assert_eq!(first(&long).map(|_| ()), Ok(()));
    long.push('y');
    assert_eq!(first(&long).map(|_| ()), Err(ScramError::TooLong));
}

#[test]
fn each_bad_final_message_of_a_client_has_its_error() {
    let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    let other = "eHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    let cases = [
        (String::new(), ScramError::Attribute('p')),
        (format!("c=biws,r={nonce}"), ScramError::Attribute('p')),
        (format!("p={proof}"), ScramError::Attribute('p')),
        (format!("r={nonce},c=biws,p={proof}"), ScramError::Attribute('c')),
        (format!("c=biws,p={proof}"), ScramError::Attribute('r')),
        (format!("m=x,c=biws,r={nonce},p={proof}"), ScramError::MandatoryExtension),
        (format!("c=biws,r={nonce},m=x,p={proof}"), ScramError::MandatoryExtension),
        (format!("c=biws,r={nonce},x,p={proof}"), ScramError::Extension),
        (format!("c=eSws,r={nonce},p={proof}"), ScramError::ChannelBindingMismatch),
        (format!("c=,r={nonce},p={proof}"), ScramError::ChannelBindingMismatch),
        (format!("c=biws,r=rOprNGfwEbeRWgbNEkqO,p={proof}"), ScramError::NonceMismatch),
        (format!("c=biws,r={nonce}x,p={proof}"), ScramError::NonceMismatch),
        (format!("c=biws,r=,p={proof}"), ScramError::NonceMismatch),
        (format!("c=biws,r={nonce},p="), ScramError::Base64('p')),
        (format!("c=biws,r={nonce},p=????"), ScramError::Base64('p')),
        (format!("c=biws,r={nonce},p=AAAA"), ScramError::Base64('p')),
        (format!("c=biws,r={nonce},p={proof},x=1"), ScramError::Base64('p')),
        (format!("c=biws,r={nonce},p={other}"), ScramError::Rejected),
        (format!("c=biws,r={nonce},x=1,p={proof}"), ScramError::Rejected),
        ("x".repeat(MAX_MESSAGE_BYTES + 1), ScramError::TooLong),
    ];
    for (message, expected) in cases {
        let state = first(CLIENT_FIRST).expect("an answer").1;
        assert_eq!(state.handle_final(message.as_bytes()), Err(expected), "{message}");
    }
    for length in 0..CLIENT_FINAL.len() {
        let state = first(CLIENT_FIRST).expect("an answer").1;
        assert!(state.handle_final(&CLIENT_FINAL.as_bytes()[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn each_bad_message_of_a_server_has_its_error() {
    let nonce = "rOprNGfwEbeRWgbNEkqO";
    let refused = |result: Result<_, ScramError>| result.expect_err("an error").to_string();
    let cases = [
        (String::new(), ScramError::Attribute('r')),
        (format!("s=W22Z,r={nonce}x,i=4096"), ScramError::Attribute('r')),
        (format!("r={nonce}x,i=4096"), ScramError::Attribute('s')),
        (format!("r={nonce}x,s=W22Z"), ScramError::Attribute('i')),
        (format!("m=x,r={nonce}x,s=W22Z,i=4096"), ScramError::MandatoryExtension),
        (format!("r={nonce}x,s=W22Z,i=4096,"), ScramError::Extension),
        (format!("r=x{nonce},s=W22Z,i=4096"), ScramError::NonceMismatch),
        (format!("r={nonce},s=W22Z,i=4096"), ScramError::Nonce),
        (format!("r={nonce} x,s=W22Z,i=4096"), ScramError::Nonce),
        (format!("r={nonce}x,s=,i=4096"), ScramError::Base64('s')),
        (format!("r={nonce}x,s=W22,i=4096"), ScramError::Base64('s')),
        (format!("r={nonce}x,s=W22Z,i=4095"), ScramError::Iterations),
        (format!("r={nonce}x,s=W22Z,i=1000001"), ScramError::Iterations),
        (format!("r={nonce}x,s=W22Z,i=-1"), ScramError::Iterations),
        (format!("r={nonce}x,s=W22Z,i="), ScramError::Iterations),
        ("x".repeat(MAX_MESSAGE_BYTES + 1), ScramError::TooLong),
    ];
    for (message, expected) in cases {
        assert_eq!(client("pencil").handle_first(message.as_bytes()).map(|_| ()), Err(expected), "{message}");
    }
    assert_eq!(
        refused(client("pencil").handle_first(b"e=no-resources,x=1").map(|_| ())),
        "the server refused the SCRAM exchange: no-resources"
    );
    let cases = [
        ("", ScramError::Attribute('v')),
        ("v=", ScramError::Base64('v')),
        ("v=AAAA", ScramError::Base64('v')),
        ("m=x", ScramError::MandatoryExtension),
        ("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=,", ScramError::Extension),
        ("v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", ScramError::ServerSignature),
    ];
    for (message, expected) in cases {
        assert_eq!(client_final().handle_final(message.as_bytes()), Err(expected), "{message}");
    }
    assert_eq!(client_final().handle_final(format!("{SERVER_FINAL},x=1").as_bytes()), Ok(()));
    let long = format!("e=bad\x1B[2J\n{}", "x".repeat(100));
    let shown = refused(client_final().handle_final(long.as_bytes()));
    assert_eq!(shown, format!("the server refused the SCRAM exchange: bad[2J{}", "x".repeat(58)));
}

/// Runs an exchange; the result of the server.
fn exchange(user: &str, password: &str, stored: Option<&ScramCredential>) -> Result<Box<str>, ScramError> {
    let (message, client) = ScramClient::start(user, password.as_bytes(), Nonce::new([5; 18]))?;
    let lookup = |_: &str| match stored {
        Some(credential) => ScramLookup::Known(credential.clone()),
        None => ScramLookup::Unknown { iterations: 4_096, salt_bytes: 16 },
    };
    let (message, server) = ScramServer::new(Nonce::new([6; 18]), [1; 32]).handle_first(&message, lookup)?;
    let (message, client) = client.handle_first(&message)?;
    let success = server.handle_final(&message)?;
    client.handle_final(&success.message)?;
    Ok(success.user)
}

#[test]
fn exchanges_succeed_with_the_right_password_only() {
    let names = ["user", "a,b=c", "=2C", "a b", "\u{65e5}\u{672c}", "I\u{AD}X", "\u{2168}"];
    let prepared = ["user", "a,b=c", "=2C", "a b", "\u{65e5}\u{672c}", "IX", "IX"];
    let passwords = ["pencil", "p", " ", "I\u{AD}X", "a\u{7}", "\u{627}1", "a\u{a0}b"];
    for_each_seed(20, |rng| {
        let (name, stored) = (rng.usize(..names.len()), rng.usize(..passwords.len()));
        let salt: [u8; 16] = std::array::from_fn(|_| rng.u8(..));
        let credential = ScramCredential::derive(passwords[stored].as_bytes(), &salt, rng.u32(4_096..4_200))
            .expect("a credential");
        assert_eq!(
            exchange(names[name], passwords[stored], Some(&credential)).as_deref(),
            Ok(prepared[name])
        );
        let other = (stored + rng.usize(1..passwords.len())) % passwords.len();
        let result = exchange(names[name], passwords[other], Some(&credential));
        assert_eq!(result, Err(ScramError::Rejected), "{other} {stored}");
        assert_eq!(exchange(names[name], passwords[stored], None), Err(ScramError::Rejected));
    });
}

/// RFC 4013, section 3: both are `IX`.
#[test]
fn passwords_are_prepared() {
    let credential =
        ScramCredential::derive("\u{2168}".as_bytes(), b"saltsalt", 4_096).expect("a credential");
    assert_eq!(exchange("user", "I\u{AD}X", Some(&credential)).as_deref(), Ok("user"));
    assert!(credential.verify(b"IX") && !credential.verify(b"ix"));
}

#[test]
fn a_client_that_could_bind_the_channel_is_accepted() {
    let (message, state) = first(&CLIENT_FIRST.replacen('n', "y", 1)).expect("an answer");
    let (answer, _) = client("pencil").handle_first(message.as_bytes()).expect("an answer");
    // The proof covers the header.
    let answer = String::from_utf8(answer).expect("text").replace("c=biws", "c=eSws");
    assert_eq!(state.handle_final(answer.as_bytes()), Err(ScramError::Rejected));
    let (_, state) = first("y,a=user,n=user,r=rOprNGfwEbeRWgbNEkqO").expect("an answer");
    assert_eq!(state.handle_final(CLIENT_FINAL.as_bytes()), Err(ScramError::ChannelBindingMismatch));
}

/// An observer of one exchange cannot repeat it with another nonce of the server.
#[test]
fn an_exchange_cannot_be_replayed() {
    let replay = |message: &str| {
        let server = ScramServer::new(Nonce::new([9; 18]), [1; 32]);
        let (first, state) = server.handle_first(CLIENT_FIRST.as_bytes(), known).expect("an answer");
        let first = String::from_utf8(first).expect("text");
        let nonce = first.split([',', '=']).nth(1).expect("a nonce").to_owned();
        state.handle_final(message.replace("NONCE", &nonce).as_bytes())
    };
    assert_eq!(replay(CLIENT_FINAL), Err(ScramError::NonceMismatch));
    let proof = CLIENT_FINAL.split_once(",p=").expect("a proof").1;
    assert_eq!(replay(&format!("c=biws,r=NONCE,p={proof}")), Err(ScramError::Rejected));
}

#[test]
fn unknown_users_get_stable_salts_of_the_asked_length() {
    let answer = |key: u8, user: &str, salt_bytes| {
        let lookup = |_: &str| ScramLookup::Unknown { iterations: 5_000, salt_bytes };
        let message = format!("n,,n={user},r=abc");
        let (message, state) = ScramServer::new(nonce("xyz"), [key; 32])
            .handle_first(message.as_bytes(), lookup)
            .expect("an answer");
        assert_eq!(state.user(), user);
        String::from_utf8(message).expect("text")
    };
    let usual = answer(1, "bob", 16);
    assert_eq!(usual, answer(1, "bob", 16));
    assert!(usual.starts_with("r=abcxyz,s=") && usual.ends_with("==,i=5000"), "{usual}");
    for other in [answer(2, "bob", 16), answer(1, "eve", 16)] {
        assert!(other != usual && other.len() == usual.len(), "{other}");
    }
    assert_eq!(answer(1, "bob", 64).len(), usual.len() + 64);
    assert_eq!(answer(1, "bob", 1000), answer(1, "bob", 64), "longer salts are not allowed in files either");
}

#[test]
fn states_show_no_secrets() {
    let (_, state) = first(CLIENT_FIRST).expect("an answer");
    let shown =
        format!("{state:?} {:?} {:?} {:?} {:?}", server(), client("pencil"), client_final(), credential());
    for secret in ["pencil", "WG5d8", "wfPLw", "[", "W22Z"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    assert!(shown.contains("user: \"user\""));
}
