//! Password files.

mod edit;
mod format;
mod verify;

use braid_auth::password::PasswordFile;

/// Hashes of the password `pencil`, of each kind: by argon2-cffi, mosquitto_passwd 2.0.11, and hashlib of Python.
pub(crate) const HASHES: [&str; 7] = [
    ARGON2ID,
    "$argon2id$v=19$m=47104,t=1,p=1$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0\
     +Pw$5EhB9PZ9nhTg5BPosIgfQjmu9IrR4MrbI97RRPxrpO+8jjXCQi6CmWrwomgMQcE768glXc7uI4P8kOagkQohyg",
    "$argon2id$v=19$m=64,t=3,p=4$c2FsdHNhbHQ$HiKHr6gIpR78Y4NoTuAHNjPUpBtruFnk0CfVsm6J6c8",
    "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$jeHutNAspXQ+Qpnj83+s4w",
    PBKDF2,
    "$6$OvdRYHBOeln8MEGo$/q9uC8WsMvRERHh7C5PmnthudBqiEbPeG4OrK4IoUNVjofMC4AiJ9yAeAVUj3sjGos7wcNXvUl88bCjHsytNGA==",
    SCRAM,
];

pub(crate) const ARGON2ID: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$MDEyMzQ1Njc4OWFiY2RlZg$stzJyf6wzR+1sZ/FVbDqt0v765DMsr6xCu1DEFHYexE";

pub(crate) const PBKDF2: &str = "$7$101$JZgyKE10E0lOjZYe$/XoWiKuyC8k39VBkc1FKteceeihAFXy2fbcVXSAMVakshj/kwqAqOlIVx02E4CV3atAIkyFCysSvfmmCzw6u4g==";

pub(crate) const SCRAM: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
     wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

/// File with a user `u0`, `u1` and so on for each hash.
pub(crate) fn file(hashes: &[&str], end: &str) -> String {
    let lines = hashes.iter().enumerate().map(|(number, hash)| format!("u{number}:{hash}{end}"));
    lines.collect()
}

pub(crate) fn parse(text: &str) -> PasswordFile {
    PasswordFile::parse(text.as_bytes(), "passwords").expect(text)
}
