//! Password files of any bytes.

use braid_auth::password::{PasswordFile, PasswordHash, remove, upsert};

/// User that is added and removed.
const USER: &str = "someone";

/// Cheap to parse.
const HASH: &str = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w";

/// A file is refused with one line without hashes, or its users are found, shown without secrets, and survive edits.
pub fn password_file(data: &[u8]) {
    let file = match PasswordFile::parse(data, "file") {
        Ok(file) => file,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains(char::is_control) && text.starts_with("file:"), "{text}");
            return;
        }
    };
    assert!(data.ends_with(b"\n"));
    let text = str::from_utf8(data).expect("it was accepted");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let hashes: Vec<_> = lines.filter_map(|line| line.split_once(':')).collect();
    let users: Vec<_> = file.users().collect();
    assert_eq!(users.iter().map(|(user, _)| *user).collect::<Vec<_>>(), names(&hashes));
    for ((user, kind), (_, hash)) in users.iter().zip(&hashes) {
        assert!(file.contains(user));
        let parsed = PasswordHash::parse(hash).expect("it was accepted");
        assert_eq!((parsed.to_text().as_str(), parsed.kind()), (*hash, *kind));
        assert!(!format!("{file:?} {parsed:?} {kind}").contains(hash));
    }
    let hash = PasswordHash::parse(HASH).expect("a hash");
    let edited = upsert(data, "file", USER, &hash).expect("it was accepted");
    let after = PasswordFile::parse(&edited.text, "file").expect("an edit keeps it whole");
    assert_eq!(edited.replaced, file.contains(USER));
    assert_eq!(after.users().len(), users.len() + usize::from(!edited.replaced));
    let removed = remove(&edited.text, "file", USER).expect("it was accepted").expect("it was added");
    if !edited.replaced {
        assert_eq!(removed, data);
    }
}

fn names<'a>(lines: &[(&'a str, &str)]) -> Vec<&'a str> {
    lines.iter().map(|(user, _)| *user).collect()
}
