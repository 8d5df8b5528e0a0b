//! SCRAM messages of any bytes, to both sides.

use braid_auth::scram::{
    MAX_MESSAGE_BYTES, Nonce, ScramClient, ScramCredential, ScramError, ScramLookup, ScramServer,
};

/// Credential of the password `pencil`.
const CREDENTIAL: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                          wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

/// Separator of messages: no byte of UTF-8.
const SEPARATOR: u8 = 0xFF;

/// The first byte chooses the side under test, and two messages of the other side follow. Nothing panics; errors are
/// one line; a peer who does not know the password is never accepted by either side.
pub fn scram(data: &[u8]) {
    let Some((side, data)) = data.split_first() else { return };
    let mut messages = data.split(|byte| *byte == SEPARATOR);
    let (first, last) = (messages.next().unwrap_or_default(), messages.next().unwrap_or_default());
    let done = if side % 2 == 0 { to_server(first, last) } else { to_client(first, last) };
    if let Err(error) = done {
        let text = error.to_string();
        assert!(!text.contains(char::is_control), "{text}");
    }
}

fn to_server(first: &[u8], last: &[u8]) -> Result<(), ScramError> {
    let lookup = |user: &str| {
        assert!(!user.is_empty() && !user.contains('\0'));
        match user {
            "user" => ScramLookup::Known(ScramCredential::parse(CREDENTIAL).expect("a credential")),
            _ => ScramLookup::Unknown { iterations: 4_096, salt_bytes: 16 },
        }
    };
    let (answer, state) = ScramServer::new(nonce(), [1; 32]).handle_first(first, lookup)?;
    let answer = String::from_utf8(answer).expect("text");
    assert!(answer.starts_with("r=") && answer.contains("server-nonce,s=") && answer.ends_with(",i=4096"));
    assert!(first.len() <= MAX_MESSAGE_BYTES);
    let success = state.handle_final(last)?;
    // The corpus has proofs of this user for `c=biws` and `c=eSws`; no other user has a password.
    assert_eq!(&*success.user, "user");
    assert!(success.message.starts_with(b"v="));
    Ok(())
}

fn to_client(first: &[u8], last: &[u8]) -> Result<(), ScramError> {
    let (_, client) = ScramClient::start("user", b"pencil", nonce())?;
    let (answer, state) = client.handle_first(first)?;
    assert!(answer.starts_with(b"c=biws,r=server-nonce"));
    state.handle_final(last)
}

fn nonce() -> Nonce {
    Nonce::parse("server-nonce").expect("a nonce")
}
